"""Envoy with the configuration of its page, before model engines, with `turnout serve` as endpoint picker."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

PACKAGED = Path(__file__).parents[2] / "target" / "hosts" / "envoy" / "_bin" / "envoy"
ENVOY = os.environ.get("TURNOUT_ENVOY") or (str(PACKAGED) if PACKAGED.exists() else shutil.which("envoy"))
DUPLEX = ("request_body_mode: BUFFERED", "response_body_mode: STREAMED")
SERVE = ("--ext-proc-port", "0")

pytestmark = pytest.mark.skipif(ENVOY is None, reason="no envoy here; `make proxies` fetches it")


def envoy(hosting, tmp_path, change=lambda text: text):
    """What starts Envoy with the page's configuration, at free ports."""

    @asynccontextmanager
    async def start(ready, engines):
        port = hosting.free_port()
        text = change(hosting.page_code("envoy.md", "yaml")[0])
        ports = {"8080": port, "9002": ready["ext_proc"].rpartition(":")[2]}
        ports |= dict(zip(("8101", "8102"), (engine.rpartition(":")[2] for engine in engines), strict=True))
        for on_page, here in ports.items():
            assert f"port_value: {on_page}" in text
            text = text.replace(f"port_value: {on_page}", f"port_value: {here}")
        file = tmp_path / "envoy.yaml"
        file.write_text(text, encoding="utf-8")
        async with hosting.process(ENVOY, "-c", file, "--concurrency", "1", "--use-dynamic-base-id"):
            yield port

    return start


def duplex(text):
    """The page's other body mode."""
    for mode in DUPLEX:
        assert mode in text
        text = text.replace(mode, f"{mode.partition(':')[0]}: FULL_DUPLEX_STREAMED")
    trailers = "request_trailer_mode: SEND\n                response_trailer_mode: SEND\n                "
    return text.replace("request_header_mode: SEND", f"{trailers}request_header_mode: SEND")


@pytest.mark.parametrize("change", [str, duplex])
def test_requests_go_to_their_prefix_and_end_once(hosting, tmp_path, change):
    async def play():
        async with hosting.setting(envoy(hosting, tmp_path, change), *SERVE) as host:
            await host.routes_by_session_and_prefix()
            await host.ends_with_a_client_that_leaves()
            await host.refuses_what_cannot_be()

    asyncio.run(play())


@pytest.mark.parametrize("change", [str, duplex])
def test_requests_wait_at_capacity(hosting, tmp_path, change):
    async def play():
        async with hosting.setting(envoy(hosting, tmp_path, change), *SERVE, kv_tokens=1_000, speed=0.5) as host:
            await host.holds_until_there_is_room()
            await host.forgets_who_leaves_while_held()

    asyncio.run(play())


def test_dead_replicas_and_a_dead_turnout(hosting, tmp_path):
    async def play():
        async with hosting.setting(envoy(hosting, tmp_path), *SERVE) as host:
            await host.survives_a_dead_replica()
        async with hosting.setting(envoy(hosting, tmp_path), *SERVE, speed=4) as host:
            await host.survives_a_dead_turnout()

    asyncio.run(play())
