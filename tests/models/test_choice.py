"""Top-k logits and random tokens equal those found by sorting, in both backends, and do not depend on the batch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from models.backends import choice
from models.backends.choice import backend
from models.backends.cpu import operations as cpu_ops
from models.backends.cpu.backend import CPU
from models.backends.torch.backend import TORCH
from models.backends.torch.sampling import Filters

BACKENDS = ["torch"] + (["cpu"] if cpu_ops.available() else [])
WIDTHS = [1, 2, 97, 255, 256, 257, 1000, 5003]


@pytest.fixture(params=BACKENDS)
def top_k(request):
    """The function `logits_top_k` of each backend in turn."""
    with choice.using(request.param):
        yield backend(torch.empty(0)).logits_top_k


def rows_of_every_kind(width: int) -> torch.Tensor:
    """Eight rows of logits: random, all equal, with ties, all -inf except one, rising, falling, huge, all -inf."""
    generator = torch.Generator().manual_seed(width)
    logits = torch.randn(8, width, generator=generator) * 4
    logits[1] = -2.5
    logits[2] = logits[2].round()
    logits[3] = -torch.inf
    logits[3, width // 2] = 1.0
    logits[4], logits[5] = logits[4].sort().values, logits[5].sort(descending=True).values
    logits[6] *= 1e37
    logits[7] = -torch.inf
    return logits


@pytest.mark.parametrize("width", WIDTHS)
def test_top_k_equals_a_stable_sort(top_k, width):
    logits = rows_of_every_kind(width)
    values, ids = logits.sort(dim=-1, descending=True, stable=True)
    for count in {1, 2, 8, 64, width} & set(range(1, min(width, 1000) + 1)):
        found = top_k(logits, count, False)
        assert torch.equal(found.values, values[:, :count])
        real = found.values > -torch.inf
        assert torch.equal(found.ids[real], ids[:, :count][real])
        assert ((found.ids >= 0) & (found.ids < width)).all()
        assert found.logsumexp is None


@pytest.mark.parametrize("width", WIDTHS)
def test_log_probabilities(top_k, width):
    logits = rows_of_every_kind(width)[:7]
    found = top_k(logits, min(width, 5), True)
    expected = logits.double().log_softmax(dim=-1)
    torch.testing.assert_close(found.log_probs.double(), expected.gather(1, found.ids), atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(found.log_probs_of(logits).double(), expected, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_is_reported_and_affects_no_other(top_k, bad):
    for width in WIDTHS:
        clean = torch.randn(5, width, generator=torch.Generator().manual_seed(3))
        for place in {0, width // 2, width - 1}:
            logits = clean.clone()
            logits[3, place] = bad
            found, expected = top_k(logits, 1, True), top_k(clean, 1, True)
            assert found.is_finite.tolist() == [True, True, True, False, True]
            for ours, theirs in zip(found, expected, strict=True):
                assert torch.equal(ours[[0, 1, 2, 4]], theirs[[0, 1, 2, 4]])
            assert 0 <= found.ids[3, 0] < width
    assert not top_k(torch.full((2, 40), torch.nan), 3, True).is_finite.any()


def test_zeros_of_both_signs_are_tied(top_k):
    found = top_k(torch.tensor([[-1.0, -0.0, 0.0, -0.0]]), 4, False)
    assert found.ids.tolist() == [[1, 2, 3, 0]]


def test_a_row_has_the_same_bits_alone_and_in_a_batch(top_k):
    wide = torch.randn(40, 7001, generator=torch.Generator().manual_seed(5)) * 3
    logits = wide[:, 1:]
    together = top_k(logits, 9, True)
    threads = torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        try:
            for start, end in ((0, 1), (7, 8), (5, 23), (39, 40)):
                alone = top_k(logits[start:end], 9, True)
                for ours, theirs in zip(alone, together, strict=True):
                    assert torch.equal(ours, theirs[start:end])
        finally:
            torch.set_num_threads(threads)


def test_top_k_uses_the_compiled_kernels_if_available():
    assert not cpu_ops.available() or backend(torch.empty(0)) is CPU
    logits = torch.randn(3, 300)
    with choice.using("torch"):
        expected = backend(logits).logits_top_k(logits, 4, with_logsumexp=True)
    found = backend(logits).logits_top_k(logits, 4, with_logsumexp=True)
    assert torch.equal(found.ids, expected.ids)
    torch.testing.assert_close(found.logsumexp, expected.logsumexp, atol=1e-6, rtol=1e-6)


DRAWS = {"torch": TORCH.draw} | ({"cpu": CPU.draw} if cpu_ops.available() else {})
draws = pytest.mark.parametrize("draw", DRAWS.values(), ids=list(DRAWS))
FILTERS = [
    Filters(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p)
    for temperature, top_k, top_p, min_p, typical_p in itertools.product(
        [0.3, 1.0, 2.5], [0, 1, 5, 64, 65, 400, 10_000], [1.0, 0.95, 0.5, 1e-9], [0.0, 0.02, 0.5], [1.0, 0.9, 0.2]
    )
]


def rows_to_draw_from(kind: str, width: int) -> torch.Tensor:
    logits = torch.randn(len(FILTERS), width, generator=torch.Generator().manual_seed(width)) * 3
    match kind:
        case "flat":
            logits *= 0.001
        case "tied":
            logits = (logits * 2).round() / 2
        case "equal":
            logits[:] = 1.5
        case "banned":
            logits[:, : width // 3] = -torch.inf
        case "all but three":
            logits[:, 3:] = -torch.inf
        case "far apart":
            logits = logits.sign() * (logits * 25).exp().clamp(max=1e30)
        case "close":
            logits = 1.0 + logits * 1e-7
    return logits


@draws
@pytest.mark.parametrize("width", [7, 256, 5003])
@pytest.mark.parametrize("kind", ["plain", "flat", "tied", "equal", "banned", "all but three", "far apart", "close"])
def test_bounds_and_drawn_tokens_equal_the_reference(draw, kind, width):
    # Every fifth combination still covers all pairs of values of any two settings, because no setting has a number of
    # values that is divisible by 5.
    every = 5 if width > 1000 else 1
    logits, filters = rows_to_draw_from(kind, width)[::every], FILTERS[::every]
    uniforms = np.random.default_rng(3).random(len(filters))
    uniforms[:3] = 0.0, 1.0 - 2.0**-53, 0.5
    expected = TORCH.draw(logits, filters, uniforms)
    found = draw(logits, filters, uniforms)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


@draws
def test_a_row_draws_the_same_token_alone_and_in_a_batch(draw):
    logits = rows_to_draw_from("plain", 5003)
    uniforms = np.random.default_rng(3).random(len(FILTERS))
    together = draw(logits, FILTERS, uniforms)
    for start, end in ((0, 1), (100, 101), (40, 90)):
        alone = draw(logits[start:end], FILTERS[start:end], uniforms[start:end])
        for ours, theirs in zip(alone, together, strict=True):
            assert torch.equal(ours, theirs[start:end])


@draws
def test_rows_without_a_possible_token(draw):
    rows = [Filters(1.0), Filters(1.0, top_k=5, top_p=0.5, min_p=0.1), Filters(1.0, typical_p=0.5)]
    tokens = draw(torch.full((3, 300), -torch.inf), rows, np.array([0.5, 0.5, 0.5])).tokens
    assert ((tokens >= 0) & (tokens < 300)).all()
