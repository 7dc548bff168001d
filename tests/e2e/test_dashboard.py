"""The dashboard: its numbers on a real router, and its page in a real browser before a real server and engines."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.resources import files
from pathlib import Path

import aiohttp
import pytest

from turnout import Replica
from turnout.engine import EngineConfig, EngineServer
from turnout.feeds import Fleet
from turnout.server.dashboard import dashboard_routes, page
from turnout.server.dashboard_data import DECISIONS, ROWS

_spec = importlib.util.spec_from_file_location("chromium", Path(__file__).parent / "chromium.py")
browser = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(browser)

EVIL = '<img src=x onerror="window.hacked = 1">'
TOKEN = "a-token"  # noqa: S105 - of the test's own server
HEAD = {"Authorization": f"Bearer {TOKEN}"}


async def board(served, **query):
    async with served.session.get(f"{served.url}/turnout/v1/dashboard", params=query) as answer:
        return answer.status, await answer.json()


def test_the_numbers_are_those_of_the_router(serving):
    async def play():
        async with serving(dashboard_routes) as served:
            routed = served.routed
            assert routed.submit(list(range(900)), session="a", workload="agent", turn="t", at="r0").placed
            assert routed.submit(prompt_tokens=1_900, session="b", workload="chat", at="r1").placed
            held = [routed.submit(prompt_tokens=900, workload="chat", turn=f"h{each}") for each in range(3)]
            _, shown = await board(served)
            totals, rows = shown["totals"], {row["name"]: row for row in shown["replicas"]}
            assert (totals["replicas"], totals["open_turns"], totals["held_turns"]) == (2, 5, 3)
            assert totals["kv_tokens"] == 3_000
            view = routed.router.view()
            assert [rows["r0"]["charge_tokens"], rows["r1"]["charge_tokens"]] == view.charge_tokens.tolist()
            assert totals["charge_tokens"] == view.charge_tokens.sum()
            assert (rows["r0"]["state"], rows["r0"]["feed"], rows["r0"]["ceiling_tokens"]) == ("up", "off", 1_000)
            assert {row["name"]: (row["queued"], row["running"]) for row in shown["workloads"]} == {
                "agent": (0, 1),
                "chat": (3, 1),
            }
            assert sum(row["turns"] for row in shown["holds"]) == shown["holds_counted"] == 3
            assert {row["reason"] for row in shown["holds"]} == {each.reason for each in held}
            assert [row["turn"] for row in shown["decisions"]][-3:] == ["h0", "h1", "h2"]
            assert shown["decisions"][-1]["words"].startswith("Held")
            assert shown["problems"] == []
            newest = shown["decisions"][-1]["number"]
            assert (await board(served, after=newest))[1]["decisions"] == []
            for _ in range(DECISIONS + 5):
                routed.choose(prompt_tokens=10)
            _, shown = await board(served, after=newest)
            assert [row["number"] for row in shown["decisions"]] == list(range(newest + 6, newest + 6 + DECISIONS))
            for wrong in ("-1", "x", "1" * 40, "\u0663"):
                assert (await board(served, after=wrong))[0] == 400

    asyncio.run(play())


def test_a_thousand_replicas_are_shown_a_part_at_a_time(serving):
    async def play():
        fleet = [Replica(f"r{row:04d}", kv_tokens=1_000) for row in range(1_000)]
        async with serving(dashboard_routes, replicas=fleet) as served:
            assert served.routed.submit(prompt_tokens=900, at="r0777").placed
            status, shown = await board(served)
            assert (status, shown["replicas_found"], len(shown["replicas"])) == (200, 1_000, ROWS)
            assert (shown["totals"]["replicas"], shown["totals"]["kv_tokens"]) == (1_000, 1_000_000)
            assert [row["name"] for row in (await board(served, skip=990))[1]["replicas"]] == [
                f"r{row:04d}" for row in range(990, 1_000)
            ]
            for order in ("full", "worst"):
                assert (await board(served, order=order))[1]["replicas"][0]["name"] == "r0777"
            _, shown = await board(served, find="r077", order="name")
            assert (shown["replicas_found"], shown["totals"]["replicas"]) == (10, 1_000)

    asyncio.run(play())


class Broken:
    """A policy that fails."""

    def limits(self, view, last):
        del view, last
        raise ArithmeticError("no such number")


def test_what_is_wrong_is_said_first(serving):
    async def play():
        async with AsyncExitStack() as stack:
            shown_by = {}

            def routes(routed):
                shown_by["fleet"] = Fleet(routed, ["http://127.0.0.1:9"])
                return dashboard_routes(routed, shown_by["fleet"].status)

            served = await stack.enter_async_context(serving(routes, replicas=[], policy=Broken()))
            await stack.enter_async_context(shown_by["fleet"])
            _, shown = await board(served)
            while not any("policy" in problem["what"] for problem in shown["problems"]):
                await asyncio.sleep(0.1)
                _, shown = await board(served)
            said = {problem["what"].partition(":")[0]: problem for problem in shown["problems"]}
            assert [problem["severity"] for problem in shown["problems"]] == ["error", "error", "warning"]
            assert said["There is no replica yet"]["severity"] == "error"
            failed = next(problem for what, problem in said.items() if what.startswith("The policy failed"))
            assert "no such number" in failed["why"]
            assert said["The engine has not answered yet"]["replicas"] == ["127.0.0.1:9"]
            assert [(row["name"], row["state"]) for row in shown["replicas"]] == [("127.0.0.1:9", "joining")]

    asyncio.run(play())


def test_the_page_stands_alone_and_takes_no_markup():
    html, headers = page()
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert (policy["default-src"], policy["connect-src"]) == ("'none'", "'self'")
    assert policy["script-src"].startswith("'sha256-")
    assert policy["style-src"].startswith("'sha256-")
    text = html.decode()
    assert not re.search(
        r"(src|href)\s*=|url\(|@import|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text
    )
    assert not set(re.findall(r"https?://[^\"'\s]+", text)) - {"http://www.w3.org/2000/svg"}


def test_text_can_be_read_in_light_and_dark():
    """WCAG 2.2 AA: a contrast of at least 4.5 between text and what is behind it."""
    style = (files("turnout.server") / "page" / "dashboard.css").read_text(encoding="utf-8")
    schemes = [dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in re.findall(r":root \{([^}]*)\}", style)]

    def light(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    def contrast(one, other):
        high, low = sorted((light(one), light(other)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    assert len(schemes) == 2
    for scheme in schemes:
        for ink in ("ink", "dim", "green", "error", "warning", "blue"):
            for ground in ("card", "hover"):
                assert contrast(scheme[ink], scheme[ground]) >= 4.5, (ink, ground, scheme[ground])
        for kind, ground in (("error", "error-ground"), ("warning", "warning-ground"), ("blue", "note-ground")):
            assert contrast(scheme[kind], scheme[ground]) >= 4.5, kind
            assert contrast(scheme["dim"], scheme[ground]) >= 4.5, kind


@asynccontextmanager
async def process(*options, port=0):
    """`turnout serve` as a process; yields it and its address."""
    command = [sys.executable, "-m", "turnout.cli", "serve", "--port", str(port), *options]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        yield child, json.loads(await child.stdout.readline())["url"]
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGTERM)
        await child.communicate()


def test_the_page_needs_no_token_and_the_numbers_do():
    async def play():
        async with process("--token", TOKEN) as (_, url), aiohttp.ClientSession() as http:
            for path, head, status in (
                ("/", {}, 200),
                ("/dashboard", {}, 200),
                ("/turnout/v1/dashboard", {}, 401),
                ("/turnout/v1/dashboard", HEAD, 200),
            ):
                async with http.get(url + path, headers=head) as answer:
                    assert answer.status == status, path

    asyncio.run(play())


async def play_session(http, url, engines, name, workload):
    """Three turns of one session: decided by the router, computed by the engine that it named."""
    tokens = [sum(name.encode()) % 997 + at for at in range(600)]
    for turn in range(3):
        message = {"prompt": tokens, "session": name, "workload": workload, "turn": f"{name}/{turn}", "wait_s": 60}
        async with http.post(f"{url}/turnout/v1/submit", json=message, headers=HEAD) as answer:
            decision = await answer.json()
        assert decision["status"] == "placed", decision
        ask = {"prompt": tokens, "max_tokens": 64, "return_token_ids": True}
        async with http.post(f"{engines[decision['replica']]}/v1/completions", json=ask) as answer:
            done = await answer.json()
        output = done["choices"][0]["token_ids"]
        cached = done["usage"]["prompt_tokens_details"]["cached_tokens"]
        end = {"turn": decision["turn"], "output": output, "cached_tokens": cached}
        async with http.post(f"{url}/turnout/v1/complete", json=end, headers=HEAD) as answer:
            assert answer.status == 200
        tokens = tokens + output + [1, 2, 3]
    async with http.post(f"{url}/turnout/v1/end_session", json={"session": name}, headers=HEAD) as answer:
        assert answer.status == 200


@pytest.mark.skipif(browser.PROGRAM is None, reason="no Chromium on this machine: apt-get install chromium")
def test_the_page_in_a_browser(tmp_path):
    async def play():
        async with AsyncExitStack() as stack:
            configs = [EngineConfig(kv_tokens=4_096, speed=50.0, seed=each) for each in range(2)]
            servers = [await stack.enter_async_context(EngineServer(config)) for config in configs]
            engines = {server.url.partition("://")[2]: server.url for server in servers}
            options = ["--token", TOKEN, "--workload", "agent=0.6", "--workload", "chat=0.4"]
            for server in servers:
                options += ["--engine", server.url]
            http = await stack.enter_async_context(aiohttp.ClientSession())
            shown = await stack.enter_async_context(browser.chromium(tmp_path / "profile"))
            async with process(*options) as (child, url):
                await shown.open(f"{url}/")
                await log_in(shown)
                await shown.until("document.querySelectorAll('#replicas tbody tr').length === 2")
                await shown.until("document.querySelector('#tiles').textContent.includes('2 up')")
                names = [(f"{EVIL}{each}", ("agent", "chat")[each % 2]) for each in range(30)]
                for name in engines:
                    full = {"prompt_tokens": 3_900, "turn": name, "at": name}
                    async with http.post(f"{url}/turnout/v1/submit", json=full, headers=HEAD) as answer:
                        assert (await answer.json())["status"] == "placed"
                work = asyncio.gather(*(play_session(http, url, engines, *name) for name in names))
                await shown.until("document.querySelectorAll('#holds tbody tr').length > 0")
                for name in engines:
                    async with http.post(f"{url}/turnout/v1/abort", json={"turn": name}, headers=HEAD) as answer:
                        assert answer.status == 200
                await shown.value(WATCH_JUMPS)
                await work
                await shown.until("document.querySelector('#tiles').textContent.includes('completed30')")
                assert await shown.value("window.jumps") < 0.1, "nothing jumps while numbers change: good as of CLS"
                await shown.value("document.querySelector('#tiles').style.marginTop = '300px'")
                await shown.until("window.jumps >= 0.1")  # what would have been seen
                await shown.value("document.querySelector('#tiles').style.marginTop = ''")
                await look_around(shown)
                await hostile_replica(shown, http, url)
                port = int(url.rpartition(":")[2])
                child.kill()
                await child.wait()
                await shown.until("document.querySelector('#link').textContent.includes('disconnected since')")
                assert "no connection" in await shown.text("#link")
            await shown.value("window.stays = 1")
            async with process(*options, port=port):
                await shown.until("document.querySelector('#link').textContent.includes('live')")
                await shown.until("document.querySelectorAll('#decisions tbody tr').length === 0")
                assert await shown.value("window.stays") == 1, "the same page goes on, with its token"
            refused = [error for error in shown.errors if "ERR_CONNECTION" not in error and "401" not in error]
            assert refused == [], "no exception, nothing that the page's policy forbids"

    asyncio.run(play())


WATCH_JUMPS = """
window.jumps = 0;
new PerformanceObserver(found => found.getEntries().forEach(shift => { window.jumps += shift.value; }))
    .observe({ type: "layout-shift" });
"""


async def log_in(shown):
    """A wrong token is refused in words, the right one is kept in this tab."""
    await shown.until("!document.querySelector('#ask').hidden")
    for token in ("wrong", TOKEN):
        await shown.value(f"document.querySelector('#token').value = {token!r}")
        await shown.click("#ask button")
        if token == "wrong":  # noqa: S105 - of the test
            await shown.until("document.querySelector('#refused').textContent.includes('refused')")
    await shown.until("!document.querySelector('#board').hidden")
    assert await shown.value("sessionStorage.getItem('turnout-token')") == TOKEN


async def look_around(shown):
    """Every part shows what happened; a decision explains itself; names stay text."""
    await shown.until("document.querySelectorAll('#decisions tbody tr').length === 50")
    assert EVIL in await shown.text("#decisions tbody")
    assert await shown.value("document.querySelectorAll('img').length") == 0
    assert await shown.value("window.hacked") is None
    done = await shown.value(
        "[...document.querySelectorAll('#workloads tbody tr')].map(row => row.cells[5].textContent)"
    )
    assert done == ["15", "15"]
    assert "50 % of 60 %" in await shown.text("#workloads tbody")
    await shown.click("#decisions tbody button")
    assert "prompt tokens are judged to be cached there" in await shown.text("#receipt p") or (
        await shown.text("#receipt p")
    ).startswith("Held")
    assert "Limit that bound" in await shown.text("#receipt dl")
    assert "M" in await shown.value("document.querySelector('#lines .series-0').getAttribute('d')")
    assert "whole" in await shown.text("#replicas tbody")
    headless = "[...document.querySelectorAll('thead th')].filter(cell => cell.scope !== 'col' || !cell.textContent)"
    assert await shown.value(f"{headless}.length") == 0
    nameless = "[...document.querySelectorAll('input, select')].filter(field => !field.labels.length)"
    assert await shown.value(f"{nameless}.length") == 0
    grounds = []
    for scheme in ("light", "dark"):
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        await shown.do("Emulation.setEmulatedMedia", features=media)
        grounds.append(await shown.value("getComputedStyle(document.body).backgroundColor"))
    assert len(set(grounds)) == 2


async def hostile_replica(shown, http, url):
    """A replica with a name of markup is shown by that name, found by it, and stands in the same place."""
    spec = {"name": EVIL, "kv_tokens": 1_000}
    async with http.post(f"{url}/turnout/v1/add_replica", json=spec, headers=HEAD) as answer:
        assert answer.status == 200
    await shown.until("document.querySelectorAll('#replicas tbody tr').length === 3")
    assert EVIL in await shown.text("#replicas tbody")
    find = "document.querySelector('#find')"
    await shown.value(f"{find}.value = '<img'; {find}.dispatchEvent(new Event('input'))")
    await shown.until("document.querySelectorAll('#replicas tbody tr').length === 1")
    assert await shown.text("#replicas-of") == "1 found, of 3"
    assert await shown.value("document.querySelectorAll('img').length") == 0
    assert await shown.value("window.hacked") is None
