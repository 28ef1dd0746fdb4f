"""Join words to a text by the rules of Moses, one word at a time.

A word is final when the next one is known: `@-@` between two words joins them with a hyphen, and some languages read
the next word. Source: detokenizer.perl of Moses, in the form of `MosesDetokenizer` of sacremoses.
"""

from __future__ import annotations

import re

from server.text.tokenizers.moses.tables import WordTables
from server.text.tokens.tokenizer import TokenizerError

_HYPHEN = "@-@"
_ENTITIES = (
    ("&bar;", "|"),
    ("&#124;", "|"),
    ("&lt;", "<"),
    ("&gt;", ">"),
    ("&bra;", "["),
    ("&ket;", "]"),
    ("&quot;", '"'),
    ("&apos;", "'"),
    ("&#91;", "["),
    ("&#93;", "]"),
    ("&amp;", "&"),
)
"""Entities in the order in which they are replaced."""
_CLOSING = re.compile(r"[,.?!:;\\%}\])]+")
_QUOTES = re.compile("['\"„“`]+")
_FRENCH_SPACED = re.compile(r"[?!:;\\%]")
_ELIDING = frozenset(("fr", "it", "ga"))
"""Languages whose articles join the next word: l'eau."""


class WordJoiner:
    """Makes the steps that join words of one language.

    Raises TokenizerError for Czech: the rules of sacremoses for it read the last words of the text before the others,
    and fail for some words.
    """

    def __init__(self, tables: WordTables) -> None:
        if tables.language == "cs":
            raise TokenizerError("its target language is Czech, whose words are joined by rules that are not supported")
        self.tables = tables
        self.opening = re.compile(rf"[{tables.currency}(\[{{¿¡]+")
        self.contraction = re.compile(rf"'[{tables.letters}]")
        self.elision = re.compile(rf"[{tables.letters}]'\Z")
        self.letter = re.compile(rf"[{tables.letters}]")

    def step(self) -> JoinWords:
        """A step for one text."""
        return JoinWords(self)


class JoinWords:
    """Joins the words of one text. Implements `TextStep`: words are separated by spaces, and text comes out.

    Assigns new state to its attributes and never changes it in place, so that a shallow copy is independent.
    """

    def __init__(self, rules: WordJoiner) -> None:
        self._rules = rules
        self._unfinished = ""
        self._glued: str | None = None
        self._open_hyphen = False
        self._waiting: str | None = None
        self._previous: str | None = None
        self._space = " "
        self._quotes: dict[str, int] = {}

    def push(self, text: str) -> str:
        *words, self._unfinished = re.split(r"\s", self._unfinished + text)
        return "".join(self._glue(word) for word in words if word)

    def finish(self) -> str:
        text = self._glue(self._unfinished) if self._unfinished else ""
        text += self._next(self._glued) if self._glued is not None else ""
        return text + self._next(None)

    def _glue(self, word: str) -> str:
        """Join words around `@-@`. Returns the text that is certain."""
        if self._open_hyphen:
            self._glued, self._open_hyphen = (self._glued or "") + word, False
            return ""
        if word == _HYPHEN:
            self._glued, self._open_hyphen = (self._glued or "") + "-", True
            return ""
        finished, self._glued = self._glued, word
        return "" if finished is None else self._next(finished)

    def _next(self, word: str | None) -> str:
        """Take the next joined word, None after the last one. Returns the text that is certain."""
        if word is not None:
            for entity, character in _ENTITIES:
                word = word.replace(entity, character)
        current = word
        if self._rules.tables.language in _ELIDING:
            current, self._waiting = self._waiting, word
        if current is None:
            return ""
        text = self._text(current, word)
        self._previous = current
        return text

    def _text(self, word: str, following: str | None) -> str:
        """The text of a word, with the space before it."""
        rules, language, previous = self._rules, self._rules.tables.language, self._previous
        space, self._space = self._space, " "
        if rules.tables.is_cjk(word[0]) and language != "ko":
            return word if previous is not None and rules.tables.is_cjk(previous[-1]) else space + word
        if rules.opening.fullmatch(word):
            self._space = ""
            return space + word
        if _CLOSING.fullmatch(word):
            return f" {word}" if language == "fr" and _FRENCH_SPACED.fullmatch(word) else word
        if language == "en" and previous is not None and rules.contraction.match(word):
            return word
        is_eliding = language in _ELIDING and rules.elision.search(word)
        if is_eliding and following is not None and rules.letter.match(following):
            self._space = ""
            return space + word
        if _QUOTES.fullmatch(word):
            return self._quote(word, space)
        return space + word

    def _quote(self, word: str, space: str) -> str:
        """The text of a quotation mark: the first opens, the second closes."""
        kind = '"' if not word.strip("„“”") else word
        is_closing = self._quotes.get(kind, 0) % 2 == 1
        is_possessive = self._rules.tables.language == "en" and word == "'" and (self._previous or "").endswith("s")
        if not is_closing and is_possessive:
            return word
        self._quotes = {**self._quotes, kind: self._quotes.get(kind, 0) + 1}
        if is_closing:
            return word
        self._space = ""
        return space + word
