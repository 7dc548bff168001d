"""One router for many processes in a real Ray actor: 5,000 waiters, restarts, owners, and what a call carries."""

from __future__ import annotations

import asyncio
import os
import signal

import numpy as np
import pytest

pytest.importorskip("ray")

from tests_hosts_support import assert_empty, prompt_of, until

from turnout import Replica
from turnout.adapters.ray import TurnoutClient, make_actor
from turnout.errors import RouterClosed, TurnoutError, UnknownReplica

pytestmark = pytest.mark.usefixtures("cluster")


def start(ray, kv_tokens=8 * 200, **settings):
    actor = make_actor([Replica("r0", kv_tokens=kv_tokens)], policy="block-time", **settings)
    return actor, lambda: ray.kill(actor)


@pytest.fixture
def actor(cluster):
    handle, stop = start(cluster)
    yield handle
    stop()


def test_five_thousand_waiters_at_room_for_eight_all_finish(actor):
    async def rollout(client, number):
        async with client.turn(prompt_of(number, 160), session=f"s{number}", max_new_tokens=16) as turn:
            turn.complete(output=[number])
        await client.end_session(f"s{number}")
        return turn.replica

    async def run():
        async with TurnoutClient(actor) as one, TurnoutClient(actor) as two:
            clients = [one, two]
            replicas = await asyncio.gather(*(rollout(clients[i % 2], i) for i in range(5_000)))
            assert replicas == ["r0"] * 5_000
            stats = await assert_empty(actor)
            assert stats["completed"] == 5_000
            assert stats["held"] > 4_000

    asyncio.run(run())


def test_cancelled_waits_failed_and_forgotten_turns_leave_nothing(actor):
    async def run():
        async with TurnoutClient(actor) as client:
            first = await client.place(prompt_of(0, 1_400), session="a", max_new_tokens=10)
            assert first.placed
            waiting = asyncio.create_task(client.place(prompt_of(1, 1_400), session="b", max_new_tokens=10))
            await until(lambda: held(actor, 1))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await until(lambda: held(actor, 0))
            client.progress(first.turn, 5)
            client.abort(first.turn, output=np.arange(5, dtype=np.int64))
            with pytest.raises(ValueError, match="the engine failed"):
                async with client.turn(prompt_of(2, 100), session="c"):
                    raise ValueError("the engine failed")
            with pytest.raises(UnknownReplica):
                await client.place([1, 2], candidates=["elsewhere"])
            rejected = await client.place(prompt_of(3, 5_000))
            assert (rejected.status, rejected.reason) == ("rejected", "too_large")
            expired = None
            async with client.turn(prompt_of(4, 1_400), session="d", max_new_tokens=10):
                expired = await client.place(prompt_of(5, 1_400), session="e", max_new_tokens=10, deadline_s=0.05)
            assert (expired.status, expired.reason) == ("expired", "deadline")
            for session in "abcde":
                client.end_session(session)
        await assert_empty(actor)

    asyncio.run(run())


async def held(actor, turns):
    return (await actor.status.remote())["held_turns"] == turns


def test_a_lost_replica_gives_its_turns_back(actor):
    async def run():
        async with TurnoutClient(actor) as client:
            running = await client.place(prompt_of(0, 1_400), session="a", max_new_tokens=10)
            waiting = asyncio.create_task(client.place(prompt_of(1, 1_400), session="b", max_new_tokens=10))
            await until(lambda: held(actor, 1))
            assert await client.event("add_replica", replica=Replica("r1", kv_tokens=1_500)) == "done"
            moved = await waiting
            assert moved.replica == "r1"
            assert await client.event("lose_replica", name="r0") == "done"
            assert await client.complete(running.turn) == "late"
            again = asyncio.create_task(client.place(prompt_of(0, 1_400), session="a", max_new_tokens=10))
            await until(lambda: held(actor, 1))
            await client.complete(moved.turn)
            await client.end_session("b")
            assert (await again).replica == "r1"
            client.complete((await again).turn)
            client.end_session("a")
        await assert_empty(actor)

    asyncio.run(run())


def test_it_starts_anew_from_its_journal_and_nobody_notices(cluster, tmp_path):
    actor, stop = start(cluster, journal=str(tmp_path / "router.journal"))

    async def run():
        async with TurnoutClient(actor, beat_s=0.05) as client:
            key = (await client.hello()).hash_key
            running = await client.place(prompt_of(0, 1_400), session="a", max_new_tokens=10)
            waiting = [
                asyncio.create_task(client.place(prompt_of(i, 400), session=f"w{i}", max_new_tokens=10))
                for i in range(1, 20)
            ]
            await until(lambda: held(actor, 19))
            os.kill(await actor.__ray_call__.remote(lambda _: os.getpid()), signal.SIGKILL)
            assert await client.complete(running.turn, output=[1, 2, 3]) == "done"
            await client.end_session("a")
            for i, task in enumerate(waiting, 1):
                placement = await task
                assert placement.placed
                assert await client.complete(placement.turn) == "done"
                await client.end_session(f"w{i}")
            assert (await actor.hello.remote()).hash_key == key
        assert (await assert_empty(actor))["completed"] == 20

    try:
        asyncio.run(run())
    finally:
        stop()


def test_open_turns_are_named_again_after_a_restart(cluster, tmp_path):
    actor, stop = start(cluster, journal=str(tmp_path / "router.journal"), reattach_s=1.0)

    async def run():
        async with TurnoutClient(actor, beat_s=0.05) as client:
            first = (await client.hello()).instance
            running = await client.place(prompt_of(0, 400), session="a", max_new_tokens=10)
            silent = await actor.call.remote([("submit", {"prompt_tokens": 100, "turn": "silent", "session": "z"})])
            assert silent[0].placed
            os.kill(await actor.__ray_call__.remote(lambda _: os.getpid()), signal.SIGKILL)

            async def given_up():
                return (await actor.status.remote())["lost"] == 1

            await until(given_up)
            assert (await actor.hello.remote()).instance != first
            assert await client.complete(running.turn) == "done"
            client.end_session("a")
            client.end_session("z")
        await assert_empty(actor)

    try:
        asyncio.run(run())
    finally:
        stop()


def test_a_dead_actor_is_a_turnout_error(cluster):
    actor, stop = start(cluster)

    async def run():
        client = TurnoutClient(actor)
        await client.hello()
        stop()
        with pytest.raises(RouterClosed, match="cannot be reached"):
            await client.place([1, 2, 3])
        assert issubclass(RouterClosed, TurnoutError)
        await client.close()

    asyncio.run(run())


def test_everybody_finds_the_actor_by_its_name(cluster):
    one = make_actor([Replica("r0", kv_tokens=1_000)], name="turnout-by-name")
    two = make_actor(name="turnout-by-name")
    assert one._actor_id == two._actor_id
    cluster.kill(one)
