"""How much may be added to a step that others wait for, from how long the steps of this model take.

Knows numbers of requests and tokens, and seconds that it is told; no requests, no clock. The rule and its reasons stand
in docs/decisions/0026-bursts.md.
"""

from __future__ import annotations

MIN_PREFILL_TOKENS = 16
"""What may always be added, so that a long prompt gets on wherever steps are short and tokens dear."""
_ADDED_SHARE = 0.75
"""How much longer than it would be a step may get for settled ones: with what else holds steps up, less than thrice."""
_NEW_SHARE = 0.25
"""How much of an estimate of decoding the newest step makes up."""
_REMEMBERED_TOKENS = 2048
"""Of so many added tokens is the cost of one the mean, more or less."""


class PrefillBudget:
    """Estimates of one model: a step of so many tokens of decoding rows, and a token that is added to it. Seconds."""

    def __init__(self) -> None:
        self._decoding: dict[int, float] = {}
        self._last = 0.0
        self._added_tokens = 0.0
        self._added_seconds = 0.0

    def observe(self, decode_tokens: int, added_tokens: int, seconds: float) -> None:
        """A step is done. added_tokens: all that were not of decoding rows, those of sources as the budget counts."""
        self._last = seconds
        if not added_tokens:
            before = self._decoding.get(decode_tokens.bit_length(), seconds)
            # One step that was held up, by whatever it was, says little.
            change = min(seconds, 2 * before) - before
            self._decoding[decode_tokens.bit_length()] = before + _NEW_SHARE * change
        elif self._decoding:
            keep = _REMEMBERED_TOKENS / (_REMEMBERED_TOKENS + added_tokens)
            over = max(seconds - self._decode_seconds(max(decode_tokens, 1)), 0.0)
            self._added_tokens = keep * self._added_tokens + added_tokens
            self._added_seconds = keep * self._added_seconds + over

    def max_prefill_tokens(self, settled: int, beginners: int, newcomers: int, decode_tokens: int) -> int | None:
        """How many tokens the next step may take in besides `decode_tokens`; None where nothing was measured yet.

        settled: requests that decode and have had two tokens or more. beginners: those that have had one. newcomers:
        requests that wait for their first, and would be served by what is added.
        """
        if not (self._decoding and self._added_tokens):
            return None
        own, bounds = self._decode_seconds(decode_tokens), []
        if settled:
            bounds.append(_ADDED_SHARE * own * max(newcomers / settled, 1.0))
        if beginners:
            bounds.append(max(own, self._last) * max(newcomers / beginners, 1.0))
        each = self._added_seconds / self._added_tokens
        return max(int(min(bounds, default=0.0) / max(each, 1e-9)), MIN_PREFILL_TOKENS)

    def _decode_seconds(self, tokens: int) -> float:
        """Of about so many, or of the number nearest to it that was ever seen."""
        size = tokens.bit_length()
        return self._decoding[min(self._decoding, key=lambda seen: (abs(seen - size), seen))]
