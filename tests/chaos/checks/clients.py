"""Check promises 6 and 15: clients that stop reading, clients that send slowly, idle connections."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import statistics
import time
from urllib.parse import urlsplit

import psutil

from tests.chaos import facts
from tests.chaos.connection import Connection
from tests.chaos.record import Record
from tests.chaos.server import server
from tests.waiting import eventually

STREAM = {"prompt": "Once upon a time", "max_new_tokens": 240, "ignore_eos": True, "stream": True, "temperature": 1.0}
DETAILED = STREAM | {"max_new_tokens": 480, "logprobs": True, "top_logprobs": 20}
"""Body of a request whose streamed answer has about 600 kB, more than the buffers of a connection can hold."""

CUT_SECONDS = 50.0
"""Time after which a stalled stream must be closed. The server closes it after 30 s without progress."""


def p99(values: list[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(values, n=100, method="inclusive")[98]


async def _gaps(url: str, streams: int, times: int) -> list[float]:
    """Run concurrent streams several times. Returns the seconds between successive events of each stream."""
    return [gap for _ in range(times) for gap in await _gaps_once(url, streams)]


async def _gaps_once(url: str, streams: int) -> list[float]:

    async def one(i: int) -> list[float]:
        async with Connection(url) as connection:
            await connection.send("POST", "/generate", STREAM | {"seed": i})
            times = [event.at async for event in connection.events(await connection.head())]
        return [later - earlier for earlier, later in itertools.pairwise(times)]

    return [gap for gaps in await asyncio.gather(*map(one, range(streams))) for gap in gaps]


def _stalled(url: str, i: int) -> socket.socket:
    """Open a connection that sends a request and never reads. Small TCP segments keep the kernel's buffers small.

    i: seed of the request.
    """
    parts = urlsplit(url)
    one = socket.socket()
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect((parts.hostname, parts.port))
    body = json.dumps(DETAILED | {"seed": i}).encode()
    head = "POST /generate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    one.sendall(head.encode() + body)
    return one


def _rest(one: socket.socket) -> bytes:
    """Read a stalled connection to its end. Returns the bytes that it still had."""
    received = b""
    one.settimeout(2)
    with contextlib.suppress(OSError):
        while chunk := one.recv(65536):
            received += chunk
    return received


def _num_open(process: psutil.Process, clients: list[socket.socket]) -> int:
    """Number of connections to these client sockets that the server process has open."""
    ports = {client.getsockname()[1] for client in clients}
    return sum(
        1 for connection in process.net_connections("tcp") if connection.raddr and connection.raddr.port in ports
    )


def slow_readers(readers: int = 32, streams: int = 16, memory_bytes: int = 64 << 20) -> Record:
    """Promise 6: clients that read nothing do not slow down other streams. The server closes them and frees memory."""
    record = Record("stalled reader")
    with server() as running, contextlib.ExitStack() as stack:
        process = psutil.Process(running.process.pid)
        asyncio.run(_gaps(running.url, streams, 1))
        alone = p99(asyncio.run(_gaps(running.url, streams, 3)))
        before = facts.memory_bytes(process)
        began = time.monotonic()
        stalled = [stack.enter_context(contextlib.closing(_stalled(running.url, i))) for i in range(readers)]
        # A stalled stream may cause as much work as one that is read: steps that generate its tokens, and writes until
        # its buffers are full. After that it must cause no work.
        eventually(lambda: facts.is_idle(running.url))
        facts.wait_until_quiet(process)
        beside = p99(asyncio.run(_gaps(running.url, streams, 3)))
        record.most("p99 gap beside them", beside / alone, 1.5, "times alone")
        held = 0
        while time.monotonic() - began < CUT_SECONDS + 5:
            held = max(held, facts.memory_bytes(process) - before)
            if not _num_open(process, stalled):
                break
            time.sleep(0.25)
        record.most("memory held for them", held / 2**20, memory_bytes / 2**20, "MiB")
        record.most("all cut after", time.monotonic() - began, CUT_SECONDS, "s")
        for stream in stalled:
            record.must(b"event: done" not in _rest(stream), "a stalled stream was not cut: its end arrived later")
            record.runs += 1
        record.must(running.get("/ready").status_code == 200, "the server is not ready afterwards")
    return record


async def _until_closed(url: str, first: bytes, drip: bytes) -> tuple[float, bytes]:
    """Send the bytes `first`, then one byte of `drip` per second.

    Returns the seconds until the server closes the connection, and the bytes that it sent.
    """
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    began, received = time.monotonic(), b""
    writer.write(first)
    try:
        while time.monotonic() - began < 30:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    if not (chunk := await reader.read(65536)):
                        break
                    received += chunk
                    continue
            writer.write(drip)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()
    return time.monotonic() - began, received


def slow_senders(senders: int, idle: int = 500, requests: int = 600) -> Record:
    """Promise 15: the server ends bodies beyond the limit and clients that send slowly, and serves beside idle ones."""
    record = Record("connection")
    head = b"POST /generate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"

    async def trickle(url: str) -> None:
        headers = asyncio.gather(*(_until_closed(url, head, b"x") for _ in range(senders)))
        silent = asyncio.gather(*(_until_closed(url, b"", b"") for _ in range(senders)))
        body = head + b"content-length: 1000\r\n\r\n{"
        bodies = asyncio.gather(*(_until_closed(url, body, b" ") for _ in range(senders)))
        for name, ends in (("headers", await headers), ("silence", await silent), ("body", await bodies)):
            for seconds, received in ends:
                record.most(f"trickled {name}: closed after", seconds, 11.5, "s")
                record.runs += 1
                if name == "body":
                    record.must(received.startswith(b"HTTP/1.1 408 "), "no 408 for a trickled body")

    async def grow(url: str) -> None:
        """Send a chunked body without a declared length, of up to ten times the limit."""
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(head + b"transfer-encoding: chunked\r\n\r\n")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 20 << 20 and not reader.at_eof():
                writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
                sent += 65536
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.001):
                        line = await reader.readline()
                        record.must(b" 413 " in line, f"a growing body: {line[:40]!r}")
                        break
        record.most("bytes taken of a body above the limit", sent / 2**20, 4.0, "MiB")
        record.runs += 1
        writer.close()

    async def good(url: str) -> list[float]:
        async def client(count: int) -> list[float]:
            async with Connection(url) as connection:
                return [(await connection.request("POST", "/embed", {"inputs": "a fox"})).seconds for _ in range(count)]

        found = await asyncio.gather(*(client(requests // 4) for _ in range(4)))
        return [seconds for times in found for seconds in times]

    async def beside_idle(url: str) -> tuple[float, float]:
        """The p99 latency in seconds without and with idle connections, measured alternately."""
        alone, beside = [], []
        await good(url)
        for _ in range(3):
            alone += await good(url)
            held = [Connection(url) for _ in range(idle)]
            for connection in held:
                await connection.request("GET", "/health")
            beside += await good(url)
            for connection in held:
                connection.close()
        return p99(alone), p99(beside)

    with server() as running:
        asyncio.run(trickle(running.url))
        asyncio.run(grow(running.url))
        alone, beside = asyncio.run(beside_idle(running.url))
        record.most(f"p99 beside {idle} idle connections", beside / alone, 1.5, "times alone")
    return record
