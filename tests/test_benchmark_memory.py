"""Tests of `benchmarks.memory`: the memory that benchmark pages state."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.memory import peak_bytes, resident_bytes

_PARENT_BYTES = 300 << 20


def test_the_peak_of_a_program_does_not_contain_that_of_the_process_that_started_it() -> None:
    large = bytearray(os.urandom(1)) * _PARENT_BYTES
    program = [sys.executable, "-c", "from benchmarks.memory import peak_bytes; print(peak_bytes())"]
    started = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True)
    assert peak_bytes() >= len(large) > int(started.stdout) > 1 << 20


def test_the_peak_remains_after_memory_was_released() -> None:
    large = bytearray(os.urandom(1)) * _PARENT_BYTES
    held = resident_bytes(os.getpid())
    del large
    assert peak_bytes() >= held - (16 << 20)
    assert peak_bytes(os.getpid()) == peak_bytes()
