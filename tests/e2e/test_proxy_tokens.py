"""Where the tokens of a prompt come from, and whose a request is."""

from __future__ import annotations

import asyncio
import json
import sys
import types

import pytest

from turnout.engine import EngineConfig, EngineServer
from turnout.errors import InvalidArgument
from turnout.prompts import plain_units
from turnout.server.identity import Identify, Identity
from turnout.server.proxy_config import ProxyConfig


def word_tokenizer(path, words):
    """A real tokenizer of whole words, written as the Hugging Face libraries write it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(["?", *words])}, unk_token="?"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path))
    return path


def test_a_configured_tokenizer_makes_ids_of_text(proxied, tmp_path):
    async def play():
        words = [f"w{number}" for number in range(100)]
        path = word_tokenizer(tmp_path / "tokenizer.json", words)
        # Without cache events: the model engine's own tokens are bytes.
        async with proxied(engines=2, tokenizer=path, engine={"kv_events_port": None}) as served:
            prompt = " ".join(words[:64])
            _, head, _ = await served.raw("/v1/completions", {"prompt": prompt, "max_tokens": 2})
            assert served.routed.peek(list(range(1, 66))) == [(head["X-Turnout-Replica"], 64)]
            long = " ".join(words * 40)  # in a thread
            assert (await served.raw("/v1/completions", {"prompt": long, "max_tokens": 2}))[0] == 200
            assert (served.proxy.counts["tokens_by_tokenizer"], served.proxy.counts["tokens_by_engine"]) == (2, 0)
            served.check_books(completed=2)

    asyncio.run(play())


def test_the_engines_own_tokens_of_a_chat_meet_its_cache_events(proxied):
    async def play():
        async with proxied(engines=1) as served:
            body = {"messages": [{"role": "user", "content": "x" * 200}], "max_tokens": 2}
            await served.raw("/v1/chat/completions", body)
            async with served.session.post(f"{served.engines[0].url}/tokenize", json=body) as answer:
                tokens = (await answer.json())["tokens"]
            name = served.names[0]
            await served.until(lambda: served.routed.peek(tokens) == [(name, len(tokens) // 16 * 16)])
            async with served.session.post(f"{served.engines[0].url}/reset_prefix_cache"):
                pass
            await served.until(lambda: served.routed.peek(tokens) == [])

    asyncio.run(play())


def test_engines_alone_may_be_asked_for_tokens(proxied):
    async def play():
        async with proxied(dialect="sglang", tokens="engine") as served:
            status, _, raw = await served.raw("/v1/completions", {"prompt": "hi"})
            assert (status, json.loads(raw)["error"]["type"]) == (400, "InvalidArgument")
            assert (await served.raw("/v1/completions", {"prompt": [1, 2]}))[0] == 200
            served.check_books(completed=1)

    asyncio.run(play())


def test_ids_of_the_output_are_asked_for_where_the_operator_wants_exact_books(proxied):
    async def play():
        async with proxied(ask_output=True) as served:
            prompt = list(range(300, 364))
            for stream in (False, True):
                body = {"prompt": prompt, "max_tokens": 40, "stream": stream}
                _, _, raw = await served.raw("/v1/completions", body, headers={"X-Session-ID": str(stream)})
                assert b"token_ids" in raw
            assert served.stats["counted_outputs"] == 0
            served.check_books(completed=2)

    asyncio.run(play())


def test_cache_events_are_not_followed_where_prompts_are_text(proxied):
    async def play():
        async with (
            proxied(engines=0, tokens="text") as served,
            EngineServer(EngineConfig(kv_tokens=65_536)) as engine,
        ):
            await served.raw("/workers", {"url": engine.url})
            await served.until(lambda: len(served.routed.router.replicas) == 1)
            (status,) = served.proxy.fleet.status().engines
            assert status.feed.state == "off"
            story = "once upon a time " * 20
            for end in ("one", "two"):
                assert (await served.raw("/v1/completions", {"prompt": story + end}))[0] == 200
            found = served.routed.peek(plain_units(story), namespace="text:")
            assert found == [(status.name, len(story) // 4 // 16 * 16)]

    asyncio.run(play())


def test_plain_text_begins_with_the_units_of_its_beginning():
    text = "naïve text, some of it"
    whole = plain_units(text).tolist()
    for cut in range(4, len(text)):
        part = plain_units(text[:cut]).tolist()
        assert whole[: len(part)] == part
    assert len(plain_units("a")) == 1


def test_a_function_of_the_users_says_whose_a_request_is(proxied, monkeypatch):
    module = types.ModuleType("whose")

    def classify(headers, body):
        if body.get("max_tokens") == 3:
            raise RuntimeError("a defect of the user's")
        return {"session": headers["x-run"] + body["metadata"]["step"], "workload": "agent", "priority": 2}

    module.classify = classify
    monkeypatch.setitem(sys.modules, "whose", module)

    async def play():
        from turnout import Workload

        router = {"workloads": [Workload("chat"), Workload("agent")]}
        async with proxied(classify="whose:classify", router=router) as served:
            said = []
            served.routed.listen(lambda _, session, workload, __: said.append((session, workload)))
            body = {"prompt": [1, 2, 3], "metadata": {"step": "-7"}}
            await served.raw("/v1/completions", {**body, "max_tokens": 2}, headers={"X-Run": "r"})
            await served.raw("/v1/completions", {**body, "max_tokens": 3}, headers={"X-Run": "r", "X-Session-ID": "s"})
            assert said[0] == ("r-7", "agent")
            assert ("s", None) in said, "the request goes on without the function"
            assert served.proxy.identify.failures == 1
            served.check_books(completed=2)

    asyncio.run(play())


def test_names_come_from_the_function_then_headers_then_the_body():
    who = Identify(ProxyConfig(session_headers=("X-Mine", "X-Session-ID"), session_fields=("a.b",)))
    assert who({"x-session-id": "s", "x-mine": "m"}, {"a": {"b": "f"}}).session == "m"
    assert who({"x-session-id": "s"}, {"a": {"b": "f"}}).session == "s"
    assert who({}, {"a": {"b": 7}}).session == "7"
    assert who({}, {"a": "b", "session_id": "x"}) == Identity()
    said = {"metadata": {"turnout_workload": "agent", "turnout_parent": "p", "turnout_priority": 3}}
    assert who({}, said) == Identity(workload="agent", parent="p", priority=3)
    assert who({"x-turnout-workload": "chat"}, said).workload == "chat"
    for wrong in ({"x-mine": "x" * 2_000}, {"x-turnout-priority": "high"}):
        with pytest.raises(InvalidArgument):
            who(wrong, {})


def test_settings_are_checked():
    wrong = (
        {"wait_s": 0.0},
        {"comment_s": float("inf")},
        {"attempts": 0},
        {"tokens": "guess"},
        {"classify": "nothing"},
        {"engine_api_key": "a\r\nb"},
    )
    for settings in wrong:
        with pytest.raises(InvalidArgument):
            ProxyConfig(**settings)
    for missing in ("nowhere:function", "json:nothing", "json:decoder"):
        with pytest.raises(InvalidArgument):
            Identify(ProxyConfig(classify=missing))
