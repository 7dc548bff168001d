"""The asyncio shell: everybody who waits is answered once, nothing is charged that nobody uses, and nobody spins."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import turnout
from turnout import Replica, Router, Workload, aio, policies
from turnout.errors import InvalidArgument, RouterClosed, TurnEnded, TurnExpired, TurnLost, TurnRejected
from turnout.policies.contract import Limits
from turnout.record import JournalWriter, restore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


class OneEach:
    """One session per replica."""

    def limits(self, _view: policies.FleetView, _last: Limits) -> Limits:
        return Limits(session_cap=1)


def fleet(*, replicas: int = 1, policy: object | None = None, **arguments) -> Router:
    names = [Replica(f"r{at}", kv_tokens=100_000) for at in range(replicas)]
    return Router(names, policy=OneEach() if policy is None else policy, **arguments)


def in_shell(body: Callable[[aio.AsyncRouter], Awaitable[None]], router: Router | None = None, **arguments) -> Router:
    """Run a test in a shell of a router, see that its books are empty afterwards, and answer the router."""
    router = fleet() if router is None else router

    async def run() -> None:
        async with aio.serve(router, **arguments) as routed:
            async with asyncio.timeout(60):
                await body(routed)

    asyncio.run(run())
    router.audit()
    return router


def assert_empty(router: Router) -> None:
    stats = router.stats()
    assert (stats["open_turns"], stats["held_turns"]) == (0, 0), stats
    view = router.view()
    assert not view.reserved_tokens.any()
    assert not view.backlog_tokens.any()


def tokens(at: int, count: int = 64) -> list[int]:
    return list(range(at * 1_000, at * 1_000 + count))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_turn_waits_until_there_is_room() -> None:
    order: list[str] = []

    async def one(routed: aio.AsyncRouter, at: int) -> None:
        async with routed.turn(tokens(at), session=f"s{at}") as turn:
            order.append(f"s{at}")
            assert turn.replica == "r0"
            assert turn.progress(1).status == "done"
            await asyncio.sleep(0.001)
            assert turn.complete(output=[1, 2]).status == "done"
        routed.end_session(f"s{at}")

    async def body(routed: aio.AsyncRouter) -> None:
        await asyncio.sleep(0.01)
        await asyncio.gather(*(one(routed, at) for at in range(12)))

    router = in_shell(body)
    assert order == [f"s{at}" for at in range(12)], "first come, first served"
    assert_empty(router)
    assert router.stats()["completed"] == 12


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError, None])
def test_leaving_without_complete_aborts(error: type[BaseException] | None) -> None:
    async def body(routed: aio.AsyncRouter) -> None:
        with suppress(RuntimeError, asyncio.CancelledError):
            async with routed.turn(tokens(0), session="s"):
                if error is not None:
                    raise error

    router = in_shell(body)
    assert router.stats()["aborted"] == 1
    assert_empty(router)


def test_cancelled_while_held_or_just_placed() -> None:
    async def body(routed: aio.AsyncRouter) -> None:
        await asyncio.sleep(0.01)
        for just_placed in (False, True):
            first = await routed.place(tokens(0), session="first")
            waiting = asyncio.create_task(routed.place(tokens(1), session="second"))
            await settle()
            assert [held.session for held in routed.held()] == ["second"]
            if just_placed:
                routed.abort(first.turn)
                routed.end_session("first")  # places the second, whose task has not run yet
                assert routed.router.stats()["open_turns"] == 1
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            routed.abort(first.turn)
            routed.end_session("first")
            assert_empty(routed.router)

    in_shell(body)


def test_wait_and_poll() -> None:
    async def body(routed: aio.AsyncRouter) -> None:
        await asyncio.sleep(0.01)
        first = await routed.place(tokens(0), session="first")
        given_up = await routed.place(tokens(1), session="second", wait_s=0.02)
        assert given_up.held
        assert routed.router.stats()["held_turns"] == 0, "not kept: aborted"
        held = await routed.place(tokens(2), session="third", turn="t", wait_s=0.02, keep=True)
        assert held.held
        assert routed.router.stats()["held_turns"] == 1
        polls = [asyncio.create_task(routed.place(tokens(2), session="third", turn="t")) for _ in range(3)]
        await settle()
        polls[0].cancel()
        await settle()
        assert routed.router.stats()["held_turns"] == 1, "two still want it"
        routed.complete(first.turn)
        routed.end_session("first")
        assert [(await poll).replica for poll in polls[1:]] == ["r0", "r0"]
        routed.complete("t")
        assert (await routed.place(tokens(3), session="third", deadline_s=0.02, turn="late")).placed
        late = await routed.place(tokens(4), session="fourth", deadline_s=0.02)
        assert (late.status, late.reason) == ("expired", "deadline")
        routed.complete("late")

    assert_empty(in_shell(body))


def test_every_end_of_a_wait_is_told() -> None:
    async def body(routed: aio.AsyncRouter) -> None:
        await asyncio.sleep(0.01)
        async with routed.turn(tokens(0), session="first") as first:
            with pytest.raises(TurnExpired) as expired:
                async with routed.turn(tokens(1), session="second", deadline_s=0.02):
                    pass
            assert expired.value.decision is not None
            assert expired.value.decision.reason == "deadline"
            with pytest.raises(TurnRejected, match="too_large"):
                async with routed.turn(prompt_tokens=1 << 20, session="huge"):
                    pass
            ended = asyncio.create_task(routed.place(tokens(2), session="third", turn="third"))
            dropped = asyncio.create_task(routed.turn(tokens(3), session="fourth").__aenter__())
            await settle()
            assert routed.abort("third").status == "done"
            with pytest.raises(TurnEnded):
                await ended
            routed.end_session("fourth")
            with pytest.raises(TurnLost, match="session_ended"):
                await dropped
            assert not first.lost.is_set()
            routed.lose_replica("r0")
            await asyncio.wait_for(first.lost.wait(), 5)
            assert first.decision.reason == "replica_lost"

    router = in_shell(body)
    assert_empty(router)
    assert router.stats()["late"] == 0, "who was told does not end it again"


def test_a_full_line_says_so() -> None:
    async def body(routed: aio.AsyncRouter) -> None:
        await asyncio.sleep(0.01)
        first = await routed.place(tokens(0), session="first")
        waiting = [asyncio.create_task(routed.place(tokens(at), session=f"s{at}")) for at in range(1, 4)]
        await settle()
        with pytest.raises(TurnRejected, match="line_full"):
            async with routed.turn(tokens(9), session="one too many"):
                pass
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        routed.complete(first.turn)

    assert_empty(in_shell(body, fleet(max_held=3)))


def test_closing_answers_everybody() -> None:
    router = fleet()

    async def run(*, keep_turns: bool) -> None:
        routed = aio.AsyncRouter(router)
        routed.start()
        await asyncio.sleep(0.01)
        first = await routed.place(tokens(0), session="first")
        waiting = [asyncio.create_task(routed.place(tokens(at), session=f"s{at}")) for at in range(1, 200)]
        await settle()
        await routed.close(keep_turns=keep_turns)
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(answer, RouterClosed) for answer in answers)
        assert router.stats()["held_turns"] == (199 if keep_turns else 0)
        with pytest.raises(RouterClosed):
            routed.submit(tokens(0))
        assert routed.complete(first.turn).status == "done", "what runs may end"
        router.end_session("first")

    asyncio.run(run(keep_turns=False))
    assert_empty(router)
    asyncio.run(run(keep_turns=True))


def test_thousands_wait_without_busy_loops() -> None:
    done = 0

    async def one(routed: aio.AsyncRouter, at: int) -> None:
        nonlocal done
        async with routed.turn([at] * 16, session=f"s{at}") as turn:
            await asyncio.sleep(0)
            turn.complete(output_tokens=1)
        routed.end_session(f"s{at}")
        done += 1

    async def body(routed: aio.AsyncRouter) -> None:
        await asyncio.sleep(0.01)
        ticks = 0
        tick = routed.tick

        def counted() -> turnout.Outcome:
            nonlocal ticks
            ticks += 1
            return tick()

        routed.tick = counted
        await asyncio.gather(*(one(routed, at) for at in range(5_000)))
        began, steps = ticks, routed.clock.steps
        await asyncio.sleep(0.3)
        assert ticks - began <= 3
        assert routed.clock.steps - steps <= 1

    assert_empty(in_shell(body, fleet(replicas=8)))
    assert done == 5_000


def test_several_loops_in_several_threads_share_one_router() -> None:
    router = fleet(replicas=2, workloads=[Workload("agent"), Workload("rlhf")])
    finished: list[int] = []
    errors: list[BaseException] = []

    def in_thread(routed: aio.AsyncRouter, thread: int) -> None:
        async def one(at: int) -> None:
            name = f"t{thread}-s{at}"
            for turn_at in range(3):
                async with routed.turn(
                    [thread, at] * 16 * (turn_at + 1), session=name, workload=("agent", "rlhf")[at % 2]
                ) as turn:
                    await asyncio.sleep(0)
                    turn.complete(output=[1])
            routed.end_session(name)
            finished.append(at)

        async def all_of_them() -> None:
            await asyncio.gather(*(one(at) for at in range(40)))

        try:
            asyncio.run(all_of_them())
        except BaseException as error:  # noqa: BLE001 - shown in the main thread
            errors.append(error)

    async def body(routed: aio.AsyncRouter) -> None:
        await asyncio.sleep(0.01)
        threads = [threading.Thread(target=in_thread, args=(routed, at)) for at in range(4)]
        for thread in threads:
            thread.start()
        await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))

    in_shell(body, router)
    assert not errors
    assert len(finished) == 160
    assert_empty(router)


def test_a_loop_that_is_gone_holds_no_place() -> None:
    """A waiter whose event loop was closed is nobody: the turn it would get is aborted, and the next one goes."""

    async def body(routed: aio.AsyncRouter) -> None:
        await asyncio.sleep(0.01)
        first = await routed.place(tokens(0), session="first")

        def elsewhere() -> None:
            loop = asyncio.new_event_loop()
            task = loop.create_task(routed.place(tokens(1), session="gone"))
            loop.run_until_complete(asyncio.sleep(0.01))
            task._log_destroy_pending = False  # the loop is closed under it on purpose
            loop.close()

        await asyncio.to_thread(elsewhere)
        assert routed.router.stats()["held_turns"] == 1
        waiting = asyncio.create_task(routed.place(tokens(2), session="here"))
        await settle()
        routed.complete(first.turn)
        routed.end_session("first")
        assert (await waiting).placed
        routed.complete((await waiting).turn)

    assert_empty(in_shell(body))


def test_a_later_attempt_is_not_ended_by_the_earlier_one() -> None:
    async def body(routed: aio.AsyncRouter) -> None:
        async with routed.turn(tokens(0), session="s", turn="t"):
            second = await routed.place(tokens(0), session="s", turn="t", attempt=1)
            assert second.placed
        assert routed.router.stats()["open_turns"] == 1
        assert routed.complete("t").status == "done"

    assert_empty(in_shell(body, fleet(replicas=2)))


def test_a_policy_that_fails_stops_neither_clock_nor_waiters() -> None:
    class Fails:
        def limits(self, _view: policies.FleetView, _last: Limits) -> Limits:
            raise ZeroDivisionError

    async def body(routed: aio.AsyncRouter) -> None:
        await asyncio.sleep(0.02)
        assert routed.clock.alive
        late = await routed.place(prompt_tokens=90_000, session="a")
        expired = await routed.place(prompt_tokens=90_000, session="b", deadline_s=0.05)
        assert (late.placed, expired.status) == (True, "expired")
        routed.complete(late.turn)

    in_shell(body, fleet(policy=Fails()))
    with pytest.raises(InvalidArgument):
        fleet(policy=Fails(), on_policy_error="maybe")


def test_what_was_acted_on_is_in_the_journal(tmp_path: Path) -> None:
    router = fleet()
    path = tmp_path / "journal"
    copy: list[Router] = []

    async def body(routed: aio.AsyncRouter) -> None:
        decision = await routed.place(tokens(0), session="s", turn="t")
        assert decision.placed
        copy.append(restore(path))  # as after kill -9 right now
        routed.complete("t")

    with JournalWriter(router, path) as journal:
        in_shell(body, router, journal=journal)
    assert copy[0].stats()["open_turns"] == 1
    assert copy[0].complete("t").status == "done"


def test_a_full_disk_stops_the_journal_not_the_router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    router = fleet()
    journal = JournalWriter(router, tmp_path / "journal")

    def full() -> None:
        raise OSError(28, "No space left on device")

    async def body(routed: aio.AsyncRouter) -> None:
        assert routed.journal is not None
        with monkeypatch.context() as patch:
            patch.setattr(journal, "flush", full)
            first = await routed.place(tokens(0), session="s")
            assert first.placed
            assert "No space" in routed.journal.error
            routed.complete(first.turn)
        monkeypatch.setattr("turnout.aio.journal.RETRY_S", 0.0)
        routed.journal._retry_at = 0.0
        second = await routed.place(tokens(1), session="s")
        assert (second.placed, routed.journal.error, routed.journal.failures) == (True, "", 1)
        assert restore(journal.path).stats()["open_turns"] == 1
        routed.complete(second.turn)

    in_shell(body, router, journal=journal)
    journal.close()


def test_listeners_hear_every_decision_once() -> None:
    heard: list[tuple[str, str | None, bool]] = []

    async def body(routed: aio.AsyncRouter) -> None:
        await asyncio.sleep(0.01)
        unlisten = routed.listen(
            lambda decision, session, _workload, waited_s: heard.append((decision.status, session, waited_s > 0))
        )
        routed.listen(lambda *_: 1 / 0)
        first = await routed.place(tokens(0), session="a")
        second = asyncio.create_task(routed.place(tokens(1), session="b"))
        await settle()
        routed.complete(first.turn)
        routed.end_session("a")
        routed.complete((await second).turn)
        unlisten()
        routed.choose(tokens(2))

    in_shell(body)
    assert heard == [("placed", "a", False), ("held", "b", False), ("placed", "b", True)]


def test_every_event_of_the_router_is_there() -> None:
    """An event that the shell forgets would be called past it, and its consequences told to nobody."""
    own = {name for name in dir(turnout._core.Router) if not name.startswith("_")}
    reads = {"stats", "view", "audit", "snapshot", "wake_at", "policy_due", "hash_key", "block_tokens", "replicas"}
    reads |= {"workloads", "raw_view", "raw_set_limits", "drain", "start_journal", "stop_journal", "take_journal"}
    assert own - reads <= set(dir(aio.AsyncRouter))


def test_arguments_of_submit_agree() -> None:
    import inspect

    signature = inspect.signature(turnout._core.Router.submit)
    assert set(aio.SubmitArguments.__annotations__) == set(signature.parameters) - {"self", "prompt"}
