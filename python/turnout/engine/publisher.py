"""Cache events and load over ZMQ, as engines publish them."""

from __future__ import annotations

import asyncio
import collections
import struct
import time
from typing import TYPE_CHECKING, Final

import zmq
import zmq.asyncio

if TYPE_CHECKING:
    from collections.abc import Callable

BUFFER_STEPS: Final = 10_000
HIGH_WATER: Final = 100_000
LOAD_TOPIC: Final = b"load"
LOAD_LOOK_S: Final = 0.05
LOAD_HEARTBEAT_S: Final = 1.0
_END: Final = b"\xff" * 8


def _bind(socket: zmq.SyncSocket | zmq.asyncio.Socket, host: str, port: int) -> int:
    if ":" in host:
        socket.setsockopt(zmq.IPV6, 1)
        host = f"[{host}]"
    socket.bind(f"tcp://{host}:{port}")
    return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])


class Publisher:
    """Three sockets: PUB of cache events (topic, number, payload), ROUTER that sends them again, PUB of the load.

    Args:
        host: Address to bind to.
        port: Port of the events; replay and load are at the next two. 0 = any free ones.
    """

    def __init__(self, host: str, port: int) -> None:
        self._context = zmq.Context()
        # Publishing never blocks, so only the socket that waits for askers is an asynchronous one.
        self._events = self._context.socket(zmq.PUB)
        self._load = self._context.socket(zmq.PUB)
        self._replay = zmq.asyncio.Context.shadow(self._context.underlying).socket(zmq.ROUTER)
        self._sent: collections.deque[tuple[int, bytes]] = collections.deque(maxlen=BUFFER_STEPS)
        self._next = 0
        self._next_load = 0
        try:
            self._events.setsockopt(zmq.SNDHWM, HIGH_WATER)
            self.events_port = _bind(self._events, host, port)
            self.replay_port = _bind(self._replay, host, port and port + 1)
            self.load_port = _bind(self._load, host, port and port + 2)
        except zmq.ZMQError:
            self.close()
            raise

    def cache_events(self, payload: bytes) -> None:
        """Publish a batch under the next number, and keep it for replay.

        Args:
            payload: A batch in msgpack.
        """
        self._sent.append((self._next, payload))
        self._events.send_multipart([b"", struct.pack(">Q", self._next), payload])
        self._next += 1

    async def serve_replay(self) -> None:
        """Answer requests for batches from a number on, until cancelled."""
        while True:
            frames = await self._replay.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:  # noqa: PLR2004 - identity, delimiter, number
                continue
            asker, first = frames[0], int.from_bytes(frames[2])
            for number, payload in [entry for entry in self._sent if entry[0] >= first]:
                await self._replay.send_multipart([asker, b"", b"", struct.pack(">Q", number), payload])
            await self._replay.send_multipart([asker, b"", b"", _END, b""])

    async def serve_load(self, load: Callable[[], bytes]) -> None:
        """Publish the load when it changes, and once a second, until cancelled.

        Args:
            load: Makes the payload.
        """
        last, last_at = b"", 0.0
        while True:
            payload = load()
            if payload != last or time.monotonic() - last_at >= LOAD_HEARTBEAT_S:
                self._load.send_multipart([LOAD_TOPIC, struct.pack(">Q", self._next_load), payload])
                self._next_load += 1
                last, last_at = payload, time.monotonic()
            await asyncio.sleep(LOAD_LOOK_S)

    def close(self) -> None:
        """Close the sockets; what was not sent is dropped."""
        self._replay.close(linger=0)
        self._context.destroy(linger=0)
