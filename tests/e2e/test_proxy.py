"""The proxy of a real server in front of real model engines."""

from __future__ import annotations

import asyncio
import json

import pytest

from turnout.prompts import text_units


def test_plain_and_streaming_chats_as_the_openai_package_sees_them(proxied):
    async def play():
        async with proxied(engines=2) as served:
            client = served.openai()
            asked = {"model": "turnout-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 12}
            plain = await client.chat.completions.create(**asked)
            assert plain.usage.completion_tokens == 12
            text, last = "", None
            stream = await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
            async for chunk in stream:
                text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
                last = chunk
            assert (text, last.usage.completion_tokens) == (plain.choices[0].message.content, 12)
            assert [model.id async for model in client.models.list()] == ["turnout-model"]
            served.check_books(completed=2)

    asyncio.run(play())


def test_a_stream_is_passed_on_byte_for_byte(proxied):
    async def play():
        async with proxied(engines=1) as served:
            body = {"prompt": list(range(300, 340)), "max_tokens": 30, "stream": True, "seed": 5, "request_id": "same"}
            direct = await served.raw("/v1/completions", body, url=served.engines[0].url)
            through = await served.raw("/v1/completions", body)
            assert _texts(direct[2]) == _texts(through[2])
            assert through[2].endswith(b"data: [DONE]\n\n")
            assert through[1]["Content-Type"] == direct[1]["Content-Type"]
            assert through[1]["X-Turnout-Replica"] == served.names[0]
            served.check_books(completed=1)

    asyncio.run(play())


def _texts(raw):
    """Text and end of every event, joined: how an engine cuts its pieces is a matter of time."""
    events = [json.loads(line[6:]) for line in raw.split(b"\n") if line.startswith(b"data: {")]
    assert raw == b"".join(b"data: " + line[6:] + b"\n\n" for line in raw.split(b"\n") if line.startswith(b"data: "))
    return "".join(event["choices"][0]["text"] for event in events), events[-1]["choices"][0]["finish_reason"]


def test_a_session_named_by_any_known_header_or_field_stays_on_its_replica(proxied):
    async def play():
        async with proxied(engines=2) as served:
            ways = [
                ({"X-Session-ID": "a"}, {}),
                ({"X-Claude-Code-Session-Id": "b"}, {}),
                ({"Session-Id": "c"}, {}),
                ({"X-SMG-Routing-Key": "d"}, {}),
                ({"X-Correlation-ID": "e"}, {}),
                ({}, {"session_id": "f"}),
                ({}, {"metadata": {"session_id": "g"}}),
            ]
            for number, (headers, fields) in enumerate(ways):
                prompt = list(range(number * 1000, number * 1000 + 200))
                found = set()
                for turn in range(3):
                    body = {"prompt": prompt[: 100 + 50 * turn], "max_tokens": 4, **fields}
                    status, head, _ = await served.raw("/v1/completions", body, headers=headers)
                    assert status == 200
                    found.add(head["X-Turnout-Replica"])
                assert len(found) == 1
            assert served.stats["live_sessions"] == len(ways)
            ended = await served.raw("/finish_session?session_id=a", {})
            assert json.loads(ended[2]) == {"session_id": "a", "status": "done"}
            ended = await served.raw("/finish_session", {"session_id": "b"})
            assert json.loads(ended[2])["status"] == "done"
            ended = await served.raw("/v1/sessions/c", None, method="DELETE")
            assert json.loads(ended[2])["status"] == "done"
            assert json.loads((await served.raw("/finish_session?session_id=a", {}))[2])["status"] == "unknown"
            assert served.stats["sessions_finished"] == 3
            served.check_books()

    asyncio.run(play())


@pytest.mark.parametrize("tokens", ["auto", "text"])
def test_a_chat_that_names_no_session_goes_on_where_it_was(proxied, tokens):
    async def play():
        async with proxied(engines=2, tokens=tokens) as served:
            client = served.openai()
            chats = [[{"role": "user", "content": f"{name} asks " + name * 200}] for name in "abcdef"]
            where = [set() for _ in chats]
            for _ in range(3):
                for number, chat in enumerate(chats):
                    asked = client.chat.completions.with_raw_response
                    raw = await asked.create(model="turnout-model", messages=chat, max_tokens=8)
                    where[number].add(raw.headers["x-turnout-replica"])
                    chat += [
                        {"role": "assistant", "content": raw.parse().choices[0].message.content},
                        {"role": "user", "content": "and then?"},
                    ]
            assert [len(found) for found in where] == [1] * len(chats)
            assert served.stats["live_sessions"] == len(chats), "each chat is one session, as nobody said"
            source = {"auto": "tokens_by_engine", "text": "tokens_as_text"}[tokens]
            assert served.proxy.counts[source] == 18
            served.check_books(completed=18)

    asyncio.run(play())


def test_units_of_a_chat_begin_with_those_of_its_beginning():
    chat = [{"role": "system", "content": "ü"}, {"role": "user", "content": [{"type": "text", "text": "abc"}]}]
    answer = {"role": "assistant", "content": "x" * 13}
    whole = text_units([*chat, answer]).tolist()
    assert whole == text_units(chat).tolist() + text_units([answer]).tolist()
    assert (
        text_units([{"role": "user", "content": "ab"}]).tolist()
        != text_units([{"role": "usera", "content": "b"}]).tolist()
    )
