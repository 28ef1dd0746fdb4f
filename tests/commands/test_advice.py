"""`triptych check` says which setting suits a model on this machine."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from server.commands.advice import Machine, advice, measure
from server.ipc.wire.descriptions import ModelInfo
from server.settings.settings import Settings
from tests import warm_processes
from tests.api.conftest import Bench
from tests.e2e.conftest import REPOSITORY

GIB = 1 << 30
SIZES = {"float32": 4 * 10**9, "bfloat16": 2 * 10**9, "int8": 1_062_500_000, "int4": 625_000_000, "int4-32": 1}
"""Size in bytes of a billion weights with each setting of `--dtype` or `--quantize`."""


def machine(free: float, read: float = 20e9) -> Machine:
    return Machine(2, read, 100e9, int(free * GIB))


@pytest.fixture
def info(tmp_path: Path) -> ModelInfo:
    """Facts about a decoder with a billion parameters and 4 KiB of KV cache per token in float32."""
    bench = Bench(tmp_path, Settings())
    bench.become_ready()
    bench.runtime.pools.close()
    model = bench.client.models["decoder"]
    small = msgspec.structs.replace(
        model, parameters=10**9, dtype="float32", quantization=None, checkpoint_format="", kv_cache_dtype="auto"
    )
    return msgspec.structs.replace(small, context_tokens=4096, kv_bytes=small.kv_tokens * 4096)


def found(info: ModelInfo, machine: Machine) -> dict[str, str]:
    return dict(advice(info, machine, SIZES))


def test_rows_have_memory_tokens_and_speed(info: ModelInfo) -> None:
    rows = found(info, machine(16))
    assert rows["machine"] == "2 cores, reads 20.0 GB/s, 100 GFLOP/s in float32, 16.0 GiB free"
    assert rows["bfloat16"].startswith("1,907 MiB of weights, KV cache for up to 6,5")
    assert "about 10.0 tokens/s for one stream, prompts about 50 tokens/s" in rows["bfloat16"]
    assert "about 5.0 tokens/s" in rows["float32"] and "about 18.8 tokens/s" in rows["int8"]


@pytest.mark.parametrize(
    ("free", "read", "advised"),
    [
        (16, 40e9, "--dtype float32"),  # fast enough
        (16, 20e9, "--dtype bfloat16"),  # float32 is too slow
        (1.5, 20e9, "--quantize int8"),  # bfloat16 does not fit
        (1, 20e9, "--quantize int4"),
        (16, 1e9, "--quantize int4"),  # all are slow: the fastest
        (0.2, 20e9, "this model does not fit into the free memory"),
    ],
)
def test_the_most_exact_setting_that_fits_and_is_fast_enough(
    info: ModelInfo, free: float, read: float, advised: str
) -> None:
    assert found(info, machine(free, read))["advice"] == advised


def test_a_quantized_checkpoint_has_one_setting(info: ModelInfo) -> None:
    stored = msgspec.structs.replace(info, quantization="int4", weight_bytes=600 << 20)
    rows = found(stored, machine(16))
    assert list(rows) == ["machine", "int4"] and rows["int4"].startswith("600 MiB of weights")


def test_this_machine_is_measured() -> None:
    measured = measure(1, GIB)
    assert measured.read_bytes > 1e8 and measured.operations > 1e8


def test_check_prints_the_advice() -> None:
    done = warm_processes.run("check", str(REPOSITORY / "weights" / "demo" / "story"), "--device", "cpu")
    assert done.returncode == 0 and re.search(r"machine +\d+ cores, reads [\d.]+ GB/s", done.stdout), done.stderr
    assert re.search(r"advice +--dtype float32", done.stdout)
