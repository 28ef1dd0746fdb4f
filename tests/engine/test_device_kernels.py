"""GPU kernels at the start: one is launched to test the device, compilations are stored, reported and not taken for a
hang."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from models.backends import choice, kernel_preparation
from models.backends.kernel_preparation import KernelPreparation
from server.engine.loading.load import LoadError
from server.engine.process import device_kernels, service
from server.engine.process.device_kernels import KernelBeats, KernelReports
from server.ipc.wire.descriptions import EngineOptions
from server.ipc.wire.worker_messages import Computing, Configure, PreparingKernels

CPU = torch.device("cpu")


@pytest.fixture
def preparation(monkeypatch: pytest.MonkeyPatch) -> KernelPreparation:
    fresh = KernelPreparation()
    monkeypatch.setattr(kernel_preparation, "PREPARATION", fresh)
    monkeypatch.setattr(device_kernels, "PREPARATION", fresh)
    return fresh


def test_the_directory_of_the_environment_or_of_the_home_is_used(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "given"))
    device_kernels.make_directory_writable()
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "given") and (tmp_path / "given").is_dir()
    monkeypatch.delenv("TRITON_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    device_kernels.make_directory_writable()
    assert "TRITON_CACHE_DIR" not in os.environ and (tmp_path / "home" / ".triton" / "cache").is_dir()
    monkeypatch.setenv("TRITON_HOME", str(tmp_path / "other"))
    assert device_kernels.kernel_directory() == tmp_path / "other" / ".triton" / "cache"


def test_a_directory_that_cannot_be_written_is_replaced_with_a_warning(tmp_path: Path, monkeypatch, caplog) -> None:
    """If kernels cannot be stored in the directory, another one is used, with a warning.

    A file is in the place of the directory. A read-only directory would not do, because root can write to it.
    """
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "kernels"))
    monkeypatch.setattr(device_kernels.tempfile, "tempdir", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        device_kernels.make_directory_writable()
    chosen = Path(os.environ["TRITON_CACHE_DIR"])
    assert chosen.is_dir() and chosen.parent == tmp_path and chosen.stat().st_mode & 0o77 == 0
    assert "each start compiles them again; TRITON_CACHE_DIR names a directory" in caplog.text
    assert "Not a directory" in caplog.text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            RuntimeError("Failed to find C compiler. Please specify via CC environment variable or set x."),
            "cannot run: no C compiler was found, .* install gcc, or name a compiler in CC",
        ),
        (
            subprocess.CalledProcessError(1, ["/usr/bin/gcc", "main.c"]),
            r"/usr/bin/gcc failed \(status 1\); it needs the headers of Python",
        ),
        (RuntimeError("PTX was compiled with an unsupported toolchain\nmore"), "cannot run: PTX was .* toolchain$"),
        (ZeroDivisionError(), "cannot run: ZeroDivisionError$"),
    ],
)
def test_a_kernel_that_cannot_run_ends_the_start_with_its_reason(monkeypatch, error: Exception, text: str) -> None:
    def fail(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(choice, "backend", lambda x: SimpleNamespace(rms_norm=fail))
    with pytest.raises(LoadError, match=text):
        device_kernels.check_kernels(CPU)


def test_a_worker_launches_a_kernel_before_it_reads_weights(monkeypatch, tmp_path: Path) -> None:
    """If kernels cannot run, the start fails before weights are read. Reading 100 GB would take minutes."""

    def fail(*arguments: Any) -> None:
        raise RuntimeError("Failed to find C compiler.")

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(service, "_device", lambda choice, index: torch.device("cuda", 0))
    monkeypatch.setattr(service.choice, "runs_cuda_kernels", lambda device: True)
    monkeypatch.setattr(service, "_load_models", lambda *arguments: pytest.fail("weights were read"))
    monkeypatch.setattr(torch, "ones", lambda *size, device: torch.zeros(size))
    monkeypatch.setattr(choice, "backend", lambda x: SimpleNamespace(rms_norm=fail))
    with pytest.raises(LoadError, match="no C compiler was found"):
        service.start(Configure(1, "cuda", [], EngineOptions()), lambda progress: None)


def test_a_kernel_runs_where_the_backend_works() -> None:
    with choice.using("torch"):
        device_kernels.check_kernels(CPU)


def test_kernels_are_counted_and_a_failed_one_is_not(preparation: KernelPreparation) -> None:
    with preparation.one():
        assert preparation.since is not None and preparation.num_kernels == 0
        time.sleep(0.01)
    assert (preparation.num_kernels, preparation.since) == (1, None) and preparation.seconds >= 0.01
    with pytest.raises(RuntimeError), preparation.one():
        raise RuntimeError("not compiled")
    assert (preparation.num_kernels, preparation.since) == (1, None)


def test_slow_kernels_are_reported_now_and_then_and_at_the_end(preparation, monkeypatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/kernels")
    sent: list[PreparingKernels] = []
    reports = KernelReports(7, sent.append)
    with preparation.one():
        pass
    assert sent == [], "kernels of the directory are ready in no time"
    preparation.seconds = device_kernels.QUIET_SECONDS
    for _ in range(3):
        with preparation.one():
            pass
    (first,) = sent
    assert (first.epoch, first.num_kernels, first.directory, first.is_complete) == (7, 1, "/kernels", False)
    monkeypatch.setattr(device_kernels, "REPORT_SECONDS", 0.0)
    with preparation.one():
        pass
    reports.end_of_start()
    assert [(report.num_kernels, report.is_complete) for report in sent[1:]] == [(4, False), (5, True)]


def test_a_start_without_slow_kernels_reports_nothing(preparation) -> None:
    sent: list[PreparingKernels] = []
    reports = KernelReports(7, sent.append)
    with preparation.one():
        pass
    reports.end_of_start()
    assert sent == []


def test_a_worker_that_compiles_sends_heartbeats_and_an_idle_one_does_not(preparation, monkeypatch) -> None:
    monkeypatch.setattr(device_kernels, "BEAT_SECONDS", 0.01)
    sent: list[Any] = []
    KernelBeats(SimpleNamespace(send_between=sent.append), 7)  # type: ignore[arg-type]
    time.sleep(0.1)
    assert sent == []
    with preparation.one():
        deadline = time.monotonic() + 10
        while not sent and time.monotonic() < deadline:
            time.sleep(0.01)
    assert sent and all(beat == Computing(7) for beat in sent)


def test_a_kernel_that_takes_too_long_is_a_hang(preparation) -> None:
    with preparation.one():
        begun = preparation.since
        assert device_kernels.is_preparing(begun + device_kernels.MAX_KERNEL_SECONDS)
        assert not device_kernels.is_preparing(begun + device_kernels.MAX_KERNEL_SECONDS + 1)
    assert not device_kernels.is_preparing(time.monotonic())


@pytest.mark.parametrize(("has_kernels", "text"), [(True, "Triton kernels, kept in /kernels"), (False, "no Triton")])
def test_a_device_is_described(monkeypatch, has_kernels: bool, text: str) -> None:
    properties = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=150 << 30)
    monkeypatch.setenv("TRITON_CACHE_DIR", "/kernels")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(choice, "runs_cuda_kernels", lambda device: has_kernels)
    found = device_kernels.describe(torch.device("cuda", 0))
    assert found.startswith("NVIDIA H200, compute capability 9.0, 150.0 GiB; ") and text in found
