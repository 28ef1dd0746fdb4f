"""Chooses how many tokens a draft head drafts in a step, from measured acceptance and measured times."""

from __future__ import annotations

from collections.abc import Sequence

from server.engine.drafting import drafts
from server.engine.scheduling.step_costs import StepCosts


class HeadCosts:
    """How long the steps of a model and the passes of its draft head have taken.

    steps: durations of the model's steps, without the passes of the head.
    relative_cost: assumed duration of a pass, as part of a step of the model, until passes were measured.
    repeats: whether the model computes accepted tokens again after a wrong draft, as a model with mixers does.
    """

    def __init__(self, steps: StepCosts, relative_cost: float, repeats: bool = False) -> None:
        self.steps, self.repeats = steps, repeats
        self._relative_cost = relative_cost
        self._first, self._later = StepCosts(), StepCosts()

    def clear(self) -> None:
        """Forget the durations of passes."""
        self._first.clear()
        self._later.clear()

    def observe(self, rows: int, seconds: float, is_first: bool) -> None:
        """Count the duration of a pass of the draft head.

        rows: number of texts in the pass. is_first: whether it computed the first tokens of drafts.
        """
        (self._first if is_first else self._later).observe(rows, seconds)

    def pass_seconds(self, num_rows: int, rows: int, is_first: bool) -> float:
        """Expected seconds of a pass of the draft head.

        num_rows: number of rows of the model's step. rows: number of texts for which the head drafts.
        is_first: whether the pass computes the first tokens of drafts.
        """
        for measured in (self._first,) if is_first else (self._later, self._first):
            if len(measured):
                return measured.seconds(rows)
        return self._relative_cost * self.steps.seconds(num_rows)


def head_draft_lengths(probabilities: Sequence[Sequence[float]], num_rows: int, costs: HeadCosts) -> list[int]:
    """Draft lengths, one for each sequence, with which the next step should generate the most tokens per second.

    All drafts have the same length, as far as their sequences allow it, because each further token costs a pass of the
    head. Sequences whose first draft token is much less probable than the first ones of other sequences may be left
    out.

    probabilities: for each sequence, the probability of each draft token to be accepted, in falling order.
    num_rows: rows of the step, each of which generates one token without drafts.
    """
    firsts = [row[0] if row else 0.0 for row in probabilities]
    limits = [len(row) for row in probabilities]
    probable = [limit if first > max(firsts) / 2 else 0 for limit, first in zip(limits, firsts, strict=True)]
    least = costs.steps.seconds(num_rows)
    best, chosen = drafts.MIN_GAIN * num_rows / least, [0] * len(limits)
    for allowed in [limits] if probable == limits else [limits, probable]:
        passes, accepted, tokens = 0.0, 0.0, 0
        for length in range(1, max(allowed, default=0) + 1):
            drafting = [row for row, limit in zip(probabilities, allowed, strict=True) if limit >= length]
            tokens += len(drafting)
            if num_rows + tokens > drafts.MAX_STEP_TOKENS:
                break
            accepted += sum([row[length - 1] for row in drafting])
            passes += costs.pass_seconds(num_rows, len(drafting), length == 1)
            repeated = 0.0
            if costs.repeats:
                # After a wrong token, the next step computes the accepted ones before it again.
                repeated = accepted - length * sum([row[length - 1] for row in drafting])
            # Measured times vary, but more tokens never take less time.
            seconds = max(costs.steps.seconds(num_rows + tokens + round(repeated)), least) + passes
            if (num_rows + accepted) / seconds > best:
                best = (num_rows + accepted) / seconds
                chosen = [min(length, limit) for limit in allowed]
    return chosen
