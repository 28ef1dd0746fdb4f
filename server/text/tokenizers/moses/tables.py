"""Characters and abbreviations of a language, from the optional package `sacremoses`.

They are not copied here, because the tables of Moses have another licence than this server and some 130,000 characters.
See docs/decisions/0165-fsmt-and-moses.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec

from server.text.tokens.tokenizer import TokenizerError


@dataclass(frozen=True)
class WordTables:
    """Tables of one language.

    letters, alphanumeric, numbers, currency: sets of characters, as the inside of a character class in an expression.
    lower: lower-case letters. any_letter: the characters of `letters`.
    prefixes: abbreviations whose dot does not end a sentence (`Dr`).
    numeric_prefixes: the abbreviations in `prefixes` for which this holds only before a number (`No`).
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
        """Return the tables of a language. An unknown language gets the abbreviations of English.

        Raises TokenizerError if the package `sacremoses` is not installed.
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
        """Whether a character is Chinese, Japanese or Korean."""
        from sacremoses.util import is_cjk

        return bool(is_cjk(character))


def _ranges(characters: str) -> str:
    """Return a set of characters as ranges for a character class of an expression, such as `a-z`."""
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
