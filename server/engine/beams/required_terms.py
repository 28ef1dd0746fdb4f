"""Follows the text of a hypothesis token by token, to know which required terms it contains.

A term counts if it stands in the text as a whole word, however the text is divided into tokens. A term at the very end
of the text counts until the next character shows that the word goes on. Works on bytes of tokens; imports no torch.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from server.ipc.wire.params import RequiredTerm
from server.word_bounds import are_joined


class TermState(NamedTuple):
    """The state of one hypothesis text: everything that is needed to find terms after further tokens.

    tail: last characters of the text: the longest ending that may belong to a term, and the character before it. A
        space is assumed before the text.
    pending: bytes of an incomplete character after `tail`; empty if the last character is complete.
    found: bit i is set if the text contains the term with index i.
    at_end: the bits of `found` for terms at the very end of the text. Whether they stay depends on the next character.
    progress: number of tokens of terms that the text already contains, as `RequiredTerms` counts them.
    """

    tail: str
    pending: bytes
    found: int
    at_end: int
    progress: int


class _TermTokens:
    """A token sequence that spells a term.

    ids: its tokens.
    pieces: bytes of each token, without the space before the term.
    opens_with_space: whether the first token begins with a space.
    """

    def __init__(self, ids: list[int], data: Sequence[bytes]) -> None:
        self.ids = ids
        self.opens_with_space = data[0].startswith(b" ")
        self.pieces = [data[0].removeprefix(b" "), *data[1:]]
        whole, sizes = b"".join(self.pieces), accumulate(map(len, self.pieces))
        self._ends = [len(whole[:size].decode("utf-8", "ignore")) for size in sizes]

    def missing(self, length: int) -> int:
        """Number of tokens that the text still lacks if it ends with the first `length` characters of the term."""
        return sum(end > length for end in self._ends)

    def first(self, before: str, term: str) -> int | None:
        """The token that begins the term after the character `before`; None if the term would begin inside a word.

        term: text of the term.
        """
        if not self.pieces[0] and before == " ":
            return self.ids[1]
        return self.ids[0] if self.opens_with_space or not are_joined(before, term[0]) else None

    def following(self, done: bytes) -> int | None:
        """The token that continues the term after its first bytes, `done`; None if no token begins right after them."""
        starts = accumulate(map(len, self.pieces), initial=0)
        return next((token for token, start in zip(self.ids, starts, strict=False) if start == len(done)), None)


@dataclass(frozen=True)
class _Spelling:
    """A way to write a term. term: index of the term. text: the term in this spelling. tokens: its token sequences."""

    term: int
    text: str
    tokens: list[_TermTokens]

    def missing(self, length: int) -> int:
        """Smallest number of tokens that complete the term after its first `length` characters."""
        return min(spelled.missing(length) for spelled in self.tokens)

    def next_tokens(self, state: TermState) -> list[int]:
        """The tokens that continue the term if the text ends inside it, otherwise the tokens that begin it.

        Empty if no token can begin or continue the term.
        """
        done = self.text[: _partial(state.tail, self.text)].encode() + state.pending
        if not done:
            found = [spelled.first(state.tail[-1], self.text) for spelled in self.tokens]
        elif self.text.encode().startswith(done):
            found = [spelled.following(done) for spelled in self.tokens]
        else:
            found = []
        return [token for token in found if token is not None]


class RequiredTerms:
    """The terms that the hypotheses of one search must contain.

    The progress of a text is the total length of all terms in tokens, minus the number of missing tokens. A term that
    the text contains has no missing tokens. If the text ends with the beginning of a term, only the tokens of the rest
    are missing. Otherwise all tokens of the term are missing.

    terms: not empty.
    token_bytes: bytes of each token, by id; empty for special tokens.
    prefix: tokens of the text before the first new token.
    """

    def __init__(self, terms: Sequence[RequiredTerm], token_bytes: Sequence[bytes], prefix: Sequence[int]) -> None:
        self._token_bytes = token_bytes
        self._spellings: list[_Spelling] = []
        for index, term in enumerate(terms):
            for text in dict(term.spellings):
                own = [tokens for written, tokens in term.spellings if written == text]
                tokens = [_TermTokens(ids, list(map(self._bytes_of, ids))) for ids in own]
                self._spellings.append(_Spelling(index, text, tokens))
        self._sizes = [
            min(spelling.missing(0) for spelling in self._spellings if spelling.term == index)
            for index in range(len(terms))
        ]
        self.num_tokens = sum(self._sizes)
        """Number of tokens of all terms: the progress of a text that contains them all."""
        self._known: dict[tuple[TermState, int], TermState] = {}
        self.start = TermState(" ", b"", 0, 0, 0)
        for token in prefix:
            self.start = self.after(self.start, token)

    def after(self, state: TermState, token: int) -> TermState:
        """The state of a text after one more token."""
        key = state, token
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._after(state, self._bytes_of(token))
        return found

    def next_tokens(self, state: TermState) -> list[int]:
        """Tokens that continue or begin a missing term."""
        missing = [spelling for spelling in self._spellings if not state.found >> spelling.term & 1]
        return list(dict.fromkeys(token for spelling in missing for token in spelling.next_tokens(state)))

    def _after(self, state: TermState, data: bytes) -> TermState:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.setstate((state.pending, 0))
        new = decoder.decode(data)
        pending = decoder.getstate()[0]
        if not new:
            return state._replace(pending=pending)
        text = state.tail + new
        # Search again for the terms at the end of the old text, now with the character that follows them.
        found, at_end = state.found & ~state.at_end, 0
        missing = list(self._sizes)
        kept = 1
        for spelling in self._spellings:
            if found >> spelling.term & 1:
                continue
            end = _end_of(text, spelling.text)
            if end is not None and end < len(text):
                found |= 1 << spelling.term
                continue
            if end is not None:
                at_end |= 1 << spelling.term
                kept = max(kept, len(spelling.text) + 1)
            length = _partial(text, spelling.text)
            kept = max(kept, length + 1)
            missing[spelling.term] = min(missing[spelling.term], spelling.missing(length))
        at_end &= ~found
        found |= at_end
        progress = sum(size if found >> i & 1 else size - missing[i] for i, size in enumerate(self._sizes))
        return TermState(text[-kept:], pending, found, at_end, progress)

    def _bytes_of(self, token: int) -> bytes:
        return self._token_bytes[token] if token < len(self._token_bytes) else b""


def _end_of(text: str, term: str) -> int | None:
    """Index where the first whole-word occurrence of a term in a text ends; None if there is no occurrence.

    An occurrence at index 0 does not count: the first character is the one before the searched text.
    """
    start = text.find(term, 1)
    while start > 0:
        end = start + len(term)
        if not are_joined(text[start - 1], term[0]) and (end == len(text) or not are_joined(term[-1], text[end])):
            return end
        start = text.find(term, start + 1)
    return None


def _partial(text: str, term: str) -> int:
    """How many characters at the start of a term the text already ends with; 0 for none.

    For example 3 for the text "a new yor" and the term "york". A whole term does not count, nor does a start inside a
    word of the text.

    text: its first character only shows whether a word goes on; no match starts there.
    """
    for length in range(min(len(term), len(text)) - 1, 0, -1):
        if text.endswith(term[:length]) and not are_joined(text[-length - 1], term[0]):
            return length
    return 0
