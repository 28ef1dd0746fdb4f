"""ByT5's tokenizer, which has no files: every byte of a text is a token, behind three special ones.

Xue et al. 2022, arXiv:2105.13626.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property

from tokenizers import AddedToken

from server.text.spelling import Spelling
from server.text.tokenizer import Encoding, SpecialIds, TokenizerError
from server.text.tokenizer_files import TokenizerFiles
from server.text.whole_tokens import WholeTokens

_FIRST_BYTE, _FIRST_SENTINEL = 3, 259
_EOS, _UNK = 1, 2


class ByT5Tokenizer:
    """`<pad>`, `</s>`, `<unk>`, the bytes, and the sentinels `<extra_id_0>`... behind them. A text ends with `</s>`."""

    def __init__(self, files: TokenizerFiles) -> None:
        sentinels = files.config.get("extra_ids", 125) or len(files.extra_special)
        if not isinstance(sentinels, int) or files.clean_up:
            raise TokenizerError("tokenizer_config.json: this is no tokenizer of ByT5")
        first = [files.roles[role].content for role in ("pad", "eos", "unk")]
        self._special = dict(zip(first, range(3), strict=True))
        self._special |= {f"<extra_id_{index}>": _FIRST_SENTINEL + index for index in range(sentinels)}
        self._names = {index: token for token, index in self._special.items()}
        self._whole = WholeTokens(
            self._special, {token: AddedToken(token, lstrip=True, rstrip=True) for token in first}
        )
        self.special_ids = frozenset(self._names)
        self.special = SpecialIds(pad=0, eos=_EOS, unk=_UNK)
        self.vocab_size = _FIRST_SENTINEL + sentinels
        self.max_length = files.max_length
        self.marks_subwords = False

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
        found: list[tuple[int, int, int]] = []
        special: list[bool] = []
        for text in group:
            mine = list(self._read(text))
            # One end token is enough, also where the text brings it.
            ends = [(_EOS, 0, 0)] if add_special_tokens and not (mine and mine[-1][0] == _EOS) else []
            found += [*mine, *ends]
            special += [*(False for _ in mine), *(True for _ in ends)]
        return Encoding(
            ids=[token_id for token_id, _, _ in found],
            type_ids=[0] * len(found),
            special=special,
            offsets=[(start, end) for _, start, end in found] if offsets else [],
            tokens=[self.id_to_token(token_id) or "" for token_id, _, _ in found] if offsets else [],
        )

    def _read(self, text: str) -> Iterator[tuple[int, int, int]]:
        """(token id, start, end) of each byte, in characters."""
        for part, at, is_whole in self._whole.split(text):
            if is_whole:
                yield self._special[part], at, at + len(part)
            else:
                for index, character in enumerate(part):
                    for byte in character.encode():
                        yield byte + _FIRST_BYTE, at + index, at + index + 1

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        stream = self.stream(skip_special_tokens)
        return "".join([*map(stream.push, ids), stream.finish()])

    def stream(self, skip_special_tokens: bool = True) -> _ByteStream:
        return _ByteStream(self._names, self.special_ids if skip_special_tokens else frozenset())

    def join(self, tokens: Sequence[str]) -> str:
        return self.decode([index for token in tokens if (index := self.token_to_id(token)) is not None], False)

    @cached_property
    def spelling(self) -> Spelling:
        single = [bytes([byte]) for byte in range(256)]
        rest = self.vocab_size - _FIRST_SENTINEL
        return Spelling((*[b""] * _FIRST_BYTE, *single, *[b""] * rest), opens_with_space=False)

    def id_to_token(self, token_id: int) -> str | None:
        if _FIRST_BYTE <= token_id < _FIRST_SENTINEL:
            return chr(token_id - _FIRST_BYTE)
        return self._names.get(token_id)

    def token_to_id(self, token: str) -> int | None:
        if len(token) == 1 and ord(token) < 256:
            return ord(token) + _FIRST_BYTE
        return self._special.get(token)


class _ByteStream:
    """Characters as soon as their last byte is there; bytes that make none are left out."""

    def __init__(self, names: dict[int, str], skipped: frozenset[int]) -> None:
        self._names, self._skipped = names, skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        if _FIRST_BYTE <= token_id < _FIRST_SENTINEL:
            return self._decoder.decode(bytes([token_id - _FIRST_BYTE]))
        return self._decoder.decode(self._names.get(token_id, "").encode())

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)

    def fork(self) -> _ByteStream:
        other = copy(self)
        other._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        other._decoder.setstate(self._decoder.getstate())
        return other
