"""What a server says on stderr: one JSON object a line, for the things that matter."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
from contextlib import contextmanager

import pytest

from turnout import Replica, Router, aio
from turnout.engine import EngineConfig, EngineServer
from turnout.errors import InvalidArgument
from turnout.feeds import Fleet, Timing
from turnout.server.config import LogConfig
from turnout.server.log_events import EventLog
from turnout.server.logs import TextFormatter, say, set_up


@contextmanager
def captured(config):
    """Logging as the server sets it up, into a text; everything is as before afterwards."""
    root, ours = logging.getLogger(), logging.getLogger("turnout")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    servers = {name: logging.getLogger(name).handlers[:] for name in ("uvicorn", "uvicorn.error")}
    text, stderr = io.StringIO(), sys.stderr
    root.handlers = []
    sys.stderr = text
    try:
        set_up(config)
        yield text
    finally:
        sys.stderr = stderr
        logging.captureWarnings(capture=False)
        root.handlers = handlers
        for name, own in servers.items():
            logging.getLogger(name).handlers = own
        root.setLevel(levels[0])
        ours.setLevel(levels[1])


def lines(text):
    return [json.loads(line) for line in text.getvalue().splitlines()]


def events(text):
    return [line["event"] for line in lines(text)]


def test_every_line_is_one_object_whoever_says_it():
    with captured(LogConfig()) as text:
        say(logging.INFO, "ready", "ready: here", url="http://a", turn="two\nlines")
        wrong = ("uvicorn.error", logging.ERROR, __file__, 1, "Exception in ASGI application\n", (), _raised())
        logging.getLogger("uvicorn.error").handle(logging.LogRecord(*wrong))
        logging.getLogger("uvicorn.error").info("Started server process")
        logging.getLogger("turnout.aio.journal").warning("the journal %s is kept again", "x")
    ready, failed, journal = lines(text)
    assert (ready["event"], ready["level"], ready["url"], ready["turn"]) == ("ready", "info", "http://a", "two\nlines")
    assert (failed["logger"], failed["level"], failed["event"]) == ("uvicorn.error", "error", "log")
    assert "ValueError: invalid literal" in failed["traceback"]
    assert "\n" in failed["traceback"]
    assert journal["message"] == "the journal x is kept again"


def test_text_is_for_people_and_level_is_obeyed():
    with captured(LogConfig(format="text", level="warning")) as text:
        say(logging.INFO, "ready", "ready: here")
        say(logging.WARNING, "turn_lost", "turn lost", turn="a\nFORGED line")
    (line,) = text.getvalue().splitlines()
    assert line.endswith("WARNING turn lost turn='a\\nFORGED line'")
    assert isinstance(logging.getLogger().handlers, list)
    for wrong in ({"format": "xml"}, {"level": "loud"}):
        with pytest.raises(InvalidArgument, match="accepted is"):
            LogConfig(**wrong)
    assert "\n" not in TextFormatter().format(logging.makeLogRecord({"msg": "a\nb", "created": 0.0}))


def _raised():
    """What `exc_info` is after an exception with two lines."""
    try:
        int("no\nway")
    except ValueError:
        return sys.exc_info()


class Fails:
    """A policy that has none."""

    def limits(self, view, last):
        raise ValueError(f"no idea at step {view.step} after {last.lease_s}")


def test_failures_of_turns_and_policy_are_said_once_and_counted():
    async def play():
        router = Router([Replica("r0", kv_tokens=1_000)], policy=Fails(), control_period_s=float("inf"))
        async with aio.serve(router) as routed, EventLog(routed) as log:
            log.look()
            for turn in range(5):
                assert routed.submit(prompt_tokens=5_000, turn=f"t{turn}", session="s").status == "rejected"
            routed.submit(prompt_tokens=900, turn="runs")
            routed.weights_updated(7)
            router.step()
            router.step()
            log.look()
            routed.lose_replica("r0")
            log.look()
            routed.add_replica(Replica("r0", kv_tokens=1_000))
            log.look()

    with captured(LogConfig()) as text:
        asyncio.run(play())
    said = lines(text)
    assert [line["event"] for line in said] == [
        "replica_joined", "turn_rejected", "weights_updated", "policy_error", "turn_lost", "replica_left",
        "replica_back", "turns_rejected",
    ]  # fmt: skip
    by = {line["event"]: line for line in said}
    assert (by["turn_rejected"]["turn"], by["turn_rejected"]["reason"]) == ("t0", "too_large")
    assert by["turns_rejected"]["turns"] == 4
    assert by["policy_error"]["new"] == by["policy_error"]["failures"] == 2
    assert "no idea" in by["policy_error"]["message"]
    assert (by["weights_updated"]["version"], by["turn_lost"]["turn"]) == (7, "runs")


def test_an_engine_that_dies_and_comes_back_is_said():
    """A real engine is stopped and started again at the same port."""
    quick = dict.fromkeys(("health_period_s", "metrics_period_s", "stale_after_s"), 0.05)
    timing = Timing(dead_after_s=0.2, lost_after_s=1.0, **quick)

    async def play(text):
        async def until(event):
            while event not in events(text):
                await asyncio.sleep(0.01)

        engine = EngineServer(EngineConfig(kv_tokens=4_096))
        await engine.start()
        async with (
            aio.serve(Router([])) as routed,
            Fleet(routed, [engine.url], timing=timing) as fleet,
            EventLog(routed, fleet),
        ):
            await until("replica_joined")
            await engine.stop()
            await until("replica_lost")
            again = EngineServer(EngineConfig(kv_tokens=4_096, port=engine.port))
            await again.start()
            await until("replica_back")
            await again.stop()

    with captured(LogConfig()) as text:
        asyncio.run(play(text))
    lost = next(line for line in lines(text) if line["event"] == "replica_lost")
    assert lost["level"] == "warning"
    assert lost["reason"]
