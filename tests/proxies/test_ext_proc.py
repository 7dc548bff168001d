"""The endpoint-picker protocol, message by message."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import grpc
import pytest
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as wire
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service
from grpc_health.v1 import health_pb2, health_pb2_grpc

from turnout import Replica, Router, aio
from turnout.adapters.proxies.ext_proc import DESTINATION, HEALTH_NAMES, PIECE_BYTES, ExtProcServer
from turnout.adapters.proxies.gate import Gate

PROMPT = {"prompt": list(range(64)), "max_tokens": 8}
A, B = "127.0.0.1:1", "127.0.0.1:2"
MODES = {"duplex": ProcessingMode.FULL_DUPLEX_STREAMED, "buffered": ProcessingMode.BUFFERED, "none": 0}


class Stream:
    """One HTTP request as Envoy would tell of it."""

    def __init__(self, call):
        self.call = call

    async def headers(self, mode="duplex", *, subset=None, **headers):
        message = wire.ProcessingRequest(request_headers=wire.HttpHeaders())
        for name, value in headers.items():
            message.request_headers.headers.headers.add(key=name.replace("_", "-"), raw_value=value.encode())
        message.protocol_config.request_body_mode = MODES[mode]
        message.protocol_config.response_body_mode = MODES[mode]
        if subset is not None:
            hint = {"x-gateway-destination-endpoint-subset": subset}
            message.metadata_context.filter_metadata["envoy.lb.subset_hint"].update(hint)
        await self.call.write(message)

    async def body(self, body):
        part = wire.HttpBody(body=json.dumps(body).encode(), end_of_stream=True)
        await self.call.write(wire.ProcessingRequest(request_body=part))

    async def response(self, status, body, served=None):
        message = wire.ProcessingRequest()
        message.response_headers.headers.headers.add(key=":status", raw_value=str(status).encode())
        message.response_headers.headers.headers.add(key="content-type", raw_value=b"application/json")
        if served is not None:
            message.attributes["envoy.filters.http.ext_proc"].update({"upstream.address": served})
        await self.call.write(message)
        await self.call.read()
        part = wire.HttpBody(body=json.dumps(body).encode(), end_of_stream=True)
        await self.call.write(wire.ProcessingRequest(response_body=part))
        await self.call.read()

    async def destination(self, kind="request_headers"):
        """Where the answer sends it: the header, which must equal the metadata."""
        answer = await self.call.read()
        assert answer.WhichOneof("response") == kind, answer
        (option,) = getattr(answer, kind).response.header_mutation.set_headers
        told = answer.dynamic_metadata["envoy.lb"][DESTINATION]
        assert (option.header.key, option.header.raw_value.decode()) == (DESTINATION, told)
        return told.split(",")

    async def refusal(self):
        answer = (await self.call.read()).immediate_response
        return answer.status.code, json.loads(answer.body)["error"]["code"]


@asynccontextmanager
async def picker(*, kv_tokens=10_000, hold_s=60.0):
    router = Router([Replica(A, kv_tokens=kv_tokens), Replica(B, kv_tokens=kv_tokens)], hash_key=bytes(16))
    async with (
        aio.serve(router) as routed,
        ExtProcServer(Gate(routed, hold_s=hold_s), "127.0.0.1", 0) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        stub = service.ExternalProcessorStub(channel)
        yield router, channel, lambda: Stream(stub.Process())


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


def test_a_hint_confines_the_choice():
    async def play():
        async with picker() as (router, _, stream):
            for wanted in (A, B):
                for subset in ([wanted], ["127.0.0.1:9", wanted], f"{wanted}, 127.0.0.1:9"):
                    one = stream()
                    await one.headers(subset=subset)
                    await one.body(PROMPT)
                    assert await one.destination() == [wanted]
                    one.call.cancel()
            one = stream()
            await one.headers(subset=["127.0.0.1:9"])
            await one.body(PROMPT)
            assert await one.refusal() == (503, "no_replica")
            await until(lambda: router.stats()["open_turns"] == 0)

    asyncio.run(play())


@pytest.mark.parametrize(("mode", "kind"), [("buffered", "request_body"), ("duplex", "request_headers")])
def test_a_response_ends_the_turn_with_what_it_says(mode, kind):
    async def play():
        async with picker() as (router, _, stream):
            one = stream()
            await one.headers(mode, x_session_id="s", x_request_id="r1")
            if mode == "buffered":
                await one.call.read()
            await one.body(PROMPT)
            first, *_others = await one.destination(kind)
            if mode == "duplex":
                back = (await one.call.read()).request_body.response.body_mutation.streamed_response
                assert (json.loads(back.body), back.end_of_stream) == (PROMPT, True)
            answer = {"choices": [{"index": 0, "token_ids": [5, 6]}], "usage": {"completion_tokens": 2}}
            await one.response(200, answer, served=first)
            await one.call.done_writing()
            assert await one.call.read() is grpc.aio.EOF
            stats = router.stats()
            assert (stats["completed"], stats["open_turns"]) == (1, 0)
            again = router.submit(append=[9], base_tokens=66, session="s")
            assert (again.replica, again.cached_tokens) == (first, 64), "ids of the output are history"

    asyncio.run(play())


def test_the_charge_follows_who_served():
    async def play():
        async with picker() as (router, _, stream):
            one = stream()
            await one.headers(x_session_id="s")
            await one.body(PROMPT)
            first, other = await one.destination()
            await one.call.read()
            await one.response(200, {"usage": {"completion_tokens": 2}}, served=other)
            await one.call.done_writing()
            await one.call.read()
            charge = dict(zip(router.replicas, router.view().charge_tokens, strict=True))
            assert charge[first] == 0
            assert charge[other] > 0
            assert router.stats()["open_turns"] == 0
            router.audit()

    asyncio.run(play())


@pytest.mark.parametrize("status", [400, 503])
def test_an_error_of_the_engine_aborts(status):
    async def play():
        async with picker() as (router, _, stream):
            one = stream()
            await one.headers()
            await one.body(PROMPT)
            await one.destination()
            await one.call.read()
            await one.response(status, {"error": "x"})
            assert router.stats()["aborted"] == 1
            one.call.cancel()

    asyncio.run(play())


def test_who_waits_too_long_is_told_so_and_who_leaves_is_forgotten():
    async def play():
        async with picker(kv_tokens=128, hold_s=0.2) as (router, _, stream):
            running = [stream() for _ in range(2)]
            for start, one in zip((1_000, 2_000), running, strict=True):
                await one.headers()
                await one.body({"prompt": list(range(start, start + 100)), "max_tokens": 8})
                await one.destination()
            late, gone = stream(), stream()
            for one in (late, gone):
                await one.headers()
                await one.body({"prompt": list(range(200, 300)), "max_tokens": 8})
            await until(lambda: router.stats()["held_turns"] == 2)
            gone.call.cancel()
            assert await late.refusal() == (429, "deadline")
            for one in running:
                one.call.cancel()
            await until(lambda: router.stats()["open_turns"] == 0)
            stats = router.stats()
            assert (stats["held_turns"], stats["expired"], stats["aborted"]) == (0, 1, 3)

    asyncio.run(play())


def test_the_same_request_id_twice_is_two_turns():
    async def play():
        async with picker() as (router, _, stream):
            both = [stream(), stream()]
            for one in both:
                await one.headers(x_request_id="same")
                await one.body(PROMPT)
                await one.destination()
            assert router.stats()["open_turns"] == 2
            both[0].call.cancel()
            await until(lambda: router.stats()["open_turns"] == 1)
            await both[1].call.read()
            await both[1].response(200, {})
            await until(lambda: router.stats()["open_turns"] == 0)
            third = stream()
            await third.headers(x_request_id="same")
            await third.body({"prompt": [1, 2, 3]})
            assert await third.destination()
            third.call.cancel()

    asyncio.run(play())


def test_requests_without_a_prompt_pass_at_once():
    async def play():
        async with picker() as (router, _, stream):
            for mode in ("none", "buffered", "duplex"):
                one = stream()
                await one.headers(mode)
                if mode != "none":
                    if mode == "buffered":
                        await one.call.read()
                    await one.body({"name": "x"})
                assert await one.destination("request_body" if mode == "buffered" else "request_headers")
                one.call.cancel()
            assert router.stats()["submitted"] == 0

    asyncio.run(play())


def test_long_bodies_come_back_in_pieces():
    async def play():
        async with picker() as (_, __, stream):
            one = stream()
            await one.headers()
            await one.body({"prompt": [1, 2, 3], "padding": "x" * (3 * PIECE_BYTES)})
            await one.destination()
            back = b""
            while True:
                piece = (await one.call.read()).request_body.response.body_mutation.streamed_response
                assert len(piece.body) <= PIECE_BYTES
                back += piece.body
                if piece.end_of_stream:
                    break
            assert len(json.loads(back)["padding"]) == 3 * PIECE_BYTES
            one.call.cancel()

    asyncio.run(play())


def test_health_says_whether_it_can_place():
    async def play():
        async with picker() as (router, channel, _):
            stub = health_pb2_grpc.HealthStub(channel)
            serving = health_pb2.HealthCheckResponse
            for accepting in (True, False):
                states = {
                    name: (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status
                    for name in HEALTH_NAMES
                }
                assert states.pop("readiness") == (serving.SERVING if accepting else serving.NOT_SERVING)
                assert set(states.values()) == {serving.SERVING}
                for name in (A, B):
                    router.drain_replica(name)

    asyncio.run(play())
