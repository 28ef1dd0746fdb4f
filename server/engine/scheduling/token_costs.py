"""Estimates the time that tokens add to a step: a fixed part, and a part for each token.

The tokens are prefill tokens, or tokens of encoder steps. Every step with such tokens pays the fixed part once. On a
CUDA device, the fixed part is the time in which Python launches each kernel; captured decode steps do not need it. On a
CPU it is close to zero, and is not estimated.
This module works on counts and seconds only. See docs/decisions/0108-fixed-cost-of-prefill.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

COST_WINDOW_TOKENS = 2048
"""Window, in tokens, of the running mean of the cost per token."""
NEW_STEP_WEIGHT = 0.125
"""Lower bound of the weight of the newest step in the running means of its size class."""
TRIALS = 3
"""Number of steps after which a size class takes part in the fit. The first steps of a class may be slow."""
AGED_WEIGHT = 0.9
"""Factor by which every step reduces the weight of each size class in the fit."""
LEAST_WEIGHT = 0.01
"""Lower bound of the weight of an old size class. Without it, the two parts of the cost could not be told apart after
many steps of one size."""
MAX_GROWTH = 2
"""The fit is used for steps with at most this many times the tokens of the largest measured step."""
MIN_STRETCH = 2
"""The tokens of a step may always take twice the fixed part in total. The tokens alone then get half of this time."""


class TokenCost(NamedTuple):
    """Estimate of the seconds that tokens add to a step: `fixed_seconds + token_seconds * tokens`.

    measured_tokens: tokens of the largest steps in the fit; 0 if the fixed part is not estimated.
    """

    fixed_seconds: float
    token_seconds: float
    measured_tokens: float = 0.0

    @property
    def least_seconds(self) -> float:
        """Time in seconds that the tokens of a step may always take: `MIN_STRETCH` times the fixed part."""
        return MIN_STRETCH * self.fixed_seconds

    def tokens_within(self, seconds: float) -> int:
        """Largest number of tokens that add at most `seconds` to a step. 0 if the fixed part exceeds `seconds`.

        For steps much larger than all measured ones, the cost is assumed to be proportional to the tokens.
        """
        token_seconds, measured = max(self.token_seconds, 1e-9), self.measured_tokens
        if not measured:
            return int(seconds / token_seconds)
        tokens = min((seconds - self.fixed_seconds) / token_seconds, MAX_GROWTH * measured)
        if tokens > measured:
            tokens = max(tokens, measured * seconds / (self.fixed_seconds + token_seconds * measured))
        return max(int(tokens), 0)


@dataclass(slots=True)
class _SizeClass:
    """Steps whose numbers of tokens have the same bit length.

    tokens: running mean of the tokens.
    seconds: running mean of the time that the tokens added to their steps.
    count: number of steps.
    weight: weight in the fit.
    """

    tokens: float
    seconds: float
    count: int = 1
    weight: float = 1.0


class TokenCosts:
    """Cost of the tokens of one model, learned from measured steps.

    has_fixed_part: whether the fixed part is estimated; otherwise it is 0.
    """

    def __init__(self, has_fixed_part: bool) -> None:
        self._has_fixed_part = has_fixed_part
        self._tokens = self._seconds = 0.0
        self._classes: dict[int, _SizeClass] = {}

    @property
    def are_measured(self) -> bool:
        """Whether any step was measured."""
        return self._tokens > 0

    def observe(self, tokens: int, seconds: float, decode_seconds: float = 0.0, is_typical: bool = True) -> None:
        """Learn from a step.

        tokens: tokens of the step, at least 1. seconds: duration of the step.
        decode_seconds: expected duration of the same step without these tokens.
        is_typical: whether the step is used to estimate the fixed part. Prefill without decoding rows is not typical:
            its prompts are shorter, and it has no decode part.
        """
        keep = COST_WINDOW_TOKENS / (COST_WINDOW_TOKENS + tokens)
        self._tokens = keep * self._tokens + tokens
        self._seconds = keep * self._seconds + max(seconds - decode_seconds, 0.0)
        if self._has_fixed_part and is_typical:
            self._observe_size(tokens, seconds, decode_seconds)

    def _observe_size(self, tokens: int, seconds: float, decode_seconds: float) -> None:
        for size_class in self._classes.values():
            size_class.weight = max(AGED_WEIGHT * size_class.weight, LEAST_WEIGHT)
        found = self._classes.get(tokens.bit_length())
        if found is None:
            self._classes[tokens.bit_length()] = _SizeClass(tokens, max(seconds - decode_seconds, 0.0))
            return
        # Other work on the machine can delay a step, but nothing can make it faster. So the duration of a step counts
        # as at most twice the usual one, and the usual one is at most twice the duration of this step.
        added = max(min(seconds, 2 * (decode_seconds + found.seconds)) - decode_seconds, 0.0)
        usual = min(found.seconds, max(2 * seconds - decode_seconds, 0.0))
        found.count += 1
        share = max(1 / found.count, NEW_STEP_WEIGHT)
        found.tokens += share * (tokens - found.tokens)
        found.seconds = usual + share * (added - usual)
        found.weight += 1.0

    def with_trial(self, tokens: int) -> int:
        """The number of tokens to put into a step: `tokens`, or the smallest number of the next size class.

        Steps of one size class cannot tell the two parts of the cost apart. So the next class is tried as long as only
        the class of `tokens` has been measured several times.
        """
        known = [size for size, size_class in self._classes.items() if size_class.count >= TRIALS]
        return 1 << tokens.bit_length() if known == [tokens.bit_length()] else tokens

    def estimate(self) -> TokenCost:
        """Both parts of the cost. At least one step must have been measured.

        If two size classes were measured several times, the result is a weighted least-squares fit with non-negative
        parts. The fit assumes that the variance of a duration is proportional to the tokens of the step. Without two
        such classes, the fixed part is 0 and the other part is the mean cost of a token.
        """
        classes = [size_class for size_class in self._classes.values() if size_class.count >= TRIALS]
        if len(classes) < 2:
            return TokenCost(0.0, self._seconds / self._tokens)
        measured = max(size_class.tokens for size_class in classes)
        weight = sum(size_class.weight for size_class in classes)
        inverse = sum(size_class.weight / size_class.tokens for size_class in classes)
        tokens = sum(size_class.weight * size_class.tokens for size_class in classes)
        rate = sum(size_class.weight * size_class.seconds / size_class.tokens for size_class in classes)
        seconds = sum(size_class.weight * size_class.seconds for size_class in classes)
        # The solution of the normal equations, multiplied by their determinant.
        fixed = tokens * rate - weight * seconds
        slope = inverse * seconds - weight * rate
        if fixed <= 0.0:
            return TokenCost(0.0, seconds / tokens, measured)
        if slope <= 0.0:
            return TokenCost(rate / inverse, 0.0, measured)
        determinant = inverse * tokens - weight * weight
        return TokenCost(fixed / determinant, slope / determinant, measured)
