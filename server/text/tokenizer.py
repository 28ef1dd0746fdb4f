"""Text to token ids and back: what every tokenizer of a checkpoint can do, and which one a directory needs.

Knows files and strings. Does not know models, requests or limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from server.text.spelling import Spelling
from server.text.streams import TokenStream
from weights.resolve import ResolveError, file_in


class TokenizerError(ValueError):
    """A checkpoint's tokenizer that cannot be loaded. One line, files by base name."""


@dataclass(frozen=True)
class Encoding:
    """One text, or pair of texts, as the model sees it. All lists have one entry per token.

    type_ids: 0 for the first text, 1 for the second where the family tells them apart.
    special: whether the token was added around the text, rather than found in it.
    offsets: (start, end) of each token in characters of the original text (of its own one, in a pair).
    tokens: the vocabulary's spelling of each token. Both empty when not asked for.
    words: the number of the word that each token is of, in its own text of a pair; None for special tokens. Empty when
        offsets were not asked for, and where the tokenizer does not cut at words first (Marian).
    sides: which text of a pair each token is of, 0 or 1; None for special tokens. Empty as `words` is.
    """

    ids: list[int]
    type_ids: list[int]
    special: list[bool]
    offsets: list[tuple[int, int]]
    tokens: list[str]
    words: list[int | None] = field(default_factory=list)
    sides: list[int | None] = field(default_factory=list)


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the tokens with a role; None where the checkpoint has none."""

    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    unk: int | None = None
    mask: int | None = None
    cls: int | None = None
    sep: int | None = None


class Tokenizer(Protocol):
    """A checkpoint's tokenizer. Immutable, safe to use from several threads at once."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""

    @property
    def special(self) -> SpecialIds: ...

    @property
    def special_ids(self) -> frozenset[int]:
        """All ids that `skip_special_tokens` leaves out."""

    @property
    def max_length(self) -> int | None:
        """Most tokens the tokenizer's own files allow, special ones included; None where they set no sane limit."""

    def encode(
        self,
        texts: Sequence[str],
        *,
        pairs: Sequence[str] | None = None,
        add_special_tokens: bool = True,
        offsets: bool = True,
    ) -> list[Encoding]:
        """Token ids of each text, of `(texts[i], pairs[i])` with `pairs`. Never truncated, never padded.

        offsets: whether `Encoding.offsets` and `Encoding.tokens` are wanted; without them it is faster.
        """

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence. Ids outside of the vocabulary are left out."""

    def stream(self, skip_special_tokens: bool = True) -> TokenStream:
        """The same text piece by piece: all that the stream gives, joined, equals `decode`."""

    @property
    def spelling(self) -> Spelling:
        """What each token adds to a text, in bytes. Raises NoSpelling where that depends on other tokens."""

    @property
    def marks_subwords(self) -> bool:
        """Whether a token's spelling says that it goes on with a word (WordPiece's `##`)."""

    def join(self, tokens: Sequence[str]) -> str:
        """The text that tokens spell, as it is: none is special, nothing is cleaned up."""

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's spelling of a token; None outside of the vocabulary."""

    def token_to_id(self, token: str) -> int | None:
        """The id of a token by the vocabulary's spelling; None when there is none."""


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a checkpoint directory, from `tokenizer.json` or from older files.

    Raises TokenizerError when there is none, when a file of it is damaged, or when it is of a kind not supported.
    """
    from server.text.blenderbot_small import BlenderbotSmallTokenizer
    from server.text.byt5 import ByT5Tokenizer
    from server.text.fast import FastTokenizer
    from server.text.m2m_100 import M2M100Tokenizer
    from server.text.marian import MarianTokenizer
    from server.text.tokenizer_files import read_tokenizer_files
    from server.text.vocabularies import build_backend

    try:
        files = read_tokenizer_files(directory)
        if file_in(directory, "source.spm") is not None:
            return MarianTokenizer(directory, files)
        if files.kind == "m2m100" and file_in(directory, "tokenizer.json") is None:
            return M2M100Tokenizer(directory, files)
        if files.kind == "byt5" and file_in(directory, "tokenizer.json") is None:
            return ByT5Tokenizer(files)
        if files.kind == "blenderbot-small" and file_in(directory, "tokenizer.json") is None:
            return BlenderbotSmallTokenizer(directory, files)
        return FastTokenizer(build_backend(directory, files), files)
    except ResolveError as error:
        raise TokenizerError(str(error)) from None
