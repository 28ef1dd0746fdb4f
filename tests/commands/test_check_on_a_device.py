"""`triptych check --device cuda` and the log of a first start, for workers with and without a CUDA device."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from server.cli import main
from server.ipc.wire.worker_messages import PreparingKernels
from server.load_progress import LoadProgress
from tests.e2e.conftest import serving
from tests.wire.checkpoints import write_checkpoint
from tests.wire.fake_serve import WORKER

DEVICE = "NVIDIA H200, compute capability 9.0, 139.8 GiB; Triton kernels, kept in /models/triton"
DEMO = Path(__file__).resolve().parents[2] / "weights" / "demo" / "story"


def test_check_describes_the_device(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_WORKER_DEVICE", DEVICE)
    directory = str(write_checkpoint(tmp_path / "decoder"))
    main(["check", directory, "--device", "cuda"], worker=WORKER)
    table = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert table["device"] == DEVICE and table["weights"].endswith(" on cuda")
    assert "advice" not in table and "machine" not in table, "these are about the CPU"
    main(["check", directory, "--device", "cpu"], worker=WORKER)
    assert "device" not in {line.split(None, 1)[0] for line in capsys.readouterr().out.splitlines()}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_check_says_what_is_missing() -> None:
    command = [sys.executable, "-m", "server.cli", "check", str(DEMO), "--device", "cuda"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1 and ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert "device cuda was requested, but " in line
    assert f"this build of torch ({torch.__version__}) is for CPUs only; install torch for CUDA" in line or (
        torch.version.cuda is not None and "torch finds no CUDA device; `nvidia-smi` shows" in line
    )


def test_a_first_start_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    progress = LoadProgress(bars=False)
    with caplog.at_level(logging.INFO, "triptych"):
        progress(PreparingKernels(1, 12, 31.4, "/models/triton", False))
        progress(PreparingKernels(1, 43, 95.0, "/models/triton", True))
    assert [record.getMessage() for record in caplog.records] == [
        "compiling, so far 12 kernels of the GPU in 31 s, kept in /models/triton for the next start",
        "prepared 43 kernels of the GPU in 95 s, kept in /models/triton for the next start",
    ]


def test_a_bar_on_a_terminal_counts_kernels(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = LoadProgress()
    progress(PreparingKernels(1, 12, 31.4, "/models/triton", False))
    progress(PreparingKernels(1, 43, 95.0, "/models/triton", True))
    progress(PreparingKernels(1, 1, 5.0, "/models/triton", False))
    shown = capsys.readouterr().err
    assert "kernels of the GPU: 12 prepared in " in shown and "kernels of the GPU: 43 prepared in " in shown
    assert shown.rpartition("43 prepared")[2].count("kernels of the GPU: 1 prepared in ") == 1, "a bar of its own"


def test_the_server_tells_of_the_kernels_of_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`triptych serve` logs how many GPU kernels its worker has prepared, and how long that took."""
    monkeypatch.setenv("FAKE_WORKER_DEVICE", DEVICE)
    write_checkpoint(tmp_path / "decoder")
    command = (sys.executable, "-m", "tests.wire.fake_serve")
    arguments = (f"decoder={tmp_path / 'decoder'}", "--device", "cuda", "--log-level", "info")
    with serving(tmp_path / "log", *arguments, command=command) as server:
        assert server.get("/info").json()["device"] == "cuda"
    log = (tmp_path / "log").read_text()
    assert "prepared 41 kernels of the GPU in 62 s, kept in /models/triton for the next start" in log
