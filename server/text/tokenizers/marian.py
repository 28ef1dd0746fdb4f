"""The tokenizer of Marian: SentencePiece models split and join texts, and a separate vocabulary has the token ids.

A source text may begin with the token of the target language, such as `>>fra<<`. Every text ends with `</s>`.
Source: Tiedemann and Thottingal 2020 (OPUS-MT).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from sentencepiece import SentencePieceProcessor

from server.text.tokenizers.added_tokens import AddedTokenSplitter, added_tokens_by_id
from server.text.tokenizers.bounds import read_bounded
from server.text.tokenizers.protobuf import protobuf_fields
from server.text.tokenizers.python_tokenizer import PythonTokenizer, TokenSpan
from server.text.tokenizers.tokenizer_files import TokenizerFiles, read_vocabulary
from server.text.tokens.lock_pauses import pause
from server.text.tokens.streams import DecoderChain, StripWhitespace, TokenStream, clean_up, clean_up_steps
from server.text.tokens.token_bound import bound_of_pieces
from server.text.tokens.token_bytes import TokenBytes, bytes_of_piece
from server.text.tokens.tokenizer import SpecialIds, TokenizerError
from weights.resolve import file_in

_LANGUAGE_TOKEN = re.compile(r">>.*?<<", re.DOTALL)
MAX_KNOWN = 1 << 14
"""Most decoded pieces that a tokenizer remembers, some 5 MB."""
Decoded = tuple[str, tuple[str, ...], str]
"""A decoded piece: the text that it adds, and `_window` and `_shown` of a `PieceStream` after it."""


class PieceTokenizer(PythonTokenizer):
    """Tokenizer that splits texts with a SentencePiece model and takes the ids from a separate vocabulary.

    source: SentencePiece model that splits texts into pieces.
    target: SentencePiece model that joins pieces to text.
    vocabulary: token ids for source texts, by token.
    target_vocabulary: token ids for completions, by token.
    gap: text to insert after a special token when decoding.
    Raises TokenizerError for a vocabulary without an unknown token or an end token.
    """

    def __init__(
        self,
        source: Any,
        target: Any,
        vocabulary: dict[str, int],
        target_vocabulary: dict[str, int],
        files: TokenizerFiles,
        gap: str,
    ) -> None:
        self._source, self._target, self._vocabulary, self._gap = source, target, vocabulary, gap
        added = added_tokens_by_id(files, vocabulary)
        self._tokens = {index: token for token, index in target_vocabulary.items()}
        self._tokens |= {index: token.content for index, token in added.items()}
        self._added_ids = {token.content: index for index, token in added.items()}
        roles = {role: self.token_to_id(token.content) for role, token in files.roles.items()}
        self.special = SpecialIds(**{role: index for role, index in roles.items() if index is not None})
        if self.special.unk is None or self.special.eos is None:
            raise TokenizerError("vocab.json has no unknown token (unk_token) or no end token (eos_token)")
        self._unk, self._eos = self.special.unk, self.special.eos
        self._special_tokens = {token.content for token in (*files.roles.values(), *files.extra_special)}
        self._special_tokens |= {token.content for token in added.values() if token.special}
        found = map(self.token_to_id, self._special_tokens)
        self.special_ids = frozenset(index for index in found if index is not None)
        settings = {token.content: token for token in added.values()}
        self._splitter = AddedTokenSplitter(self._special_tokens | set(self._added_ids), settings)
        self.vocab_size = max(max(vocabulary.values()), *self._tokens, *added) + 1
        self.token_bound = bound_of_pieces(self._special_tokens | set(self._added_ids))
        self.max_length = files.max_length
        self._clean_up = files.clean_up
        self._known: dict[tuple[str, ...], Decoded] = {}

    def spans(self, group: tuple[str, ...], add_special_tokens: bool, offsets: bool) -> Iterator[TokenSpan]:
        before, after = self._around() if add_special_tokens else ([], [])
        yield from (TokenSpan(self._known_id(token), special=True) for token in before)
        for text in group:
            for part, at, is_added in self._splitter.split(text):
                pieces = [(part, 0, len(part))] if is_added else self._pieces(part, offsets)
                for token, start, end in pieces:
                    yield TokenSpan(self._known_id(token), at + start, at + end)
        yield from (TokenSpan(self._known_id(token), special=True) for token in after)

    def _around(self) -> tuple[list[str], list[str]]:
        """The special tokens to add before and after a text."""
        return [], [self._tokens.get(self._eos, "</s>")]

    def _pieces(self, text: str, offsets: bool) -> Iterator[tuple[str, int, int]]:
        """Yield (piece, start, end) of a text without added tokens.

        start, end: character indices in the text; 0 if `offsets` is False.
        """
        if text:
            yield from _located_pieces(self._source, text) if offsets else _unlocated_pieces(self._source, text)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        skipped = self.special_ids if skip_special_tokens else frozenset[int]()
        tokens = (self.id_to_token(token_id) for token_id in ids if token_id not in skipped)
        text = self.join([token for token in tokens if token is not None])
        return clean_up(text) if self._clean_up else text

    def join(self, tokens: Sequence[str]) -> str:
        text, segment = "", list[str]()
        for token in tokens:
            if token in self._special_tokens:
                text += _join_pieces(self._target, segment) + token + self._gap
                segment = []
            else:
                segment.append(token)
        return (text + _join_pieces(self._target, segment)).replace("▁", " ").strip()

    def stream(self, skip_special_tokens: bool = True) -> TokenStream:
        skipped = self.special_ids if skip_special_tokens else frozenset()
        steps = DecoderChain([], [StripWhitespace(), *(clean_up_steps() if self._clean_up else ())])
        known = self._known
        return PieceStream(self._target, self._tokens, self._special_tokens, skipped, self._gap, steps, known)

    def id_to_token(self, token_id: int) -> str | None:
        return self._tokens.get(token_id)

    def token_to_id(self, token: str) -> int | None:
        return self._added_ids.get(token, self._vocabulary.get(token))

    def _known_id(self, token: str) -> int:
        token_id = self.token_to_id(token)
        return self._unk if token_id is None else token_id

    @cached_property
    def token_bytes(self) -> TokenBytes:
        silent = self.special_ids | {self._unk}
        tokens = (None if index in silent else self.id_to_token(index) for index in range(self.vocab_size))
        return TokenBytes(
            tuple(b"" if token is None else bytes_of_piece(token) for token in tokens), opens_with_space=True
        )


class MarianTokenizer(PieceTokenizer):
    """Tokenizer of a Marian checkpoint.

    Reads `source.spm` and `vocab.json`. With the setting `separate_vocabs`, it also reads `target.spm` and
    `target_vocab.json`. Raises TokenizerError for a missing or damaged file.
    """

    def __init__(self, directory: Path, files: TokenizerFiles) -> None:
        vocabulary = read_vocabulary(directory, "vocab.json")
        separate = bool(files.config.get("separate_vocabs", False))
        target_vocabulary = read_vocabulary(directory, "target_vocab.json") if separate else vocabulary
        source = load_pieces(directory, "source.spm")
        # With one vocabulary for both sides, transformers decodes with the source model.
        target = load_pieces(directory, "target.spm") if separate else source
        super().__init__(source, target, vocabulary, target_vocabulary, files, gap=" ")

    def _pieces(self, text: str, offsets: bool) -> Iterator[tuple[str, int, int]]:
        match = _LANGUAGE_TOKEN.match(text)
        end = match.end() if match is not None else 0
        if match is not None:
            yield match[0], 0, end
        for piece, first, last in super()._pieces(text[end:], offsets):
            yield piece, end + first, end + last


class PieceStream:
    """Incremental decoder of SentencePiece pieces. Implements `TokenStream`.

    A segment is the pieces between two special tokens. SentencePiece drops the space at the beginning of a segment. The
    text of a later piece is therefore found by joining the pieces before it with and without the piece.

    target: SentencePiece model that joins pieces to text.
    tokens: token by id.
    special: the tokens that separate segments.
    skipped: ids of tokens that add no text.
    gap: text to insert after a special token.
    steps: steps that change the joined text, such as stripping white space.
    known: pieces that streams of this tokenizer have decoded, by the window before a piece and the piece. Joining two
        pieces takes ten times as long as looking up the result.
    """

    def __init__(
        self,
        target: Any,
        tokens: Mapping[int, str],
        special: Collection[str],
        skipped: frozenset[int],
        gap: str,
        steps: DecoderChain,
        known: dict[tuple[str, ...], Decoded],
    ) -> None:
        self._target, self._tokens, self._special, self._skipped = target, tokens, special, skipped
        self._gap, self._steps, self._known = gap, steps, known
        self._window: tuple[str, ...] = ()
        self._shown = ""
        # Whether `_shown` is the text of the window, so that the window alone decides what the next piece adds.
        self._is_settled = True

    def push(self, token_id: int) -> str:
        token = self._tokens.get(token_id)
        if token is None or token_id in self._skipped:
            return ""
        if token in self._special:
            text = self._rest() + token + self._gap
            self._window, self._shown, self._is_settled = (), "", True
        else:
            key = (*self._window, token) if self._is_settled else ()
            if found := self._known.get(key):
                text, self._window, self._shown = found
                return self._steps.push(text)
            self._window = (*self._window, token)
            self._is_settled = False
            if self._is_byte(token):
                return ""  # hold back: a run of byte tokens is decoded as a whole
            text = self._rest()
            if text:
                self._window = (token,)
                self._shown = _join_pieces(self._target, self._window)
                if not self._shown:
                    self._window = ("▁.", token)
                    self._shown = _join_pieces(self._target, self._window)
                self._is_settled = True
                if key:
                    _remember(self._known, key, (text.replace("▁", " "), self._window, self._shown))
        return self._steps.push(text.replace("▁", " "))

    def finish(self) -> str:
        return self._steps.push(self._rest().replace("▁", " ")) + self._steps.finish()

    def fork(self) -> PieceStream:
        steps = self._steps.fork()
        other = PieceStream(self._target, self._tokens, self._special, self._skipped, self._gap, steps, self._known)
        other._window, other._shown, other._is_settled = self._window, self._shown, self._is_settled
        return other

    def _rest(self) -> str:
        """Text of the pieces in the window that `push` has not returned yet."""
        return _join_pieces(self._target, self._window)[len(self._shown) :]

    def _is_byte(self, token: str) -> bool:
        return bool(self._target.IsByte(self._target.PieceToId(token)))


def _unlocated_pieces(model: Any, text: str) -> Iterator[tuple[str, int, int]]:
    pause()
    return ((piece, 0, 0) for piece in model.EncodeAsPieces(text))


def _located_pieces(model: Any, text: str) -> Iterator[tuple[str, int, int]]:
    """Yield (piece, start, end) of a text; start and end are character indices.

    SentencePiece reports byte indices. Its result has the piece, start and end in the protobuf fields 1, 4 and 5. If
    the pieces spell a space and the text, they are located without reading that result, which takes five times as long.
    """
    pause()
    pieces = model.EncodeAsPieces(text)
    if "▁" not in text and "".join(pieces).replace("▁", " ") == f" {text}":
        at = -1  # the first piece begins with a space that is not in the text
        for piece in pieces:
            yield piece, max(at, 0), at + len(piece)
            at += len(piece)
        return
    begins = (np.frombuffer(text.encode(), np.uint8) & 0xC0) != 0x80  # bytes that begin a character in UTF-8
    character_at = array("q", (np.cumsum(begins) - 1).tobytes())
    character_at.append(len(text))
    # For 390,000 tokens the call for lists holds Python's global lock for 6 ms, the call for one text for 36 ms.
    (proto,) = model.encode([text], out_type="serialized_proto", num_threads=1)
    for field, value in protobuf_fields(proto):
        if field == 2 and isinstance(value, bytes):
            fields: dict[int, Any] = dict(protobuf_fields(value))
            yield fields[1].decode(), character_at[fields.get(4, 0)], character_at[fields.get(5, 0)]


def _remember(known: dict[tuple[str, ...], Decoded], key: tuple[str, ...], decoded: Decoded) -> None:
    """Add a decoded piece to those that are known. A full dictionary is emptied first."""
    if len(known) >= MAX_KNOWN:
        known.clear()
    known[key] = decoded


def _join_pieces(model: Any, pieces: Sequence[str]) -> str:
    pause()
    return str(model.DecodePieces(list(pieces))) if pieces else ""


def load_pieces(directory: Path, name: str) -> Any:
    """Load the SentencePiece model in the file `name`. Raises TokenizerError for a missing or damaged file."""
    path = file_in(directory, name)
    if path is None:
        raise TokenizerError(f"{name} is missing")
    model = SentencePieceProcessor()
    try:
        model.LoadFromSerializedProto(read_bounded(path))
    except (RuntimeError, OSError):
        raise TokenizerError(f"{name} is damaged: not a SentencePiece model") from None
    return model
