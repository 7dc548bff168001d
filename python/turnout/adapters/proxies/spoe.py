"""HAProxy's agent: it is asked where a request goes, and reads in HAProxy's log that the request has ended.

Both come to one port. A connection that begins with the length of a frame is HAProxy asking; one that begins with a
digit is its log, each line of JSON behind its length (octet counting, RFC 6587). The log is the one thing that
HAProxy says of every end: of responses, of clients that left, of engines that died.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnout.adapters.proxies import spop
from turnout.adapters.proxies.asked import read
from turnout.adapters.proxies.gate import Refused
from turnout.errors import InvalidArgument

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from turnout.adapters.proxies.gate import Gate, Passage

MOST_FRAME_BYTES: Final = 16 << 20
MOST_LINE_BYTES: Final = 64 << 10
SMALLEST_FRAME_BYTES: Final = 256
SILENT_S: Final = 30.0
"""Without a log for so long, HAProxy is taken for gone, and what it had open is aborted, s."""

_LOG = logging.getLogger(__name__)


class Line(msgspec.Struct):
    """A line of the log, as the page's `log-format` writes it."""

    id: str
    status: int
    state: str = "--"
    server: str = ""


_LINES: Final = msgspec.json.Decoder(Line)


class SpoeServer:
    """The agent, in the running event loop.

    Args:
        gate: Where requests become turns.
        host: Address to listen at.
        port: Port; 0 = any free one.
    """

    def __init__(self, gate: Gate, host: str, port: int) -> None:
        """Listen from `async with` on."""
        self._gate = gate
        self._host = host
        self.port = port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[Any]] = set()
        self._waiting: dict[str, asyncio.Task[None]] = {}
        self._open: dict[str, Passage] = {}
        self._logs = 0

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            InvalidArgument: The port is taken, or the address is not of this machine.
        """
        try:
            self._server = await asyncio.start_server(self._connected, self._host, self.port, backlog=1_024)
        except OSError as error:
            message = f"spoe_port: got {self._host}:{self.port} ({error}), accepted is a free port"
            raise InvalidArgument(message, "spoe_port", str(self.port), "a free port") from error
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        if self._server is not None:
            self._server.close()
        tasks = [*self._connections, *self._waiting.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._leave_all()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - the standard library makes one per connection
        self._connections.add(task)
        try:
            first = await reader.readexactly(1)
            await (self._read_log(first, reader) if first.isdigit() else self._serve(first, reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the other side has closed it
        except (spop.BadFrame, ValueError) as error:
            _LOG.warning("a connection was closed: %s", error)
        except asyncio.CancelledError:
            pass  # the agent is ending
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _serve(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """HAProxy asks over this connection."""
        asked: set[asyncio.Task[None]] = set()
        try:
            while True:
                head = first + await reader.readexactly(4 - len(first))
                first = b""
                size = int.from_bytes(head, "big")
                if size > MOST_FRAME_BYTES:
                    raise spop.BadFrame(f"frame: got {size} bytes, accepted are {MOST_FRAME_BYTES}")
                frame = spop.read_frame(await reader.readexactly(size))
                if frame.kind == spop.HAPROXY_HELLO:
                    answer, over = _greet(frame)
                    writer.write(answer)
                    if over:
                        return
                elif frame.kind == spop.HAPROXY_DISCONNECT:
                    writer.write(spop.write_frame(spop.AGENT_DISCONNECT, spop.pairs({"status-code": 0, "message": ""})))
                    return
                elif frame.kind == spop.NOTIFY:
                    # A held request must not keep those behind it: answers leave as they are found.
                    task = asyncio.create_task(self._answer(frame, writer))
                    asked.add(task)
                    task.add_done_callback(asked.discard)
                else:
                    raise spop.BadFrame(f"frame: got type {frame.kind}")
                await writer.drain()
        finally:
            # HAProxy is not there any more to hear of them.
            for task in list(asked):
                task.cancel()

    async def _answer(self, frame: spop.Frame, writer: asyncio.StreamWriter) -> None:
        variables: dict[str, spop.Value] = {}
        for name, arguments in spop.messages(frame.payload):
            if name == "route":
                variables |= await self._route(arguments)
        payload = spop.set_variables(variables)
        if not writer.is_closing():
            writer.write(spop.write_frame(spop.ACK, payload, stream=frame.stream, number=frame.number))

    async def _route(self, arguments: dict[str, spop.Value]) -> dict[str, spop.Value]:
        """Wait until the request is placed; the variables that say where, or why not."""
        body, size = arguments.get("body"), arguments.get("body_size")
        body = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else b""
        headers = headers_of(str(arguments.get("headers") or ""))
        asked = read(headers, body, body_bytes=size if isinstance(size, int) else None)
        request = str(arguments["id"]) if arguments.get("id") else None
        task = asyncio.current_task()
        if request is not None and task is not None:
            self._waiting[request] = task
        try:
            passage = await self._gate.enter(asked, request)
        except Refused as refused:
            return {"status": refused.status, "reason": refused.reason}
        finally:
            if request is not None:
                self._waiting.pop(request, None)
        if request is not None and passage.turn is not None:
            self._open[request] = passage
        host, _, port = passage.address.rpartition(":")
        return {"server": passage.address, "host": host, "port": int(port)}

    async def _read_log(self, first: bytes, reader: asyncio.StreamReader) -> None:
        """HAProxy writes its log over this connection."""
        self._logs += 1
        try:
            while True:
                digits = first + await reader.readuntil(b" ")
                first = b""
                size = int(digits)
                if size > MOST_LINE_BYTES:
                    raise ValueError(f"log: a line of {size} bytes, accepted are {MOST_LINE_BYTES}")
                self._ended(await reader.readexactly(size))
        finally:
            self._logs -= 1
            if self._logs == 0:
                asyncio.get_running_loop().call_later(SILENT_S, self._leave_all_if_silent)

    def _ended(self, text: bytes) -> None:
        """A line of the log: a request has ended."""
        try:
            line = _LINES.decode(text.strip())
        except msgspec.DecodeError:
            return  # some other line that HAProxy logs
        waiting = self._waiting.pop(line.id, None)
        if waiting is not None:
            waiting.cancel()  # it ended while it was held
        passage = self._open.pop(line.id, None)
        if passage is None:
            return
        if line.status:
            passage.served(line.server)
        passage.ended_with(line.status, cut=line.state[:1] not in {"-", "L"})

    def _leave_all_if_silent(self) -> None:
        if self._logs == 0:
            self._leave_all()

    def _leave_all(self) -> None:
        passages, self._open = list(self._open.values()), {}
        for passage in passages:
            passage.leave()


def headers_of(block: str) -> dict[str, str]:
    r"""Headers as HAProxy's `req.hdrs` gives them.

    Example:
        >>> headers_of("X-Session-ID: s\r\nhost: a:80\r\n\r\n")
        {'x-session-id': 's', 'host': 'a:80'}
    """
    named = (line.partition(":") for line in block.splitlines() if ":" in line)
    return {name.strip().lower(): value.strip() for name, _, value in named}


def _greet(frame: spop.Frame) -> tuple[bytes, bool]:
    """(the answer to HAProxy's greeting, whether that was all it wanted)."""
    told = spop.Reader(frame.payload).pairs()
    versions = [version.strip() for version in str(told.get("supported-versions", "")).split(",")]
    size = told.get("max-frame-size")
    if not any(version.startswith("2.") for version in versions):
        raise spop.BadFrame(f"greeting: got versions {versions}, accepted is 2.0")
    if not isinstance(size, int) or size < SMALLEST_FRAME_BYTES:
        raise spop.BadFrame(f"greeting: got max-frame-size {size!r}, accepted is {SMALLEST_FRAME_BYTES} or more")
    answer: dict[str, spop.Value] = {
        "version": "2.0",
        "max-frame-size": min(size, MOST_FRAME_BYTES),
        "capabilities": "pipelining",
    }
    return spop.write_frame(spop.AGENT_HELLO, spop.pairs(answer)), told.get("healthcheck") is True
