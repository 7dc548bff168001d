"""nginx with the configuration of its page, before model engines, with `turnout serve` at its side."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import asynccontextmanager

import pytest

NGINX = os.environ.get("TURNOUT_NGINX") or shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")

pytestmark = pytest.mark.skipif(NGINX is None, reason="no nginx here; `make proxies` installs it")


def nginx(hosting, tmp_path):
    """What starts nginx with the page's configuration, at free ports."""

    @asynccontextmanager
    async def start(ready, engines):
        port = hosting.free_port()
        (text,) = hosting.page_code("nginx.md", "nginx")
        places = {"listen 8080": f"listen 127.0.0.1:{port}", "127.0.0.1:8077": ready["url"].removeprefix("http://")}
        places |= dict(zip(("127.0.0.1:8101", "127.0.0.1:8102"), engines, strict=True))
        for on_page, here in places.items():
            assert on_page in text
            text = text.replace(on_page, here)
        (tmp_path / "nginx.conf").write_text(text, encoding="utf-8")
        # As root it would serve as another user, who may not write here.
        alone = "daemon off; user root;" if os.geteuid() == 0 else "daemon off;"
        async with hosting.process(NGINX, "-p", tmp_path, "-c", "nginx.conf", "-g", alone):
            yield port

    return start


def test_requests_go_to_their_prefix_and_end_once(hosting, tmp_path):
    async def play():
        async with hosting.setting(nginx(hosting, tmp_path)) as host:
            await host.routes_by_session_and_prefix()
            await host.ends_with_a_client_that_leaves()
            await host.refuses_what_cannot_be()

    asyncio.run(play())


def test_requests_wait_at_capacity(hosting, tmp_path):
    async def play():
        async with hosting.setting(nginx(hosting, tmp_path), kv_tokens=1_000, speed=0.5) as host:
            await host.holds_until_there_is_room()
            await host.forgets_who_leaves_while_held()

    asyncio.run(play())


def test_dead_replicas_and_a_dead_turnout(hosting, tmp_path):
    async def play():
        async with hosting.setting(nginx(hosting, tmp_path)) as host:
            await host.survives_a_dead_replica()
        async with hosting.setting(nginx(hosting, tmp_path), speed=4) as host:
            await host.survives_a_dead_turnout()

    asyncio.run(play())
