"""The worker process: messages, frames, and all reasons to exit."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from server.engine.process.worker_socket import ConnectionClosed, WorkerSocket
from server.ipc.wire.descriptions import EngineOptions, ModelSpec
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.ipc.wire.frames import FRAME_HEADER, encode_frame
from server.ipc.wire.messages import decode_from_worker
from server.ipc.wire.step_messages import Abort, Stats, StepOutput
from server.ipc.wire.worker_messages import Configure, LoadFailed, Progress, Ready, Shutdown
from tests.engine.harness import generate, reference
from tests.engine.worker_process import ROOT, Worker
from tests.waiting import HANG_SECONDS, eventually


@pytest.fixture
def worker():
    one = Worker()
    yield one
    one.end()


def test_a_worker_from_configure_to_shutdown(pairs, worker):
    gpt2, marian, bert = pairs("gpt2"), pairs("marian"), pairs("bert")
    worker.configure([gpt2, marian, bert], stats_interval_seconds=0.05)
    before: list = []
    ready = worker.until(Ready, before)
    progress = [message for message in before if isinstance(message, Progress)]
    assert {message.model for message in progress} == {"gpt2", "marian", "bert"}
    assert all(message.epoch == 7 for message in before)
    assert all(message.done_bytes <= message.total_bytes for message in progress)
    infos = {info.name: info for info in ready.models}
    assert (infos["gpt2"].context_tokens, infos["gpt2"].source_tokens) == (128, 0)
    assert (infos["marian"].context_tokens, infos["marian"].source_tokens) == (128, 128)
    assert infos["marian"].is_encoder_decoder and set(infos["marian"].kv_blocks) == {"self", "cross"}
    assert set(infos["gpt2"].kv_blocks) == {"self"} and infos["bert"].kv_blocks == {}
    assert infos["bert"].tasks == ["embed"] and infos["gpt2"].dtype == "float32"
    assert 0 < sum(info.kv_bytes for info in infos.values()) <= 1 << 22

    worker.send(generate(gpt2, 1, [5, 6, 7]))
    worker.send(generate(marian, 2, [5, 6, 7], num_beams=3))
    worker.send(Encode(3, "bert", "embed", [EncodeItem([5, 6])] * 3))
    worker.send(generate(gpt2, 4, [5, 6, 7], max_new_tokens=100, end_token_ids=[]))
    worker.send(Abort(4))
    worker.send(generate(gpt2, 5, [5], max_new_tokens=1000))
    finished, failed, encoded = {}, {}, []
    while len(finished) < 2 or len(encoded) < 3 or not failed:
        output = worker.until(StepOutput)
        assert output.epoch == 7
        finished |= {end.sequence_id: end for end in output.finished}
        failed |= {end.sequence_id: end for end in output.failed}
        encoded += [event.index for event in output.encoded]
    assert [finished[1].hypotheses[0].token_ids] == reference(gpt2, [5, 6, 7], max_new_tokens=12)[0]
    expected, _ = reference(marian, [5, 6, 7], max_new_tokens=12, num_beams=3)
    assert [finished[2].hypotheses[0].token_ids] == expected
    assert failed[5].code == "request_too_large" and sorted(encoded) == [0, 1, 2]

    # An idle worker also sends statistics, which report that no blocks are in use.
    for _ in range(4):
        stats = worker.until(Stats)
    assert stats.running == stats.waiting == 0 and set(stats.kv_blocks_used.values()) == {0}
    assert stats.device_memory_bytes
    worker.send(Shutdown())
    assert worker.process.wait(HANG_SECONDS) == 0


@pytest.mark.parametrize("change", ["no config", "unknown architecture", "truncated weights", "no directory"])
def test_a_bad_checkpoint_gives_a_one_line_error_and_exit_status_2(pairs, worker, tmp_path, change):
    source = Path(pairs("gpt2").loaded.spec.directory)
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    directory = tmp_path
    if change == "no config":
        (tmp_path / "config.json").unlink()
    elif change == "unknown architecture":
        text = (tmp_path / "config.json").read_text()
        (tmp_path / "config.json").write_text(text.replace("GPT2LMHeadModel", "Mamba").replace('"gpt2"', '"mamba"'))
    elif change == "truncated weights":
        data = (tmp_path / "model.safetensors").read_bytes()
        (tmp_path / "model.safetensors").write_bytes(data[: len(data) // 2])
    else:
        directory = tmp_path / "missing"
    worker.send(Configure(1, "cpu", [ModelSpec("broken", str(directory), "auto")], EngineOptions(threads=1)))
    failed = worker.until(LoadFailed)
    assert failed.epoch == 1 and "broken" in failed.message and "\n" not in failed.message
    assert worker.process.wait(HANG_SECONDS) == 2


def test_too_little_memory_for_one_block_is_reported(pairs, worker):
    worker.configure([pairs("gpt2")], kv_cache_bytes=100)
    assert "--kv-cache-memory" in worker.until(LoadFailed).message
    assert worker.process.wait(HANG_SECONDS) == 2


def test_the_worker_exits_when_the_connection_closes(pairs, worker):
    worker.configure([pairs("gpt2")])
    worker.until(Ready)
    for number in (signal.SIGINT, signal.SIGTERM):
        worker.process.send_signal(number)
    worker.until(Stats)
    worker.until(Stats)
    assert worker.process.poll() is None, "the worker must ignore SIGINT and SIGTERM"
    worker.send(generate(pairs("gpt2"), 1, [5], max_new_tokens=100, end_token_ids=[]))
    worker.socket.close()
    assert worker.process.wait(HANG_SECONDS) == 0


def test_the_worker_exits_when_its_parent_is_killed(tmp_path):
    """The worker exits when its parent is killed.

    The socket stays open in this test, because the worker has inherited both ends of it.
    """
    script = f"""
import os, socket, subprocess, sys, time
ours, theirs = socket.socketpair()
process = subprocess.Popen([sys.executable, "-m", "server.engine.process.worker", "--fd", str(theirs.fileno())],
                           pass_fds=(theirs.fileno(), ours.fileno()), cwd={str(ROOT)!r})
print(process.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    pid = int(parent.stdout.readline())
    # The worker first asks the kernel to be killed with its parent, then ignores SIGTERM.
    eventually(lambda: _ignores_sigterm(pid))
    assert _alive(pid)
    parent.kill()
    parent.communicate()
    eventually(lambda: not _alive(pid))


def _ignores_sigterm(pid: int) -> bool:
    (mask,) = re.findall(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


def _alive(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_frames_are_complete_for_a_slow_reader():
    ours, theirs = socket.socketpair()
    connection = WorkerSocket(ours)
    sent = [Progress(1, "m" * (i % 5000), i, 1 << 40) for i in range(3000)]
    received: list = []

    def read() -> None:
        buffer = b""
        while len(received) < len(sent):
            time.sleep(0.0001)
            buffer += theirs.recv(7777)
            while len(buffer) >= 4:
                end = 4 + FRAME_HEADER.unpack_from(buffer)[0]
                if len(buffer) < end:
                    break
                received.append(decode_from_worker(buffer[4:end]))
                buffer = buffer[end:]

    reader = threading.Thread(target=read)
    for message in sent[:1000]:
        connection.send(message)
    reader.start()
    for message in sent[1000:]:
        connection.send(message)
    connection.drain(HANG_SECONDS)
    reader.join(HANG_SECONDS)
    assert received == sent
    theirs.close()
    with pytest.raises(ConnectionClosed):
        connection.receive(1.0)
    ours.close()


def test_messages_that_arrive_byte_by_byte_are_received():
    ours, theirs = socket.socketpair()
    connection = WorkerSocket(ours)
    expected = [Abort(1), Encode(2, "m", "embed", [EncodeItem([1, 2, 3])]), Shutdown()]
    received = []
    for byte in b"".join(encode_frame(message) for message in expected):
        theirs.send(bytes([byte]))
        received += connection.receive(1.0)
    assert received == expected
    assert connection.receive(0.0) == []
    ours.close(), theirs.close()
