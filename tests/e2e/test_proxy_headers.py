"""What crosses the proxy: bytes as an engine receives them, recorded by a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json

from turnout.server.headers import to_caller

ANSWER = (
    b'{"choices":[{"index":0,"text":"x","finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}'
)


class Recorder:
    """Accepts connections, keeps every POST as it came, and answers it with fixed bytes.

    One that hangs up closes the connection after its answer, without having said that it would.
    """

    def __init__(self, *, status=b"200 OK", hangs_up=False):
        self.status, self.hangs_up = status, hangs_up
        self.heads: list[dict[bytes, list[bytes]]] = []
        self.bodies: list[bytes] = []

    async def serve(self, reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                first, *lines = head.strip().split(b"\r\n")
                fields: dict[bytes, list[bytes]] = {}
                for line in lines:
                    name, _, value = line.partition(b": ")
                    fields.setdefault(name.lower(), []).append(value)
                length = int(fields.get(b"content-length", [b"0"])[0])
                body = await reader.readexactly(length)
                content, status = b"", b"200 OK"
                if first.startswith(b"POST /v1/completions"):
                    self.heads.append({b"": [first], **fields})
                    self.bodies.append(body)
                    content, status = ANSWER, self.status
                writer.write(
                    b"HTTP/1.1 %b\r\nContent-Type: application/json\r\n"
                    b"Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\n"
                    b"Keep-Alive: timeout=5\r\nX-Kept: 1\r\nServer: engine\r\nContent-Length: %d\r\n\r\n"
                    % (status, len(content))
                )
                writer.write(content)
                await writer.drain()
                if content and self.hangs_up:
                    # Once the answer has arrived, so that its reader has kept the connection for the next request.
                    await asyncio.sleep(0.05)
                    break
        writer.close()


@contextlib.asynccontextmanager
async def listening(recorder):
    server = await asyncio.start_server(recorder.serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@contextlib.asynccontextmanager
async def recorded(proxied, **settings):
    recorder = Recorder()
    async with listening(recorder) as url, proxied(engines=0, urls=[url], **settings) as served:
        yield served, recorder


async def send(url, raw):
    """Send bytes to a server; the head of its answer."""
    host, _, port = url.partition("://")[2].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(raw)
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return head


BODY = b'{"prompt": [1, 2, 3],  "max_tokens": 1}'
HEAD = (
    b"POST /v1/completions?trace=1 HTTP/1.1\r\nHost: turnout.example\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer ours\r\nConnection: keep-alive, X-Secret\r\nX-Secret: 1\r\nTE: trailers\r\nUpgrade: h2c\r\n"
    b"Proxy-Authorization: Basic x\r\nKeep-Alive: 5\r\nAccept-Encoding: gzip\r\nX-Turnout-Namespace: n\r\nX-Kept: a\r\n"
    b"X-Kept: b\r\nX-Request-Id: r\r\n"
)


def test_only_the_messages_own_headers_reach_the_engine(proxied):
    async def play():
        async with recorded(proxied, own_token=True, engine_api_key="engines-own") as (served, recorder):
            chunked = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
            head = await send(served.url, HEAD + chunked)
            assert head.startswith(b"HTTP/1.1 200 ")
            (sent,) = recorder.heads
            assert recorder.bodies == [BODY], "as the caller wrote it"
            assert sent[b""] == [b"POST /v1/completions?trace=1 HTTP/1.1"]
            assert sent[b"host"] == [served.routed.router.replicas[0].encode()]
            assert sent[b"content-length"] == [str(len(BODY)).encode()]
            assert sent[b"authorization"] == [b"Bearer engines-own"]
            assert sent[b"accept-encoding"] == [b"identity"]
            assert (sent[b"x-kept"], sent[b"x-request-id"]) == ([b"a", b"b"], [b"r"])
            gone = {b"transfer-encoding", b"connection", b"x-secret", b"te", b"upgrade", b"proxy-authorization"}
            assert not (gone | {b"keep-alive", b"x-turnout-namespace"}) & sent.keys()
            lower = head.lower()
            assert b"\r\nx-kept: 1\r\n" in lower
            for name in (b"x-hop", b"keep-alive", b"server: engine"):
                assert b"\r\n" + name not in lower
            served.check_books(completed=1)

    asyncio.run(play())


def test_two_lengths_never_become_two_requests(proxied):
    async def play():
        async with recorded(proxied) as (served, recorder):
            hidden = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
            whole = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
            for lengths in (
                b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
                b"Content-Length: %d\r\nContent-Length: 4\r\n\r\n" % len(BODY),
                b"Transfer-Encoding: chunked, identity\r\n\r\n",
            ):
                with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                    await send(served.url, HEAD + lengths + whole + hidden)
            assert all(body == BODY for body in recorder.bodies)
            assert all(len(head[b"content-length"]) == 1 for head in recorder.heads)
            assert served.routed.router.stats()["open_turns"] == 0

    asyncio.run(play())


def test_without_a_token_of_its_own_the_callers_key_is_the_engines(proxied):
    async def play():
        async with recorded(proxied) as (served, recorder):
            status, _, raw = await served.raw(
                "/v1/completions", json.loads(BODY), headers={"Authorization": "Bearer e"}
            )
            assert (status, raw) == (200, ANSWER)
            assert recorder.heads[0][b"authorization"] == [b"Bearer e"]

    asyncio.run(play())


def test_a_connection_header_cannot_take_away_what_the_message_needs():
    pairs = [(b"Connection", b"content-type, x-a"), (b"Content-Type", b"text/event-stream"), (b"X-A", b"1")]
    assert to_caller(pairs) == [(b"content-type", b"text/event-stream")]


def test_an_engine_that_answers_5xx_is_replaced_and_the_last_ones_words_are_passed_on(proxied):
    async def play():
        broken, sound = Recorder(status=b"500 Internal Server Error"), Recorder()
        async with (
            listening(broken) as one,
            listening(sound) as two,
            proxied(engines=0, urls=[one, two], attempts=2) as served,
        ):
            for _ in range(8):
                status, _, raw = await served.raw("/v1/completions", json.loads(BODY))
                assert (status, raw) == (200, ANSWER)
            assert len(sound.bodies) == 8
            assert len(broken.bodies) == served.proxy.counts["retries"] > 0, "ties go to either"
            sound.status = b"503 Service Unavailable"
            status, head, raw = await served.raw("/v1/completions", json.loads(BODY))
            assert (status, raw, head["X-Kept"]) in {(500, ANSWER, "1"), (503, ANSWER, "1")}
            # What the engine cannot do at all is not tried again.
            sound.status = broken.status = b"501 Not Implemented"
            before = served.proxy.counts["attempts"]
            assert (await served.raw("/v1/completions", json.loads(BODY)))[0] == 501
            assert served.proxy.counts["attempts"] == before + 1
            served.check_books(completed=8, failed=1)

    asyncio.run(play())


def test_a_connection_that_the_engine_closed_meanwhile_costs_no_attempt(proxied):
    async def play():
        recorder = Recorder(hangs_up=True)
        async with listening(recorder) as url, proxied(engines=0, urls=[url], attempts=1) as served:
            for _ in range(20):
                status, _, raw = await served.raw("/v1/completions", json.loads(BODY))
                assert (status, raw) == (200, ANSWER)
                # Around the moment at which the engine hangs up.
                await asyncio.sleep(0.05)
            served.check_books(completed=20, attempts=20)

    asyncio.run(play())
