"""Random attention steps, and their results by the torch reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from models.backends.attention_metadata import AttentionMetadata, KeyBias
from models.backends.cuda.kernels.attention_arguments import ScoreBias, Scores
from models.backends.torch.backend import TORCH

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.float16, torch.bfloat16] if DEVICE.type == "cuda" else [torch.float32, torch.float16]
"""Triton's interpreter multiplies matrices of bfloat16 wrongly."""
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Heads:
    """Shape of the heads. window, chunk, cap, sinks, bias: parts of the scores, see `Scores`."""

    dtype: torch.dtype
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    chunk: int | None = None
    cap: float | None = None
    sinks: bool = False
    bias: str = ""
    seed: int = 0

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    def random(self, generator: torch.Generator, *shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(self.dtype).to(DEVICE)


@st.composite
def heads(draw: st.DrawFn, causal: bool = True) -> Heads:
    kv_heads = draw(st.integers(1, 2))
    key_dim = draw(st.sampled_from([8, 16, 24, 64, 80]))
    limit = draw(st.sampled_from(["", "", "window", "chunk"] if causal else ["", "window"]))
    return Heads(
        dtype=draw(st.sampled_from(DTYPES)),
        heads=kv_heads * draw(st.sampled_from([1, 3, 18])),
        kv_heads=kv_heads,
        key_dim=key_dim,
        value_dim=draw(st.sampled_from([key_dim, key_dim, 8, 40])),
        window=draw(st.integers(1, 300)) if limit == "window" else None,
        chunk=draw(st.integers(1, 300)) if limit == "chunk" else None,
        cap=draw(st.sampled_from([None, None, 3.0])),
        sinks=draw(st.booleans()),
        bias=draw(st.sampled_from(["", "key", "distance"])),
        seed=draw(st.integers(0, 1 << 20)),
    )


def scores(case: Heads, length: int, causal: bool) -> Scores:
    """Scores of a case for rows of at most `length` keys or queries."""
    generator = torch.Generator().manual_seed(case.seed + 1)
    bias = None
    if case.bias:
        width = length if case.bias == "key" else 2 * length - 1
        values = torch.randn(case.heads, width, generator=generator).to(case.dtype).float().to(DEVICE)
        bias = ScoreBias(values, case.bias == "key")
    sinks = torch.randn(case.heads, generator=generator).to(DEVICE) if case.sinks else None
    return Scores(case.key_dim**-0.5, causal, case.window, case.chunk, case.cap, sinks, bias)


def expected(query: Tensor, key: Tensor, value: Tensor, scores: Scores, paged: bool, **metadata: Any) -> Tensor:
    """Result of the torch reference in float32. The narrower of keys and values is padded."""
    width = max(key.shape[-1], value.shape[-1])
    query, key, value = (_padded(side.float(), width) for side in (query, key, value))
    bias: Tensor | KeyBias | None = None
    if scores.bias is not None:
        bias = KeyBias(scores.bias.values) if scores.bias.by_key else scores.bias.values
    facts = AttentionMetadata(
        causal=scores.causal, window=scores.window, chunk=scores.chunk, score_bias=bias, **metadata
    )
    attend = TORCH.paged_attention if paged else TORCH.ragged_attention
    return attend(query, key, value, facts, scores.scale, scores.cap, scores.sinks)


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """Compare with a float32 result, which may have more columns."""
    tolerance = TOLERANCES[actual.dtype]
    torch.testing.assert_close(actual.float(), expected[..., : actual.shape[-1]], rtol=tolerance, atol=tolerance)


def paged_cache(case: Heads, key_lens: list[int], block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and block tables of rows. Blocks that belong to no row hold NaN."""
    generator = case.generator()
    counts = [-(-length // block_size) for length in key_lens]
    total = sum(counts) + 3
    order = torch.randperm(total, generator=generator)
    tables = torch.full((len(key_lens), max(counts) + 1), int(order[-1]))
    start = 0
    for row, count in enumerate(counts):
        tables[row, :count] = order[start : start + count]
        start += count
    key = case.random(generator, total, block_size, case.kv_heads, case.key_dim)
    value = case.random(generator, total, block_size, case.kv_heads, case.value_dim)
    for side in (key, value):
        side[order[start:].to(DEVICE)] = torch.nan
    return key, value, tables.to(DEVICE)


def numbers(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def _padded(side: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(side, (0, width - side.shape[-1]))
