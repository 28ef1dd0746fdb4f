"""Which sentences are held out of training: decided by a hash of the words, so every run agrees."""

from __future__ import annotations

import hashlib
import re

_PERCENT = 4


def held_out(text: str) -> bool:
    """Whether this text is kept for measuring; case and punctuation do not matter, so no variant leaks."""
    words = re.sub(r"[^a-z0-9' ]", "", text.lower())
    return hashlib.sha256(" ".join(words.split()).encode()).digest()[0] * 100 < _PERCENT * 256
