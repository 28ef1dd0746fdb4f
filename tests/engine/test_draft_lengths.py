"""The lengths of a head's drafts are chosen from measured acceptance and times."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from models.draft_head import DraftHead
from server.engine.drafting.draft_lengths import HeadCosts, head_draft_lengths
from server.engine.drafting.head_drafter import HeadDrafter
from server.engine.drafting.head_texts import FilledBlocks, HeadRates, HeadText
from server.engine.scheduling.step_costs import StepCosts
from server.engine.sequences.sequence import CachedSequence, SequenceGroup
from tests.ipc.one_row import one_row


def costs(step: float = 1.0, slope: float = 0.05, per_pass: float = 0.1, **more) -> HeadCosts:
    """Measured costs in seconds: a step of n tokens takes `step + slope * n`, and a pass of the head `per_pass`."""
    steps = StepCosts()
    for tokens in range(1, 65):
        for _ in range(3):
            steps.observe(tokens, step + slope * tokens)
    found = HeadCosts(steps, 0.5, **more)
    for rows in range(1, 33):
        found.observe(rows, per_pass, is_first=True)
        found.observe(rows, per_pass, is_first=False)
    return found


def best_of(probabilities, rows, found: HeadCosts, per_pass: float) -> list[int]:
    """The draft length with the best rate, found by trying all. All sequences must have equal probabilities."""
    rates = []
    for length in range(len(probabilities[0]) + 1):
        expected = rows + sum(sum(row[:length]) for row in probabilities)
        seconds = found.steps.seconds(rows + length * len(probabilities)) + length * per_pass
        rates.append(expected / seconds * (1 if length else 1.02))
    return [rates.index(max(rates))] * len(probabilities)


@pytest.mark.parametrize("per_pass", [0.02, 0.1, 0.3, 0.8])
@pytest.mark.parametrize("rate", [0.1, 0.4, 0.7, 0.95])
@pytest.mark.parametrize("rows", [1, 3])
def test_the_length_has_the_best_rate(rows, rate, per_pass):
    probabilities = [[rate**place for place in range(1, 7)]] * rows
    found = costs(per_pass=per_pass)
    assert head_draft_lengths(probabilities, rows, found) == best_of(probabilities, rows, found, per_pass)


def test_improbable_sequences_are_left_out():
    good, bad = [0.9, 0.8, 0.7], [0.1, 0.01, 0.001]
    lengths = head_draft_lengths([good, bad, good], 3, costs(slope=0.2))
    assert lengths[1] == 0 and lengths[0] == lengths[2] > 0


def test_a_step_has_at_most_64_tokens():
    lengths = head_draft_lengths([[1.0] * 6] * 30, 30, costs(slope=0.0, per_pass=0.0))
    assert 30 + sum(lengths) <= 64 and sum(lengths) > 0


def test_tokens_that_are_computed_again_cost_time():
    """A model with recurrent mixers computes accepted tokens again after a wrong one, so shorter drafts are best."""
    probabilities = [[0.8, 0.5, 0.3, 0.2, 0.1, 0.05]]
    plain = head_draft_lengths(probabilities, 1, costs(slope=0.15, per_pass=0.02))
    again = head_draft_lengths(probabilities, 1, costs(slope=0.15, per_pass=0.02, repeats=True))
    assert 0 <= again[0] < plain[0]


def test_unmeasured_passes_have_the_assumed_cost():
    steps = StepCosts()
    for _ in range(3):
        steps.observe(1, 1.0)
    assert HeadCosts(steps, 0.25).pass_seconds(1, 1, is_first=True) == 0.25
    found = HeadCosts(steps, 0.25)
    found.observe(1, 0.5, is_first=True)
    assert found.pass_seconds(1, 1, is_first=False) == 0.5
    found.clear()
    assert found.pass_seconds(1, 1, is_first=False) == 0.25


def test_steps_wait_only_for_texts_that_can_have_drafts():
    """Steps without drafts are launched ahead, also beside a preempted group, and without any text."""
    drafter = HeadDrafter(cast(DraftHead, None), 4, 64, 0.1)
    assert drafter.costs is not None
    drafter.costs.observe(1, 0.01)
    for _ in range(3):
        assert not drafter.waits_for_tokens([], 1)
        drafter.skip_step()
    message = one_row(0, "m", [1, 2, 3], max_new_tokens=20)
    group = SequenceGroup(message, message.rows[0], False, 0.0)
    (sequence,) = group.sequences
    drafter._texts[group] = HeadText(sequence.block_table, 0, drafter._step, HeadRates(4))
    assert drafter.waits_for_tokens([group], 1)
    sequence.block_table, drafter._due_step = [], None  # as after a preemption and a step
    assert not drafter.waits_for_tokens([], 1)


def test_rates_follow_the_text():
    rates = HeadRates(4)
    text = HeadText([], 0, 0, rates)
    assert len(text.probabilities(4)) == 1, "a head is tried with short drafts"
    for _ in range(30):
        text.drafted(3, [7, 8, 9])
        text.settle([1, 2, 3, 7, 8, 5])
    first, second = text.probabilities(4)
    assert first > 0.95 and second / first > 0.9, "the third token was never right"
    fresh = HeadText([], 0, 0, rates).probabilities(4)
    assert fresh[0] > 0.9 and fresh[1] / fresh[0] > 0.9
    for _ in range(30):
        text.drafted(3, [7])
        text.settle([1, 2, 3, 4])
    assert not [rate for rate in text.probabilities(4) if rate > 0.3]
    text.drafted(3, [7, 8])
    text.settle([1, 2, 3])
    assert not [rate for rate in text.probabilities(4) if rate > 0.3]


def states(first: int, count: int) -> torch.Tensor:
    return torch.arange(first, first + count)[:, None]


def test_states_of_wrong_drafts_are_dropped():
    text = HeadText([], 4, 0, HeadRates(4))
    text.add(0, states(0, 6))
    assert (text.written, text.end) == (4, 6)
    text.add(6, states(6, 4))  # the last token and three draft tokens
    text.add(7, states(107, 2))  # the draft was wrong from its first token on
    assert text.end == 9 and torch.cat(text.take(8)).flatten().tolist() == [4, 5, 6, 107]
    assert text.written == 8
    text.add(6, states(206, 3))  # three accepted tokens that are computed again; two of them were read before
    assert text.end == 9 and torch.cat(text.take(9)).flatten().tolist() == [208]


def test_blocks_are_filled_while_their_keys_last():
    blocks = FilledBlocks(4)
    sequence = CachedSequence(list(range(12)), block_table=[5, 3, 9], block_keys=[b"a", b"b", b"c"])
    text = HeadText(sequence.block_table, 0, 0, HeadRates(1))
    text.written = 10
    blocks.write(text, sequence, 0, 10)
    other = CachedSequence(list(range(12)), block_table=[5, 3, 7], block_keys=[b"a", b"b", b"d"])
    assert blocks.start(other, 8) == 0 and blocks.start(other, 9) == 12 and blocks.start(other, 0) == 0
    changed = CachedSequence(list(range(8)), block_table=[5, 3], block_keys=[b"a", b"x"])
    assert blocks.start(changed, 8) == 8 and blocks.start(changed, 4) == 0
    late = HeadText(other.block_table, 4, 0, HeadRates(1))
    late.written = 6
    blocks.write(late, other, 4, 6)  # another text begins to write into a filled block
    assert blocks.start(other, 8) == 8
