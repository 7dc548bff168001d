"""A real ZMQ publisher with replay, and a real HTTP server, that play what engines were captured saying."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from pathlib import Path

import zmq
import zmq.asyncio
from aiohttp import web

WIRE = Path(__file__).parents[1] / "data" / "wire"
VLLM = "vllm-0.33.0.sha256.int-hashes.jsonl"
SGLANG = "sglang-0.5.23.kv+load.jsonl"
END = (2**64 - 1).to_bytes(8, "big")


def payloads(file: str, sock: str = "kv") -> list[bytes]:
    rows = [json.loads(line) for line in (WIRE / file).read_text(encoding="utf-8").splitlines()]
    return [base64.b64decode(row["payload_b64"]) for row in rows if row.get("sock", "kv") == sock]


async def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.02)


class Publisher:
    """One rank: PUB and a replay ROUTER over the batches that it keeps."""

    def __init__(self, context, *, replay=True, keep=10_000):
        self.pub = context.socket(zmq.XPUB)
        self.pub.setsockopt(zmq.LINGER, 0)
        self.port = self.pub.bind_to_random_port("tcp://127.0.0.1")
        self.router = context.socket(zmq.ROUTER) if replay else None
        self.replay_port = None
        if self.router:
            self.router.setsockopt(zmq.LINGER, 0)
            self.replay_port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.keep = keep
        self.kept: list[tuple[int, bytes]] = []
        self.next = 0
        self.asked: list[int] = []
        self.task = asyncio.create_task(self.serve()) if self.router else None

    async def subscribed(self):
        assert (await self.pub.recv())[0] == 1

    async def publish(self, payload, *, lose=False):
        self.kept = [*self.kept, (self.next, payload)][-self.keep :]
        if not lose:
            await self.pub.send_multipart([b"", self.next.to_bytes(8, "big"), payload])
        self.next += 1

    def restart(self):
        self.kept, self.next = [], 0

    async def serve(self):
        while True:
            identity, _, start = await self.router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            for sequence, payload in self.kept:
                if sequence >= self.asked[-1]:
                    await self.router.send_multipart([identity, b"", b"", sequence.to_bytes(8, "big"), payload])
            await self.router.send_multipart([identity, b"", b"", END, b""])

    async def close(self):
        if self.task:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.router.close(0)
        self.pub.close(0)


class Web:
    """The HTTP side: bodies by path, changed by the test as it goes on. A path set to None answers 404."""

    def __init__(self, bodies):
        self.bodies = bodies
        self.port = 0
        self.runner = None

    async def answer(self, request):
        body = self.bodies.get(request.path)
        if body is None:
            return web.Response(status=404)
        return web.json_response(body) if isinstance(body, dict | list) else web.Response(text=body)

    async def open(self):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", self.port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]

    async def close(self):
        await self.runner.cleanup()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"


def vllm_bodies(publishers=()):
    sources = {
        str(rank): {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{each.port}",
            "replay_endpoint": f"tcp://*:{each.replay_port}" if each.replay_port else None,
            "topic": "",
        }
        for rank, each in enumerate(publishers)
    }
    metrics = (WIRE / "vllm-0.33.0.metrics.txt").read_text(encoding="utf-8")
    bodies = {"/health": "", "/version": {"version": "0.33.0"}, "/metrics": metrics}
    return bodies | ({"/kv_event_sources": sources} if sources else {})


def sglang_bodies(kv, replay, load):
    loads = json.loads((WIRE / "sglang-0.5.23.v1_loads.json").read_text(encoding="utf-8"))
    events = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": kv, "topic": "", "block_size": 16}
    events |= {"dp_size": 1, "replay_endpoint_port_base": replay, "load_endpoint_port_base": load}
    info = {"version": "0.5.23", "kv_events": events, "page_size": 16, "disable_radix_cache": False}
    return {"/health": "", "/server_info": info, "/v1/loads": loads}
