"""HAProxy with the configuration of its page, before model engines, with `turnout serve` as its agent."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import asynccontextmanager

import pytest

HAPROXY = os.environ.get("TURNOUT_HAPROXY") or shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
SERVE = ("--spoe-port", "0")

pytestmark = pytest.mark.skipif(HAPROXY is None, reason="no haproxy here; `make proxies` installs it")


def haproxy(hosting, tmp_path):
    """What starts HAProxy with the page's two files, at free ports."""

    @asynccontextmanager
    async def start(ready, engines):
        port = hosting.free_port()
        (text,), (agent,) = (hosting.page_code("haproxy.md", language) for language in ("haproxy", "spoe"))
        places = {":8080": f"127.0.0.1:{port}", "127.0.0.1:9003": ready["spoe"]}
        places |= dict(zip(("127.0.0.1:8101", "127.0.0.1:8102"), engines, strict=True))
        for on_page, here in places.items():
            assert on_page in text
            text = text.replace(on_page, here)
        (tmp_path / "haproxy.cfg").write_text(text, encoding="utf-8")
        (tmp_path / "spoe.conf").write_text(agent, encoding="utf-8")
        async with hosting.process(HAPROXY, "-C", tmp_path, "-f", "haproxy.cfg", "-db"):
            yield port

    return start


def test_requests_go_to_their_prefix_and_end_once(hosting, tmp_path):
    async def play():
        async with hosting.setting(haproxy(hosting, tmp_path), *SERVE) as host:
            await host.routes_by_session_and_prefix()
            await host.ends_with_a_client_that_leaves()
            await host.refuses_what_cannot_be()

    asyncio.run(play())


def test_requests_wait_at_capacity(hosting, tmp_path):
    async def play():
        async with hosting.setting(haproxy(hosting, tmp_path), *SERVE, kv_tokens=1_000, speed=0.5) as host:
            await host.holds_until_there_is_room()
            await host.forgets_who_leaves_while_held(at_once=False)

    asyncio.run(play())


def test_dead_replicas_and_a_dead_turnout(hosting, tmp_path):
    async def play():
        async with hosting.setting(haproxy(hosting, tmp_path), *SERVE) as host:
            await host.survives_a_dead_replica()
        async with hosting.setting(haproxy(hosting, tmp_path), *SERVE, speed=4) as host:
            await host.survives_a_dead_turnout()

    asyncio.run(play())
