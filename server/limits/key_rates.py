"""Limits of API keys by time: requests and tokens a minute.

Each key has a bucket of requests and one of tokens. A bucket holds what the key may use in a minute, and fills evenly
within a minute. Prompt tokens are taken when a request is admitted. The length of its answer is not known then. At the
end of the request, the bucket is corrected by the tokens that were computed. A long answer may leave a debt, for which
later requests wait. So the mean rate is exact.
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
    """The amount that a key may still use. level: amount at time `at`, in requests or tokens; below 0 for a debt."""

    level: float
    at: float


@dataclass(frozen=True)
class Exceeded:
    """A limit that a request exceeds.

    unit: requests or tokens. most: how many of them are allowed in a minute. seconds: time until there is room.
    """

    limit: Limit
    unit: str
    most: int
    seconds: float


@dataclass
class KeyRates:
    """The buckets of all keys, by name. clock: seconds that only grow."""

    clock: Callable[[], float] = time.monotonic
    _buckets: dict[tuple[str, str], _Bucket] = field(default_factory=dict)

    def exceeded(self, key: KeyLimits, requests: int, tokens: int) -> Exceeded | None:
        """The limit that leaves no room for these further requests and tokens, or None."""
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
        """Take requests and tokens from the buckets. A negative number gives them back."""
        for unit, amount, most in (
            ("requests", requests, key.requests_per_minute),
            ("tokens", tokens, key.tokens_per_minute),
        ):
            if most is not None and amount:
                bucket = self._bucket(key, unit, most)
                bucket.level = min(bucket.level - amount, most)

    def _bucket(self, key: KeyLimits, unit: str, most: int) -> _Bucket:
        """The bucket of a key as it is now. When the key file changes the limit, the bucket keeps what it has."""
        now = self.clock()
        bucket = self._buckets.setdefault((key.name, unit), _Bucket(most, now))
        bucket.level = min(bucket.level + (now - bucket.at) * most / MINUTE_SECONDS, most)
        bucket.at = now
        return bucket
