"""Read a SentencePiece model file: its pieces, and how it treats white space and unknown characters.

Source: Kudo and Richardson 2018, arXiv:1808.06226. The file is a protocol buffer, described by
sentencepiece_model.proto of https://github.com/google/sentencepiece.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tokenizers import AddedToken, normalizers

from server.text.tokenizers.bounds import (
    MAX_ADDED_TOKENS,
    MAX_ENTRIES,
    MAX_ENTRY,
    MAX_MERGED_CHARACTERS,
    MAX_PAIR_CHARACTERS,
    check,
    check_entries,
)
from server.text.tokenizers.components import check_character_map
from server.text.tokenizers.protobuf import count_messages, protobuf_fields
from server.text.tokens.tokenizer import TokenizerError

UNIGRAM, BPE, CHARACTERS = 1, 2, 4
"""Values of `model_type`; 3 is a model of whole words."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Values of a piece's `type` in the file."""

_MAX_MESSAGE = {1: 4 * MAX_ENTRY + 64, 2: 4 << 20, 3: 4 << 20}
"""Most bytes of a message in the file, by its field number. Other fields are not read.

Field 1 is a piece, 2 the settings of the trainer, and 3 those of the normalizer. Published settings have 300 KB.
"""

Pieces = Sequence[tuple[str, float]]
"""A vocabulary in the order of the ids: (text, log-probability) of each piece."""


@dataclass(frozen=True)
class SentencePieceModel:
    """The content of a SentencePiece model file.

    file: name of the file.
    pieces: (text, score) of each piece, by id.
    kinds: kind of each piece (`NORMAL`, `UNKNOWN`...), by id.
    charsmap: character map of the normalizer; empty if the normalizer has no map.
    model_type: `UNIGRAM`, `BPE` or `CHARACTERS`; another value for a model of whole words.
    add_dummy_prefix: whether a space is added before each text.
    remove_extra_whitespaces: whether spaces at both ends of a text are removed, and runs of spaces become one space.
    byte_fallback: whether an unknown character becomes one piece for each of its bytes.
    """

    file: str
    pieces: Pieces
    kinds: Sequence[int]
    charsmap: bytes = b""
    model_type: int = UNIGRAM
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    byte_fallback: bool = False

    @classmethod
    def read(cls, content: bytes, file: str) -> SentencePieceModel:
        """Parse a SentencePiece model file. file: its name, for error messages.

        Raises TokenizerError for a file without pieces, above a limit or with a setting that is not supported, and
        ValueError or IndexError for a damaged file.
        """
        check(count_messages(content, MAX_ENTRIES), MAX_ENTRIES, "or more pieces", file)
        pieces: list[tuple[str, float]] = []
        kinds: list[int] = []
        trainer: dict[int, bytes | int] = {}
        normalizer: dict[int, bytes | int] = {}
        for field, value in protobuf_fields(content):
            if isinstance(value, int) or field not in _MAX_MESSAGE:
                continue
            check(len(value), _MAX_MESSAGE[field], f"bytes in a message of type {field}", file)
            parts = dict(protobuf_fields(value))
            if field == 1:
                text, score = _raw(parts[1]).decode(), parts.get(2)
                pieces.append((text, struct.unpack("<f", score)[0] if isinstance(score, bytes) else 0.0))
                kinds.append(int(parts.get(3, NORMAL)))
            elif field == 2:
                trainer |= parts
            elif field == 3:
                normalizer |= parts
        if not pieces:
            raise TokenizerError(f"{file} contains no pieces")
        check_entries((text for text, _ in pieces), file)
        added = sum(kind in (CONTROL, USER_DEFINED) for kind in kinds)
        check(added, MAX_ADDED_TOKENS, "control and user-defined pieces", file)
        if not all(math.isfinite(score) for _, score in pieces):
            raise TokenizerError(f"{file} has scores that are not finite")
        charsmap = _raw(normalizer.get(2, b""))
        check_character_map(charsmap, file)
        if trainer.get(24) or normalizer.get(5, 1) == 0:
            setting = "treat_whitespace_as_suffix" if trainer.get(24) else "escape_whitespaces: false"
            raise TokenizerError(f"{file} has the setting {setting}, which is not supported")
        return cls(
            file,
            pieces,
            kinds,
            charsmap=charsmap,
            model_type=int(trainer.get(3, UNIGRAM)),
            add_dummy_prefix=normalizer.get(3, 1) != 0,
            remove_extra_whitespaces=normalizer.get(4, 1) != 0,
            byte_fallback=trainer.get(35, 0) != 0,
        )

    @property
    def texts(self) -> list[str]:
        return [text for text, _ in self.pieces]

    @property
    def has_usual_settings(self) -> bool:
        """Whether a text gets a space before it, extra spaces are removed, and unknown characters are one token."""
        return self.add_dummy_prefix and self.remove_extra_whitespaces and not self.byte_fallback

    @property
    def symbols(self) -> list[str]:
        """Texts of the user-defined symbols, which are never split and never part of another piece."""
        return [text for text, kind in zip(self.texts, self.kinds, strict=True) if kind == USER_DEFINED]

    @property
    def control(self) -> list[AddedToken]:
        """The control symbols (such as `<s>`), as special tokens."""
        return [
            AddedToken(text, normalized=False, special=True)
            for text, kind in zip(self.texts, self.kinds, strict=True)
            if kind == CONTROL
        ]

    def renamed(self, names: Mapping[int, str]) -> SentencePieceModel:
        """Return a copy of the model with other texts for some pieces, which become user-defined symbols.

        Published files reserve pieces, and JSON files then give them names.

        names: new text, by id. Ids outside the model and texts that it has already are ignored.
        """
        known = set(self.texts)
        new = {index: name for index, name in names.items() if 0 <= index < len(self.pieces) and name not in known}
        pieces = [(new.get(index, text), score) for index, (text, score) in enumerate(self.pieces)]
        kinds = [USER_DEFINED if index in new else kind for index, kind in enumerate(self.kinds)]
        return replace(self, pieces=pieces, kinds=kinds)

    def merges(self) -> list[tuple[str, str]]:
        """Return all pairs of pieces that together are a piece, in the order in which BPE merges them.

        Pairs whose piece has the highest score come first. Raises TokenizerError if the pieces or their pairs have too
        many characters.
        """
        check(sum(map(len, self.texts)), MAX_MERGED_CHARACTERS, "characters in its pieces", self.file)
        check_entries(self.texts, self.file)
        mergeable = [
            piece for piece, kind in zip(self.pieces, self.kinds, strict=True) if kind in (NORMAL, UNUSED, USER_DEFINED)
        ]
        by_score = sorted(mergeable, key=lambda piece: -piece[1])
        rank = {text: index for index, (text, _) in enumerate(by_score)}
        found = []
        characters = 0
        for text, index in rank.items():
            for cut in range(1, len(text)):
                left, right = text[:cut], text[cut:]
                if left in rank and right in rank:
                    found.append((index, cut, left, right))
                    characters += len(text)
            check(characters, MAX_PAIR_CHARACTERS, "or more characters in the pairs of its pieces", self.file)
        return [(left, right) for _, _, left, right in sorted(found)]

    def normalizers(self) -> list[normalizers.Normalizer]:
        return [normalizers.Precompiled(self.charsmap)] if self.charsmap else []


def _raw(value: bytes | int) -> bytes:
    """Return the bytes of a text field. Raises ValueError for an integer, which `bytes` would take for a length."""
    if isinstance(value, int):
        raise ValueError("a number in the place of a text")
    return value
