"""Limits on a tokenizer's files, so that a checkpoint from an unknown source cannot use unlimited time or memory.

Entries of a vocabulary are counted before the file is parsed. `server.text.tokenizers.components` checks the components
that change texts. See docs/decisions/0136-bounded-tokenizers.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from server.text.tokens.tokenizer import TokenizerError

MAX_FILE_BYTES = 48 << 20
"""Largest size of one tokenizer file. The largest published file, of Gemma 3, has 33 MB."""
MAX_ENTRIES = 1 << 20
"""Most entries of a vocabulary. The largest published vocabulary, of XLM-V, has 902,000."""
MAX_IDS = 1 << 22
"""Limit on the highest token id plus one, because tables with an entry for each id are made."""
MAX_MERGES = 1 << 21
MAX_ADDED_TOKENS, MAX_ADDED_BYTES = 1 << 17, 1 << 21
"""Limits on the number and the total bytes of the added tokens, because search trees of their bytes are built.

Published speech models have 65,536 tokens with 1.1 MB. A tree for 4 MB of random texts took 6.5 s and 850 MB.
"""
MAX_ENTRY = 2048
"""Longest entry of a vocabulary, in characters. It bounds the text that one generated token adds."""
MAX_UNIGRAM_ENTRY = 256
"""Longest entry of a Unigram model, in characters.

The model compares each place of a text with entries up to this length.
"""
MAX_MERGED_CHARACTERS = 1 << 22
"""Limit on the characters of all pieces together, where merges are derived by cutting each piece at each character."""

MAX_PAIR_CHARACTERS = 1 << 25
"""Limit on the characters of all pairs of pieces that together are a piece. Published vocabularies have 5 million."""


def read_bounded(path: Path) -> bytes:
    """Read a tokenizer file. Raises TokenizerError for a file of more than `MAX_FILE_BYTES`."""
    check(path.stat().st_size, MAX_FILE_BYTES, "bytes", path.name)
    return path.read_bytes()


def check(count: int, most: int, what: str, file: str = "tokenizer.json") -> None:
    """Raise TokenizerError if a count exceeds its limit.

    count: number found in the file. most: limit. what: what is counted, for the message. file: name of the file.
    """
    if count > most:
        raise TokenizerError(f"{file} has {count:,} {what}; the limit is {most:,}")


def check_lines(content: bytes, file: str, most: int = MAX_ENTRIES) -> None:
    """Raise TokenizerError for a file with more than `most` lines. file: name of the file, for the message."""
    check(content.count(b"\n"), most, "lines", file)


def check_entries(entries: Iterable[str], file: str, most: int = MAX_ENTRY) -> None:
    """Raise TokenizerError if an entry of a vocabulary has more than `most` characters. file: name of the file."""
    check(max(map(len, entries), default=0), most, "characters in one entry of its vocabulary", file)
