"""Base class of the tokenizers that are written in Python, because the `tokenizers` library cannot run them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from server.text.tokens.computed import Computed
from server.text.tokens.marked_text import MarkedText
from server.text.tokens.streams import TokenStream
from server.text.tokens.tokenizer import Encoding


class TokenSpan(NamedTuple):
    """A token, and its range in a text.

    token_id: id of the token.
    start, end: range of the token as character indices; both 0 for a token that was added around the text.
    special: whether the token was added around the text.
    """

    token_id: int
    start: int = 0
    end: int = 0
    special: bool = False


class PythonTokenizer(ABC):
    """Base class that encodes and decodes whole texts with a subclass's `spans`, `stream` and `id_to_token`."""

    marks_subwords = False
    special_ids: frozenset[int]

    @abstractmethod
    def spans(self, group: tuple[str, ...], add_special_tokens: bool, offsets: bool) -> Iterable[TokenSpan]:
        """Yield the tokens of a text, or of a pair of texts, in order.

        group: the text or the two texts. add_special_tokens: whether to add special tokens around them.
        offsets: whether `start` and `end` of the tokens are needed; else they may be 0.
        """

    @abstractmethod
    def stream(self, skip_special_tokens: bool = True) -> TokenStream: ...

    @abstractmethod
    def id_to_token(self, token_id: int) -> str | None: ...

    def encode(
        self,
        texts: Sequence[str],
        *,
        pairs: Sequence[str] | None = None,
        add_special_tokens: bool = True,
        offsets: bool = True,
    ) -> list[Encoding]:
        groups = [(text,) for text in texts] if pairs is None else list(zip(texts, pairs, strict=True))
        return [self._encode(group, add_special_tokens, offsets) for group in groups]

    def _encode(self, group: tuple[str, ...], add_special_tokens: bool, offsets: bool) -> Encoding:
        ids, special = list[int](), list[bool]()
        places = array("q"), array("q")
        for token_id, start, end, is_special in self.spans(group, add_special_tokens, offsets):
            ids.append(token_id)
            special.append(is_special)
            if offsets:
                places[0].append(start)
                places[1].append(end)
        located = Computed(len(ids), lambda index: (places[0][index], places[1][index]))
        return Encoding(ids=ids, type_ids=[0] * len(ids), special=special, offsets=located if offsets else [])

    @cached_property
    def special_texts(self) -> frozenset[str]:
        texts = map(self.id_to_token, self.special_ids)
        return frozenset(text for text in texts if text)

    def encode_marked(self, marked: MarkedText) -> list[int]:
        """Return the token ids of a text. The text is cut at its marks, so that marked special tokens are not found."""
        pieces = self.encode(marked.pieces(), add_special_tokens=False, offsets=False)
        return [index for piece in pieces for index in piece.ids]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        stream = self.stream(skip_special_tokens)
        return "".join([*map(stream.push, ids), stream.finish()])
