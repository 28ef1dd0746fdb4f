"""Split a text into words by the rules of Moses: punctuation, contractions and hyphens are separate words.

Special characters of XML are written as entities.
Source: tokenizer.perl of Moses, in the form of `MosesTokenizer` of sacremoses 0.2 with `aggressive_dash_splits`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from unicodedata import category

from server.text.tokenizers.moses.located_text import LocatedText, Parts, Substitution
from server.text.tokenizers.moses.punctuation import WIDE, punctuation_rules
from server.text.tokenizers.moses.tables import WordTables

_SPACES = Substitution(r"\s+", " ")
_ENTITIES = {
    "&": "&amp;",
    "|": "&#124;",
    "<": "&lt;",
    ">": "&gt;",
    "'": "&apos;",
    '"': "&quot;",
    "[": "&#91;",
    "]": "&#93;",
}
_NEXT_CHARACTER = re.compile(r"\s+(\S)")


class WordSplitter:
    """Splits texts of one language into words.

    lower_case: whether texts are lower-cased first.
    normalize_punctuation: whether quotation marks, dashes and wide characters are first replaced by those of ASCII, and
        control characters removed.
    """

    def __init__(self, tables: WordTables, *, lower_case: bool = False, normalize_punctuation: bool = True) -> None:
        self._tables, self._lower_case = tables, lower_case
        self._normalize_punctuation = normalize_punctuation
        self._punctuation = punctuation_rules(tables.language)
        self._first = (_SPACES, Substitution(r"[\x00-\x1f]"))
        self._rules = (
            *_separate(tables),
            *_apostrophes(tables),
            Substitution(r"(?<!\S)(\S+)\.(?!\S)", choose=self._dot),
        )
        self._last = (
            Substitution(r"\.' ?\Z", " . ' "),
            Substitution("(?:DOT)+(MULTI)?", choose=_dots_of_mark),
            Substitution(r"[&|<>'\"\[\]]", choose=lambda match: (_ENTITIES[match[0]],)),
        )

    def words(self, text: str, located: bool) -> Iterator[tuple[str, int, int]]:
        """Yield (word, start, end); start and end are character indices in the text, or 0 unless `located`."""
        rewritten = LocatedText(text, located)
        if self._lower_case:
            rewritten.lower()
        if self._normalize_punctuation:
            self._normalize(rewritten)
        rewritten.apply(self._first)
        rewritten.strip()
        rewritten.apply(self._rules)
        rewritten.apply((_SPACES,))
        rewritten.strip()
        rewritten.apply(self._last)
        return rewritten.words()

    def _normalize(self, rewritten: LocatedText) -> None:
        rewritten.apply(WIDE)
        rewritten.apply(self._punctuation)
        rewritten.strip()
        rewritten.keep(lambda character: category(character)[0] != "C")

    def _dot(self, match: re.Match[str]) -> Parts:
        """Separate a dot from the end of a word, unless the word is an abbreviation or a small letter follows."""
        tables, word = self._tables, match[1]
        following = _NEXT_CHARACTER.match(match.string, match.end())
        first = following[1] if following else ""
        is_kept = (
            ("." in word and not tables.any_letter.isdisjoint(word))
            or (word in tables.prefixes and word not in tables.numeric_prefixes)
            or (first in tables.lower)
            or (word in tables.numeric_prefixes and first in set("0123456789"))
        )
        return (0,) if is_kept else (1, " .")


def _separate(tables: WordTables) -> Sequence[Substitution]:
    """Return the rules that separate special characters, hyphens and commas from words.

    A run of dots is replaced by letters, which the last rules turn back into dots, so that no rule divides it.
    """
    known, numbers = tables.alphanumeric, tables.numbers
    return (
        Substitution(rf"([^{known}\s.'`,\-])", " ", 1, " "),
        Substitution(rf"([{known}])-(?=[{known}])", 1, " @-@ "),
        Substitution(r"\.{2,}", choose=_mark_of_dots),
        Substitution(rf"([^{numbers}]),", 1, " , "),
        Substitution(rf",([^{numbers}])", " , ", 1),
        Substitution(rf"([{numbers}]),\Z", 1, " , "),
    )


def _apostrophes(tables: WordTables) -> Sequence[Substitution]:
    """Return the rules that split words at apostrophes: `don 't` in English, `l' eau` in French and Italian."""
    letter, number = tables.letters, tables.numbers
    if tables.language == "en":
        return (
            Substitution(rf"([^{letter}])'([^{letter}])", 1, " ' ", 2),
            Substitution(rf"([^{letter}{number}])'([{letter}])", 1, " ' ", 2),
            Substitution(rf"([{letter}])'([^{letter}])", 1, " ' ", 2),
            Substitution(rf"([{letter}])'([{letter}])", 1, " '", 2),
            Substitution(rf"([{number}])'(s)", 1, " '", 2),
        )
    if tables.language in ("fr", "it"):
        return (
            Substitution(rf"([^{letter}])'([^{letter}])", 1, " ' ", 2),
            Substitution(rf"([^{letter}])'([{letter}])", 1, " ' ", 2),
            Substitution(rf"([{letter}])'([^{letter}])", 1, " ' ", 2),
            Substitution(rf"([{letter}])'([{letter}])", 1, "' ", 2),
        )
    return (Substitution("'", " ' "),)


def _mark_of_dots(match: re.Match[str]) -> Parts:
    """Return letters that stand for a run of dots, so that no later rule divides the run."""
    after = " " if match.end() < len(match.string) else ""
    return (f" {'DOT' * len(match[0])}MULTI{after}",)


def _dots_of_mark(match: re.Match[str]) -> Parts:
    # A run of the same letters in the text is matched as a whole, so that the search does not start in it again.
    return (0,) if match[1] is None else ("." * ((len(match[0]) - len("MULTI")) // len("DOT")),)
