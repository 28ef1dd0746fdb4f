"""Choice of the next beams and slots of their texts: kernels, torch reference and `BeamSearch` give the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.backends.cuda.kernels import beams as kernels
from models.backends.torch import beams as reference
from models.backends.torch.backend import TORCH
from models.backends.torch.beams import ADVANCES, NO_TOKEN_LEFT, NOT_FINITE, Beams, SearchResults, StepSearches
from server.engine.beams.beam_search import BeamSearch, advance_by_candidates
from server.engine.beams.running_beams import NEVER, Beam
from server.engine.sequences import ahead_fields
from tests.cuda.kernels.cases import DEVICE

VOCAB = 40
Choose = Callable[..., Tensor]


class Step:
    """Random continuations of searches. sizes: number of beams and number of end tokens of each search.

    Scores and log-probabilities are multiples of 1/4, so that many sums are equal. One row in three has few possible
    tokens.
    """

    def __init__(self, sizes: list[tuple[int, int]], seed: int) -> None:
        chance = np.random.default_rng(seed)
        self.num_beams = [size for size, _ in sizes]
        self.ends = [sorted(chance.choice(VOCAB, count, replace=False).tolist()) for _, count in sizes]
        counts = [max(2, 1 + count) * size for size, count in sizes]
        # A row without a search stands before each search.
        starts = np.cumsum([1, *(size + 1 for size in self.num_beams)])
        self.searches = StepSearches(starts[:-1].tolist(), self.num_beams, counts, self.ends)
        self.rows, self.width = int(starts[-1]), max(counts)
        logits = chance.integers(-30, 1, (self.rows, VOCAB)).astype(np.float32) / 4
        logits[chance.random(self.rows) < 0.3, 3:] = -np.inf
        order = np.argsort(-logits, axis=1, kind="stable")[:, : self.width]
        self.token_ids = order.astype(np.int64)
        self.log_probs = np.take_along_axis(logits, order, axis=1)
        self.scores = chance.integers(-40, 1, self.rows).astype(np.float32) / 4
        self.scores[chance.random(self.rows) < 0.2] = NEVER
        self.is_finite = np.ones(self.rows, dtype=bool)

    def run(self, choose: Choose) -> tuple[Beams, SearchResults]:
        beams = Beams(
            torch.full((self.rows,), -5, device=DEVICE),
            torch.full((self.rows,), -5, device=DEVICE),
            torch.full((self.rows,), 5.0, device=DEVICE),
        )
        arrays = (self.log_probs, self.token_ids, self.is_finite, self.scores, self.searches.columns())
        results = choose(*(torch.from_numpy(array).to(DEVICE) for array in arrays), self.width, beams)
        return Beams(*(tensor.cpu() for tensor in beams)), SearchResults.of(results.cpu().numpy())


def running_search(step: Step, index: int) -> BeamSearch:
    """The search of a step on the host, after some tokens."""
    size, first = step.num_beams[index], step.searches.first_rows[index]
    search = BeamSearch(size, 50, frozenset(step.ends[index]), 1.3, "never")
    search.length = 4
    search.running = [Beam([9, row, 8, 7], step.scores[first + row]) for row in range(size)]
    return search


def check(step: Step) -> None:
    """The kernel equals the reference, and both equal searches on the host."""
    (beams, results), (expected, expected_results) = step.run(kernels.choose_beams), step.run(TORCH.choose_beams)
    for one, other in zip(beams, expected, strict=True):
        assert torch.equal(one, other)
    assert results.states == expected_results.states
    others = set(range(step.rows))
    for index, size in enumerate(step.num_beams):
        first, count = step.searches.first_rows[index], step.searches.num_candidates[index]
        own = slice(first, first + size)
        others -= set(range(first, first + size))
        for one, other in zip(results[1:], expected_results[1:], strict=True):
            assert np.array_equal(one[index, :count], other[index, :count])
        if results.states[index] == NO_TOKEN_LEFT:
            assert (step.log_probs[own] == -np.inf).all()
            continue
        search, followed = running_search(step, index), running_search(step, index)
        parents = search.advance(step.log_probs[own, :count], step.token_ids[own, :count])
        assert beams.parents[own].tolist() == [first + parent for parent in parents]
        assert beams.tokens[own].tolist() == search.running_beams.last_tokens
        assert np.array_equal(beams.scores[own].numpy(), search.running_beams.scores)
        columns = (array[[index], :count] for array in results[1:])
        assert advance_by_candidates([followed], *columns, [None]) == [parents]
        assert followed.running == search.running and followed.finished == search.finished
        assert followed.done == search.done
    assert all(int(beams.tokens[row]) == -5 for row in others), "a row without a search is written"


@pytest.mark.parametrize("seed", range(4))
def test_choice_of_beams(seed: int) -> None:
    check(Step([(4, 1), (2, 3), (3, 0)], seed))


@pytest.mark.many_shapes
@settings(max_examples=40, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 7), st.integers(0, 4)), min_size=1, max_size=4), st.integers(0, 1 << 20))
def test_choice_of_beams_of_many_shapes(sizes: list[tuple[int, int]], seed: int) -> None:
    check(Step(sizes, seed))


def test_choice_of_the_widest_search() -> None:
    step = Step([(10, 1), (20, 1)], 7)
    assert step.width == 40 and reference.MAX_CANDIDATES == ahead_fields.MAX_CANDIDATES == 63
    check(step)
    assert float(NEVER) == reference.NEVER


@pytest.mark.parametrize("choose", [kernels.choose_beams, TORCH.choose_beams], ids=["kernel", "reference"])
def test_states_of_searches(choose: Choose) -> None:
    step = Step([(2, 1)] * 4, 3)
    for number, first in enumerate(step.searches.first_rows):
        step.log_probs[first : first + 2, 0] = -1.0
        if number == 1:
            step.is_finite[first + 1] = False
            step.log_probs[first + 1] = np.nan
        elif number == 2:
            step.log_probs[first : first + 2] = -np.inf
    beams, results = step.run(choose)
    assert results.states == [ADVANCES, NOT_FINITE, NO_TOKEN_LEFT, ADVANCES]
    for first in step.searches.first_rows:
        own = slice(first, first + 2)
        assert set(beams.parents[own].tolist()) <= {first, first + 1}, "the next step reads rows of another search"
        assert all(0 <= token < VOCAB for token in beams.tokens[own].tolist())


def follow(run: Callable[..., None], seed: int, rows: int, width: int, later: bool) -> tuple[Tensor, Tensor]:
    chance = np.random.default_rng(seed)
    tables = torch.from_numpy(chance.integers(0, 1 << 20, (rows + 2, width)).astype(np.int32)).to(DEVICE)
    parents = torch.from_numpy(chance.integers(0, rows, rows + 2)).to(DEVICE)
    chosen = Beams(parents, parents, torch.from_numpy(chance.normal(size=rows + 2).astype(np.float32)).to(DEVICE))
    places = torch.from_numpy(chance.permutation(rows)).to(DEVICE) if later else torch.arange(rows) + rows + 2
    lens = torch.from_numpy(chance.integers(1, width + 1, rows)).to(DEVICE)
    lens[int(chance.integers(rows))] = 0
    slots = torch.from_numpy(chance.integers(0, 1 << 20, rows)).to(DEVICE)
    scores = torch.zeros(rows, device=DEVICE)
    run(tables[:rows], chosen, scores, places.to(DEVICE), slots, lens)
    return tables, scores


@pytest.mark.parametrize("later", [True, False])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (5, 40), (9, 16)])
def test_slots_follow_the_beams(rows: int, width: int, later: bool) -> None:
    found, expected = (follow(run, rows, rows, width, later) for run in (kernels.follow_beams, TORCH.follow_beams))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_slots_of_a_row_that_two_beams_continue() -> None:
    tables = torch.arange(12, dtype=torch.int32).view(3, 4).to(DEVICE)
    beams = Beams(torch.zeros(3).long(), torch.tensor([1, 2, 1]), torch.tensor([0.5, 0.25, 0.125]))
    beams, scores = Beams(*(tensor.to(DEVICE) for tensor in beams)), torch.zeros(3, device=DEVICE)
    places, slots, lens = (torch.tensor(numbers).to(DEVICE) for numbers in ([0, 1, 2], [50, 51, 52], [4, 4, 3]))
    for run in (kernels.follow_beams, TORCH.follow_beams):
        moved = tables.clone()
        run(moved, beams, scores, places, slots, lens)
        assert moved.tolist() == [[4, 5, 6, 50], [8, 9, 10, 51], [4, 5, 52, 11]]
        assert scores.tolist() == [0.5, 0.25, 0.125]
