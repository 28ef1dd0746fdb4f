"""Join words to a text by the rules of Moses, one word at a time.

The text of a word is final when the next word is known: `@-@` between two words joins them with a hyphen, and in some
languages the spacing depends on the next word. Source: detokenizer.perl of Moses, in the form of `MosesDetokenizer` of
sacremoses.
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
"""(entity, character) in the order in which the entities are replaced."""
_CLOSING = re.compile(r"[,.?!:;\\%}\])]+")
_QUOTES = re.compile("['\"„“`]+")
_FRENCH_SPACED = re.compile(r"[?!:;\\%]")
_ELIDING = frozenset(("fr", "it", "ga"))
"""Languages in which an article with an apostrophe joins the next word: l'eau."""


class WordJoiner:
    """The rules that join the words of one language.

    Raises TokenizerError for Czech: sacremoses has special rules for it, which work from the end of the text and fail
    for some words.
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
        """Create the decoder step that joins the words of one text."""
        return JoinWords(self)


class JoinWords:
    """Joins the words of one text. Implements `TextStep`.

    Takes words that are separated by spaces, in pieces of any length, and returns the text of which it is certain.
    Values of attributes are replaced and never changed in place, so that a shallow copy is independent.
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
        """Take the next word, and join it with the previous one if `@-@` is between them. Returns the final text."""
        if self._open_hyphen:
            self._glued, self._open_hyphen = (self._glued or "") + word, False
            return ""
        if word == _HYPHEN:
            self._glued, self._open_hyphen = (self._glued or "") + "-", True
            return ""
        finished, self._glued = self._glued, word
        return "" if finished is None else self._next(finished)

    def _next(self, word: str | None) -> str:
        """Take the next word after hyphens are joined; None after the last word. Returns the text that is final."""
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
        """Return a word with the space before it, if there is one. following: the next word, if it is known."""
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
        """Return a quotation mark with its space. The first of a kind opens a quotation, the second closes it.

        An apostrophe after an English word that ends in `s` is possessive, and opens nothing.
        space: the space before an opening mark.
        """
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
