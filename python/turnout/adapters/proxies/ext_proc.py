"""Envoy's external processing: the endpoint-picker protocol of the Gateway API Inference Extension.

One gRPC stream per HTTP request. The chosen endpoint leaves in a request header and in dynamic metadata; the served one
comes back as `upstream.address`. A stream that ends before its response did is a client that left.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, cast

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as wire
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service
from envoy.type.v3 import http_status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from turnout.adapters.proxies.asked import read
from turnout.adapters.proxies.gate import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from turnout.adapters.proxies.gate import Gate, Passage

DESTINATION: Final = "x-gateway-destination-endpoint"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
SERVED: Final = "x-gateway-destination-endpoint-served"
HINTS: Final = "envoy.lb.subset_hint"
BALANCER: Final = "envoy.lb"
SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH_NAMES: Final = ("", "liveness", "readiness", SERVICE)

PIECE_BYTES: Final = 62_000
"""Longest piece of a body that is sent back, bytes: what Envoy takes in one message of a duplex stream."""

MOST_MESSAGE_BYTES: Final = 64 << 20

_Mode = processing_mode_pb2.ProcessingMode
_LOG = logging.getLogger(__name__)


class ExternalProcessor(service.ExternalProcessorServicer):  # type: ignore[misc] # generated code has no types
    """The service.

    Args:
        gate: Where requests become turns.
    """

    def __init__(self, gate: Gate) -> None:
        """Keep the gate."""
        self._gate = gate

    async def Process(self, _: Any, context: Any) -> None:  # noqa: N802, ANN401 - gRPC's name and types
        """One HTTP request, from its headers to the end of its response."""
        stream = Stream(self._gate)
        try:
            while (message := await context.read()) is not grpc.aio.EOF:
                try:
                    for answer in await stream.hear(message):
                        await context.write(answer)
                except Refused as refused:
                    await context.write(immediate(refused))
                    return
        finally:
            # Also when the stream is cancelled: nothing more will be heard.
            stream.leave()


class Stream:
    """The state of one stream.

    Args:
        gate: Where requests become turns.
    """

    def __init__(self, gate: Gate) -> None:
        """Nothing heard yet."""
        self._gate = gate
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._subset: list[str] | None = None
        self._duplex_request = self._duplex_response = self._buffered = False
        self._passage: Passage | None = None

    def leave(self) -> None:
        """The stream has ended."""
        if self._passage is not None:
            self._passage.leave()

    async def hear(self, message: Any) -> list[Any]:  # noqa: ANN401 - a ProcessingRequest
        """One message of Envoy.

        Args:
            message: The ProcessingRequest.

        Returns:
            The ProcessingResponses to it, in order; none where the answer has to wait for more.

        Raises:
            Refused: The request goes nowhere.
        """
        kind = message.WhichOneof("request")
        if kind is None:
            return []  # of a later Envoy: what it says is not known here
        answers: list[Any] = await getattr(self, f"_{kind}")(message)
        return answers

    async def _request_headers(self, message: Any) -> list[Any]:  # noqa: ANN401
        modes = message.protocol_config
        self._duplex_request = modes.request_body_mode == _Mode.FULL_DUPLEX_STREAMED
        self._duplex_response = modes.response_body_mode == _Mode.FULL_DUPLEX_STREAMED
        self._buffered = modes.request_body_mode in {_Mode.BUFFERED, _Mode.BUFFERED_PARTIAL}
        self._headers = headers_of(message.request_headers)
        self._subset = subset_of(message.metadata_context.filter_metadata)
        if message.request_headers.end_of_stream or not (self._duplex_request or self._buffered):
            return [await self._place(b"", "request_headers")]
        if self._duplex_request:
            return []  # the headers leave when the body is known
        return [wire.ProcessingResponse(request_headers=wire.HeadersResponse())]

    async def _request_body(self, message: Any) -> list[Any]:  # noqa: ANN401
        part = message.request_body
        if self._passage is not None:  # the body is not waited for
            return [wire.ProcessingResponse(request_body=wire.BodyResponse())]
        self._body.append(part.body)
        if not self._duplex_request:
            return [await self._place(self._take_body(), "request_body")]
        if not part.end_of_stream:
            return []
        body = self._take_body()
        first = await self._place(body, "request_headers")
        return [first, *pieces("request_body", body, end_of_stream=True)]

    async def _request_trailers(self, _: Any) -> list[Any]:  # noqa: ANN401
        last = wire.ProcessingResponse(request_trailers=wire.TrailersResponse())
        if self._passage is not None or not self._duplex_request:
            return [last]
        body = self._take_body()
        first = await self._place(body, "request_headers")
        return [first, *pieces("request_body", body, end_of_stream=False), last]

    async def _response_headers(self, message: Any) -> list[Any]:  # noqa: ANN401
        passage, part = self._passage, message.response_headers
        if passage is not None:
            headers = headers_of(part)
            passage.served(served_of(message))
            status = headers.get(":status", "")
            known = int(status) if status.isdecimal() else 0
            passage.responded(known, headers.get("content-type", ""), headers.get("content-encoding", ""))
            if part.end_of_stream:
                passage.finish()
        return [wire.ProcessingResponse(response_headers=wire.HeadersResponse())]

    async def _response_body(self, message: Any) -> list[Any]:  # noqa: ANN401
        part = message.response_body
        if self._passage is not None:
            self._passage.feed(part.body)
            if part.end_of_stream:
                self._passage.finish()
        if self._duplex_response:
            return list(pieces("response_body", part.body, end_of_stream=part.end_of_stream))
        return [wire.ProcessingResponse(response_body=wire.BodyResponse())]

    async def _response_trailers(self, _: Any) -> list[Any]:  # noqa: ANN401
        if self._passage is not None:
            self._passage.finish()
        return [wire.ProcessingResponse(response_trailers=wire.TrailersResponse())]

    def _take_body(self) -> bytes:
        body = b"".join(self._body)
        self._body.clear()
        return body

    async def _place(self, body: bytes, kind: str) -> Any:  # noqa: ANN401 - a ProcessingResponse
        """Wait until the request is placed, and say where it goes: in the answer to headers or body."""
        asked = read(self._headers, body)
        request = self._headers.get("x-request-id") or None
        self._passage = await self._gate.enter(asked, request, candidates=self._subset)
        where = ",".join(self._passage.addresses)
        common = wire.CommonResponse(header_mutation=header_mutation({DESTINATION: where}))
        if kind == "request_body":
            answer = wire.ProcessingResponse(request_body=wire.BodyResponse(response=common))
        else:
            answer = wire.ProcessingResponse(request_headers=wire.HeadersResponse(response=common))
        answer.dynamic_metadata.update({BALANCER: {DESTINATION: where}})
        return answer


def headers_of(message: Any) -> dict[str, str]:  # noqa: ANN401 - HttpHeaders
    """Headers by name."""
    return {
        header.key: header.raw_value.decode("latin-1") if header.raw_value else header.value
        for header in message.headers.headers
    }


def header_mutation(values: Mapping[str, str]) -> Any:  # noqa: ANN401 - a HeaderMutation
    """Headers to set; what a client sent under these names is gone."""
    overwrite = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    options = [
        base_pb2.HeaderValueOption(
            header=base_pb2.HeaderValue(key=name, raw_value=value.encode()), append_action=overwrite
        )
        for name, value in values.items()
    ]
    return wire.HeaderMutation(set_headers=options)


def subset_of(metadata: Mapping[str, Any]) -> list[str] | None:
    """The endpoints to which the proxy confines the request.

    Args:
        metadata: Filter metadata by namespace.

    Returns:
        Addresses, of a list or of text with commas; None where there is no hint.
    """
    if HINTS not in metadata or SUBSET not in metadata[HINTS].fields:
        return None
    value = metadata[HINTS].fields[SUBSET]
    given = value.list_value.values if value.WhichOneof("kind") == "list_value" else [value]
    return [part.strip() for item in given for part in item.string_value.split(",") if part.strip()]


def served_of(message: Any) -> str:  # noqa: ANN401 - a ProcessingRequest
    """Which endpoint serves the request, as far as the proxy says it; else nothing."""
    metadata = message.metadata_context.filter_metadata
    if BALANCER in metadata and SERVED in metadata[BALANCER].fields:
        return str(metadata[BALANCER].fields[SERVED].string_value)
    for attributes in message.attributes.values():
        if "upstream.address" in attributes.fields:
            return str(attributes.fields["upstream.address"].string_value)
    return ""


def pieces(kind: str, body: bytes, *, end_of_stream: bool) -> Iterator[Any]:
    """A body on its way back to Envoy, in a duplex stream.

    Args:
        kind: `request_body` or `response_body`.
        body: The body.
        end_of_stream: Whether nothing comes after it.

    Yields:
        ProcessingResponses.
    """
    starts = range(0, len(body), PIECE_BYTES) or [0]
    for at in starts:
        last = end_of_stream and at + PIECE_BYTES >= len(body)
        piece = wire.StreamedBodyResponse(body=body[at : at + PIECE_BYTES], end_of_stream=last)
        response = wire.CommonResponse(body_mutation=wire.BodyMutation(streamed_response=piece))
        yield wire.ProcessingResponse(**{kind: wire.BodyResponse(response=response)})


def immediate(refused: Refused) -> Any:  # noqa: ANN401 - a ProcessingResponse
    """The answer to a request that goes nowhere."""
    answer = wire.ImmediateResponse(
        status=http_status_pb2.HttpStatus(code=refused.status),
        headers=header_mutation(refused.headers),
        body=refused.body,
        details=f"turnout_{refused.reason}",
    )
    return wire.ProcessingResponse(immediate_response=answer)


class Health(health.aio.HealthServicer):  # type: ignore[misc] # the package has no types
    """Health as Kubernetes and Envoy ask it: `readiness` wants a replica that accepts turns, the rest the clock.

    Args:
        gate: Whose router is asked.
    """

    def __init__(self, gate: Gate) -> None:
        """Keep the gate."""
        super().__init__()
        self._gate = gate

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802, ANN401 - gRPC's name and types
        """Look, and answer."""
        await self.look()
        return await super().Check(request, context)

    async def look(self) -> None:
        """See how it is now."""
        routed = self._gate.routed
        alive = not routed.closed and routed.clock.alive
        states = health_pb2.HealthCheckResponse
        for name in HEALTH_NAMES:
            good = alive and (name != "readiness" or bool(routed.router.view().accepting.any()))
            await self.set(name, states.SERVING if good else states.NOT_SERVING)


class ExtProcServer:
    """The gRPC server, in the running event loop.

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
        self._server: Any = None
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            InvalidArgument: The port is taken, or the address is not of this machine.
        """
        from turnout.errors import InvalidArgument

        options = [
            ("grpc.max_receive_message_length", MOST_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MOST_MESSAGE_BYTES),
            ("grpc.so_reuseport", 0),  # a second server at the same port is a mistake, not a share of the load
        ]
        self._server = grpc.aio.server(options=options)
        checker = Health(self._gate)
        service.add_ExternalProcessorServicer_to_server(ExternalProcessor(self._gate), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(checker, self._server)
        host = f"[{self._host}]" if ":" in self._host else self._host
        try:
            self.port = self._server.add_insecure_port(f"{host}:{self.port}")
        except RuntimeError as error:
            message = f"ext_proc_port: got {host}:{self.port} ({error}), accepted is a free port"
            raise InvalidArgument(message, "ext_proc_port", str(self.port), "a free port") from error
        await self._server.start()
        self._watching = asyncio.create_task(_look_now_and_then(checker))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the streams that are open, then the server."""
        cast("asyncio.Task[None]", self._watching).cancel()
        await asyncio.gather(cast("asyncio.Task[None]", self._watching), return_exceptions=True)
        await self._server.stop(grace=1.0)


async def _look_now_and_then(checker: Health) -> None:
    """For those who watch health instead of asking."""
    while True:
        await checker.look()
        await asyncio.sleep(1.0)
