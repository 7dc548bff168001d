"""Listens to what an engine publishes, and asks its replay socket for nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from turnout import _core
from turnout.errors import InvalidArgument

if TYPE_CHECKING:
    from turnout.feeds.config import KvSource

NUMBER_BYTES: Final = 8
FRAMES: Final = 3
END: Final = (2**64 - 1).to_bytes(NUMBER_BYTES, "big")
NEVER: Final = 2**62
"""A number that no publisher reaches: a replay from there on is empty, and cheap."""
POLL_MS: Final = 100


@dataclass(slots=True)
class Heard:
    """What one rank published while it was listened to.

    Attributes:
        source: Where.
        connected: Set when somebody answered the handshake.
        batches: Messages that could be read.
        stored_blocks: Blocks that they store.
        block_tokens: Tokens per block that they state.
        ranks: Data-parallel ranks that they state.
        wrong: What was wrong with the first message that could not be read; empty = nothing.
    """

    source: KvSource
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    batches: int = 0
    stored_blocks: int = 0
    block_tokens: set[int] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    wrong: str = ""

    def read(self, frames: list[bytes]) -> None:
        """Take in one message.

        Args:
            frames: Its parts: topic, number, payload.
        """
        if len(frames) != FRAMES or len(frames[1]) != NUMBER_BYTES:
            shape = ", ".join(str(len(frame)) for frame in frames)
            self.wrong = self.wrong or f"{len(frames)} frames of {shape} bytes; accepted are topic, number, payload"
            return
        try:
            told = _core.describe_kv_events(frames[2])
        except InvalidArgument as error:
            self.wrong = self.wrong or str(error)
            return
        self.batches += 1
        self.stored_blocks += told["stored_blocks"]
        self.block_tokens |= {told["block_tokens"]} - {None}
        self.ranks |= {told["rank"]} - {None}


async def hear(heard: Heard, context: zmq.asyncio.Context, stop: asyncio.Event) -> None:
    """Listen to one rank until told to stop.

    Args:
        heard: Where to listen; takes what is heard.
        context: The ZMQ context.
        stop: Ends it.
    """
    socket = context.socket(zmq.SUB)
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt_string(zmq.SUBSCRIBE, heard.source.topic)
        socket.connect(heard.source.endpoint)
        while not stop.is_set():
            if not heard.connected.is_set() and await monitor.poll(0):
                await recv_monitor_message(monitor)
                heard.connected.set()
            if await socket.poll(POLL_MS):
                heard.read(await socket.recv_multipart())
    finally:
        socket.disable_monitor()
        monitor.close(0)
        socket.close(0)


async def replays(endpoint: str, context: zmq.asyncio.Context, patience_s: float) -> bool:
    """Whether a replay socket answers.

    Args:
        endpoint: Its address.
        context: The ZMQ context.
        patience_s: How long to wait, s.

    Returns:
        Whether it ended an empty replay as it should.
    """
    socket = context.socket(zmq.DEALER)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, 1)
        socket.connect(endpoint)
        await socket.send_multipart([b"", NEVER.to_bytes(NUMBER_BYTES, "big")])
        if not await socket.poll(int(1_000 * patience_s)):
            return False
        frames = await socket.recv_multipart()
        return END in frames
    finally:
        socket.close(0)
