"""Find the terms of a glossary in source texts, and spell their translations in tokens of a vocabulary.

A term is found as a whole word, as it is written in the glossary or with its first letter in upper case. White space in
a term matches any white space. Of several terms that begin at the same place, the longest is taken; terms that are
found do not overlap.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from server.text.tokens.token_bytes import TokenBytes
from server.text.tokens.tokenizer import Tokenizer
from server.word_bounds import are_joined, spellings


class DuplicateTerm(ValueError):
    """Two terms of a glossary are equal, except for white space or Unicode normal form."""


class Glossary:
    """Terms and their translations. Safe to use from several threads.

    The spellings of all terms are in one sorted list, because a trie of 10,000 long terms would need 230 MiB.

    entries: translations by term. Neither a term nor a translation may be empty or white space alone.
    Raises DuplicateTerm.
    """

    def __init__(self, entries: Mapping[str, str]) -> None:
        sources = list(map(normalized, entries))
        if len(set(sources)) < len(sources):
            raise DuplicateTerm
        self.targets = list(map(normalized, entries.values()))
        # A term that matches as written takes precedence over one that matches with its first letter in upper case.
        capital = {text: index for index, source in enumerate(sources) for text in spellings(source)[1:]}
        indices = capital | {source: index for index, source in enumerate(sources)}
        self._texts = sorted(indices)
        self._indices = [indices[text] for text in self._texts]
        self._prefixes = _prefixes(self._texts)
        self._longest_text = max(map(len, self._texts), default=0)

    def targets_for(self, text: str) -> list[str]:
        """Return the translations of the terms that a source text contains, each once, in order."""
        text = normalized(text)
        found: dict[str, None] = {}
        place = 0
        while place < len(text):
            is_inside = place > 0 and are_joined(text[place - 1], text[place])
            index, end = (None, place) if is_inside else self._longest(text, place)
            if index is not None:
                found[self.targets[index]] = None
            place = max(end, place + 1)
        return list(found)

    def _longest(self, text: str, start: int) -> tuple[int | None, int]:
        """Find the longest term that begins at index `start` of a text.

        Returns (index of the term, end in the text), or (None, start). A binary search finds the last of the sorted
        spellings that is not after the text. If the text begins with any spelling, that is this one or one of its
        prefixes.
        """
        place = bisect_right(self._texts, text[start : start + self._longest_text]) - 1
        while place >= 0:
            found = self._texts[place]
            end = start + len(found)
            if text.startswith(found, start) and (end == len(text) or not are_joined(text[end - 1], text[end])):
                return self._indices[place], end
            place = self._prefixes[place]
        return None, start


def _prefixes(texts: Sequence[str]) -> list[int]:
    """For each text, return the index of the longest other text that is a prefix of it, or -1. texts: sorted."""
    found: list[int] = []
    open_places: list[int] = []
    for place, text in enumerate(texts):
        while open_places and not text.startswith(texts[open_places[-1]]):
            open_places.pop()
        found.append(open_places[-1] if open_places else -1)
        open_places.append(place)
    return found


def normalized(text: str) -> str:
    """Return a text in Unicode normal form C, with single spaces in place of white space and none at its ends."""
    return unicodedata.normalize("NFC", " ".join(text.split()))


def spell(tokenizer: Tokenizer, token_bytes: TokenBytes, term: str) -> list[tuple[str, list[int]]]:
    """Return the token sequences that spell a term, as (text, token ids). The text is the term or a variant in case.

    Each variant has two spellings, with and without a leading space: the tokens into which the tokenizer splits it, and
    the fewest possible tokens. They can differ where the tokenizer is for the source language (Marian).
    Empty if the vocabulary cannot spell the term as it is written.
    """
    found: list[tuple[str, list[int]]] = []
    for text in spellings(term):
        spaced = " " + text
        ids: list[Sequence[int]] = [
            encoding.ids for encoding in tokenizer.encode([text, spaced], add_special_tokens=False, offsets=False)
        ]
        ids += [fewest_tokens(token_bytes, written.encode()) for written in (spaced, text)]
        for own in {tuple(spelling): None for spelling in ids if spelling}:
            data = [token_bytes.by_id[token] if token < len(token_bytes.by_id) else b"" for token in own]
            if all(data) and b"".join(data) in (text.encode(), spaced.encode()):
                found.append((text, list(own)))
        if not found:
            return []
    return found


def fewest_tokens(token_bytes: TokenBytes, data: bytes) -> Sequence[int]:
    """Return the shortest token sequence that spells `data`; of several, the one whose last tokens are longest.

    Empty if no sequence of tokens has these bytes.
    """
    best: list[tuple[int, ...] | None] = [()]
    for end in range(1, len(data) + 1):
        choices = [
            (*before, token)
            for start in range(max(0, end - token_bytes.longest), end)
            if (before := best[start]) is not None and (token := token_bytes.ids.get(data[start:end])) is not None
        ]
        best.append(min(choices, key=len, default=None))
    return best[-1] or ()
