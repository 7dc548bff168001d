"""`/metrics`: what is scraped is what the page of the docs says, and the numbers are those of the router."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from turnout import Replica, Router, Workload, aio
from turnout.engine import EngineConfig, EngineServer
from turnout.feeds import Fleet
from turnout.policies import Open
from turnout.record import JournalWriter
from turnout.server.app import make_apps
from turnout.server.config import ServeConfig
from turnout.server.decisions import OPERATIONS
from turnout.server.metric_table import TABLE
from turnout.server.metrics import Metrics

ROW = re.compile(r"^\| `(turnout_\w+)` \| (\w+) \| (.*?) \|", re.MULTILINE)
PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


def full_name(family):
    return f"{family.name}_total" if family.type == "counter" else family.name


def values(page, name):
    """The rows of a metric by the values of its labels, in the order of their names."""
    families = text_string_to_metric_families(page.decode())
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return {tuple(value for _, value in sorted(sample.labels.items())): sample.value for sample in samples}


def router(**arguments):
    workloads = [Workload("agent", target=0.75), Workload("chat", target=0.25)]
    return Router([Replica("r0", kv_tokens=1_000)], workloads, policy=Open(), **arguments)


def play_turns(routed):
    """A hold, a session that finishes, one that goes on and says what it found cached."""
    first = routed.submit([*range(800)], session="a", workload="agent", at="r0")
    routed.complete(first.turn, [7])
    grown = routed.submit(append=[8], base_tokens=801, session="a", workload="agent")
    held = routed.submit([*range(1_000, 1_800)], session="b", workload="chat", candidates=["r0"])
    assert (first.status, grown.status, held.status) == ("placed", "placed", "held")
    routed.complete(grown.turn, [9], cached_tokens=0)
    routed.end_session("a")


def test_the_page_and_the_scrape_say_the_same(tmp_path):
    """Everything happens once, so that every metric has rows; then both lists are equal, kinds and labels included."""

    async def play():
        plain = router()
        config = EngineConfig(kv_tokens=65_536, kv_events_port=0)
        with JournalWriter(plain, tmp_path / "journal") as writer:
            async with (
                EngineServer(config) as engine,
                aio.serve(plain, journal=writer) as routed,
                Fleet(routed, [engine.url]) as fleet,
            ):
                name = engine.url.removeprefix("http://")
                metrics = Metrics(routed, fleet, {"completed": 1})
                play_turns(routed)
                metrics.timed("submit", 1e-5)
                metrics.answered("/turnout/v1/submit", 200)
                while not (status := fleet.status()[name]).feed.ranks or status.metrics_age_s is None:
                    await asyncio.sleep(0.01)
                asked = {"model": config.model, "prompt": [*range(64)], "max_tokens": 4}
                async with (
                    aiohttp.ClientSession() as session,
                    session.post(f"{engine.url}/v1/completions", json=asked) as answer,
                ):
                    assert answer.status == 200, await answer.text()
                while fleet.status()[name].feed.ranks[0].age_s is None:
                    await asyncio.sleep(0.01)
                return metrics.page()

    families = list(text_string_to_metric_families(asyncio.run(play()).decode()))
    said = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in ROW.findall(PAGE)}
    assert said == {metric.name: (metric.kind, set(metric.labels)) for metric in TABLE}
    scraped = {}
    for family in families:
        if not family.name.startswith("process_"):
            assert family.samples, f"{family.name} has no row: the test must bring one about"
            labels = {label for sample in family.samples for label in sample.labels}
            scraped[full_name(family)] = (family.type, labels - {"le"})
    assert scraped == said
    process = {full_name(family) for family in families if family.name.startswith("process_")}
    assert process == set(re.findall(r"`(process_[a-z_]+)`", PAGE))


def test_the_numbers_are_those_of_the_router():
    async def play():
        async with aio.serve(router()) as routed:
            metrics = Metrics(routed)
            play_turns(routed)
            page, view = metrics.page(), routed.router.view()
            assert values(page, "turnout_charge_tokens") == {("r0",): view.charge_tokens[0]}
            assert values(page, "turnout_kv_tokens") == {("r0",): 1_000}
            assert values(page, "turnout_finished_sessions_total") == {("agent",): 1, ("chat",): 0}
            assert values(page, "turnout_mixture_distance_ratio") == {(): 0.25}
            assert values(page, "turnout_sessions")["r0", "running", "chat"] == 1
            decisions = values(page, "turnout_decisions_total")
            assert decisions["continuation", "placed"] == 1
            assert sum(n for (_, status), n in decisions.items() if status == "held") == 1
            assert values(page, "turnout_hold_seconds_count") == {("chat",): 1}
            assert values(page, "turnout_hit_missing_tokens_total")["r0",] == view.missing_tokens[0] > 0
            assert not values(page, "turnout_journal_bytes"), "what is not there has no row"

    asyncio.run(play())


ADMIN = [
    "/metrics",
    *(f"/turnout/v1/{name}" for name in ("add_replica", "set_replica", "drain_replica", "remove_replica")),
    *(f"/turnout/v1/{name}" for name in ("lose_replica", "weights_updated", "observe", "kv_events")),
    *(f"/turnout/v1/{name}" for name in ("stats", "view", "explain")),
]
BOTH = ["/healthz", "/readyz", "/turnout/v1/replicas", "/turnout/v1/info", "/turnout/v1/openapi.json"]


def test_what_operates_the_server_is_at_the_operators_port_alone(serving, listen_with):
    """Every route of the server is at the ports where the page says that it is."""

    async def play():
        async with serving(lambda _: []) as served:
            apart = make_apps(served.routed, ServeConfig(admin_port=0))
            whole = make_apps(served.routed, ServeConfig())
            assert whole.admin is None
            async with (
                listen_with(apart.public) as public,
                listen_with(apart.admin) as admin,
                listen_with(whole.public) as one,
                aiohttp.ClientSession() as session,
            ):

                async def there(url):
                    async with session.get(url) as answer:
                        return answer.status != 404 or "error" in await answer.text()

                every = [*ADMIN, *BOTH, *(f"/turnout/v1/{name.name}" for name in OPERATIONS)]
                found = {path: (await there(public + path), await there(admin + path)) for path in every}
                assert {path for path in every if not await there(one + path)} == set()
        assert {path for path, where in found.items() if where == (False, True)} == set(ADMIN)
        assert {path for path, where in found.items() if where == (True, True)} == set(BOTH)
        assert (False, False) not in found.values()

    asyncio.run(play())


def test_answers_are_counted_by_route_and_never_by_path(serving, listen_with):
    async def play():
        async with serving(lambda _: []) as served:
            app = make_apps(served.routed, ServeConfig(token="secret")).public  # noqa: S106 - a test's
            head = {"Authorization": "Bearer secret"}
            async with listen_with(app) as url, aiohttp.ClientSession() as session:
                for path, headers, status in (
                    ("/turnout/v1/stats", head, 200),
                    ("/turnout/v1/explain?turn=secret-name", head, 404),
                    ("/turnout/v1/nothing/secret-name", head, 404),
                    ("/metrics", {}, 401),
                ):
                    async with session.get(url + path, headers=headers) as answer:
                        assert answer.status == status
                async with session.get(f"{url}/metrics", headers=head) as answer:
                    page = await answer.read()
        assert b"secret" not in page
        counted = values(page, "turnout_http_requests_total")
        assert counted == {
            ("/turnout/v1/stats", "200"): 1,
            ("/turnout/v1/explain", "404"): 1,
            ("other", "404"): 1,
            ("other", "401"): 1,
        }
        assert values(page, "turnout_decision_seconds_count")["stats",] == 1

    asyncio.run(play())
