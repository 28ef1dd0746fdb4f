"""Tokenize a text in which some special tokens are only text, with a tokenizer of the `tokenizers` library.

A second tokenizer shares the model, normalizer and pre-tokenizer of the first, but its special tokens have random words
as texts. Real special tokens in the text are replaced by these words, so that the second tokenizer finds them and reads
all others as ordinary text. Every other token gets the same id as with the first tokenizer.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

from tokenizers import AddedToken
from tokenizers import Tokenizer as LibraryTokenizer

from server.text.tokens.marked_text import MarkedText, token_spans
from server.text.tokens.text_pattern import text_pattern


class MarkedTokens:
    """A second tokenizer with other texts for the special tokens of a backend.

    backend: the tokenizer whose model is shared.
    """

    def __init__(self, backend: LibraryTokenizer) -> None:
        added: dict[int, AddedToken] = backend.get_added_tokens_decoder()
        secret = secrets.token_hex(8)
        self._words = {token.content: f"q{secret}x{index}q" for index, token in added.items() if token.special}
        self._single = frozenset(token.content for token in added.values() if token.single_word)
        self._break = f"q{secret}q"
        self._pattern = text_pattern(token.content for token in added.values())
        self._special = frozenset(index for index, token in added.items() if token.special)
        self._backend = LibraryTokenizer(backend.model)
        if backend.normalizer is not None:
            self._backend.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            self._backend.pre_tokenizer = backend.pre_tokenizer
        texts = {index: self._words.get(token.content, token.content) for index, token in sorted(added.items())}
        self._backend.add_tokens(
            [
                *(_with_content(added[index], text) for index, text in texts.items()),
                AddedToken(self._break, normalized=False),
            ]
        )
        self._ids: dict[int, int | None] = {self._id_of(text): index for index, text in texts.items()}
        self._ids[self._id_of(self._break)] = None
        self.works = all(own == index or backend.model.id_to_token(own) is None for own, index in self._ids.items())
        """Whether `encode` can be used. False for a vocabulary with gaps, where new tokens may get ids in use."""

    def encode(self, marked: MarkedText) -> list[int]:
        """Return the token ids of a text, without special tokens around it. Marked special tokens are read as text."""
        ids = self._encode("".join(self._written(marked, with_breaks=False)))
        if any(token_id in self._special for token_id in ids if token_id not in self._ids):
            # The model itself has a special token among its pieces. Within a token that is text, it must not find it.
            ids = self._encode("".join(self._written(marked, with_breaks=True)))
        found = (self._ids.get(token_id, token_id) for token_id in ids)
        return [token_id for token_id in found if token_id is not None]

    def _id_of(self, text: str) -> int:
        index: int | None = self._backend.token_to_id(text)
        assert index is not None, "it was added"
        return index

    def _encode(self, text: str) -> list[int]:
        (encoded,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoded.ids
        return ids

    def _written(self, marked: MarkedText, with_breaks: bool) -> Iterator[str]:
        """Yield the parts of the text for the second tokenizer, with a random word in place of each real special token.

        with_breaks: insert a token that stands for nothing at the first mark of each special token that is only text.
        """
        text, place = marked.text, 0
        for start, end, mark in token_spans(self._pattern, marked) if self._pattern is not None else ():
            if mark is None and text[start:end] in self._words and not self._is_in_word(text, start, end):
                yield text[place:start]
                yield self._words[text[start:end]]
                place = end
            elif mark is not None and with_breaks:
                yield text[place:mark]
                yield self._break
                place = mark
        yield text[place:]

    def _is_in_word(self, text: str, start: int, end: int) -> bool:
        """Whether a special token is only text, because it must be a whole word (`single_word`) but is inside one."""
        neighbours = text[max(start - 1, 0) : start] + text[end : end + 1]
        return text[start:end] in self._single and re.search(r"\w", neighbours) is not None


def _with_content(token: AddedToken, content: str) -> AddedToken:
    """Return a copy of an added token that has another text and is not special."""
    return AddedToken(
        content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=False,
    )
