"""Compile what the kernel functions launch, for a device that is not there, and print the resources of each kernel.

Run as a program, without the interpreter: `python -m tests.cuda.kernels.cross_compile CAPABILITY [CASE...]`, for
example 80. Prints a JSON list of `Compiled`. The kernels are compiled for the arguments of the real functions, so that
tile sizes, warps, and the divisibility of pointers and strides are those of a launch on a device.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from models.backends.cuda.kernels import (
    activation,
    decode_attention,
    experts,
    logits_top_k,
    norms,
    quantized_linear,
    rotary,
    sampling,
    tile_attention,
)
from models.backends.cuda.kernels.attention_arguments import ScoreBias, Scores
from tests.cuda.kernels.planted_spill import spill

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
WIDE_LOAD = re.compile(r"ld\.global[\w.:]*\.v4\.|cp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (0x10|16)\b")
"""A load of 16 bytes, to registers or to shared memory, in PTX."""


class Compiled(NamedTuple):
    """Resources of a compiled kernel. stack, local: bytes of spilled registers. has_wide_loads: loads 16 bytes."""

    case: str
    kernel: str
    capability: int
    registers: int
    stack: int
    local: int
    shared: int
    has_wide_loads: bool


def _half(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def _int(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def _decode(head_dim: int, heads: int, kv_heads: int, scores: Scores, dtype: torch.dtype = torch.bfloat16) -> None:
    cache, query = (torch.zeros(shape, dtype=dtype) for shape in ((4, 32, kv_heads, head_dim), (2, heads, head_dim)))
    rows = decode_attention.DecodeRows(_int(2, 16), _int(2), _int(2))
    partials = decode_attention.Partials.empty(4, heads, head_dim, query.device)
    decode_attention.paged_decode_attention(query, cache, cache, rows, scores, 2, partials)


def _prefill(
    head_dim: int, heads: int, kv_heads: int, scores: Scores, paged: bool, dtype: torch.dtype = torch.bfloat16
) -> None:
    shape = (4, 32, kv_heads, head_dim) if paged else (64, kv_heads, head_dim)
    query, key = torch.zeros(64, heads, head_dim, dtype=dtype), torch.zeros(shape, dtype=dtype)
    where = {"block_tables": _int(2, 16)} if paged else {"key_starts": _int(2)}
    rows = tile_attention.TileRows(_int(3), _int(2), _int(2), 64, **where)
    tile_attention.tile_attention(query, key, key, rows, scores)


def _rotate_and_write() -> None:
    merged, table = _half(4, 48 * 128), torch.zeros(64, 1, 64)
    query, key, value = (part.unflatten(1, (-1, 128)) for part in merged.split([4096, 1024, 1024], 1))  # type: ignore[no-untyped-call]
    cache, positions = _half(2, 32, 8, 128), torch.zeros(4, dtype=torch.int64)
    rotary.rotate_and_write(query, key, value, table, table, positions, False, cache, cache, positions)


def _gated(merged: Tensor) -> None:
    gate, up = merged.chunk(2, 1)
    activation.gated_activation(gate, up, "silu")


def _draw() -> None:
    filters = sampling.FilterColumns(torch.ones(2), _int(2), torch.ones(2, dtype=torch.float64), torch.zeros(2))
    sampling.draw(torch.zeros(2, 128_256), filters, torch.zeros(2, dtype=torch.float64))


def _mixture(tokens: int) -> None:
    tiles = experts.group_by_expert(torch.zeros(tokens, 4, dtype=torch.int64), 32)
    middle = experts.gated_expert_linear(_half(tokens, 1024), _half(32, 1024, 1024), None, tiles, "silu")
    outputs = experts.expert_linear(middle, _half(32, 1024, 512), None, tiles)
    experts.sum_of_experts(outputs, torch.zeros(tokens, 4), None, None)


def _int8(rows: int, dtype: torch.dtype = torch.bfloat16) -> None:
    weight = quantized_linear.Int8Matrix(torch.zeros(4096, 4096, dtype=torch.int8), torch.zeros(4096))
    quantized_linear.int8_linear(torch.zeros(rows, 4096, dtype=dtype), weight, None)


def _int4(rows: int) -> None:
    scales = torch.zeros(4096, 32, dtype=torch.float16)
    codes = torch.zeros(4096, 2048, dtype=torch.uint8)
    quantized_linear.int4_linear(_half(rows, 4096), quantized_linear.Int4Matrix(codes, scales, None, 128), None)


_PLAIN = Scores(0.1)
_EVERYTHING = Scores(0.1, True, 256, None, 30.0, torch.zeros(32), ScoreBias(torch.zeros(32, 511)))

HAVE_NO_MATRIX_PRODUCTS = (
    "add and RMS norm",
    "add and layer norm",
    "rotation and cache write",
    "gated activation",
    "top k of logits",
    "draw",
)
"""Cases that are compiled for one capability: matrix products differ most between generations."""

CASES: dict[str, Callable[[], Any]] = {
    "decode, LLaMA 8B": lambda: _decode(128, 32, 8, _PLAIN),
    "decode, GPT-2": lambda: _decode(64, 12, 12, _PLAIN),
    "decode, latent": lambda: _decode(576, 16, 1, _PLAIN),
    "decode, Gemma, window, cap, bias, sinks": lambda: _decode(256, 32, 8, _EVERYTHING),
    "decode, float32": lambda: _decode(128, 32, 8, _PLAIN, torch.float32),
    "prefill, LLaMA 8B": lambda: _prefill(128, 32, 8, _PLAIN, True),
    "prefill, latent": lambda: _prefill(576, 16, 1, _PLAIN, True),
    "prefill, Gemma, window, cap, bias, sinks": lambda: _prefill(256, 32, 8, _EVERYTHING, True),
    "prefill, float32": lambda: _prefill(128, 32, 8, _PLAIN, True, torch.float32),
    "encoder, BERT": lambda: _prefill(64, 12, 12, Scores(0.1, False), False),
    "encoder, T5": lambda: _prefill(64, 32, 32, Scores(1.0, False, bias=_EVERYTHING.bias), False),
    "add and RMS norm": lambda: norms.add_rms_norm(_half(2, 4096), _half(2, 4096), _half(4096), 1e-5),
    "add and layer norm": lambda: norms.add_layer_norm(_half(2, 768), _half(2, 768), _half(768), _half(768), 1e-5),
    "rotation and cache write": _rotate_and_write,
    "gated activation": lambda: _gated(_half(2, 28672)),
    "top k of logits": lambda: logits_top_k.logits_top_k(torch.zeros(2, 128_256), 20, True),
    "draw": _draw,
    "mixture, few tokens": lambda: _mixture(4),
    "mixture, many tokens": lambda: _mixture(600),
    "int8, one row": lambda: _int8(1),
    "int8, many rows": lambda: _int8(200),
    "int8, float32": lambda: _int8(1, torch.float32),
    "int4, one row": lambda: _int4(1),
    "int4, many rows": lambda: _int4(200),
}

PLANTED = "planted spill"


class AbsentDevice:
    """Stands for the driver of a device that kernels are compiled for and never run on."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        # The runtime keeps compiled kernels by device.
        return self._capability

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_case(name: str, call: Callable[[], Any], capability: int) -> list[Compiled]:
    """Compile what a call launches, with the specialisation that the runtime chooses, and read the resources."""
    compiled: list[Compiled] = []

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        binary = run(self, *arguments, grid=grid, warmup=True, **options)
        compiled.append(_resources(name, self.__name__, capability, binary))

    driver.set_active(AbsentDevice(capability))
    run, JITFunction.run = JITFunction.run, compile_only
    try:
        call()
    finally:
        JITFunction.run = run
    return compiled


def _resources(case: str, kernel: str, capability: int, binary: Any) -> Compiled:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        command = [str(CUOBJDUMP), "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
    has_wide_loads = WIDE_LOAD.search(binary.asm["ptx"]) is not None
    resources = found["REG"], found["STACK"], found["LOCAL"], binary.metadata.shared
    return Compiled(case, kernel, capability, *resources, has_wide_loads)


def main() -> None:
    capability, cases = int(sys.argv[1]), {**CASES, PLANTED: spill}
    results = [one for name in sys.argv[2:] or cases for one in compile_case(name, cases[name], capability)]
    json.dump([one._asdict() for one in results], sys.stdout, indent=1)


if __name__ == "__main__":
    main()
