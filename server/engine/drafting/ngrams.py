"""Predicts the next tokens of a text from the previous occurrence of its last n-gram, and measures the success.

The text consists of the source (of an encoder-decoder), the prompt and the generated tokens, in this order.
Source: Yang et al. 2023, arXiv:2304.04487.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from server.engine.drafting.acceptance import Acceptance

NGRAM_TOKENS = (3, 2)
"""Lengths of the n-grams that are looked up, longest first. Predictions after a single token are seldom right."""
MAX_MATCH_TOKENS = 10
"""Longest match that is measured. The match of a prediction is the number of tokens before it that equal the end of the
text."""
_CLASS_STARTS = (3, 4, 6, 10)
"""Match lengths are divided into classes. These are the first lengths of all classes except the first class. A longer
match makes a right prediction more probable."""
_CLASS_OF = tuple(bisect_right(_CLASS_STARTS, length) for length in range(MAX_MATCH_TOKENS + 1))
_PRIOR_RATES = (0.3, 0.45, 0.6, 0.8, 0.9)
"""Assumed share of right predictions in each class of match lengths, before any is measured."""
_PRIOR_WEIGHT, _MODEL_WEIGHT = 8.0, 3.0
"""Weights of prior rates, as numbers of predictions: the weight of the assumed rates in the rates of a model, and the
weight of a model's rates in the rates of a text."""
MIN_PROBABILITY = 0.1
"""Predicted tokens that are less probable are never worth computing, so they are not considered."""
_MODEL_DECAY, _TEXT_DECAY = 0.998, 0.9
"""Each new prediction multiplies the weight of earlier ones by this factor: for a model, and for a text. The factor of
a text is smaller, because a text may begin or cease to repeat at any token."""


class AcceptanceRates(Acceptance):
    """Measured share of right predictions, for each class of match lengths.

    decay: each new prediction multiplies the weight of earlier ones by this factor.
    """

    def __init__(self, decay: float) -> None:
        super().__init__(decay, len(_PRIOR_RATES))

    def observe(self, match_tokens: int, is_right: bool) -> None:
        """Count one predicted token. match_tokens: length of the match before it, in tokens."""
        self.count(_CLASS_OF[min(match_tokens, MAX_MATCH_TOKENS)], is_right)


class ModelRates(AcceptanceRates):
    """Share of right predictions over all texts of a model, for each class of match lengths."""

    def __init__(self) -> None:
        super().__init__(_MODEL_DECAY)

    def current(self) -> list[float]:
        return self.rates(_PRIOR_RATES, _PRIOR_WEIGHT)


class NgramText:
    """The text of one sequence, its n-grams, and the last prediction.

    predicted: predicted next tokens, or empty if the last n-gram has no earlier occurrence.
    source: token ids that come before the tokens of the sequence and may be predicted too, such as a source text.
    """

    def __init__(self, source: Sequence[int], model_rates: ModelRates) -> None:
        self.predicted: list[int] = []
        self._text = list(source)
        self._num_source_tokens = len(source)
        # End position of the last occurrence of each n-gram. Those at the end of the text are not entered yet.
        self._ends: tuple[dict[tuple[int, ...], int], ...] = tuple({} for _ in NGRAM_TOKENS)
        self._indexed = 0
        self._match_tokens = 0
        self._model_rates, self._rates = model_rates, AcceptanceRates(_TEXT_DECAY)

    def update(self, tokens: list[int], count: int) -> None:
        """Compare the last prediction with new tokens, then predict `count` tokens.

        tokens: all tokens of the sequence. No token of an earlier call may be missing or changed.
        """
        text = self._text
        first = len(text)
        text += tokens[first - self._num_source_tokens :]
        for index in range(min(len(text) - first, len(self.predicted))):
            is_right = text[first + index] == self.predicted[index]
            for rates in (self._rates, self._model_rates):
                rates.observe(self._match_tokens + index, is_right)
            if not is_right:
                break
        self._enter()
        self.predicted = self._predict(count)

    def probabilities(self) -> list[float]:
        """For each predicted token, the probability that it and all predicted tokens before it are right.

        The list ends before the first probability below MIN_PROBABILITY.
        """
        rates = self._rates.rates(self._model_rates.current(), _MODEL_WEIGHT)
        found, product = [], 1.0
        for length in range(self._match_tokens, self._match_tokens + len(self.predicted)):
            product *= rates[_CLASS_OF[min(length, MAX_MATCH_TOKENS)]]
            if product < MIN_PROBABILITY:
                break
            found.append(product)
        return found

    def _enter(self) -> None:
        """Add to the index all n-grams that end before the end of the text.

        An n-gram at the end would be found as its own earlier occurrence.
        """
        text, end = self._text, len(self._text)
        for length, ends in zip(NGRAM_TOKENS, self._ends, strict=True):
            first = max(self._indexed, length)
            part = text[first - length :]
            ngrams = zip(*(part[offset:] for offset in range(length)), strict=False)
            ends.update(zip(ngrams, range(first, end), strict=False))
        self._indexed = end

    def _predict(self, count: int) -> list[int]:
        text = self._text
        end = len(text)
        for length, ends in zip(NGRAM_TOKENS, self._ends, strict=True):
            found = ends.get(tuple(text[-length:])) if length <= end else None
            if found is None:
                continue
            while length < min(MAX_MATCH_TOKENS, found) and text[found - length - 1] == text[end - length - 1]:
                length += 1
            self._match_tokens = length
            predicted = text[found : found + count]
            # A prediction that reaches the end of the text continues as a repetition of the same period.
            while len(predicted) < count:
                predicted += predicted[: count - len(predicted)]
            return predicted
        return []
