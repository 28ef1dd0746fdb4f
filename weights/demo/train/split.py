"""Decide which generated texts are held out for measuring, by a hash of their words: the same in every run."""

from __future__ import annotations

import hashlib
import re

_PERCENT = 4


def held_out(text: str) -> bool:
    """Whether a text is held out, as 4% of all texts are.

    Case and punctuation are ignored, so that no variant of a held-out text is used for training.
    """
    words = re.sub(r"[^a-z0-9' ]", "", text.lower())
    return hashlib.sha256(" ".join(words.split()).encode()).digest()[0] * 100 < _PERCENT * 256
