"""Rate limits of API keys: requests per minute and tokens per minute (token buckets).

Each key has a bucket for requests and a bucket for tokens. A full bucket holds the amount for one minute, and an empty
bucket fills evenly within a minute. Prompt tokens are taken when a request is admitted; the length of its answer is not
known then. At the end of the request, the bucket is corrected by the tokens that were computed. A long answer may leave
a negative amount, for which later requests wait, so that the mean rate is exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from server.limits.key_limits import KeyLimits
from server.limits.refusals import KEY_REQUEST_RATE, KEY_TOKEN_RATE, Limit

MINUTE_SECONDS = 60.0


@dataclass
class _Bucket:
    """A bucket of one API key.

    level: requests or tokens that the key may still use at time `at`; negative if it has used too many.
    at: time in seconds.
    """

    level: float
    at: float


@dataclass(frozen=True)
class Exceeded:
    """A rate limit that a request exceeds.

    unit: `requests` or `tokens`. most: allowed number of requests or tokens per minute.
    seconds: time until the request can be admitted.
    """

    limit: Limit
    unit: str
    most: int
    seconds: float


@dataclass
class KeyRates:
    """The rate limits of all API keys. clock: returns the time in seconds, from a monotonic clock."""

    clock: Callable[[], float] = time.monotonic
    _buckets: dict[tuple[str, str], _Bucket] = field(default_factory=dict)

    def exceeded(self, key: KeyLimits, requests: int, tokens: int) -> Exceeded | None:
        """Return the rate limit that further requests and tokens of a key would exceed; None if they fit.

        requests, tokens: numbers of further requests and tokens. A request with more tokens than a full bucket holds
            fits when the bucket is full.
        """
        parts = (
            (KEY_REQUEST_RATE, "requests", requests, key.requests_per_minute),
            (KEY_TOKEN_RATE, "tokens", tokens, key.tokens_per_minute),
        )
        for limit, unit, amount, most in parts:
            if most is None or not amount:
                continue
            # A request that is larger than a bucket runs when the bucket is full.
            lacking = min(amount, most) - self._bucket(key, unit, most).level
            if lacking > 0:
                return Exceeded(limit, unit, most, lacking * MINUTE_SECONDS / most)
        return None

    def take(self, key: KeyLimits, requests: int, tokens: int) -> None:
        """Take requests and tokens from a key's buckets. Negative numbers give them back."""
        for unit, amount, most in (
            ("requests", requests, key.requests_per_minute),
            ("tokens", tokens, key.tokens_per_minute),
        ):
            if most is not None and amount:
                bucket = self._bucket(key, unit, most)
                bucket.level = min(bucket.level - amount, most)

    def _bucket(self, key: KeyLimits, unit: str, most: int) -> _Bucket:
        """Return a bucket of a key, filled up to the current time.

        When the key file changes the limit, the bucket keeps its level, up to the new size.

        unit: `requests` or `tokens`. most: amount that a full bucket holds.
        """
        now = self.clock()
        bucket = self._buckets.setdefault((key.name, unit), _Bucket(most, now))
        bucket.level = min(bucket.level + (now - bucket.at) * most / MINUTE_SECONDS, most)
        bucket.at = now
        return bucket
