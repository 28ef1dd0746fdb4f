"""The server notices a client that vanishes without closing its connection, even if it sends the client nothing."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from server.api import serve
from tests.wire.checkpoints import write_checkpoint

SCRIPT = Path(__file__).with_name("vanishing_client.py")
ISOLATED = ("unshare", "--user", "--map-root-user", "--net")
FOUND_SECONDS = 60


@cache
def has_namespaces() -> bool:
    """Whether this user may create network namespaces, and pairs of network interfaces in them."""
    if sys.platform != "linux" or not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return False
    add = "ip link add one type veth peer name two"
    return not subprocess.run([*ISOLATED, *add.split()], capture_output=True).returncode


def test_accepted_connections_are_probed() -> None:
    with (
        serve.listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
        if not hasattr(socket, "TCP_KEEPIDLE"):
            pytest.skip("this system names the other options differently")
        idle, interval, count = (
            accepted.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + interval * count <= FOUND_SECONDS
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert 1000 * idle < milliseconds <= 1000 * FOUND_SECONDS


@pytest.mark.skipif(not has_namespaces(), reason="needs network namespaces")
def test_a_client_without_a_network_ends_its_request(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    command = [*ISOLATED, sys.executable, str(SCRIPT), f"decoder={tmp_path}"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    alive_seconds, seconds = map(float, ended.stdout.split())
    assert alive_seconds > 0 and seconds < FOUND_SECONDS
