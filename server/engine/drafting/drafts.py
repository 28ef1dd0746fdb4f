"""Drafts for speculative decoding, and a drafter that copies n-grams of the text.

The model verifies every draft token, so a wrong draft costs time and never changes the result. A right one lets the
model generate several tokens in one step. Source: Leviathan et al. 2023, arXiv:2211.17192; see docs/decisions/0018.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Protocol

from models.backends.cuda.graphs.captures import CaptureTime
from models.backends.cuda.graphs.graph_sizes import GraphSizes
from server.engine.cache.block_manager import BlockManager
from server.engine.device.captured_parts import Part
from server.engine.device.runner import Runner
from server.engine.drafting.ngrams import ModelRates, NgramText
from server.engine.scheduling.step_costs import StepCosts
from server.engine.sequences.sequence import SequenceGroup

DRAFT_TOKENS, NGRAM_DRAFT_TOKENS, HEAD_DRAFT_TOKENS = 4, 15, 6
"""Default maximum length of a draft, in tokens, for each source of drafts.

A draft model computes each token, n-grams cost nothing, and a draft head computes few tokens.
"""
MAX_DRAFTING_ROWS = 32
"""Most decoding rows in a step with drafts from n-grams or a draft head. With more rows, a draft token costs about as
much time as it saves. N-grams are then not looked up, because a lookup takes microseconds per row."""
MAX_STEP_TOKENS = 64
"""Maximum number of tokens in a step with drafts from n-grams or a draft head. In a step of this size, one program
computes the logits too."""
MIN_GAIN = 1.02
"""A step gets drafts only if they are expected to multiply its tokens per second by more than this factor."""


class Drafter(Protocol):
    """Drafts the next tokens of groups without beams.

    pool: KV blocks of the drafter, None if it has no model.
    runner: runs the draft model, None if it has no model.
    costs: durations of decode-only steps, which `StepTime` of the model updates; None if the drafter uses none.
    """

    @property
    def pool(self) -> BlockManager | None: ...

    @property
    def runner(self) -> Runner | None: ...

    @property
    def costs(self) -> StepCosts | None: ...

    def propose(self, groups: Sequence[SequenceGroup], num_rows: int) -> None:
        """Set `draft` of each group's sequence; it may stay empty.

        groups: the groups that decode in the next step and accept drafts.
        num_rows: number of decoding rows in the next step, including groups without drafts.
        """

    def waits_for_tokens(self, groups: Sequence[SequenceGroup], num_rows: int) -> bool:
        """Whether the next step may have drafts, so that all tokens before it must be known when it is scheduled.

        groups: the groups that decode in the next step and accept drafts. Their last tokens may not be known yet.
        num_rows: number of decoding rows in the next step, including groups without drafts.
        """

    def forget(self, group: SequenceGroup) -> None:
        """Drop the data of a group that has ended or gets no more drafts."""

    def capture(self, limits: GraphSizes, time: CaptureTime) -> dict[Part, str]:
        """Capture the steps of the drafter's model as CUDA graphs.

        limits: limits of the steps of the model for which it drafts. time: limits how many graphs are captured.
        Returns the reason for the part "drafts" if the steps run eagerly.
        """


def max_draft_tokens(group: SequenceGroup, num_tokens: int) -> int:
    """Largest useful number of draft tokens for a group; 0 or less if no draft is useful.

    It is at most `num_tokens`, and at most one less than the group may still generate, because each step also adds one
    token that the model chooses itself.
    """
    return min(num_tokens, group.max_new_tokens - group.num_generated - 1)


class NgramDrafter:
    """Drafts the tokens that followed the previous occurrence of the n-gram at the end of the text.

    Each draft has the length that gives the most tokens per second. The number of accepted tokens is predicted from the
    measured acceptance of the text and of the model, and the duration of a longer step from measured steps. Predictions
    are compared with the text even while nothing is drafted. This costs microseconds, and drafts begin as soon as the
    text begins to repeat.

    num_tokens: longest draft of a sequence.
    costs: durations of steps.
    See docs/decisions/0088-drafts-that-pay.md.
    """

    def __init__(self, num_tokens: int, costs: StepCosts | None = None) -> None:
        self.num_tokens = num_tokens
        self.costs = StepCosts() if costs is None else costs
        self.pool: BlockManager | None = None
        self.runner: Runner | None = None
        self._rates = ModelRates()
        self._texts: dict[SequenceGroup, NgramText] = {}

    def propose(self, groups: Sequence[SequenceGroup], num_rows: int) -> None:
        for group, draft in self._drafts(groups, num_rows):
            group.sequences[0].draft = draft

    def waits_for_tokens(self, groups: Sequence[SequenceGroup], num_rows: int) -> bool:
        return any(draft for _, draft in self._drafts(groups, num_rows))

    def _drafts(self, groups: Sequence[SequenceGroup], num_rows: int) -> list[tuple[SequenceGroup, list[int]]]:
        """The groups whose texts predict tokens, each with its draft, which may be empty. num_rows: decoding rows."""
        if num_rows > MAX_DRAFTING_ROWS:
            return []
        texts = []
        for group in groups:
            count = max_draft_tokens(group, self.num_tokens)
            if count > 0:
                text = self._texts.get(group)
                if text is None:
                    text = self._texts[group] = NgramText(group.source_token_ids, self._rates)
                text.update(group.sequences[0].tokens, count)
                if text.predicted:
                    texts.append((group, text))
        if not texts or not self.costs.has_baseline(num_rows):
            return []
        lengths = draft_lengths([text.probabilities() for _, text in texts], num_rows, self.costs)
        return [(group, text.predicted[:length]) for (group, text), length in zip(texts, lengths, strict=True)]

    def forget(self, group: SequenceGroup) -> None:
        self._texts.pop(group, None)

    def capture(self, limits: GraphSizes, time: CaptureTime) -> dict[Part, str]:
        return {}


def draft_lengths(probabilities: Sequence[Sequence[float]], num_rows: int, costs: StepCosts) -> list[int]:
    """Choose how many draft tokens of each sequence the next step verifies, for the most tokens per second.

    More draft tokens make the step longer and may be rejected.

    probabilities: for each sequence, the probabilities that its predicted tokens are accepted, in falling order.
    num_rows: rows of the step without drafts. Each generates one token.
    costs: tells the expected seconds of a step.
    Returns a length for each sequence.
    """
    # The most probable tokens first. Those of one sequence stay in order, because their probabilities fall.
    candidates = sorted(
        ((probability, index) for index, row in enumerate(probabilities) for probability in row),
        key=itemgetter(0),
        reverse=True,
    )
    best, chosen, expected = MIN_GAIN * num_rows / costs.seconds(num_rows), 0, float(num_rows)
    for count, (probability, _) in enumerate(candidates[: MAX_STEP_TOKENS - num_rows], 1):
        expected += probability
        rate = expected / costs.seconds(num_rows + count)
        if rate > best:
            best, chosen = rate, count
    lengths = [0] * len(probabilities)
    for _, index in candidates[:chosen]:
        lengths[index] += 1
    return lengths
