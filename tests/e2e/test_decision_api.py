"""The decision API over HTTP, on a real server with a real router."""

from __future__ import annotations

import asyncio
import base64

import aiohttp
import msgspec
import numpy as np
import pytest

from turnout.server.decisions import OPERATIONS, decision_routes

BIG = list(range(1_900))


async def fill(served):
    """Occupy both replicas, each with a turn of its name."""
    for name, tokens in (("r0", 900), ("r1", 1_900)):
        assert (await served.call("submit", {"prompt_tokens": tokens, "turn": name, "at": name}))[1]["replica"] == name


def test_a_turn_from_submit_to_history(serving):
    async def play():
        async with serving(decision_routes) as served:
            status, decision = await served.call("submit", {"prompt": BIG, "session": "s", "turn": "t"})
            assert (status, decision["status"], decision["replica"]) == (200, "placed", "r1")
            assert decision["receipt"]["prompt_tokens"] == 1_900
            _, again = await served.call("submit", {"prompt": BIG, "session": "s", "turn": "t"})
            assert again | {"seq": decision["seq"]} == decision
            assert (await served.call("progress", {"turn": "t", "output_tokens": 2}))[1]["status"] == "done"
            end = {"turn": "t", "output": [7, 8], "cached_tokens": 0}
            assert (await served.call("complete", end))[1]["status"] == "done"
            assert (await served.call("complete", end))[1]["status"] == "duplicate"
            assert (await served.call("abort", {"turn": "nobody"}))[1]["status"] == "unknown"
            _, holders = await served.call("peek", {"session": "s"})
            assert holders == {"holders": [{"replica": "r1", "cached_tokens": 1_888}]}
            assert (await served.call("fork", {"session": "s", "child": "c"}))[1]["status"] == "done"
            append = {"append": [1], "base_tokens": 1_902, "session": "s"}
            assert (await served.call("submit", append))[1]["reason"] == "continuation"
            assert (await served.call("end_session", {"session": "s"}))[1]["status"] == "done"
            assert (await served.call("stats"))[1]["stats"]["sessions_finished"] == 1

    asyncio.run(play())


def test_packed_tokens_are_the_tokens(serving):
    async def play():
        async with serving(decision_routes) as served:
            packed = np.array(BIG, "<u4").tobytes()
            head = {"Content-Type": "application/msgpack"}
            body = msgspec.msgpack.encode({"prompt": packed, "session": "s", "turn": "t"})
            async with served.session.post(f"{served.url}/turnout/v1/submit", data=body, headers=head) as answer:
                assert answer.headers["Content-Type"] == "application/msgpack"
                decision = msgspec.msgpack.decode(await answer.read())
            assert decision["receipt"]["prompt_tokens"] == 1_900
            for message in (
                {"prompt": BIG},
                {"prompt": base64.b64encode(packed).decode()},
                {"prompt": base64.b64encode(np.array(BIG, "<u8").tobytes()).decode(), "token_bytes": 8},
            ):
                _, again = await served.call("submit", {**message, "session": "s", "turn": "t"})
                assert again | {"seq": decision["seq"]} == decision

    asyncio.run(play())


def test_a_held_turn_is_waited_for_polled_and_explained(serving):
    async def play():
        async with serving(decision_routes) as served:
            await fill(served)
            ask = {"prompt_tokens": 900, "turn": "c", "session": "late", "workload": "chat"}
            _, held = await served.call("submit", ask)
            assert held["status"] == "held"
            assert (await served.call("submit", {**ask, "wait_s": 0.01}))[1]["status"] == "held"
            _, told = await served.call("explain?turn=c")
            assert told["words"].startswith("Held")
            assert (told["session"], told["workload"], told["decision"]["reason"]) == ("late", "chat", held["reason"])
            waiting = asyncio.create_task(served.call("submit", {**ask, "wait_s": 60}))
            await asyncio.sleep(0.01)
            await served.call("abort", {"turn": "r0"})
            assert (await waiting)[1]["status"] == "placed"
            _, told = await served.call("explain?turn=c")
            assert told["words"].startswith("Placed on ")
            assert (await served.call("explain?turn=unseen"))[0] == 404

    asyncio.run(play())


def test_who_leaves_while_waiting_gives_the_turn_up_unless_it_is_kept(serving):
    async def leave(served, message):
        task = asyncio.create_task(served.call("submit", {**message, "wait_s": 60}))
        await served.until(lambda: any(held.turn == message["turn"] for held in served.routed.held()))
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def play():
        async with serving(decision_routes) as served:
            await fill(served)
            await leave(served, {"prompt_tokens": 900, "turn": "gone"})
            await served.until(lambda: served.routed.router.stats()["aborted"] == 1)
            await leave(served, {"prompt_tokens": 900, "turn": "kept", "keep": True})
            await asyncio.sleep(0.05)
            assert [held.turn for held in served.routed.held()] == ["kept"]

    asyncio.run(play())


def test_how_a_turn_ended_is_told_to_who_polls_later(serving):
    async def play():
        async with serving(decision_routes) as served:
            await fill(served)
            ask = {"prompt_tokens": 900, "turn": "t", "deadline_s": 0.01}
            assert (await served.call("submit", ask))[1]["status"] == "held"
            await served.until(lambda: not served.routed.held())
            status, decision = await served.call("submit", ask)
            assert (status, decision["status"], decision["reason"]) == (200, "expired", "deadline")
            assert (await served.call("submit", {**ask, "attempt": 1, "hold": False}))[1]["status"] == "placed"

    asyncio.run(play())


@pytest.mark.parametrize(
    ("name", "message", "status", "kind", "argument"),
    [
        ("submit", {"prompt": [1, -1]}, 400, "InvalidTokens", None),
        ("submit", {"prompt": "AAAA"}, 400, "InvalidTokens", "prompt"),
        ("submit", {"prompt": [1], "sesion": "s"}, 400, "InvalidArgument", "sesion"),
        ("submit", {"prompt": [1], "wait_s": -1}, 400, "InvalidArgument", "wait_s"),
        ("submit", {"prompt": [1], "attempt": 0.5}, 400, "InvalidArgument", "attempt"),
        ("submit", {}, 400, "InvalidArgument", None),
        ("submit", {"prompt": [1], "workload": "x"}, 404, "UnknownWorkload", None),
        ("submit", {"prompt": [1], "candidates": ["x"]}, 404, "UnknownReplica", None),
        ("submit", {"append": [1], "base_tokens": 1, "session": "x"}, 404, "UnknownSession", None),
        ("submit", {"prompt": [1, 2], "turn": "used"}, 409, "TurnConflict", None),
        ("progress", {"turn": "x", "output_tokens": 1}, 404, "UnknownTurn", None),
        ("drain_replica", {"name": "x"}, 404, "UnknownReplica", None),
        ("add_replica", {"name": "r2", "kv_tokens": -1}, 400, "InvalidArgument", None),
        ("kv_events", {"replica": "r0", "payload": "AAAA", "sequence": 0}, 400, "InvalidArgument", None),
    ],
)
def test_refusals_are_typed_and_change_nothing(serving, name, message, status, kind, argument):
    async def play():
        async with serving(decision_routes) as served:
            await served.call("submit", {"prompt": [1], "turn": "used"})
            before = served.routed.router.stats()
            got, body = await served.call(name, message)
            assert (got, body["error"]["type"]) == (status, kind)
            assert body["error"]["message"]
            assert argument in {None, body["error"]["argument"]}
            assert served.routed.router.stats() == before

    asyncio.run(play())


def test_forms_of_browsers_and_broken_bodies_are_refused(serving):
    async def play():
        async with serving(decision_routes) as served:
            url = f"{served.url}/turnout/v1/submit"
            async with served.session.post(url, data={"prompt": "x"}) as answer:
                assert answer.status == 415
            for media in ("application/json", "application/msgpack"):
                async with served.session.post(url, data=b"{", headers={"Content-Type": media}) as answer:
                    assert answer.status == 400

    asyncio.run(play())


def test_a_batch_is_decided_in_order_and_a_refusal_is_its_own(serving):
    async def play():
        async with serving(decision_routes) as served:
            turns = [{"prompt": [1, 2], "turn": "a"}, {"prompt": [-5]}, {"prompt": [1, 2], "turn": "b"}]
            _, batch = await served.call("submit_batch", {"turns": turns})
            first, refused, last = batch["decisions"]
            assert first["decision"]["seq"] < last["decision"]["seq"]
            assert refused["error"]["type"] == "InvalidTokens"
            assert refused["decision"] is None

    asyncio.run(play())


def test_replicas_come_run_dry_and_go(serving):
    async def play():
        async with serving(decision_routes) as served:
            assert (await served.call("add_replica", {"name": "r2"}))[1]["status"] == "done"
            assert (await served.call("set_replica", {"name": "r2", "kv_tokens": 500}))[1]["status"] == "done"
            assert (await served.call("drain_replica", {"name": "r0"}))[1]["status"] == "done"
            _, fleet = await served.call("replicas")
            shown = {row["name"]: (row["accepting"], row["kv_tokens"]) for row in fleet["replicas"]}
            assert shown == {"r0": (False, 1_000), "r1": (True, 2_000), "r2": (True, 500)}
            await served.call("submit", {"prompt_tokens": 1_900, "turn": "t", "owner": "o"})
            assert (await served.call("lose_replica", {"name": "r1"}))[1]["status"] == "done"
            assert (await served.call("remove_replica", {"name": "r0"}))[1]["status"] == "done"
            _, beat = await served.call("beat", {"owner": "o"})
            assert [(turn["turn"], turn["reason"]) for turn in beat["lost"]] == [("t", "replica_lost")]
            seen = {"owner": "o", "since_seq": beat["lost"][0]["seq"]}
            assert (await served.call("beat", seen))[1]["lost"] == []
            assert (await served.call("weights_updated", {"version": 3}))[1]["status"] == "done"
            assert (await served.call("observe", {"replica": "r2", "running": 4}))[1]["status"] == "done"
            _, view = await served.call("view")
            assert view["replicas"] == ["r2"]
            assert view["columns"]["weight_version"] == [3]
            assert view["columns"]["engine_running"] == [4.0]
            assert view["columns"]["target"] == [0.5, 0.5]
            assert view["columns"]["hit_fraction"] == [None]

    asyncio.run(play())


def test_an_owner_that_falls_silent_loses_its_sessions(serving):
    async def play():
        async with serving(lambda routed: decision_routes(routed, silence_s=0.05)) as served:
            await served.call("submit", {"prompt": [1], "session": "mine", "owner": "o"})
            await served.call("submit", {"prompt": [2], "session": "free"})
            await served.until(lambda: served.routed.router.stats()["live_sessions"] == 1)
            assert served.routed.router.peek(session="free") is not None

    asyncio.run(play())


def test_an_owner_can_say_that_it_is_gone(serving):
    async def play():
        async with serving(decision_routes) as served:
            await served.call("submit", {"prompt": [1], "owner": "o"})
            assert (await served.call("owner_lost", {"owner": "o"}))[1]["status"] == "done"
            assert (await served.call("owner_lost", {"owner": "o"}))[1]["status"] == "unknown"

    asyncio.run(play())


def test_choose_and_info(serving):
    async def play():
        async with serving(decision_routes) as served:
            _, chosen = await served.call("choose", {"prompt": [1, 2]})
            assert (chosen["turn"], chosen["reason"], chosen["receipt"]["limit"]) == ("", "chosen", 2_000)
            _, info = await served.call("info")
            assert (info["block_tokens"], info["replicas"]) == (16, ["r0", "r1"])

    asyncio.run(play())


def test_the_document_has_every_operation(serving):
    async def play():
        async with serving(decision_routes) as served:
            _, document = await served.call("openapi.json")
            paths = {f"/turnout/v1/{operation.name}" for operation in OPERATIONS}
            assert set(document["paths"]) == paths
            routes = {route.path for route in decision_routes(served.routed)}
            assert routes == paths | {"/turnout/v1/openapi.json"}
            for path, entry in document["paths"].items():
                method = next(iter(entry))
                async with served.session.request(method, served.url + path) as answer:
                    assert answer.status in {200, 400, 415}, path
            text = str(document["paths"])
            for name in document["components"]["schemas"]:
                assert name in text or name in str(document["components"])

    asyncio.run(play())


def test_an_unread_limit_is_a_client_error_not_a_crash(serving):
    async def play():
        async with serving(decision_routes) as served:
            with pytest.raises(aiohttp.ContentTypeError):
                await served.call("nothing_of_the_kind")
            async with served.session.get(f"{served.url}/turnout/v1/submit") as answer:
                assert answer.status == 405

    asyncio.run(play())
