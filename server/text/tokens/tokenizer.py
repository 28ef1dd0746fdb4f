"""The protocol that all tokenizers implement, with its result and error types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from server.text.tokens.marked_text import MarkedText
from server.text.tokens.streams import TokenStream
from server.text.tokens.token_bound import TokenBound
from server.text.tokens.token_bytes import TokenBytes


class TokenizerError(ValueError):
    """The tokenizer of a checkpoint cannot be loaded. The message is one line and names files without directories."""


@dataclass(frozen=True)
class Encoding:
    """The tokens of one text, or of a pair of texts. All sequences have one entry per token.

    ids: token ids.
    type_ids: token type: 1 for the second text of a pair where the family distinguishes the two, else 0.
    special: True for a token that was added around the text, and False for a token found in the text.
    offsets: (start, end) of each token in its text, as character indices. Empty if offsets were not requested.
    words: index of each token's word in its text; None for special tokens. Empty if offsets were not requested, and
        for tokenizers that do not split at words (Marian).
    sides: index (0 or 1) of the text in the pair to which each token belongs; None for special tokens. Empty if `words`
        is empty.
    """

    ids: list[int]
    type_ids: list[int]
    special: list[bool]
    offsets: Sequence[tuple[int, int]]
    words: list[int | None] = field(default_factory=list)
    sides: list[int | None] = field(default_factory=list)


@dataclass(frozen=True)
class SpecialIds:
    """Token ids of the special tokens by role; None if the checkpoint has no such token."""

    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    unk: int | None = None
    mask: int | None = None
    cls: int | None = None
    sep: int | None = None


class Tokenizer(Protocol):
    """The tokenizer of a checkpoint. Immutable, safe to use from several threads."""

    @property
    def vocab_size(self) -> int:
        """Highest token id plus one."""

    @property
    def special(self) -> SpecialIds: ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of all special tokens, which `skip_special_tokens` leaves out of decoded text."""

    @property
    def max_length(self) -> int | None:
        """Most tokens of a text that the tokenizer's files allow, with special tokens; None for no limit."""

    @property
    def token_bound(self) -> TokenBound:
        """Callable that returns an upper bound on the number of tokens of a text, without tokenizing the text."""

    def encode(
        self,
        texts: Sequence[str],
        *,
        pairs: Sequence[str] | None = None,
        add_special_tokens: bool = True,
        offsets: bool = True,
    ) -> list[Encoding]:
        """Tokenize texts. Does not truncate or pad.

        texts: texts, or the first texts of pairs.
        pairs: second text of each pair.
        add_special_tokens: whether to add the special tokens of the family around each text.
        offsets: whether to fill `Encoding.offsets`, `words` and `sides`. Without them encoding is faster.
        """

    @property
    def special_texts(self) -> frozenset[str]:
        """The texts of all special tokens."""

    def encode_marked(self, marked: MarkedText) -> list[int]:
        """Return the token ids of a text, without special tokens around it.

        Special tokens in the text that have a mark are read as ordinary text.
        """

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids. Ids outside the vocabulary are skipped."""

    def stream(self, skip_special_tokens: bool = True) -> TokenStream:
        """Create an incremental decoder, which takes one token at a time. Its concatenated text equals `decode`."""

    @property
    def token_bytes(self) -> TokenBytes:
        """The bytes that each token adds to a text. Raises NoTokenBytes if they depend on other tokens."""

    @property
    def marks_subwords(self) -> bool:
        """Whether tokens that continue a word are marked (`##` of WordPiece)."""

    def join(self, tokens: Sequence[str]) -> str:
        """Join tokens (vocabulary entries) to text. Special tokens are kept, and `clean_up` is not applied."""

    def id_to_token(self, token_id: int) -> str | None:
        """Return the token (vocabulary entry) with an id; None outside the vocabulary."""

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token (vocabulary entry); None if there is no such token."""
