"""From replicas to what proxies connect to, and back."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from turnout.aio import AsyncRouter

KEEP_S: Final = 30.0
"""How long what a name server said is believed, s."""


class Addresses:
    """Replicas are named `host:port` by the feeds; proxies want `ip:port`.

    Args:
        routed: The router whose replicas they are.
    """

    def __init__(self, routed: AsyncRouter) -> None:
        """Nothing is known yet."""
        self._routed = routed
        self._known: dict[str, tuple[str | None, float]] = {}
        self._replicas: dict[str, str] = {}

    async def address(self, replica: str) -> str | None:
        """The address of a replica.

        Args:
            replica: Its name.

        Returns:
            `ip:port`; None where the name is no address, or is not known to the name server.
        """
        known, until = self._known.get(replica, (None, 0.0))
        if until > time.monotonic():
            return known
        found, keep_s = await _resolve(replica)
        self._known[replica] = (found, time.monotonic() + keep_s)
        if found is not None:
            self._replicas[found] = replica
        return found

    def replica(self, address: str) -> str | None:
        """The replica at an address.

        Args:
            address: `ip:port`.

        Returns:
            Its name; None where no replica of the router is there.
        """
        name = self._replicas.get(address, address)
        return name if name in self._routed.router.replicas else None

    async def learn(self) -> None:
        """Know the addresses of all replicas, so that `replica` finds every one."""
        for name in self._routed.router.replicas:
            await self.address(name)


async def _resolve(replica: str) -> tuple[str | None, float]:
    """(address, how long that holds in s)."""
    host, _, port = replica.rpartition(":")
    if not host or not port.isdecimal():
        return None, KEEP_S
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        pass
    else:
        return replica, float("inf")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError:
        return None, 1.0
    # One address per name: IPv4 where there is one, which every proxy takes.
    ip = str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0])
    return (f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"), KEEP_S
