"""The ways in that a server opens beside its HTTP port."""

from __future__ import annotations

import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from turnout.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from turnout.adapters.proxies.gate import Gate


@asynccontextmanager
async def opened(
    gate: Gate, host: str, *, ext_proc_port: int | None = None, spoe_port: int | None = None
) -> AsyncIterator[dict[str, str]]:
    """Listen for Envoy and HAProxy while the block runs; when it ends, so do the turns of their requests.

    Args:
        gate: Where requests become turns.
        host: Address to listen at.
        ext_proc_port: Port of Envoy's external processing; 0 = any free one, None = not at all.
        spoe_port: Port of HAProxy's agent; 0 = any free one, None = not at all.

    Yields:
        The addresses, `host:port`, by `ext_proc` and `spoe`.

    Raises:
        MissingExtra: The packages for Envoy are not installed.
        InvalidArgument: A port is taken.
    """
    found: dict[str, str] = {}
    named = f"[{host}]" if ":" in host else host
    async with contextlib.AsyncExitStack() as open_now:
        open_now.callback(gate.leave_all)
        if ext_proc_port is not None:
            try:
                from turnout.adapters.proxies.ext_proc import ExtProcServer
            except ImportError as error:
                if error.name is None or error.name.partition(".")[0] == "turnout":
                    raise
                raise MissingExtra(f"ext_proc needs {error.name}: pip install 'turnout[envoy]'") from error
            envoy = await open_now.enter_async_context(ExtProcServer(gate, host, ext_proc_port))
            found["ext_proc"] = f"{named}:{envoy.port}"
        if spoe_port is not None:
            from turnout.adapters.proxies.spoe import SpoeServer

            haproxy = await open_now.enter_async_context(SpoeServer(gate, host, spoe_port))
            found["spoe"] = f"{named}:{haproxy.port}"
        yield found
