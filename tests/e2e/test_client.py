"""`turnout.client` before real servers: the face of the asyncio router, and what it does when these fail."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from turnout import client, errors
from turnout.client.arguments import PromptArguments, TurnArguments
from turnout.listening import listen
from turnout.server import schema
from turnout.server.decisions import OPERATIONS, decision_routes

BIG = list(range(1_900))


@asynccontextmanager
async def process(*options, port=0):
    """`turnout serve`; yields it and its address."""
    command = [sys.executable, "-m", "turnout.cli", "serve", "--port", str(port), *options]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        yield child, json.loads(await child.stdout.readline())["url"]
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGTERM)
        await child.communicate()


@asynccontextmanager
async def cutting(url, answers):
    """A proxy that cuts the connection instead of passing the next `answers[0]` answers on; yields its address."""
    port = int(url.rpartition(":")[2])

    async def serve(reader, writer):
        there, back = await asyncio.open_connection("127.0.0.1", port)

        async def pass_on(source, target, counted):
            while data := await source.read(1 << 16):
                if counted and answers[0] > 0:
                    answers[0] -= 1
                    break
                target.write(data)
            target.close()

        await asyncio.gather(pass_on(reader, back, False), pass_on(there, writer, True), return_exceptions=True)

    listening = listen("127.0.0.1", 0)
    async with await asyncio.start_server(serve, sock=listening):
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


def test_the_face_is_that_of_the_router(serving):
    async def play():
        async with serving(decision_routes) as served, client.connect(served.url) as remote:
            async with remote.turn(BIG, session="s", workload="agent", max_new_tokens=8) as turn:
                assert (turn.replica, turn.cached_tokens, turn.decision.placed) == ("r1", 0, True)
                assert (await turn.progress(1)).status == "done"
                assert (await turn.complete([7, 8], cached_tokens=0)).status == "done"
                assert await turn.abort() is None, "it has ended"
            assert await remote.peek(session="s") == [("r1", 1_888)]
            assert await remote.peek(BIG) == [("r1", 1_888)]
            again = await remote.place(append=[1], base_tokens=1_902, session="s")
            assert (again.reason, again.receipt.prompt_tokens) == ("continuation", 1_903)
            assert (await remote.fork("s", "child")).status == "done"
            assert (await remote.complete(again.turn, output_tokens=3)).status == "done"
            assert (await remote.end_session("s")).status == "done"
            assert (await remote.end_session("child", completed=False)).status == "done"
            assert (await remote.add_replica("r2", kv_tokens=500.0)).status == "done"
            assert [replica.name for replica in await remote.replicas()] == ["r0", "r1", "r2"]
            assert (await remote.choose(prompt_tokens=100)).reason == "chosen"
            assert (await remote.weights_updated(3)).status == "done"
            assert (await remote.observe("r0", kv_fraction=0.5, running=1)).status == "done"
            with pytest.raises(errors.InvalidArgument, match="payload"):
                await remote.kv_events("r0", b"?", sequence=0)
            for name in ("drain_replica", "set_replica", "remove_replica"):
                assert (await getattr(remote, name)("r2")).status == "done"
            assert (await remote.explain(again.turn)).words.startswith("Placed on r1")
            answers = await remote.submit_batch([(BIG, {"session": "x"}), (None, {"append": [1], "session": "new"})])
            assert answers[0].placed
            assert isinstance(answers[1], errors.TurnoutError)
            assert (await remote.stats())["sessions_finished"] == 1
            assert (await remote.view()).replicas == ["r0", "r1"]
            assert (await remote.info()).workloads == ["agent", "chat"]
        assert served.routed.router.stats()["open_turns"] == 0, "the owner took leave"

    asyncio.run(play())


def test_nothing_of_the_decision_api_is_left_out():
    for operation in OPERATIONS:
        # The client beats and takes leave by itself.
        assert hasattr(client.RemoteRouter, operation.name) or operation.name in {"beat", "owner_lost"}, operation.name
    carried = {"prompt", "token_bytes"}  # packed by the client
    assert set(TurnArguments.__annotations__) == set(schema.Turn.__struct_fields__) - carried
    assert set(PromptArguments.__annotations__) == set(schema.Choose.__struct_fields__) - carried


def test_errors_come_back_as_what_they_were(serving):
    async def play():
        async with serving(decision_routes) as served, client.connect(served.url) as remote:
            with pytest.raises(errors.UnknownReplica, match="nobody") as caught:
                await remote.lose_replica("nobody")
            assert caught.value.argument == "replica"
            with pytest.raises(errors.UnknownSession):
                await remote.submit(append=[1], base_tokens=7, session="never")
            await remote.complete((await remote.submit([1, 2, 3], session="k")).turn, [4])
            with pytest.raises(errors.HistoryMismatch):
                await remote.submit(append=[1], base_tokens=7, session="k")
            with pytest.raises(errors.UnknownWorkload):
                await remote.submit([1], workload="other")
            await remote.submit([1, 2, 3], turn="t")
            with pytest.raises(errors.TurnConflict):
                await remote.submit([4], turn="t")
            with pytest.raises(errors.InvalidTokens, match=r"prompt\[1\]: got -1"):
                await remote.submit([1, -1])
            for wrong in (float("nan"), -1.0):
                with pytest.raises(errors.InvalidArgument, match="wait_s"):
                    await remote.place([1], wait_s=wrong)
            with pytest.raises(errors.TurnRejected) as refused:
                async with remote.turn(prompt_tokens=10_000_000):
                    pass
            assert refused.value.decision.reason == "too_large"
            await fill(remote)
            with pytest.raises(errors.TurnExpired):
                async with remote.turn(prompt_tokens=900, deadline_s=0.01):
                    pass

    asyncio.run(play())


async def fill(remote):
    for name, tokens in (("r0", 900), ("r1", 1_900)):
        assert (await remote.submit(prompt_tokens=tokens, turn=name, at=name)).placed


def test_whoever_is_cancelled_leaves_nothing_behind(serving):
    async def play():
        async with serving(decision_routes) as served, client.connect(served.url) as remote:
            await fill(remote)
            router = served.routed.router

            async def hold(name, **arguments):
                async with remote.turn(prompt_tokens=900, turn=name, **arguments):
                    await asyncio.sleep(3_600)

            held = [asyncio.create_task(hold(f"h{each}")) for each in range(5)]
            await until(lambda: router.stats()["held_turns"] == 5)
            kept = asyncio.create_task(remote.place(prompt_tokens=900, turn="kept", keep=True))
            await until(lambda: router.stats()["held_turns"] == 6)
            twice = [asyncio.create_task(remote.place(prompt_tokens=900, turn="h0")) for _ in range(2)]
            await until(lambda: len(remote._waiting["h0"]) == 3)
            twice[0].cancel()
            await asyncio.gather(twice[0], return_exceptions=True)
            assert router.stats()["held_turns"] == 6, "others here still want it"
            held.append(twice[1])
            for task in (*held, kept):
                task.cancel()
            await asyncio.gather(*held, kept, return_exceptions=True)
            await until(lambda: router.stats()["held_turns"] == 1)
            assert router.stats()["aborted"] == 5, "each once"
            await remote.complete("r0", output_tokens=0)
            assert (await remote.place(prompt_tokens=900, turn="kept")).placed, "it kept its place"
            await remote.complete("r1", output_tokens=0)
            task = asyncio.create_task(hold("runs"))
            await until(lambda: "runs" in remote.running)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(ZeroDivisionError):
                async with remote.turn([1], turn="fails"):
                    raise ZeroDivisionError
            assert (router.stats()["aborted"], router.stats()["open_turns"]) == (7, 1)
            assert (await remote.submit(prompt_tokens=1_900, at="r1")).placed
            assert (await remote.place(prompt_tokens=1_900, turn="short", wait_s=0.02)).held
            assert (router.stats()["aborted"], router.stats()["held_turns"]) == (8, 0)

    asyncio.run(play())


def test_threads_share_a_client(serving):
    def work(remote, number):
        with remote.turn(BIG[:500], session=f"s{number}") as turn:
            assert (turn.progress(1).status, turn.lost) == ("done", False)
            assert turn.complete([1], cached_tokens=0).status == "done"
        with remote.turn(append=[2], base_tokens=501, session=f"s{number}") as turn:
            assert turn.decision.reason == "continuation"  # left without `complete`: aborted
        return remote.do(lambda each: each.end_session(f"s{number}")).status

    def threads(url):
        with client.Blocking(url) as remote, ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda number: work(remote, number), range(16))) == ["done"] * 16
            with pytest.raises(errors.UnknownReplica):
                remote.do(lambda each: each.lose_replica("nobody"))
        with pytest.raises(errors.ServerUnreachable), client.Blocking("http://127.0.0.1:9", patience_s=0.01):
            pass

    async def play():
        async with serving(decision_routes) as served:
            await asyncio.to_thread(threads, served.url)
            stats = served.routed.router.stats()
            assert (stats["completed"], stats["aborted"], stats["sessions_finished"]) == (16, 16, 16)

    asyncio.run(play())


def test_an_owner_that_beats_keeps_its_sessions_and_hears_of_losses(serving):
    async def play():
        def routes(routed):
            return decision_routes(routed, silence_s=0.3)

        async with serving(routes) as served, client.connect(served.url, beat_s=0.05) as remote:
            ended = client.connect(served.url, owner=None)
            async with ended, remote.turn([1, 2, 3], session="s") as turn:
                await asyncio.sleep(0.7)
                assert not turn.lost.is_set()
                assert (await ended.stats())["open_turns"] == 1
                assert (await ended.lose_replica(turn.replica)).status == "done"
                await turn.lost.wait()
            assert served.routed.router.stats()["aborted"] == 0, "a turn that is lost is not aborted as well"

    asyncio.run(play())


def test_a_connection_that_is_cut_changes_nothing(serving):
    async def play():
        async with serving(decision_routes) as served:
            answers = [0]
            async with cutting(served.url, answers) as url, client.connect(url) as remote:
                answers[0] = 2
                async with remote.turn(BIG, session="s") as turn:
                    answers[0] = 1
                    assert (await turn.complete([1])).status == "duplicate", "the first one had arrived"
                stats = served.routed.router.stats()
                assert (stats["submitted"], stats["completed"]) == (1, 1)
                answers[0] = 1
                with pytest.raises(errors.ServerUnreachable, match="fork"):
                    await remote.fork("s", "child")  # twice is not the same as once
                assert (await remote.peek(session="child"))[0][0] == "r1"

    asyncio.run(play())


def test_strangers_and_wrong_addresses_are_named():
    async def play():
        async with process("--token", "secret") as (_, url):
            for token in (None, "wrong"):
                with pytest.raises(errors.Unauthorized):
                    async with client.connect(url, token=token):
                        pass
            async with client.connect(url, token="secret") as remote:  # noqa: S106 - of the test's server
                assert await remote.replicas() == []
        with pytest.raises(errors.ServerUnreachable):
            async with client.connect(url, patience_s=0.1):
                pass

    asyncio.run(play())
    for wrong in ({"url": "localhost:8077"}, {"url": "http://h", "patience_s": 0}, {"url": "http://h", "beat_s": -1}):
        with pytest.raises(errors.InvalidArgument):
            client.connect(**wrong)


def test_a_hundred_held_turns_survive_a_server_that_is_killed(tmp_path):
    """kill -9 and a restart from the journal: everybody is placed, once, in the order of the line."""

    async def play():
        options = ["--state", str(tmp_path / "state"), "--reattach-s", "60"]
        placed = []

        async def wait(remote, number):
            async with remote.turn(prompt_tokens=900, turn=f"t{number:03d}", session=f"s{number}") as turn:
                placed.append(turn.id)
                assert (await turn.complete(output_tokens=1)).status == "done"
            await remote.end_session(f"s{number}")

        async with process(*options) as (child, url):
            port = int(url.rpartition(":")[2])
            remote = await client.connect(url, beat_s=0.2).__aenter__()
            await remote.add_replica("r0", kv_tokens=1_000.0)
            async with remote.turn(prompt_tokens=900, session="first") as first:
                waiting = []
                for number in range(100):
                    waiting.append(asyncio.create_task(wait(remote, number)))
                    while (await remote.stats())["held_turns"] != number + 1:
                        await asyncio.sleep(0.001)
                child.kill()
                await child.wait()
                async with process(*options, port=port) as _:
                    while (await remote.stats())["held_turns"] != 100:
                        await asyncio.sleep(0.05)
                    instance = (await remote.info()).instance
                    while remote._instance != instance:
                        await asyncio.sleep(0.02)
                    assert (await first.complete(output_tokens=1)).status == "done"
                    await remote.end_session("first")
                    await asyncio.gather(*waiting)
                    stats = await remote.stats()
                    await remote.__aexit__(None, None, None)
        assert placed == [f"t{number:03d}" for number in range(100)]
        assert (stats["submitted"], stats["placed"], stats["aborted"], stats["lost"]) == (101, 101, 0, 0)
        assert (stats["open_turns"], stats["live_sessions"]) == (0, 0)

    asyncio.run(play())


def test_the_code_of_the_page_runs(serving):
    page = (Path(__file__).parents[2] / "docs" / "client.md").read_text(encoding="utf-8")
    names = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)  # noqa: S102 - our own page

    async def play():
        async with serving(decision_routes) as served:
            assert await names["rollout"](served.url, BIG) == "r1"
            stats = served.routed.router.stats()
            assert (stats["completed"], stats["aborted"], stats["sessions_finished"]) == (1, 1, 1)

    asyncio.run(play())
