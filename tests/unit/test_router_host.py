"""What the Ray actor holds, asked without Ray: batches, waits, owners, repetitions and restarts."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from turnout import Prompt, Replica, Workload
from turnout.adapters.shared.host import RouterHost
from turnout.adapters.shared.messages import Placement, pack_tokens
from turnout.errors import InvalidArgument, InvalidTokens, TurnEnded, UnknownReplica

FLEET = [Replica("r0", kv_tokens=1_000)]


@asynccontextmanager
async def hosting(fleet=FLEET, **settings):
    host = RouterHost(fleet, [Workload("a")], policy="block-time", hash_key=bytes(16), **settings)
    try:
        yield host
    finally:
        await host.close()


def submit(turn, tokens=800, **arguments):
    first = 10_000 * ord(turn[0])  # prompts of their own: nothing is shared
    prompt = Prompt(list(range(first, first + tokens)), hash_key=bytes(16)).pack()
    return ("submit", {"prompt": prompt, "turn": turn, "session": turn, "max_new_tokens": 100, **arguments})


async def one(host, name, **arguments):
    [answer] = await host.call([(name, arguments)])
    return answer


def test_a_batch_is_answered_one_by_one_and_an_error_is_an_answer():
    async def run():
        async with hosting() as host:
            hello = await host.hello()
            assert (hello.hash_key, hello.block_tokens) == (bytes(16), 16)
            answers = await host.call(
                [
                    submit("t"),
                    ("progress", {"turn": "t", "output_tokens": 1}),
                    ("submit", {"prompt": [1], "candidates": ["r9"]}),
                    ("complete", {"turn": "t", "output": pack_tokens([1, 2], "output")}),
                    ("complete", {"turn": "t"}),
                    ("stats", {}),
                    ("submit", {"prompt": [1], "unheard_of": 1}),
                    ("peek", {"session": "t"}),
                    ("end_session", {"session": "t"}),
                ]
            )
            placement, progress, unknown, done, again, forbidden, argument, peeked, ended = answers
            assert isinstance(placement, Placement)
            assert (placement.status, placement.replica, placement.prompt_tokens) == ("placed", "r0", 800)
            assert (progress, done, again, ended) == ("done", "done", "duplicate", "done")
            assert isinstance(unknown, UnknownReplica)
            assert isinstance(forbidden, InvalidArgument)
            assert isinstance(argument, TypeError)
            assert peeked == [("r0", 800)]
            await assert_empty(host)

    asyncio.run(run())


async def assert_empty(host):
    """No turn, nobody who waits, and no charge."""
    status = await host.status()
    assert (status["open_turns"], status["held_turns"], status["waits"]) == (0, 0, 0)
    assert await host.books() == {"charge_tokens": 0, "commit_tokens": 0, "reserved_tokens": 0}


def test_a_held_turn_is_waited_for_apart_and_by_several():
    async def run():
        async with hosting() as host:
            await host.call([submit("a")])
            [held] = await host.call([submit("b")])
            assert held.status == "held"
            waits = [asyncio.create_task(host.wait("b")) for _ in range(2)]
            await asyncio.sleep(0)
            assert (await host.call([submit("b")]))[0].status == "held"
            await host.call([("complete", {"turn": "a"}), ("end_session", {"session": "a"})])
            placements = await asyncio.gather(*waits)
            assert [placement.status for placement in placements] == ["placed", "placed"]
            assert await host.wait("never heard of") is None
            await host.call([("complete", {"turn": "b"}), ("end_session", {"session": "b"})])
            await assert_empty(host)

    asyncio.run(run())


def test_an_abort_ends_the_wait_and_a_cancelled_wait_keeps_the_place():
    async def run():
        async with hosting() as host:
            await host.call([submit("a"), submit("b"), submit("c")])
            given_up = asyncio.create_task(host.wait("b"))
            await asyncio.sleep(0)
            given_up.cancel()
            await asyncio.gather(given_up, return_exceptions=True)
            ended = asyncio.create_task(host.wait("c"))
            await asyncio.sleep(0)
            assert await one(host, "abort", turn="c") == "done"
            with pytest.raises(TurnEnded):
                await ended
            await one(host, "end_session", session="a")
            assert (await host.wait("b")).status == "placed"
            await host.call([("abort", {"turn": "b"}), ("end_session", {"session": "b"})])
            await assert_empty(host)

    asyncio.run(run())


def test_a_silent_owner_loses_its_turns_and_one_that_beats_does_not():
    async def run():
        async with hosting(silence_s=0.3) as host:
            await host.call([submit("a", 300, owner="mute"), submit("b", 300, owner="alive")])
            await host.call([submit("c", 800, owner="mute")])
            lost = asyncio.create_task(host.wait("c"))
            while (await host.status())["live_sessions"] > 1:
                await host.beat("alive")
                await asyncio.sleep(0.02)
            assert (await lost).status == "lost"
            assert await one(host, "complete", turn="b") == "done"
            await one(host, "end_session", session="b")
            await assert_empty(host)

    asyncio.run(run())


def test_a_journal_carries_turns_over_and_new_replicas_join(tmp_path):
    journal = str(tmp_path / "router.journal")

    async def run():
        async with hosting(journal=journal) as host:
            await host.call([submit("a"), submit("b")])
            first = await host.beat("someone")
        async with hosting([*FLEET, Replica("r1", kv_tokens=100)], journal=journal) as host:
            assert await host.beat("someone") != first
            assert host._routed.router.replicas == ("r0", "r1")
            assert await host.wait("b") is None
            assert (await host.call([submit("b")]))[0].status == "held"
            assert (await host.call([submit("a")]))[0].status == "placed"
            await host.call([("complete", {"turn": "a"}), ("end_session", {"session": "a"})])
            assert (await host.wait("b")).status == "placed"
            await host.call([("complete", {"turn": "b"}), ("end_session", {"session": "b"})])
            await assert_empty(host)

    asyncio.run(run())


@pytest.mark.parametrize("tokens", [[1.5], [-1], [[1]], [2**32], "12", [True, "x"]])
def test_what_are_no_tokens_is_refused_before_it_is_sent(tokens):
    with pytest.raises(InvalidTokens, match="output"):
        pack_tokens(tokens, "output")
