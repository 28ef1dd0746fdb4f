"""A text that rules rewrite step by step. For each character, it keeps the place in the original text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

Parts = Sequence[str | int]
"""The replacement of a match, in parts: a text, or the number of a group of the expression."""


class Substitution:
    """A rule that replaces the matches of a regular expression.

    expression: the regular expression; it must not match an empty text.
    parts: the replacement.
    choose: returns the replacement of a match, instead of `parts`.
    """

    def __init__(self, expression: str, *parts: str | int, choose: Callable[[re.Match[str]], Parts] | None = None):
        self.pattern = re.compile(expression)
        self.parts_of = choose or (lambda match: parts)
        self.template = None if choose else "".join(_escaped(part) for part in parts)


def _escaped(part: str | int) -> str:
    return part.replace("\\", r"\\") if isinstance(part, str) else rf"\g<{part}>"


class LocatedText:
    """A text that is being rewritten, with the original range of each character.

    text: the text so far.
    located: whether the original ranges are kept. Without them the rules run faster.
    """

    def __init__(self, text: str, located: bool) -> None:
        self.text = text
        self._starts = list(range(len(text))) if located else None
        self._ends = list(range(1, len(text) + 1)) if located else None

    def lower(self) -> None:
        """Lower-case the text. One character may become several."""
        if self._starts is not None and self._ends is not None:
            sizes = [len(character.lower()) for character in self.text]
            self._starts = [place for place, size in zip(self._starts, sizes, strict=True) for _ in range(size)]
            self._ends = [place for place, size in zip(self._ends, sizes, strict=True) for _ in range(size)]
        self.text = self.text.lower()

    def keep(self, is_kept: Callable[[str], bool]) -> None:
        """Remove the characters for which `is_kept` returns False."""
        if self._starts is not None and self._ends is not None:
            kept = [index for index, character in enumerate(self.text) if is_kept(character)]
            self._starts, self._ends = [self._starts[index] for index in kept], [self._ends[index] for index in kept]
        self.text = "".join(filter(is_kept, self.text))

    def strip(self) -> None:
        """Remove white space at both ends."""
        first, size = len(self.text) - len(self.text.lstrip()), len(self.text.strip())
        if self._starts is not None and self._ends is not None:
            self._starts, self._ends = self._starts[first : first + size], self._ends[first : first + size]
        self.text = self.text[first : first + size]

    def apply(self, rules: Iterable[Substitution]) -> None:
        """Replace all matches of each rule, one rule after another."""
        for rule in rules:
            if self._starts is None and rule.template is not None:
                self.text = rule.pattern.sub(rule.template, self.text)
            else:
                self._replace(rule)

    def _replace(self, rule: Substitution) -> None:
        pieces: list[tuple[str | None, int, int]] = []
        last = 0
        for match in rule.pattern.finditer(self.text):
            first, after = match.span()
            pieces.append((None, last, first))
            for part in rule.parts_of(match):
                pieces.append((None, *match.span(part)) if isinstance(part, int) else (part, first, after))
            last = after
        pieces.append((None, last, len(self.text)))
        if self._starts is not None and self._ends is not None:
            starts, ends = list[int](), list[int]()
            for new, begin, end in pieces:
                # A new text has the place of the whole match.
                starts += self._starts[begin:end] if new is None else [self._starts[begin]] * len(new)
                ends += self._ends[begin:end] if new is None else [self._ends[end - 1]] * len(new)
            self._starts, self._ends = starts, ends
        self.text = "".join(self.text[begin:end] if new is None else new for new, begin, end in pieces)

    def words(self) -> Iterator[tuple[str, int, int]]:
        """Yield (word, start, end) of the text, split at white space.

        start, end: character indices in the original text; 0 if they are not kept.
        """
        for match in re.finditer(r"\S+", self.text):
            first, after = match.span()
            if self._starts is None or self._ends is None:
                yield match[0], 0, 0
            else:
                yield match[0], min(self._starts[first:after]), max(self._ends[first:after])
