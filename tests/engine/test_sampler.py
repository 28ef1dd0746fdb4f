"""The sampler equals the warpers of transformers, has the right distribution, and does not depend on the batch."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from models.backends import choice
from models.backends.choice import backend
from models.backends.cpu import operations as cpu_ops
from models.backends.torch import sampling as torch_sampling
from models.backends.torch.sampling import thresholds
from server.engine.choosing.sampler import SamplerRow, sample, uniform
from server.operations.generating.generation_params import LEAST_TOP_P

VOCAB = 3000
SETTINGS = [
    SamplerRow(temperature=t, top_k=k, top_p=p, min_p=m, typical_p=y)
    for t, k, p, m, y in itertools.product(
        [0.5, 1.0, 1.7], [0, 1, 7, 50, 5000], [1.0, 0.9, 0.3], [0.0, 0.1], [1.0, 0.95, 0.2]
    )
]


def oracle(logits: torch.Tensor, row: SamplerRow) -> torch.Tensor:
    warpers = LogitsProcessorList([TemperatureLogitsWarper(row.temperature)])
    if row.top_k:
        warpers.append(TopKLogitsWarper(row.top_k))
    if row.top_p < 1.0:
        warpers.append(TopPLogitsWarper(row.top_p))
    if row.min_p:
        warpers.append(MinPLogitsWarper(row.min_p))
    if row.typical_p < 1.0:
        warpers.append(TypicalLogitsWarper(row.typical_p))
    return warpers(torch.zeros(1, 1, dtype=torch.long), logits[None])[0] > -torch.inf


@pytest.fixture(params=["torch", *(["cpu"] if cpu_ops.available() else [])])
def survivors(request):
    """A function that returns which tokens a backend can draw after filtering: [rows, vocab], bool."""

    def kept(logits: torch.Tensor, rows: list[SamplerRow]) -> torch.Tensor:
        scaled = logits / torch.tensor([[row.temperature] for row in rows])
        with choice.using(request.param):
            _, lowest, highest = backend(logits).draw(logits, rows, np.full(len(rows), 0.5))
        return (scaled >= lowest[:, None]) & (scaled <= highest[:, None]) & (scaled > -torch.inf)

    return kept


@pytest.mark.parametrize("spread", [0.2, 3.0])
def test_filters_equal_transformers_in_one_mixed_batch(survivors, spread):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(len(SETTINGS), VOCAB, generator=generator) * spread
    ours = survivors(logits, SETTINGS)
    for index, row in enumerate(SETTINGS):
        assert torch.equal(ours[index], oracle(logits[index], row)), row


@pytest.mark.parametrize("vocab", [7, VOCAB, 300_000])
def test_the_smallest_share_keeps_the_likeliest_token(survivors, vocab):
    """The smallest `top_p` keeps only the most probable token.

    The dialects use it for a `top_p` of 0, as transformers.
    """
    logits = torch.randn(8, vocab, generator=torch.Generator().manual_seed(3))
    rows = [SamplerRow(temperature=t, top_p=LEAST_TOP_P) for t in (0.5, 1.0, 1.7, 100.0)] * 2
    assert torch.equal(survivors(logits, rows), logits == logits.amax(1, keepdim=True))


def test_typical_p_can_remove_the_likeliest_token(survivors):
    """`typical_p` can remove the most probable token, if it is far more probable than the entropy suggests.

    Source: Meister et al., section 3.
    """
    logits = torch.tensor([[0.4, *[0.6 / 60] * 60]]).log()
    row = SamplerRow(1.0, typical_p=0.3)
    kept = survivors(logits, [row])[0]
    assert not kept[0] and kept[1:].all() and torch.equal(kept, oracle(logits[0], row))


def test_typical_p_ignores_banned_tokens(survivors):
    logits = torch.randn(3, 60, generator=torch.Generator().manual_seed(8)) * 2
    logits[:, 10:40] = -torch.inf
    rows = [SamplerRow(1.0, typical_p=p) for p in (0.1, 0.6, 0.999)]
    kept = survivors(logits, rows)
    assert not kept[:, 10:40].any() and kept.any(dim=1).all()
    for index, row in enumerate(rows):
        assert torch.equal(kept[index], oracle(logits[index], row))


def test_a_wide_nucleus_equals_transformers(survivors):
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(2)) * 0.01
    for name in ("top_p", "typical_p"):
        rows = [SamplerRow(1.0, **{name: 0.95}), SamplerRow(1.0, **{name: 0.1})]
        kept = survivors(logits, rows)
        assert kept[0].sum() > 1024 > kept[1].sum() > 1
        for index, row in enumerate(rows):
            # The oracle computes in float64, because float32 cannot order nearly equal distances.
            assert torch.equal(kept[index], oracle(logits[index].double(), row))


@pytest.mark.parametrize("spread", [0.0, 0.003, 0.5, 1.0, 3.0, 9.0])
def test_typical_p_equals_a_full_sort(survivors, spread):
    """`typical_p` keeps the tokens that a full sort keeps, for peaked and flat rows with ties and banned tokens.

    Both algorithms of the torch backend are compared with the sort.
    """
    generator = torch.Generator().manual_seed(4)
    probabilities = [0.001, 0.1, 0.5, 0.9, 0.95, 0.9999]
    logits = torch.randn(2 * len(probabilities), 5000, generator=generator) * spread
    logits[::3] = (logits[::3] * 4).round() / 4
    logits[1::4, 100:3000] = -torch.inf
    rows = [SamplerRow(1.0, typical_p=p) for p in probabilities * 2]
    kept = survivors(logits, rows)
    log_probs = logits.double().log_softmax(dim=-1)
    distances = (log_probs + torch.special.entr(log_probs.exp()).sum(dim=-1, keepdim=True)).abs()
    for index, row in enumerate(rows):
        nearest, order = distances[index].sort()
        reached = log_probs[index].exp()[order].cumsum(dim=0)
        last = min(int((reached < row.typical_p - 1e-12).sum()), int((logits[index] > -torch.inf).sum()) - 1)
        differs = kept[index] != (distances[index] <= nearest[last])
        # Ties may differ in the last bit of their distance.
        assert ((distances[index] - nearest[last])[differs].abs() <= 1e-12).all()
    wanted = torch.tensor([[row.typical_p] for row in rows], dtype=torch.float64)
    many = torch_sampling._typical_many(distances, log_probs.exp(), wanted)
    few, enough = torch_sampling._typical_few(distances, log_probs.exp(), wanted)
    torch.testing.assert_close(many[enough], few[enough], rtol=0, atol=1e-12)
    assert not enough.all() or spread > 3


def test_masked_tokens_are_never_drawn():
    logits = torch.zeros(1, 50)
    logits[0, 10:] = -torch.inf
    drawn = {int(sample(logits, [SamplerRow(1.0, seed=7, position=i)])[0]) for i in range(500)}
    assert drawn == set(range(10))


def test_tied_tokens_are_kept_together():
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]])
    assert (logits >= thresholds(logits, [SamplerRow(1.0, top_k=1)])).tolist() == [[False, True, True, True, False]]


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-38, 1e-20])
def test_a_temperature_near_zero_is_greedy(temperature):
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(6)) * 30
    logits[:, 50:60] = -torch.inf
    settings = [{}, {"top_p": 0.9}, {"typical_p": 0.9}, {"top_k": 7, "min_p": 0.1}]
    rows = [SamplerRow(temperature, seed=i, **setting) for i, setting in enumerate(settings)]
    assert sample(logits, rows).tolist() == logits.argmax(-1).tolist()


def test_greedy_rows_and_sampled_rows_share_a_batch():
    logits = torch.randn(6, 100, generator=torch.Generator().manual_seed(3))
    rows = [SamplerRow() if i % 2 else SamplerRow(1.0, top_k=1) for i in range(6)]
    assert sample(logits, rows).tolist() == logits.argmax(-1).tolist()


def chi_square(rows: list[SamplerRow], logits: torch.Tensor, expected: torch.Tensor) -> float:
    tokens = sample(logits.expand(len(rows), -1), rows)
    counts = torch.bincount(tokens, minlength=logits.shape[0]).double()
    wanted = expected.double() * len(rows)
    assert counts[wanted == 0].sum() == 0
    kept = wanted > 0
    return float(((counts[kept] - wanted[kept]) ** 2 / wanted[kept]).sum())


@pytest.mark.parametrize("along", ["seed", "position"])
@pytest.mark.parametrize(
    "row",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 12},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 1.0, "top_k": 15, "top_p": 0.9, "min_p": 0.05},
        {"temperature": 1.0, "typical_p": 0.8},
        {"temperature": 1.2, "top_k": 15, "min_p": 0.02, "typical_p": 0.9},
    ],
)
def test_frequencies_follow_the_distribution(along, row):
    logits = torch.randn(20, generator=torch.Generator().manual_seed(4))
    temperature = row["temperature"]
    kept = oracle(logits, SamplerRow(**row))
    expected = (logits / temperature).masked_fill(~kept, -torch.inf).softmax(-1)
    counters = [(i, 3) if along == "seed" else (3, i) for i in range(40_000)]
    rows = [SamplerRow(**row, seed=seed, position=position) for seed, position in counters]
    # 45 is above the 99.9th percentile of the chi-square distribution with 19 degrees of freedom.
    assert chi_square(rows, logits, expected) < 45
    # Negative control: the same draws do not fit a slightly hotter distribution.
    hotter = (logits / (temperature * 1.15)).masked_fill(~kept, -torch.inf).softmax(-1)
    assert chi_square(rows, logits, hotter) > 45


def test_uniform_numbers_depend_on_seed_and_position_alone():
    seeds, positions = [1, 2**64 - 1, 5, 5], [0, 1, 2, 3]
    together = uniform(seeds, positions)
    alone = [uniform([seed], [position])[0] for seed, position in zip(seeds, positions, strict=True)]
    assert together.tolist() == alone
    assert len(set(together.tolist())) == 4
    assert ((together >= 0) & (together < 1)).all()


def test_neighbouring_seeds_give_different_numbers():
    first, second = uniform([1] * 2000, range(2000)), uniform([2] * 2000, range(2000))
    assert not set(first.tolist()) & set(second.tolist())
    assert abs(float(np.corrcoef(first, second)[0, 1])) < 0.1


def test_a_row_draws_the_same_token_in_any_batch():
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(len(SETTINGS), VOCAB, generator=generator)
    rows = [replace(row, seed=i, position=i) for i, row in enumerate(SETTINGS)]
    together = sample(logits, rows).tolist()
    alone = [int(sample(logits[i : i + 1], [row])[0]) for i, row in enumerate(rows)]
    order = torch.randperm(len(rows), generator=generator).tolist()
    shuffled = sample(logits[order], [rows[i] for i in order]).tolist()
    assert together == alone
    assert [shuffled[order.index(i)] for i in range(len(rows))] == alone


def test_sampling_does_not_change_the_logits():
    logits = torch.randn(4, 40)
    before = logits.clone()
    filtered = SamplerRow(1.0, top_k=5, top_p=0.5, min_p=0.1)
    sample(logits, [SamplerRow(), filtered, SamplerRow(0.3, top_p=0.5), SamplerRow(1.0, typical_p=0.4)])
    assert torch.equal(logits, before)
