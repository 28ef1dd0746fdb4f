"""Bounds of the tokenizer of a foreign checkpoint, so that its files cannot take any time or memory they like.

Vocabularies are counted before they are parsed. `server.text.tokenizers.components` checks the components that change
texts. See docs/decisions/0136-bounded-tokenizers.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from server.text.tokens.tokenizer import TokenizerError

MAX_FILE_BYTES = 48 << 20
"""Largest file of a tokenizer. The largest published one, of Gemma 3, has 33 MB."""
MAX_ENTRIES = 1 << 20
"""Most entries of a vocabulary. The largest published one, of XLM-V, has 902,000."""
MAX_IDS = 1 << 22
"""Highest token id plus one: tables by id are made of this length."""
MAX_MERGES = 1 << 21
MAX_ADDED_TOKENS, MAX_ADDED_BYTES = 1 << 17, 1 << 21
"""Most tokens beside the vocabulary. Published models of speech have 65,536 with 1.1 MB. Search trees of their bytes
are built: 4 MB of random texts took 6.5 s and 850 MB."""
MAX_ENTRY = 2048
"""Longest entry of a vocabulary, in characters. It bounds the text that one generated token adds."""
MAX_UNIGRAM_ENTRY = 256
"""Longest entry of a Unigram model, which compares each place of a text with entries up to this length."""
MAX_MERGED_CHARACTERS = 1 << 22
"""Characters of all pieces from which merges are found: each piece is cut at each of its characters."""

MAX_PAIR_CHARACTERS = 1 << 25
"""Characters of all pairs of pieces that form a piece. Published vocabularies have five million."""


def read_bounded(path: Path) -> bytes:
    """The bytes of a tokenizer's file. Raises TokenizerError for one that is too large."""
    check(path.stat().st_size, MAX_FILE_BYTES, "bytes", path.name)
    return path.read_bytes()


def check(count: int, most: int, what: str, file: str = "tokenizer.json") -> None:
    """Raise TokenizerError if a file has more than a number of things."""
    if count > most:
        raise TokenizerError(f"{file} has {count:,} {what}; the limit is {most:,}")


def check_lines(content: bytes, file: str, most: int = MAX_ENTRIES) -> None:
    """Raise TokenizerError for a file with too many lines."""
    check(content.count(b"\n"), most, "lines", file)


def check_entries(entries: Iterable[str], file: str, most: int = MAX_ENTRY) -> None:
    """Raise TokenizerError for an entry of a vocabulary that is too long."""
    check(max(map(len, entries), default=0), most, "characters in one entry of its vocabulary", file)
