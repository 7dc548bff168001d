"""`turnout doctor` before real engines, with what a router needs turned off one by one."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
import zmq
from aiohttp import web
from tokenizers import Tokenizer, models, pre_tokenizers
from zmq.asyncio import Context

from turnout.doctor import Options, examine
from turnout.engine import EngineConfig, EngineServer
from turnout.errors import InvalidArgument
from turnout.feeds.config import Timing

QUICK = Timing(request_timeout_s=1.0)
PROBE = Options(probe=True, timing=QUICK)


def statuses(report):
    return {finding.check: finding.status for finding in report.findings}


def finding(report, check):
    return next(found for found in report.findings if found.check == check)


@asynccontextmanager
async def changed(engine, changes):
    """A proxy before an engine, as one may stand there: `changes` maps a path to a function of the body, or to None."""

    async def passing(request):
        if changes.get(request.path, "") is None:
            return web.Response(status=404)
        url = engine.url + request.path_qs
        head = {"Content-Type": request.content_type}
        async with session.request(request.method, url, data=await request.read(), headers=head) as answer:
            body = await answer.read()
            if request.path in changes and answer.status == 200:
                body = changes[request.path](body)
            headers = {"Date": changes["Date"]} if "Date" in changes else {}
            return web.Response(body=body, status=answer.status, content_type=answer.content_type, headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", passing)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    async with aiohttp.ClientSession() as session:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def edited(edit):
    """A change of a JSON body in place."""

    def change(body):
        message = json.loads(body)
        edit(message)
        return json.dumps(message).encode()

    return change


def bytes_tokenizer(folder, *, swapped=False):
    """A tokenizer.json of bytes, as the model engine has it; the letters are those of GPT-2 for bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    alphabet = {chr(byte): byte for byte in plain} | {chr(256 + at): byte for at, byte in enumerate(others)}
    if swapped:
        alphabet["a"], alphabet["e"] = alphabet["e"], alphabet["a"]
    made = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    path = folder / f"tokenizer-{swapped}.json"
    made.save(str(path))
    return path


def test_an_engine_that_offers_everything_is_good(tmp_path):
    async def play():
        async with EngineServer(EngineConfig(kv_tokens=65_536, speed=100.0)) as engine:
            options = Options(probe=True, tokenizer=bytes_tokenizer(tmp_path), timing=QUICK)
            report = await examine(engine.url, options)
            assert set(statuses(report).values()) == {"ok"}, report.findings
            assert (report.code, report.kind, report.version) == (0, "vllm", "0.33.0")
            assert finding(report, "capacity").words == "65,536 tokens"
            assert finding(report, "cached_tokens").words == "64 of 65 tokens the second time"
            assert "blocks stored" in finding(report, "events").words
            other = Options(tokenizer=bytes_tokenizer(tmp_path, swapped=True), listen_s=0.2, timing=QUICK)
            report = await examine(engine.url, other)
            assert (report.code, statuses(report)["tokenizer"]) == (1, "missing")
            assert statuses(report)["cached_tokens"] == "untried"
            assert "nothing was published" in finding(report, "events").words
            with pytest.raises(InvalidArgument, match="tokenizer"):
                await examine(engine.url, Options(tokenizer=tmp_path / "none.json"))
        async with EngineServer(EngineConfig(kv_tokens=65_536, speed=100.0, dialect="sglang")) as engine:
            report = await examine(engine.url, PROBE)
            assert (report.code, report.kind) == (0, "sglang")
            assert {check for check, status in statuses(report).items() if status == "untried"} <= {"tokenizer"}

    asyncio.run(play())


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_what_is_off_is_named_with_what_to_add(dialect):
    metrics = {"vllm": "--disable-log-stats", "sglang": "--enable-metrics"}
    cached = {"vllm": "--enable-prompt-tokens-details", "sglang": "--enable-cache-report"}

    def without_details(message):
        message["usage"]["prompt_tokens_details"] = None

    async def play():
        config = EngineConfig(kv_tokens=65_536, speed=100.0, dialect=dialect, kv_events_port=None)
        hidden = {"/metrics": None, "/tokenize": None, "/v1/completions": edited(without_details)}
        async with EngineServer(config) as engine, changed(engine, hidden) as url:
            report = await examine(url, PROBE)
        assert (report.code, report.kind) == (1, dialect)
        assert metrics[dialect] in finding(report, "metrics").advice
        assert cached[dialect] in finding(report, "cached_tokens").advice
        assert statuses(report)["tokenizer"] == "untried"
        advice = finding(report, "events").advice
        assert statuses(report)["events"] == "missing"
        config = json.loads(advice.partition("'")[2].rpartition("'")[0])
        assert config["publisher"] == "zmq"
        assert config.get("enable_kv_cache_events") == (True if dialect == "vllm" else None)
        missing = {check for check, status in statuses(report).items() if status == "missing"}
        assert {"metrics", "events", "cached_tokens"} <= missing
        assert missing <= {"metrics", "events", "cached_tokens", "capacity", "block size"}

    asyncio.run(play())


def test_endpoints_that_do_not_answer_or_publish_something_else():
    def pointing(**fields):
        return edited(lambda message: message["0"].update(fields))

    async def look(engine, change, options=None):
        async with changed(engine, {"/kv_event_sources": change}) as url:
            return await examine(url, options or Options(listen_s=0.5, timing=QUICK))

    async def play():
        async with EngineServer(EngineConfig(kv_tokens=65_536, speed=100.0)) as engine:
            report = await look(engine, pointing(endpoint="tcp://127.0.0.1:9", replay_endpoint="tcp://127.0.0.1:9"))
            assert (report.code, statuses(report)["events"], statuses(report)["replay"]) == (1, "missing", "missing")
            assert "does not answer" in finding(report, "events").words
            report = await look(engine, pointing(replay_endpoint=None))
            assert (statuses(report)["events"], statuses(report)["replay"]) == ("ok", "missing")
            report = await look(engine, edited(lambda message: message.update({"2": message["0"]})))
            assert statuses(report)["ranks"] == "missing"
            report = await look(engine, pointing(enable_kv_cache_events=False))
            assert finding(report, "events").words.startswith("cache events are off")
            with Context() as context, context.socket(zmq.PUB) as strange:
                port = strange.bind_to_random_port("tcp://127.0.0.1")

                async def chatter(frames):
                    while True:
                        await strange.send_multipart(frames)
                        await asyncio.sleep(0.02)

                strange.setsockopt(zmq.LINGER, 0)
                for frames in ([b"hello"], [b"", bytes(8), msgspec.msgpack.encode("hello")]):
                    talking = asyncio.create_task(chatter(frames))
                    report = await look(engine, pointing(endpoint=f"tcp://127.0.0.1:{port}"))
                    talking.cancel()
                    assert "cannot be read" in finding(report, "events").words, report.findings

    asyncio.run(play())


def test_clocks_and_odd_answers_are_named():
    async def play():
        changes = {
            "Date": "Thu, 01 Jan 1970 00:00:00 GMT",
            "/version": edited(lambda message: message.update(version="\x1b[2J")),
            "/v1/completions": None,
            "/v1/models": edited(lambda message: message.update(data="none")),
        }
        async with EngineServer(EngineConfig(kv_tokens=65_536)) as engine, changed(engine, changes) as url:
            report = await examine(url, Options(probe=True, listen_s=0.2, timing=QUICK))
            assert "behind this machine" in finding(report, "clock").words
            assert finding(report, "kind").words == "vllm ?[2J"
            assert finding(report, "cached_tokens").words.startswith("/v1/completions does not answer: status 404")
            assert report.code == 1
        report = await examine(url, Options(timing=QUICK))
        assert (report.code, [found.status for found in report.findings]) == (2, ["unreachable"])

    asyncio.run(play())
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidArgument, match="listen_s"):
            Options(listen_s=wrong)


def test_the_command_says_it_by_its_exit_status():
    async def run(*arguments):
        command = [sys.executable, "-m", "turnout.cli", *arguments]
        return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)

    async def play():
        good = await run("engine", "--speed", "100", "--kv-tokens", "65536")
        bare = await run("engine", "--speed", "100", "--kv-events-port", "-1", "--dialect", "sglang")
        try:
            urls = [json.loads(await each.stdout.readline())["url"] for each in (good, bare)]
            for asked, code in (([urls[0]], 0), ([*urls, "http://127.0.0.1:9"], 2)):
                ran = await run("doctor", "--probe", "--json", *asked)
                shown = json.loads((await ran.communicate())[0])
                assert (ran.returncode, shown["code"], len(shown["engines"])) == (code, code, len(asked))
            ran = await run("doctor", "--listen-s", "0.2", *urls)
            text = (await ran.communicate())[0].decode()
            assert ran.returncode == 1
            assert "vllm 0.33.0" in text
            assert "-> add --kv-events-config '{" in text
        finally:
            for each in (good, bare):
                each.terminate()
                await each.communicate()

    asyncio.run(play())
