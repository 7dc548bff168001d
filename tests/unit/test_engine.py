"""The parts of the built-in engine: model, tokenizer, settings, and its page of metrics beside captured ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

import turnout.engine
from turnout import Replica, Router, Workload, _core, policies
from turnout.engine import EngineConfig, tokenizer
from turnout.errors import InvalidArgument, InvalidTokens, MissingExtra

MODEL = _core.engines()["qwen3-8b-h200"]


@pytest.mark.parametrize(
    "text", ["plain", "Zürich 東京 🙂", "a<|300|>b", "<|257|><|", "<|255|> and <|99999999999|>", ""]
)
def test_text_comes_back(text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_marks_are_one_token_and_bytes_are_not_marks() -> None:
    assert tokenizer.encode("<|256|>x<|255|>") == [256, 120, *b"<|255|>"]
    assert tokenizer.decode([0xFF, 0x61]) == "\N{REPLACEMENT CHARACTER}a"


def test_a_router_that_listens_knows_what_the_engine_will_find() -> None:
    for dialect in ("vllm", "sglang"):
        model = _core.ModelEngine(MODEL, kv_tokens=640, dialect=dialect)
        router = Router([Replica("e", kv_tokens=640)], [Workload("w")], policy=policies.Open())
        sequence, now = 0, 0.0
        for request in range(40):
            prompt = [request % 3] * 48 + list(range(request % 5 * 16 + 1))
            expected = dict(router.peek(prompt)).get("e", 0)
            model.submit(request, prompt, max_new_tokens=20, now=now)
            now += 10.0
            ((_, output, cached, _, finished),) = model.advance(now)
            assert (len(output), finished) == (20, True)
            # The engine computes the last token always, so it finds at most what lies before it.
            assert cached == min(expected, (len(prompt) - 1) // 16 * 16)
            for payload in model.kv_batches(timestamp_s=now):
                assert router.kv_events("e", payload, sequence=sequence, now=now).status == "done"
                sequence += 1
        numbers = model.counters()
        assert numbers["prefix_hits_total"] > 0
        assert numbers["kv_tokens"] == 640 > numbers["evictable_tokens"] > 0 == numbers["used_tokens"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kv_tokens": 3}, "kv_tokens"),
        ({"kv_tokens": -1}, "kv_tokens"),
        ({"block_tokens": 0}, "block_tokens"),
        ({"dialect": "other"}, "dialect"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_model_that_cannot_run_is_refused(change: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        _core.ModelEngine(MODEL, **{"kv_tokens": 4096, **change})
    assert refused.value.argument == named


def test_a_request_that_cannot_run_is_refused_and_changes_nothing() -> None:
    model = _core.ModelEngine(MODEL, kv_tokens=64)
    for tokens, bound, error in (([], 1, InvalidArgument), ([1] * 60, 5, InvalidArgument), ([-1], 1, InvalidTokens)):
        with pytest.raises(error):
            model.submit(1, tokens, max_new_tokens=bound, now=0.0)
    assert (model.next_at, model.counters()["waiting"], model.abort(1, now=0.0)) == (None, 0, False)
    assert model.submit(1, [1] * 60, now=0.0) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"engine": "none"},
        {"dialect": "trt"},
        {"speed": 0.0},
        {"speed": float("nan")},
        {"port": 70_000},
        {"kv_events_port": 65_534},
        {"model": ""},
    ],
)
def test_settings_are_checked(change: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        EngineConfig(**change)  # type: ignore[arg-type]
    assert refused.value.argument == next(iter(change))


def test_the_command_refuses_in_one_line() -> None:
    command = [sys.executable, "-m", "turnout.cli", "engine", "--speed", "0"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr == "turnout: speed: got 0.0, accepted is above 0 to 10000\n"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "turnout.engine.server", raising=False)
    with pytest.raises(MissingExtra, match=r"uvicorn: pip install 'turnout\[serve\]'"):
        _ = turnout.engine.EngineServer
