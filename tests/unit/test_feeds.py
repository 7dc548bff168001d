"""Feeds over real sockets: what engines publish reaches the router, whatever is lost on the way."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import socket
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from turnout import Replica, Router, _core
from turnout.errors import InvalidArgument, UnknownReplica
from turnout.feeds import Engine, Fleet, KvSource, Timing
from turnout.feeds.discovery import reachable, sglang_sources, vllm_sources
from turnout.feeds.health import Health
from turnout.feeds.metrics import read_loads, read_metrics
from turnout.feeds.shortfall import Evidence, HitMonitor

_spec = importlib.util.spec_from_file_location("feed_engines", Path(__file__).parent / "feed_engines.py")
play = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(play)

QUICK = Timing(
    health_period_s=0.05,
    metrics_period_s=0.05,
    request_timeout_s=2.0,
    stale_after_s=4.0,
    dead_after_s=0.2,
    lost_after_s=20.0,
    feed_stale_after_s=0.1,
    replay_timeout_s=1.0,
)
BATCHES = play.payloads(play.VLLM)


@contextlib.asynccontextmanager
async def engine(*, ranks=1, replay=True, keep=10_000, router=None, before=0):
    """A vLLM of some ranks and a fleet that follows it."""
    context = zmq.asyncio.Context()
    publishers = [play.Publisher(context, replay=replay, keep=keep) for _ in range(ranks)]
    for each in publishers:
        for payload in BATCHES[:before]:
            await each.publish(payload, lose=True)
    site = play.Web(play.vllm_bodies(publishers))
    await site.open()
    router = router or Router([])
    try:
        async with Fleet(router, [Engine("r0", site.url)], timing=QUICK) as fleet:
            await asyncio.gather(*(asyncio.wait_for(each.subscribed(), 20) for each in publishers))
            await play.until(lambda: all(rank.connected for rank in fleet.status()["r0"].feed.ranks))
            yield fleet, router, publishers, site
    finally:
        await site.close()
        for each in publishers:
            await each.close()
        context.term()


def ranks(fleet):
    return fleet.status()["r0"].feed.ranks


def test_events_reach_the_router_and_the_feed_is_whole():
    async def run():
        async with engine() as (fleet, router, (pub,), _):
            for payload in BATCHES:
                await pub.publish(payload)
            await play.until(lambda: ranks(fleet)[0].batches == len(BATCHES))
            status = fleet.status()["r0"]
            assert (status.kind, status.version, status.state, status.feed.state) == ("vllm", "0.33.0", "up", "whole")
            assert (status.kv_tokens, status.block_tokens, status.prefix_caching) == (2_048.0, 32, True)
            stats = router.stats()
            assert (stats["feed_stored_blocks"], stats["feed_removed_blocks"]) == (222, 158)
            assert fleet.status().to_dict()["r0"]["feed"]["ranks"][0]["next_sequence"] == len(BATCHES)
            router.audit()

    asyncio.run(run())


def test_gap_is_closed_by_replay():
    async def run():
        async with engine() as (fleet, router, (pub,), _):
            for payload in BATCHES[:10]:
                await pub.publish(payload)
            await play.until(lambda: ranks(fleet)[0].batches == 10)
            # Whatever the beginning asked for is answered.
            await asyncio.sleep(0.5)
            for at, payload in enumerate(BATCHES[10:], start=10):
                await pub.publish(payload, lose=10 <= at < 20)
            await play.until(lambda: ranks(fleet)[0].batches == len(BATCHES))
            rank = ranks(fleet)[0]
            assert rank.gaps >= 1
            assert (rank.resets, rank.replayed >= 10) == (0, True)
            assert 10 in pub.asked
            assert fleet.status()["r0"].feed.state == "whole"
            assert router.stats()["feed_stored_blocks"] == 222

    asyncio.run(run())


def test_replay_at_the_beginning_makes_a_late_listener_whole():
    async def run():
        async with engine(before=30) as (fleet, router, (pub,), _):
            await play.until(lambda: ranks(fleet)[0].batches == 30)
            assert pub.asked[0] == 0
            assert (ranks(fleet)[0].replayed, fleet.status()["r0"].feed.state) == (30, "whole")
            router.audit()

    asyncio.run(run())


def test_reset_where_replay_is_impossible():
    async def run():
        async with engine(replay=False) as (fleet, _, (pub,), _site):
            for at, payload in enumerate(BATCHES[:40]):
                await pub.publish(payload, lose=at == 20)
            await play.until(lambda: ranks(fleet)[0].next_sequence == 40)
            rank = ranks(fleet)[0]
            assert (rank.gaps, rank.resets, rank.replays, rank.replayable) == (1, 1, 0, False)
            assert "no replay_endpoint" in fleet.status()["r0"].reason

    asyncio.run(run())


def test_reset_to_what_a_short_replay_still_has():
    async def run():
        async with engine(keep=5) as (fleet, _, (pub,), _site):
            for at, payload in enumerate(BATCHES[:40]):
                await pub.publish(payload, lose=10 <= at < 30)
            await play.until(lambda: ranks(fleet)[0].next_sequence == 40)
            assert ranks(fleet)[0].resets >= 1

    asyncio.run(run())


def test_several_ranks_have_numbers_of_their_own():
    async def run():
        async with engine(ranks=2) as (fleet, router, (zero, one), _):
            for payload in BATCHES[:12]:
                await zero.publish(payload)
            for payload in BATCHES[:7]:
                await one.publish(payload)
            await play.until(lambda: [rank.batches for rank in ranks(fleet)] == [12, 7])
            assert [rank.gaps for rank in ranks(fleet)] == [0, 0]
            router.audit()

    asyncio.run(run())


def test_restart_empties_the_cache_and_loses_its_turns():
    async def run():
        async with engine() as (fleet, router, (pub,), _):
            for payload in BATCHES[:20]:
                await pub.publish(payload)
            await play.until(lambda: ranks(fleet)[0].batches == 20)
            turn = router.submit(list(range(100)), session="s").turn
            pub.restart()
            await pub.publish(BATCHES[0])
            await play.until(lambda: ranks(fleet)[0].batches == 21)
            status = fleet.status()["r0"]
            assert (status.restarts, status.state, status.feed.ranks[0].restarts) == (1, "restarted", 1)
            assert [(decision.turn, decision.status) for decision in router.drain()] == [(turn, "lost")]
            assert (status.feed.state, router.replicas) == ("whole", ("r0",))
            router.audit()

    asyncio.run(run())


def test_dead_engine_leaves_and_comes_back():
    async def run():
        async with engine() as (fleet, router, (pub,), site):
            await pub.publish(BATCHES[0])
            await play.until(lambda: ranks(fleet)[0].batches == 1)
            router.submit([1, 2, 3], session="s")
            await site.close()
            await play.until(lambda: router.replicas == ())
            assert fleet.status()["r0"].state == "dead"
            assert [decision.status for decision in router.drain()] == ["lost"]
            await site.open()
            await play.until(lambda: fleet.status()["r0"].state == "back")
            await play.until(lambda: ranks(fleet)[0].batches == 1)
            assert (router.replicas, fleet.status()["r0"].deaths) == (("r0",), 1)
            assert fleet.status()["r0"].feed.state == "whole"
            router.audit()

    asyncio.run(run())


def test_stale_feed_falls_back_to_own_decisions():
    async def run():
        async with engine() as (fleet, router, (pub,), site):
            await pub.publish(BATCHES[0])
            await play.until(lambda: fleet.status()["r0"].feed.state == "whole")
            # The metrics of the time before are read.
            await asyncio.sleep(0.5)
            page = site.bodies["/metrics"]
            more = page.replace(
                'vllm:prompt_tokens_total{engine="0",model_name="tiny"} 4682.0',
                'vllm:prompt_tokens_total{engine="0",model_name="tiny"} 9682.0',
            )
            assert more != page
            site.bodies["/metrics"] = more
            await play.until(lambda: fleet.status()["r0"].feed.state == "stale")
            assert "no event came" in fleet.status()["r0"].feed.reason
            assert not router.view().exact[0]
            await pub.publish(BATCHES[1])
            await play.until(lambda: fleet.status()["r0"].feed.state == "whole")

    asyncio.run(run())


def test_weight_update_clears_what_the_index_knew():
    async def run():
        async with engine() as (fleet, router, (pub,), _):
            for payload in BATCHES[:21]:
                await pub.publish(payload)
            await play.until(lambda: ranks(fleet)[0].batches == 21)
            assert router.view().resident_tokens[0] == 1_920
            # It says that the cache was cleared, twice, and one block stored since.
            assert _core.describe_kv_events(BATCHES[80])["cleared"] == 2
            await pub.publish(BATCHES[80])
            await play.until(lambda: ranks(fleet)[0].batches == 22)
            assert router.view().resident_tokens[0] == 32

    asyncio.run(run())


def test_unreadable_messages_and_unknown_keys():
    async def run():
        async with engine() as (fleet, _, (pub,), site):
            site.bodies["/kv_event_sources"]["note"] = {"endpoint": 7}
            await pub.publish(b"\x93\xcb\x40\x29\0\0\0\0\0\0\x91\x81\xa4type\xa7Unheard\x00")
            await play.until(lambda: ranks(fleet)[0].batches == 1)
            await pub.publish(b"junk")
            await pub.publish(BATCHES[0])
            await play.until(lambda: ranks(fleet)[0].batches == 2)
            assert (ranks(fleet)[0].unreadable, ranks(fleet)[0].resets) == (1, 1)

    asyncio.run(run())


def test_sglang_publishes_events_and_load():
    async def run():
        context = zmq.asyncio.Context()
        pub, load = play.Publisher(context), play.Publisher(context, replay=False)
        site = play.Web(play.sglang_bodies(pub.port, pub.replay_port, load.port))
        await site.open()
        router = Router([])
        async with Fleet(router, [Engine("r0", site.url)], timing=QUICK) as fleet:
            await asyncio.gather(pub.subscribed(), load.subscribed())
            for payload in play.payloads(play.SGLANG):
                await pub.publish(payload)
            await play.until(lambda: ranks(fleet)[0].batches == 18)
            status = fleet.status()["r0"]
            assert (status.kind, status.version, status.kv_tokens, status.block_tokens) == (
                "sglang",
                "0.5.23",
                2_048.0,
                16,
            )
            busy = next(p for p in play.payloads(play.SGLANG, "load") if _core.load_report(p)["running"])
            site.bodies["/v1/loads"] = None
            await asyncio.sleep(0.2)
            await load.publish(busy)
            await play.until(lambda: fleet.status()["r0"].running == _core.load_report(busy)["running"])
            await play.until(lambda: router.view().engine_running[0] == _core.load_report(busy)["running"])
        await site.close()
        await pub.close()
        await load.close()
        context.term()

    asyncio.run(run())


def test_silent_zero_hit_routing_is_detected():
    async def run():
        router = Router([Replica("r0", kv_tokens=1_000_000)])
        async with engine(router=router) as (fleet, _, _pubs, _site):
            for session in range(40):
                name, prompt = f"s{session}", list(range(session * 1_000, session * 1_000 + 320))
                turn = router.submit(prompt, session=name).turn
                router.complete(turn, output=[1, 2], cached_tokens=0)
                turn = router.submit([*prompt, 1, 2, 3], session=name).turn
                router.complete(turn, output=[4], cached_tokens=0)
            fleet.look_at_hits()
            found = fleet.status()["r0"].shortfall
            assert (found.turns, found.share, found.wrong) == (40, 1.0, True)
            assert "--enable-prompt-tokens-details" in found.cause

    asyncio.run(run())


def test_one_that_does_not_answer_delays_no_other():
    async def run():
        silent = socket.create_server(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        async with engine() as (fleet, router, (pub,), _):
            fleet.add(f"http://127.0.0.1:{port}", name="silent")
            await pub.publish(BATCHES[0])
            await play.until(lambda: ranks(fleet)[0].batches == 1)
            assert (fleet.status()["silent"].state, router.replicas) == ("joining", ("r0",))
            fleet.drain("r0")
            assert fleet.status()["r0"].state == "draining"
            fleet.resume("r0")
            await fleet.remove("r0")
            assert router.replicas == ()
            with pytest.raises(UnknownReplica):
                fleet.drain("r0")
            with pytest.raises(InvalidArgument, match="followed already"):
                fleet.add(f"http://127.0.0.1:{port}", name="silent")
        silent.close()

    asyncio.run(run())


def test_life_follows_its_rules():
    health = Health(Timing(), began_s=0.0)
    assert (health.life(29.0), health.life(30.0)) == ("joining", "dead")
    health.good(40.0)
    for at in (41.0, 42.0, 43.0):
        health.refused(at, "refused")
    health.sign(50.9)
    assert (health.life(50.9), health.life(51.0)) == ("up", "dead")
    health.good(52.0)
    health.silent("slow")
    assert [health.life(at) for at in (53.0, 57.0, 82.0)] == ["up", "stale", "dead"]


def test_the_books_are_judged_by_the_stated_formula():
    monitor = HitMonitor()
    for _ in range(31):
        monitor.note(expected_tokens=1_000, reported_tokens=0)
    assert not monitor.judge(Evidence()).wrong
    monitor.note(expected_tokens=1_000, reported_tokens=0)
    assert monitor.judge(Evidence()).wrong
    for _ in range(2_000):
        monitor.note(expected_tokens=1_000, reported_tokens=950)
    found = monitor.judge(Evidence())
    assert not found.wrong
    assert 256 <= found.turns <= 272
    # 300 of 1,000 missing: 0.3 - 2 sqrt(0.21 / 256) = 0.243, not above 0.25.
    edge = HitMonitor()
    edge.totals(256, 256_000, 76_800)
    assert not edge.judge(Evidence()).wrong
    edge = HitMonitor()
    edge.totals(256, 256_000, 82_000)
    assert "evicts earlier" in edge.judge(Evidence(kv_told=True)).cause
    assert "prefix caching is off" in edge.judge(Evidence(prefix_caching=False)).cause
    edge.totals(1, 10, 0)
    assert edge.judge(Evidence()).turns == 1


def test_pages_of_both_engines():
    vllm = read_metrics((play.WIRE / "vllm-0.33.0.metrics.txt").read_text(encoding="utf-8"), rank=0)
    assert (vllm.kv_tokens, vllm.block_tokens, vllm.prefix_caching, vllm.preemptions_total) == (2_048.0, 32, True, 9)
    assert (vllm.computed_tokens_total, vllm.running, vllm.started_at_s) == (3_434, 0, 1796097272.14)
    sglang = read_metrics((play.WIRE / "sglang-0.5.23.metrics.txt").read_text(encoding="utf-8"))
    assert (sglang.kind, sglang.kv_tokens, sglang.block_tokens, sglang.computed_tokens_total) == (
        "sglang",
        2_048.0,
        16,
        2_985,
    )
    assert read_metrics("<html>nothing</html>").kind is None
    assert read_loads({"loads": "nothing"}).kind is None


def test_every_captured_message_is_read_whole():
    files = sorted(play.WIRE.glob("*.jsonl"))
    assert len(files) == 5
    for file in files:
        for payload in play.payloads(file.name):
            about = _core.describe_kv_events(payload)
            assert (about["unknown_events"], about["left_out_events"], about["rank"]) == (0, 0, 0)
    loads = [_core.load_report(payload) for payload in play.payloads(play.SGLANG, "load")]
    assert (len(loads), sum(load["running"] for load in loads)) == (88, 125)
    with pytest.raises(InvalidArgument, match="payload"):
        _core.load_report(b"\x91")


def test_addresses():
    assert reachable("tcp://*:5557", "::1") == "tcp://[::1]:5557"
    assert (reachable("tcp://*:0", "h"), reachable("nonsense", "h")) == (None, None)
    same = {str(rank): {"endpoint": "tcp://*:5557"} for rank in range(2)}
    assert [source.endpoint for source in vllm_sources(same, "h")] == ["tcp://h:5557", "tcp://h:5558"]
    info = {"kv_events": {"publisher": "zmq", "endpoint_host": "10.0.0.9", "endpoint_port_base": 7, "dp_size": 2}}
    assert [source.endpoint for source in sglang_sources(info, "h")[0]] == ["tcp://10.0.0.9:7", "tcp://10.0.0.9:8"]


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: Engine("", "http://h"), "name"),
        (lambda: Engine("r", "h:80"), "url"),
        (lambda: Engine("r", "http://h", kv_tokens=0), "kv_tokens"),
        (lambda: KvSource("h:5557"), "endpoint"),
        (lambda: Timing(stale_after_s=99.0), "lost_after_s"),
        (lambda: Fleet(Router([]), ["http://h:1", "http://h:1"]), "engines"),
    ],
)
def test_bad_configuration_is_named(make, argument):
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert caught.value.argument == argument
