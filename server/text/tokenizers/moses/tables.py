"""Characters and abbreviations of a language, which the package `sacremoses` has.

The tables of Moses are under another licence than this server, and have some 130,000 characters. See
docs/decisions/0165-fsmt-and-moses.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec

from server.text.tokens.tokenizer import TokenizerError


@dataclass(frozen=True)
class WordTables:
    """Tables of one language.

    letters, alphanumeric, numbers, currency: characters, as ranges of a class of a regular expression.
    lower: lower-case letters. any_letter: the characters of `letters`.
    prefixes: words before a dot that ends no sentence (`Dr`).
    numeric_prefixes: those of which this holds before a number only (`No`).
    """

    language: str
    letters: str
    alphanumeric: str
    numbers: str
    currency: str
    lower: frozenset[str]
    any_letter: frozenset[str]
    prefixes: frozenset[str]
    numeric_prefixes: frozenset[str]

    @staticmethod
    @lru_cache(maxsize=8)
    def of(language: str) -> WordTables:
        """The tables of a language; those of English for the abbreviations of an unknown one.

        Raises TokenizerError without the package.
        """
        if find_spec("sacremoses") is None:
            raise TokenizerError("its words are those of Moses, which need a package: pip install 'triptych[moses]'")
        from sacremoses import MosesDetokenizer, MosesTokenizer

        words = MosesTokenizer(language)
        return WordTables(
            language,
            _ranges(words.IsAlpha),
            _ranges(words.IsAlnum),
            _ranges(words.IsN),
            _ranges(MosesDetokenizer.IsSc),
            frozenset(words.IsLower),
            frozenset(words.IsAlpha),
            frozenset(words.NONBREAKING_PREFIXES),
            frozenset(words.NUMERIC_ONLY_PREFIXES),
        )

    @staticmethod
    def is_cjk(character: str) -> bool:
        """Whether a character belongs to a script without spaces between words."""
        from sacremoses.util import is_cjk

        return bool(is_cjk(character))


def _ranges(characters: str) -> str:
    """A set of characters as the ranges of a class: `a-z`."""
    codes = sorted(set(map(ord, characters)))
    found = list[tuple[int, int]]()
    for code in codes:
        if found and found[-1][1] == code - 1:
            found[-1] = (found[-1][0], code)
        else:
            found.append((code, code))
    return "".join(f"{_escaped(first)}-{_escaped(last)}" for first, last in found)


def _escaped(code: int) -> str:
    return f"\\U{code:08x}"
