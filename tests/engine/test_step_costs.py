"""The choice of n-gram drafts saves time: simulated decoding is faster on repetitive texts, hardly slower on others."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from server.engine.drafting.drafts import MAX_DRAFTING_ROWS, NgramDrafter, draft_lengths
from server.engine.drafting.ngrams import ModelRates, NgramText
from server.engine.scheduling.step_costs import MAX_AGE_STEPS, TRIALS, StepCosts
from server.engine.sequences.sequence import SequenceGroup
from tests.engine.speculative import FreeSteps
from tests.ipc.one_row import one_row

FLAT: Callable[[int], float] = lambda tokens: 1 + 0.05 * (tokens - 1)  # noqa: E731
LINEAR: Callable[[int], float] = lambda tokens: float(tokens)  # noqa: E731
TILED: Callable[[int], float] = lambda tokens: 1.0 + 0.8 * ((tokens - 1) // 8)  # noqa: E731


def group_of(prompt: list[int], max_new_tokens: int) -> SequenceGroup:
    message = one_row(0, "m", prompt, [], max_new_tokens=max_new_tokens)
    return SequenceGroup(message, message.rows[0], False, 0.0)


def seconds(drafter: NgramDrafter, prompt: list[int], answer: list[int], cost: Callable[[int], float]) -> float:
    """Simulated duration of decoding `answer` after `prompt`, in seconds.

    cost: function that returns the seconds of a step with a number of tokens.
    """
    group = group_of(prompt, len(answer))
    sequence, total, done = group.sequences[0], 0.0, 0
    while done < len(answer):
        drafter.propose([group], 1)
        width = 1 + len(sequence.draft)
        right = 0
        while right < len(sequence.draft) and sequence.draft[right] == answer[done + right]:
            right += 1
        sequence.tokens += answer[done : done + right + 1]
        done += right + 1
        sequence.draft = []
        drafter.costs.observe(width, cost(width))
        total += cost(width)
    drafter.forget(group)
    return total


def random_text(length: int, words: int, seed: int) -> list[int]:
    chooser = random.Random(seed)
    return [chooser.randrange(words) for _ in range(length)]


PROMPT = random_text(400, 2000, 0)
EDITED = [*PROMPT[20:120], 5000, *PROMPT[123:200], 5001, 5002, *PROMPT[200:330]]


@pytest.mark.parametrize(("cost", "least"), [(FLAT, 4.0), (TILED, 3.0)])
def test_texts_that_repeat_their_prompt(cost, least):
    assert len(EDITED) / seconds(NgramDrafter(15), PROMPT, EDITED, cost) > least


@pytest.mark.parametrize("cost", [FLAT, TILED, LINEAR, lambda tokens: 1 + 0.5 * (tokens - 1)])
@pytest.mark.parametrize("words", [3, 12, 60, 2000])
def test_texts_that_do_not_repeat(cost, words):
    """Decoding is hardly slower on random texts.

    With few words, n-grams recur often but do not predict the next word.
    """
    prompt, answer = random_text(300, words, 1), random_text(600, words, 2)
    drafter = NgramDrafter(15)
    assert len(answer) / seconds(drafter, prompt, answer, cost) > 0.96
    assert len(answer) / seconds(drafter, prompt, random_text(600, words, 3), cost) > 0.99


def test_steps_whose_cost_grows_with_their_tokens_get_no_drafts():
    drafter = NgramDrafter(15)
    for _ in range(3):
        assert len(EDITED) / seconds(drafter, PROMPT, EDITED, LINEAR) > 0.9
    assert len(EDITED) / seconds(drafter, PROMPT, EDITED, LINEAR) > 0.99


def test_drafts_stop_and_begin_again_with_the_repetition():
    new = random_text(300, 8, 5)
    drafter, mixed = NgramDrafter(15), [*EDITED, *new, *EDITED]
    total = seconds(drafter, PROMPT, mixed, FLAT)
    parts = seconds(NgramDrafter(15), PROMPT, EDITED, FLAT) * 2 + len(new)
    assert total < 1.1 * parts


def test_a_model_whose_wide_steps_become_cheap_drafts_again():
    drafter = NgramDrafter(15)
    seconds(drafter, PROMPT, EDITED, LINEAR)
    for _ in range(2 * MAX_AGE_STEPS):
        drafter.costs.observe(1, 1.0)
    assert len(EDITED) / seconds(drafter, PROMPT, EDITED, FLAT) > 3


def test_no_draft_before_a_step_without_drafts_was_measured():
    group = group_of([1, 2, 3, 4, 5, 1, 2, 3], 20)
    drafter = NgramDrafter(4)
    drafter.propose([group], 1)
    assert not group.sequences[0].draft
    drafter.costs.observe(1, 1.0)
    drafter.propose([group], 1)
    assert group.sequences[0].draft
    group.sequences[0].draft = []
    drafter.propose([group], MAX_DRAFTING_ROWS + 1)
    assert not group.sequences[0].draft


def test_the_tokens_of_a_step_are_shared_by_probability():
    free = FreeSteps()
    assert draft_lengths([[0.9, 0.8], [0.5]], 2, free) == [2, 1]
    costs = StepCosts()
    for _ in range(TRIALS):
        for tokens, duration in ((2, 1.0), (3, 1.1), (4, 1.3), (5, 3.0)):
            costs.observe(tokens, duration)
    assert draft_lengths([[0.9, 0.8], [0.5]], 2, costs) == [2, 0]
    assert draft_lengths([[0.1], [0.1]], 2, costs) == [0, 0]


def test_costs():
    costs = StepCosts()
    assert not costs.has_baseline(1)
    costs.observe(1, 1.0)
    assert costs.has_baseline(1) and not costs.has_baseline(2)
    assert costs.seconds(1) == 1.0 and 1.0 < costs.seconds(5) < costs.seconds(11) < 2.0
    costs.observe(11, 9.0)
    assert costs.seconds(11) < 2.0, "the first step of a size may be slow"
    for _ in range(TRIALS):
        costs.observe(11, 3.0)
    assert costs.seconds(11) == pytest.approx(3.0, abs=1.0) and 1.0 < costs.seconds(6) < costs.seconds(11)
    before = costs.seconds(1)
    costs.observe(1, 50.0)
    assert costs.seconds(1) == pytest.approx(before, rel=0.2), "one delayed step counts as at most twice as long"
    for _ in range(MAX_AGE_STEPS + 1):
        costs.observe(11, 3.0)
    for _ in range(MAX_AGE_STEPS):
        costs.observe(11, 3.0)
    assert not costs.has_baseline(1), "a measurement that is too old does not count"


def test_acceptance_is_measured_without_drafts():
    rates = ModelRates()
    text = NgramText([], rates)
    sequence = [*range(50), *range(50)]
    text.update(sequence[:53], 4)
    before = text.probabilities()
    for end in range(54, 80):
        assert text.predicted == [token % 50 for token in range(end - 1, end + 3)]
        text.update(sequence[:end], 4)
    assert text.probabilities()[0] > 0.95 > before[0]
    for end in range(80, 90):
        sequence[end - 1] = 1000 + end
        text.update(sequence[:end], 4)
    assert text.predicted == [] and text.probabilities() == []
