"""Run a worker process in tests, without the supervisor."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from server.ipc.wire.descriptions import EngineOptions, ModelSpec
from server.ipc.wire.frames import FRAME_HEADER, encode_frame
from server.ipc.wire.message_base import Message
from server.ipc.wire.messages import decode_from_worker
from server.ipc.wire.worker_messages import Configure
from server.ipc.workers.weight_memory import WeightMemory
from tests.waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]
DEVICE = os.environ.get("TRIPTYCH_TEST_DEVICE", "cpu")


class Worker:
    """A simple client that starts a worker and reads its messages one by one, with blocking reads.

    weights: shared memory for the weights of several workers, or None. arguments: further arguments of the worker.
    """

    def __init__(self, weights: WeightMemory | None = None, arguments: Sequence[str] = ()) -> None:
        self.weights_descriptor = None if weights is None else weights.current()
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(HANG_SECONDS)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "server.engine.process.worker", "--fd", str(theirs.fileno()), *arguments],
            pass_fds=(theirs.fileno(), *([] if self.weights_descriptor is None else [self.weights_descriptor])),
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
        )
        theirs.close()
        self._buffer = b""

    def send(self, message: Message) -> None:
        self.socket.sendall(encode_frame(message))

    def receive(self) -> Message | None:
        while True:
            if len(self._buffer) >= FRAME_HEADER.size:
                (length,) = FRAME_HEADER.unpack_from(self._buffer)
                end = FRAME_HEADER.size + length
                if len(self._buffer) >= end:
                    message = decode_from_worker(self._buffer[FRAME_HEADER.size : end])
                    self._buffer = self._buffer[end:]
                    return message
            data = self.socket.recv(1 << 16)
            if not data:
                return None
            self._buffer += data

    def until(self, kind: type, seen: list | None = None):
        while True:
            message = self.receive()
            assert message is not None, f"the worker closed before {kind.__name__}"
            if seen is not None:
                seen.append(message)
            if isinstance(message, kind):
                return message

    def configure(self, pairs, epoch: int = 7, **options) -> None:
        specs = [ModelSpec(pair.name, pair.loaded.spec.directory, "float32") for pair in pairs]
        self.configure_specs(specs, epoch, **{"threads": 1, "block_size": 4, "kv_cache_bytes": 1 << 22, **options})

    def configure_specs(self, specs: list[ModelSpec], epoch: int = 7, **options) -> None:
        options = EngineOptions(**options)
        self.send(Configure(epoch, DEVICE.split(":")[0], specs, options, self.weights_descriptor))

    def end(self) -> None:
        """Kill the process if it is running, and wait until it has ended."""
        self.socket.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
