"""Marian's tokenizer: two SentencePiece models for the pieces, and a vocabulary beside them for the ids.

A text may begin with the token of its target language, `>>fra<<`, which stays whole. Every text ends with `</s>`.
Tiedemann and Thottingal 2020 (OPUS-MT).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor

from server.text.protobuf import protobuf_fields
from server.text.spelling import Spelling, spell_piece
from server.text.streams import Stripped, TextStep, clean_up, clean_up_steps
from server.text.tokenizer import Encoding, SpecialIds, TokenizerError
from server.text.tokenizer_files import TokenizerFiles, read_json
from server.text.whole_tokens import WholeTokens, added_tokens
from weights.resolve import file_in

_LANGUAGE_TOKEN = re.compile(r">>.*?<<", re.DOTALL)


class PieceTokenizer:
    """Pieces of a SentencePiece model, under the ids of a vocabulary beside it.

    source: the model that cuts source texts. speller: the one that spells answers. vocabulary: ids of the source's
    tokens. target: ids of the answer's tokens. special_gap: what stands in a text after a token that is none.
    """

    def __init__(
        self,
        source: Any,
        speller: Any,
        vocabulary: dict[str, int],
        target: dict[str, int],
        files: TokenizerFiles,
        special_gap: str,
    ) -> None:
        self._source, self._speller, self._vocabulary, self._gap = source, speller, vocabulary, special_gap
        self._tokens = {index: token for token, index in target.items()}
        self._added = added_tokens(files, self._vocabulary)
        self._tokens |= {index: token.content for index, token in self._added.items()}
        self._ids = {token.content: index for index, token in self._added.items()}
        self.special = SpecialIds(
            **{
                role: self._id(token.content)
                for role, token in files.roles.items()
                if self._id(token.content) is not None
            }
        )
        if self.special.unk is None or self.special.eos is None:
            raise TokenizerError("vocab.json holds no token for unknown pieces, or none for the end of a text")
        self._unk, self._eos = self.special.unk, self.special.eos
        roles = {token.content for token in (*files.roles.values(), *files.extra_special)}
        self._special_tokens = roles | {token.content for token in self._added.values() if token.special}
        self.special_ids = frozenset(index for index in map(self._id, self._special_tokens) if index is not None)
        by_spelling = {token.content: token for token in self._added.values()}
        self._whole_tokens = WholeTokens(self._special_tokens | set(self._ids), by_spelling)
        self.vocab_size = max(max(self._vocabulary.values()), *self._tokens, *self._ids.values()) + 1
        self.max_length = files.max_length
        self.marks_subwords = False
        self._clean_up = files.clean_up

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
        text_pieces = [piece for text in group for piece in self._split(text, offsets)]
        before, after = self._around() if add_special_tokens else ([], [])
        found = [*((token, 0, 0) for token in before), *text_pieces, *((token, 0, 0) for token in after)]
        ids = [self._id(token) for token, _, _ in found]
        return Encoding(
            ids=[self._unk if index is None else index for index in ids],
            type_ids=[0] * len(found),
            special=[True] * len(before) + [False] * len(text_pieces) + [True] * len(after),
            offsets=[(start, end) for _, start, end in found] if offsets else [],
            tokens=[token for token, _, _ in found] if offsets else [],
        )

    def _split(self, text: str, offsets: bool) -> Iterator[tuple[str, int, int]]:
        """(token, start, end) of a text: added tokens whole, the rest through SentencePiece."""
        for part, at, is_whole in self._whole_tokens.split(text):
            if is_whole:
                yield part, at, at + len(part)
            else:
                yield from self._plain(part, at, offsets)

    def _around(self) -> tuple[list[str], list[str]]:
        """Tokens before and after a text."""
        return [], [self._tokens.get(self._eos, "</s>")]

    def _plain(self, text: str, at: int, offsets: bool) -> Iterator[tuple[str, int, int]]:
        if text:
            for piece, start, end in _located_pieces(self._source, text) if offsets else _pieces(self._source, text):
                yield piece, at + start, at + end

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        text, segment = "", list[str]()
        for token_id in ids:
            token = self.id_to_token(token_id)
            if token is None or (skip_special_tokens and token_id in self.special_ids):
                continue
            if token in self._special_tokens:
                text += _spell(self._speller, segment) + token + self._gap
                segment = []
            else:
                segment.append(token)
        text = (text + _spell(self._speller, segment)).replace("▁", " ").strip()
        return clean_up(text) if self._clean_up else text

    def join(self, tokens: Sequence[str]) -> str:
        return _spell(self._speller, list(tokens)).replace("▁", " ").strip()

    def stream(self, skip_special_tokens: bool = True) -> _PieceStream:
        skipped = self.special_ids if skip_special_tokens else frozenset()
        steps: list[TextStep] = [Stripped(), *(clean_up_steps() if self._clean_up else ())]
        return _PieceStream(self, self._speller, self._special_tokens, skipped, steps, self._gap)

    def id_to_token(self, token_id: int) -> str | None:
        return self._tokens.get(token_id)

    def token_to_id(self, token: str) -> int | None:
        return self._id(token)

    @cached_property
    def spelling(self) -> Spelling:
        silent = self.special_ids | {self._unk}
        names = (None if index in silent else self.id_to_token(index) for index in range(self.vocab_size))
        return Spelling(tuple(b"" if name is None else spell_piece(name) for name in names), opens_with_space=True)

    def _id(self, token: str) -> int | None:
        return self._ids.get(token, self._vocabulary.get(token))


class MarianTokenizer(PieceTokenizer):
    """Source pieces through `source.spm`, ids by `vocab.json`; answers by `target_vocab.json` where there is one."""

    def __init__(self, directory: Path, files: TokenizerFiles) -> None:
        vocabulary = read_json(directory, "vocab.json")
        separate = bool(files.config.get("separate_vocabs", False))
        target = read_json(directory, "target_vocab.json") if separate else vocabulary
        if not vocabulary or not target:
            raise TokenizerError(f"{'target_vocab' if vocabulary else 'vocab'}.json is missing or empty")
        source = load_pieces(directory, "source.spm")
        # One vocabulary for both sides is spelled as the source model spells, as the reference implementation has it.
        speller = load_pieces(directory, "target.spm") if separate else source
        super().__init__(source, speller, vocabulary, target, files, special_gap=" ")

    def _plain(self, text: str, at: int, offsets: bool) -> Iterator[tuple[str, int, int]]:
        match = _LANGUAGE_TOKEN.match(text)
        if match is not None:
            yield match[0], at, at + match.end()
            text, at = text[match.end() :], at + match.end()
        yield from super()._plain(text, at, offsets)


class _PieceStream:
    """Spells a segment (the tokens between two special ones) with what came just before as an anchor.

    SentencePiece treats only the beginning of a segment in its own way, so once a piece has shown, spelling it again
    before the next one gives the next one's text.
    """

    def __init__(
        self,
        tokenizer: PieceTokenizer,
        speller: Any,
        special: set[str],
        skipped: frozenset[int],
        steps: Sequence[TextStep],
        gap: str,
    ) -> None:
        self._tokenizer, self._speller, self._special, self._skipped = tokenizer, speller, special, skipped
        self._steps, self._gap = steps, gap
        self._window: list[str] = []
        self._shown = ""

    def push(self, token_id: int) -> str:
        token = self._tokenizer.id_to_token(token_id)
        if token is None or token_id in self._skipped:
            return ""
        if token in self._special:
            text = self._rest() + token + self._gap
            self._window, self._shown = [], ""
        else:
            self._window.append(token)
            if self._is_byte(token):
                return ""  # a run of bytes is spelled together
            text = self._rest()
            if text:
                self._window = [token]
                self._shown = _spell(self._speller, self._window)
                if not self._shown:
                    self._window, self._shown = ["▁.", token], _spell(self._speller, ["▁.", token])
        return self._through(text.replace("▁", " "), 0)

    def finish(self) -> str:
        text = self._through(self._rest().replace("▁", " "), 0)
        for index, step in enumerate(self._steps):
            text += self._through(step.finish(), index + 1)
        return text

    def fork(self) -> _PieceStream:
        steps = deepcopy(self._steps)
        copy = _PieceStream(self._tokenizer, self._speller, self._special, self._skipped, steps, self._gap)
        copy._window, copy._shown = list(self._window), self._shown
        return copy

    def _rest(self) -> str:
        return _spell(self._speller, self._window)[len(self._shown) :]

    def _is_byte(self, token: str) -> bool:
        return bool(self._speller.IsByte(self._speller.PieceToId(token)))

    def _through(self, text: str, start: int) -> str:
        for step in self._steps[start:]:
            text = step.push(text) if text else ""
        return text


def _pieces(model: Any, text: str) -> Iterator[tuple[str, int, int]]:
    return ((piece, 0, 0) for piece in model.EncodeAsPieces(text))


def _located_pieces(model: Any, text: str) -> Iterator[tuple[str, int, int]]:
    """Pieces with where they begin and end, told in bytes (fields 1, 4 and 5 of each) and wanted in characters."""
    character_at, position = dict[int, int](), 0
    for index, character in enumerate(text):
        character_at[position] = index
        position += len(character.encode())
    character_at[position] = len(text)
    for field, value in protobuf_fields(model.encode(text, out_type="serialized_proto")):
        if field == 2 and isinstance(value, bytes):
            piece: dict[int, Any] = dict(protobuf_fields(value))
            yield piece[1].decode(), character_at[piece.get(4, 0)], character_at[piece.get(5, 0)]


def _spell(model: Any, pieces: list[str]) -> str:
    return str(model.DecodePieces(pieces)) if pieces else ""


def load_pieces(directory: Path, name: str) -> Any:
    """The SentencePiece model of a file. Raises TokenizerError where it is missing or damaged."""
    path = file_in(directory, name)
    if path is None:
        raise TokenizerError(f"{name} is missing")
    model = SentencePieceProcessor()
    try:
        model.LoadFromSerializedProto(path.read_bytes())
    except (RuntimeError, OSError):
        raise TokenizerError(f"{name} is damaged: not a SentencePiece model") from None
    return model
