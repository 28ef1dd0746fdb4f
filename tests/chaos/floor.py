"""The simplest server that refuses every request: `python -m tests.chaos.floor`.

It shows the least cost of refusals on a machine. It runs on asyncio, and answers every request with the same 503
without parsing the request.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_BODY = b'{"error":{"message":"the server is full; try again in 1 s"}}'
_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


class _Refusal(asyncio.Protocol):
    """Sends a refusal for each piece of data that arrives. Each request of the load generator arrives in one piece."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(_ANSWER)


@contextmanager
def refusing_server() -> Iterator[str]:
    """Context manager that runs the server in a separate process. Yields its URL."""
    with subprocess.Popen([sys.executable, "-m", "tests.chaos.floor"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


async def _main() -> None:
    server = await asyncio.get_running_loop().create_server(_Refusal, "127.0.0.1", 0, backlog=2048)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
