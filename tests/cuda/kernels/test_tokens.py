"""Top k of logits and random choice of tokens, compared with the torch reference and the CPU kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from models.backends.choice import backend
from models.backends.cuda.kernels import logits_top_k as top_k_kernels
from models.backends.cuda.kernels import sampling
from models.backends.torch import sampling as reference
from models.backends.torch.backend import TORCH
from models.backends.torch.sampling import Drawn, Filters
from tests.cuda.kernels.cases import DEVICE


def _check_top_k(rows: int, vocab: int, k: int, coarse: bool) -> None:
    logits = torch.randn(rows, vocab + 3)[:, :vocab] * 5
    # Equal logits: the lower id comes first. Both zeros are equal.
    logits = (logits.round() * 0.25 if coarse else logits).to(DEVICE)
    actual = top_k_kernels.logits_top_k(logits, k, True)
    expected = TORCH.logits_top_k(logits, k, True)
    assert torch.equal(actual.values, expected.values) and torch.equal(actual.ids, expected.ids)
    assert torch.equal(actual.is_finite, expected.is_finite)
    torch.testing.assert_close(actual.logsumexp, expected.logsumexp, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("rows", "vocab", "k", "coarse"), [(2, 4100, 1, False), (1, 9000, 9, True), (3, 1, 1, False), (1, 100, 64, True)]
)
def test_top_k(rows: int, vocab: int, k: int, coarse: bool) -> None:
    _check_top_k(rows, vocab, k, coarse)


@pytest.mark.many_shapes
@settings(max_examples=20, derandomize=True)
@given(st.integers(1, 3), st.sampled_from([1, 7, 100, 4096, 9000]), st.integers(1, 64), st.booleans())
def test_top_k_of_many_shapes(rows: int, vocab: int, k: int, coarse: bool) -> None:
    _check_top_k(rows, vocab, min(k, vocab), coarse)


def test_top_k_of_numbers_that_are_not_finite() -> None:
    logits = torch.randn(4, 5000)
    logits[0, 4500], logits[1, 3], logits[2, :] = torch.nan, torch.inf, -torch.inf
    logits[3, 4100:] = -torch.inf
    actual = top_k_kernels.logits_top_k(logits.to(DEVICE), 2)
    assert actual.is_finite.tolist() == [False, False, False, False] and actual.logsumexp is None
    assert int(actual.ids[1, 0]) == 3 and float(actual.values[2, 0]) == -torch.inf
    assert torch.equal(actual.values[3].cpu(), logits[3].topk(2).values)
    # Grammars hide tokens with -inf.
    hidden = torch.randn(1, 9000).masked_fill(torch.arange(9000) < 8500, -torch.inf).to(DEVICE)
    actual, expected = top_k_kernels.logits_top_k(hidden, 3, True), TORCH.logits_top_k(hidden, 3, True)
    assert torch.equal(actual.ids, expected.ids)
    torch.testing.assert_close(actual.logsumexp, expected.logsumexp, rtol=1e-5, atol=2e-6)


FILTERS = st.builds(
    Filters,
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5, 400, 10_000]),
    top_p=st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 1.0]),
)


def _draw(logits: Tensor, rows: Sequence[Filters], uniforms: NDArray[np.float64]) -> Drawn:
    columns = sampling.FilterColumns(
        reference.temperatures(rows).to(DEVICE),
        torch.tensor([row.top_k for row in rows], dtype=torch.int32, device=DEVICE),
        torch.tensor([row.top_p for row in rows], dtype=torch.float64, device=DEVICE),
        torch.tensor([row.min_p for row in rows], device=DEVICE).log(),
    )
    return sampling.draw(logits.to(DEVICE), columns, torch.from_numpy(uniforms).to(DEVICE))


def _check_draw(rows: Sequence[Filters], vocab: int, seed: int, size: float = 3.0) -> None:
    logits = torch.randn(len(rows), vocab, generator=torch.Generator().manual_seed(seed)) * size
    uniforms = np.random.default_rng(seed).random(len(rows))
    drawn = _draw(logits, rows, uniforms)
    for expected in (TORCH.draw(logits, rows, uniforms), backend(logits).draw(logits, rows, uniforms)):
        assert torch.equal(drawn.tokens.cpu(), expected.tokens)
        torch.testing.assert_close(drawn.lowest.cpu(), expected.lowest, rtol=1e-6, atol=1e-6)


def test_draw() -> None:
    _check_draw([Filters(0.7, top_k=50, top_p=0.9, min_p=0.05), Filters(1.0)], 4200, 1)
    # Nearly equal probabilities, so that a wrong sum gives another token, and more tokens than are searched first.
    _check_draw([Filters(1.0, top_p=0.5)], 300, 2, size=0.01)


@pytest.mark.many_shapes
@settings(max_examples=12, derandomize=True)
@given(
    st.lists(FILTERS, min_size=1, max_size=2),
    st.sampled_from([1, 60, 9000]),
    st.integers(0, 1 << 20),
    st.sampled_from([0.01, 3.0, 20.0]),
)
def test_draw_equals_the_reference_and_the_cpu(rows: list[Filters], vocab: int, seed: int, size: float) -> None:
    _check_draw(rows, vocab, seed, size)


def test_draw_of_equal_and_hidden_logits() -> None:
    logits = torch.full((5, 40), -torch.inf)
    logits[:3, 10:20] = 1.5
    logits[3, 30] = -70.0
    rows = [Filters(1.0, top_k=3), Filters(1.0, top_p=0.2), Filters(1.0), Filters(1e-40), Filters(1.0)]
    uniforms = np.array([0.0, np.nextafter(1.0, 0.0), 0.5, 0.5, 0.5])
    *tokens, of_hidden_logits = _draw(logits, rows, uniforms).tokens.tolist()
    assert tokens == [10, 19, 15, 30] and 0 <= of_hidden_logits < 40


def test_top_k_keeps_exactly_k_logits() -> None:
    logits = torch.randn(1, 300)
    assert torch.equal(_draw(logits, [Filters(1.0, top_k=5)], np.zeros(1)).lowest.cpu(), logits.topk(5).values[:, -1])


def test_draw_from_a_later_part_of_the_row() -> None:
    assert _draw(torch.zeros(1, 6000), [Filters(1.0)], np.array([0.75])).tokens.tolist() == [4500]


def test_draw_of_small_probabilities() -> None:
    logits = torch.full((1, 300), -16.0)
    logits[0, 7] = 0.0
    uniforms = np.array([1.0 - 1.7e-5])
    drawn, expected = (draw(logits, [Filters(1.0)], uniforms) for draw in (_draw, TORCH.draw))
    assert torch.equal(drawn.tokens.cpu(), expected.tokens) and int(expected.tokens) > 100
