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
    beams,
    decode_attention,
    expert_epilogue,
    expert_tiles,
    experts,
    fixed_order_linear,
    logits_top_k,
    matrices,
    norms,
    quantized_linear,
    rotary,
    rounded_cache,
    rounded_rows,
    row_products,
    sampling,
    tile_attention,
)
from models.backends.cuda.kernels.attention_arguments import ScoreBias, Scores
from models.backends.rounded_slots import CACHE_DTYPES, FP8, CacheSide, RoundedSlots
from models.backends.torch.beams import Beams
from tests.cuda.kernels.planted_faults import load_narrowly, spill

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
LOAD = re.compile(
    r"\bld\.global[\w.:]*?(?:\.v(?P<numbers>[248]))?\.[busf](?P<bits>\d+)\b"
    r"|\bcp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (?P<bytes>0x[0-9a-f]+|\d+)"
)
"""A load in PTX, to registers or to shared memory."""


class Compiled(NamedTuple):
    """Resources of a compiled kernel.

    step: 0 for a case, 1 for another step of it, see `OTHER_STEPS`.
    key: names the compiled kernel.
    stack, local: bytes of spilled registers. shared: bytes of shared memory.
    wide_share: share of the bytes of all load instructions that belongs to loads of 16 bytes.
    """

    case: str
    step: int
    kernel: str
    key: str
    capability: int
    registers: int
    stack: int
    local: int
    shared: int
    wide_share: float


def _half(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def _int(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def _columns(rows: int, count: int, dtype: torch.dtype = torch.int32) -> list[Tensor]:
    """Columns of one upload, which begin at addresses that 16 divides for some numbers of rows only."""
    return list(torch.zeros(count, rows, dtype=dtype))


def _decode(
    head_dim: int,
    heads: int,
    kv_heads: int,
    scores: Scores,
    dtype: torch.dtype = torch.bfloat16,
    rows: int = 4,
    blocks: int = 16,
    block_size: int = 32,
    codes: torch.dtype | None = None,
) -> None:
    cache = _cache(kv_heads, head_dim, codes or dtype, block_size)
    query = torch.zeros(rows, heads, head_dim, dtype=dtype)
    _, key_lens, starts = _columns(rows, 3)
    partials = decode_attention.Partials.empty(4, rows, heads, head_dim, query.device)
    decode_rows = decode_attention.DecodeRows(_int(rows, blocks), key_lens, starts)
    decode_attention.paged_decode_attention(query, cache, cache, decode_rows, scores, 2, partials)


def _cache(kv_heads: int, head_dim: int, dtype: torch.dtype, block_size: int = 32) -> CacheSide:
    if dtype in CACHE_DTYPES:
        return RoundedSlots.zeros(4, block_size, kv_heads, head_dim, torch.device("cpu"), dtype)
    return torch.zeros(4, block_size, kv_heads, head_dim, dtype=dtype)


def _prefill(
    head_dim: int,
    heads: int,
    kv_heads: int,
    scores: Scores,
    paged: bool,
    dtype: torch.dtype = torch.bfloat16,
    rows: int = 4,
    blocks: int = 16,
    codes: torch.dtype | None = None,
) -> None:
    query, ragged = torch.zeros(64, heads, head_dim, dtype=dtype), torch.zeros(64, kv_heads, head_dim, dtype=dtype)
    key = _cache(kv_heads, head_dim, codes or dtype) if paged else ragged
    _, key_lens, first_positions, key_starts = _columns(rows, 4)
    where = {"block_tables": _int(rows, blocks)} if paged else {"key_starts": key_starts}
    tile_rows = tile_attention.TileRows(_int(rows + 1), key_lens, first_positions, _int(rows, 2), **where)
    tile_attention.tile_attention(query, key, key, tile_rows, scores)


def _merged(tokens: int) -> list[Tensor]:
    """Query, key and value of one merged product."""
    merged = _half(tokens, 48 * 128)
    return [part.unflatten(1, (-1, 128)) for part in merged.split([4096, 1024, 1024], 1)]  # type: ignore[no-untyped-call]


def _rotate(tokens: int = 4) -> None:
    table, positions = torch.zeros(64, 1, 64), torch.zeros(tokens, dtype=torch.int64)
    rotary.rotate(_merged(tokens)[0], rotary.RotaryTables(table, table, positions, False))


def _rotate_and_store(tokens: int = 4) -> None:
    table, cache = torch.zeros(64, 1, 64), _half(2, 32, 8, 128)
    _, slots, positions = _columns(tokens, 3, torch.int64)
    merged = _half(tokens, 48 * 128).view(tokens, 48, 128)
    tables = rotary.RotaryTables(table, table, positions, False)
    rotary.rotate_and_store(merged[:, :40], merged[:, 40:], tables, cache, cache, slots)


def _write_slots(tokens: int = 4) -> None:
    cache, (_, _, slots) = _half(2, 32, 8, 128), _columns(tokens, 3, torch.int64)
    rotary.write_slots(cache, cache, slots, *_merged(tokens)[1:])


def _write_rounded(kind: torch.dtype, tokens: int = 4) -> None:
    side, (_, _, slots) = _cache(8, 128, kind), _columns(tokens, 3, torch.int64)
    rounded_cache.write_rounded_slots(side, side._replace(codes=side.codes.clone()), slots, *_merged(tokens)[1:])


def _gated(merged: Tensor) -> None:
    gate, up = merged.chunk(2, 1)
    activation.gated_activation(gate, up, "silu")


def _draw(rows: int = 2) -> None:
    temperatures, log_min_ps = _columns(rows, 2, torch.float32)
    _, top_ps, uniforms = _columns(rows, 3, torch.float64)
    filters = sampling.FilterColumns(temperatures, _int(rows), top_ps, log_min_ps)
    sampling.draw(torch.zeros(rows, 128_256), filters, uniforms)


def _choose_beams(num_searches: int = 4, num_candidates: int = 10) -> None:
    rows = num_searches * 4
    ids, parents, _ = _columns(rows, 3, torch.int64)
    chosen = Beams(ids, parents, torch.zeros(rows))
    searches = torch.zeros(4, num_searches, dtype=torch.int64)
    log_probs, token_ids = torch.zeros(rows, 16), torch.zeros(rows, 16, dtype=torch.int64)
    is_finite = torch.zeros(rows, dtype=torch.bool)
    beams.choose_beams(log_probs, token_ids, is_finite, torch.zeros(rows), searches, num_candidates, chosen)


def _follow_beams() -> None:
    places, slots, key_lens = _columns(256, 3, torch.int64)
    chosen = Beams(places, places, torch.zeros(256))
    beams.follow_beams(_int(256, 1024), chosen, torch.zeros(256), places, slots, key_lens)


def _tiles(tokens: int) -> expert_tiles.ExpertTiles:
    tile = 16 if tokens < 64 else 64
    return expert_tiles.ExpertTiles(_int(tokens * 4), *_columns(48 + tokens, 3), choices=4, tile=tile)


def _mixture(tokens: int) -> None:
    tiles = _tiles(tokens)
    gated = expert_epilogue.EpilogueSettings("silu", gated=True)
    middle = experts.expert_linear(_half(tokens, 1024), _half(32, 1024, 1024), None, tiles, gated)
    outputs = experts.expert_linear(middle, _half(32, 1024, 512), None, tiles)
    experts.sum_of_experts(outputs, torch.zeros(tokens, 4), None, None)


def _group(tokens: int) -> None:
    expert_tiles.group_by_expert(torch.zeros(tokens, 4, dtype=torch.int64), 128)


def _int8(rows: int, dtype: torch.dtype = torch.bfloat16) -> None:
    weight = matrices.ByteMatrix(torch.zeros(4096, 4096, dtype=torch.int8), torch.zeros(4096, 1), 4096)
    quantized_linear.quantized_linear(torch.zeros(rows, 4096, dtype=dtype), weight, None)


def _fixed(rows: int, dtype: torch.dtype = torch.bfloat16, columns: int = 4096) -> None:
    x, weight = torch.zeros(rows, 4096, dtype=dtype), torch.zeros(columns, 4096, dtype=dtype)
    fixed_order_linear.fixed_order_linear(x, weight, None, torch.zeros(rows, columns, dtype=dtype))


def _byte_matrix(group: int, dtype: torch.dtype = torch.int8) -> matrices.ByteMatrix:
    codes = torch.zeros(4096, 4096, dtype=torch.int8 if dtype == torch.int8 else torch.uint8)
    return matrices.ByteMatrix(codes, torch.zeros(4096, 4096 // group), group)


def _bytes(rows: int, group: int, dtype: torch.dtype = torch.int8) -> None:
    quantized_linear.quantized_linear(_half(rows, 4096), _byte_matrix(group, dtype), None)


def _int4_matrix(group: int) -> matrices.Int4Matrix:
    scales = torch.zeros(4096, 4096 // group, dtype=torch.float16)
    return matrices.Int4Matrix(torch.zeros(4096, 2048, dtype=torch.uint8), scales, scales.float(), group)


def _rounded(rows: int, weight: matrices.ByteMatrix | matrices.Int4Matrix, kind: str, terms: int) -> None:
    x, out = rounded_rows.round_rows(_half(rows, 4096), kind, terms), _half(rows, 4096)
    quantized_linear.quantized_linear(x, weight, None, out)


def _quantized_mixture(kind: str, tokens: int, terms: int = 0, group: int = 1024) -> None:
    """terms: number of codes of a number of a row; 0 for float rows."""
    gated, x = expert_epilogue.EpilogueSettings("silu", gated=True), _half(tokens, 1024)
    if kind == "int4":
        scales = torch.zeros(32, 1024, 32, dtype=torch.float16)
        weight = matrices.Int4Matrix(torch.zeros(32, 1024, 512, dtype=torch.uint8), scales, scales.float(), 32)
    else:
        codes = torch.zeros(32, 1024, 1024, dtype=torch.int8 if kind == "int8" else torch.uint8)
        weight = matrices.ByteMatrix(codes, torch.zeros(32, 1024, 1024 // group), group)
    rows = x if terms == 0 else rounded_rows.round_rows(x, "fp8" if kind == "fp8" else "int8", terms)
    experts.expert_linear(rows, weight, None, _tiles(tokens), gated, x.dtype)


def _int4(rows: int, group: int = 128, with_minimums: bool = False) -> None:
    codes, scales = torch.zeros(4096, 2048, dtype=torch.uint8), torch.zeros(4096, 4096 // group, dtype=torch.float16)
    minimums = scales.float() if with_minimums else None
    weight = matrices.Int4Matrix(codes, scales, minimums, group)
    quantized_linear.quantized_linear(_half(rows, 4096), weight, None)


def _biased(heads: int, length: int = 256) -> Scores:
    bias = ScoreBias(torch.zeros(heads, 2 * length - 1))
    return Scores(0.1, True, 256, None, 30.0, torch.zeros(heads), bias)


_PLAIN = Scores(0.1)

CASES: dict[str, Callable[[], Any]] = {
    "decode, LLaMA 8B": lambda: _decode(128, 32, 8, _PLAIN),
    "decode, GPT-2": lambda: _decode(64, 12, 12, _PLAIN),
    "decode, 48 heads and 1 of keys": lambda: _decode(128, 48, 1, _PLAIN),
    "decode, latent": lambda: _decode(576, 128, 1, _PLAIN),
    "decode, Gemma, window, cap, bias, sinks": lambda: _decode(256, 32, 8, _biased(32)),
    "decode, Marian, by slot": lambda: _decode(64, 8, 8, _PLAIN, blocks=512, block_size=1),
    "decode, float32": lambda: _decode(128, 48, 1, _PLAIN, torch.float32),
    "prefill, LLaMA 8B": lambda: _prefill(128, 32, 8, _PLAIN, True),
    "prefill, latent": lambda: _prefill(576, 16, 1, _PLAIN, True),
    "prefill, Gemma, window, cap, bias, sinks": lambda: _prefill(256, 32, 8, _biased(32), True),
    "prefill, float32": lambda: _prefill(128, 32, 8, _PLAIN, True, torch.float32),
    "prefill, float32, heads of 64": lambda: _prefill(64, 12, 12, _PLAIN, True, torch.float32),
    "encoder, BERT": lambda: _prefill(64, 12, 12, Scores(0.1, False), False),
    "encoder, T5": lambda: _prefill(64, 32, 32, Scores(1.0, False, bias=_biased(32).bias), False),
    "add and RMS norm": lambda: norms.add_rms_norm(_half(2, 4096), _half(2, 4096), _half(4096), 1e-5),
    "add and layer norm": lambda: norms.add_layer_norm(_half(2, 768), _half(2, 768), _half(768), _half(768), 1e-5),
    "rotation": _rotate,
    "cache write": _write_slots,
    "rotation and cache write": _rotate_and_store,
    "gated activation": lambda: _gated(_half(2, 28672)),
    "top k of logits": lambda: logits_top_k.logits_top_k(torch.zeros(2, 128_256), 20, True),
    "draw": _draw,
    "choice of beams": _choose_beams,
    "slots of beams": _follow_beams,
    "grouping by expert": lambda: _group(4),
    "mixture, few tokens": lambda: _mixture(4),
    "mixture, many tokens": lambda: _mixture(600),
    "one row": lambda: row_products.dense_row(_half(1, 4096), _half(4096, 4096), None, _half(1, 4096)),
    "int8, one row": lambda: _int8(1),
    "int8, few rows": lambda: _int8(2),
    "int8, many rows": lambda: _int8(200),
    "int8, float32": lambda: _int8(2, torch.float32),
    "int4, one row": lambda: _int4(1),
    "int4, few rows": lambda: _int4(2),
    "int4, many rows": lambda: _int4(200),
    "int4, groups of 32 with zero points": lambda: _int4(200, 32, True),
    "decode, LLaMA 8B, int8 cache": lambda: _decode(128, 32, 8, _PLAIN, codes=torch.int8),
    "decode, LLaMA 8B, fp8 cache": lambda: _decode(128, 32, 8, _PLAIN, codes=FP8),
    "prefill, LLaMA 8B, int8 cache": lambda: _prefill(128, 32, 8, _PLAIN, True, codes=torch.int8),
    "prefill, LLaMA 8B, fp8 cache": lambda: _prefill(128, 32, 8, _PLAIN, True, codes=FP8),
    "cache write, int8": lambda: _write_rounded(torch.int8),
    "cache write, fp8": lambda: _write_rounded(FP8),
    "fixed order, few rows": lambda: _fixed(2),
    "fixed order, many rows": lambda: _fixed(600),
    "fixed order, float32": lambda: _fixed(2, torch.float32),
    "int8 in groups of 32, one row": lambda: _bytes(1, 32),
    "int8 in groups of 32, many rows": lambda: _bytes(200, 32),
    "fp8 in blocks, one row": lambda: _bytes(1, 128, FP8),
    "fp8 in blocks, few rows": lambda: _bytes(2, 128, FP8),
    "fp8 in blocks, many rows": lambda: _bytes(200, 128, FP8),
    "mixture of int8, few tokens": lambda: _quantized_mixture("int8", 4),
    "mixture of int8, many tokens": lambda: _quantized_mixture("int8", 600),
    "mixture of int4, few tokens": lambda: _quantized_mixture("int4", 4),
    "mixture of int4, many tokens": lambda: _quantized_mixture("int4", 600),
    "mixture of int8, rows of 15 bits, few tokens": lambda: _quantized_mixture("int8", 4, 2),
    "mixture of int8, rows of 15 bits": lambda: _quantized_mixture("int8", 600, 2),
    "mixture of int8, rows of 8 bits": lambda: _quantized_mixture("int8", 600, 1),
    "mixture of int4, rows of 15 bits": lambda: _quantized_mixture("int4", 600, 2),
    "mixture of fp8 in blocks, many tokens": lambda: _quantized_mixture("fp8", 600, group=128),
    "mixture of fp8, rows of fp8": lambda: _quantized_mixture("fp8", 600, 1, 128),
    "int8, rows of 8 bits": lambda: _rounded(200, _byte_matrix(4096), "int8", 1),
    "int8, rows of 15 bits": lambda: _rounded(200, _byte_matrix(4096), "int8", 2),
    "int4, rows of 15 bits": lambda: _rounded(200, _int4_matrix(32), "int8", 2),
    "int4 in groups of 128, rows of 15 bits": lambda: _rounded(200, _int4_matrix(128), "int8", 2),
    "fp8, rows of fp8": lambda: _rounded(200, _byte_matrix(128, FP8), "fp8", 1),
}

NEEDS_FP8 = ("fp8, rows of fp8", "mixture of fp8, rows of fp8")
"""Cases with matrix instructions for fp8, which compute capability 8.0 does not have."""

OTHER_STEPS: dict[str, Callable[[], Any]] = {
    "decode, LLaMA 8B": lambda: _decode(128, 32, 8, _PLAIN, rows=3, blocks=1),
    "decode, Gemma, window, cap, bias, sinks": lambda: _decode(256, 32, 8, _biased(32, 1), rows=1, blocks=5),
    "prefill, LLaMA 8B": lambda: _prefill(128, 32, 8, _PLAIN, True, rows=3, blocks=1),
    "encoder, T5": lambda: _prefill(64, 32, 32, Scores(1.0, False, bias=_biased(32, 1).bias), False, rows=1),
    "rotation": lambda: _rotate(tokens=3),
    "cache write": lambda: _write_slots(tokens=3),
    "rotation and cache write": lambda: _rotate_and_store(tokens=3),
    "top k of logits": lambda: logits_top_k.logits_top_k(torch.zeros(5, 128_256), 16, True),
    "draw": lambda: _draw(rows=3),
    "choice of beams": lambda: _choose_beams(3, 16),
    "grouping by expert": lambda: _group(3),
    "mixture, few tokens": lambda: _mixture(5),
    "int8, few rows": lambda: _int8(16),
    "int8, many rows": lambda: _int8(65),
    "int4, few rows": lambda: _int4(16),
    "decode, LLaMA 8B, int8 cache": lambda: _decode(128, 32, 8, _PLAIN, rows=3, blocks=1, codes=torch.int8),
    "prefill, LLaMA 8B, fp8 cache": lambda: _prefill(128, 32, 8, _PLAIN, True, rows=3, blocks=1, codes=FP8),
    "cache write, int8": lambda: _write_rounded(torch.int8, tokens=3),
    "fixed order, few rows": lambda: _fixed(1),
    "fixed order, many rows": lambda: _fixed(2048),
    "fp8 in blocks, few rows": lambda: _bytes(16, 128, FP8),
    "mixture of int4, few tokens": lambda: _quantized_mixture("int4", 5),
    "mixture of int8, rows of 15 bits": lambda: _quantized_mixture("int8", 301, 2),
    "int8, rows of 15 bits": lambda: _rounded(65, _byte_matrix(4096), "int8", 2),
    "int4, rows of 15 bits": lambda: _rounded(1024, _int4_matrix(32), "int8", 2),
}
"""Steps of a case with other numbers of rows, lengths and addresses."""

PLANTED_SPILL = "planted spill"
PLANTED_NARROW_LOADS = "planted narrow loads"


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


def compile_case(name: str, step: int, call: Callable[[], Any], capability: int) -> list[Compiled]:
    """Compile what a call launches, with the specialisation that the runtime chooses, and read the resources."""
    compiled: list[Compiled] = []

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        binary = run(self, *arguments, grid=grid, warmup=True, **options)
        compiled.append(Compiled(name, step, self.__name__, binary.hash, capability, *_resources(binary)))

    driver.set_active(AbsentDevice(capability))
    run, JITFunction.run = JITFunction.run, compile_only
    try:
        call()
    finally:
        JITFunction.run = run
    return compiled


def _resources(binary: Any) -> tuple[int, int, int, int, float]:
    """Registers, stack, local memory, shared memory and share of wide loads of a compiled kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        command = [str(CUOBJDUMP), "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
    return found["REG"], found["STACK"], found["LOCAL"], binary.metadata.shared, _wide_share(binary.asm["ptx"])


def _wide_share(ptx: str) -> float:
    sizes = [
        int(load["bytes"], 0) if load["bytes"] else int(load["numbers"] or 1) * int(load["bits"]) // 8
        for load in LOAD.finditer(ptx)
    ]
    return sum(size for size in sizes if size >= 16) / sum(sizes)


def main() -> None:
    capability = int(sys.argv[1])
    first = {**CASES, PLANTED_SPILL: spill, PLANTED_NARROW_LOADS: load_narrowly}
    steps = [
        (name, step, calls[name])
        for name in sys.argv[2:] or first
        for step, calls in enumerate((first, OTHER_STEPS))
        if name in calls
    ]
    results = [compiled for step in steps for compiled in compile_case(*step, capability)]
    json.dump([result._asdict() for result in results], sys.stdout, indent=1)


if __name__ == "__main__":
    main()
