"""Run a server and a client in two network namespaces. The client loses its network address and closes nothing.

Run as `unshare --user --map-root-user --net python vanishing_client.py CHECKPOINT [DEFAULTS]`, on Linux. Prints for how
many seconds the client's request ran while the client was there, and for how many after it had vanished. The server
probes a silent client after one second instead of 20, unless DEFAULTS is given.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

SERVER, CLIENT = "10.77.0.1", "10.77.0.2"
PROMPT = '{"model": "decoder", "prompt": "&"}'
"""The body of a request that the fake worker never answers."""
SEND = f"""
import socket, sys, time
with socket.create_connection(("{SERVER}", int(sys.argv[1]))) as connection:
    body = b'{PROMPT}'
    head = "POST /generate HTTP/1.1\\r\\nHost: {SERVER}\\r\\nContent-Type: application/json\\r\\n"
    connection.sendall(f"{{head}}Content-Length: {{len(body)}}\\r\\n\\r\\n".encode() + body)
    time.sleep(600)
"""
SERVE = """
import sys
from server.api import serve
if sys.argv.pop(1) == "fast":
    serve.PROBE_AFTER_SECONDS, serve.PROBE_INTERVAL_SECONDS, serve.STALLED_CLIENT_MILLISECONDS = 1, 1, 2000
from tests.wire.fake_serve import WORKER, main
main(worker=WORKER)
"""
ALIVE_SECONDS = 3.0
"""How long the client stays. With fast probes, the server finds a vanished client in less time."""


def run(command: str) -> None:
    subprocess.run(command.split(), check=True)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.02)


def running(url: str) -> float:
    """Number of sequences that the worker runs."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as page:
        return float(re.search(r"^triptych_requests_running (\S+)$", page.read().decode(), re.MULTILINE)[1])


def main() -> None:
    speed = "defaults" if len(sys.argv) > 2 else "fast"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    run("ip link set lo up")
    own = os.readlink("/proc/self/ns/net")
    holder = subprocess.Popen(["unshare", "--net", "sleep", "600"])
    started = [holder]
    try:
        until(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != own)
        inside = f"nsenter --target {holder.pid} --net"
        run(f"ip link add server type veth peer name client netns {holder.pid}")
        run(f"ip address add {SERVER}/24 dev server")
        run("ip link set server up")
        run(f"{inside} ip address add {CLIENT}/24 dev client")
        run(f"{inside} ip link set client up")
        arguments = ["serve", "--host", SERVER, "--port", "0", "--insecure-no-auth", sys.argv[1]]
        arguments += ["--stale-seconds", "60", "--hang-seconds", "120"]
        server = subprocess.Popen(
            [sys.executable, "-c", SERVE, speed, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(server)
        url = ""
        while not url:
            line = server.stdout.readline()
            assert line, "the server ended"
            url = "".join(re.findall(r"ready on (http://\S+)", line))
        command = [*inside.split(), sys.executable, "-c", SEND, url.rpartition(":")[2]]
        started.append(subprocess.Popen(command))
        until(lambda: running(url) > 0)
        time.sleep(ALIVE_SECONDS)
        assert running(url) > 0, "the request ended while its client was there"
        run(f"{inside} ip address flush dev client")
        vanished = time.monotonic()
        until(lambda: running(url) == 0)
        print(f"{ALIVE_SECONDS:g} {time.monotonic() - vanished:.2f}")
    finally:
        for process in started:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
