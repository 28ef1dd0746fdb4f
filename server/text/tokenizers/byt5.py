"""The tokenizer of ByT5, which has no vocabulary file: each byte of a text is a token.

Source: Xue et al. 2022, arXiv:2105.13626.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property

from tokenizers import AddedToken

from server.text.tokenizers.added_tokens import AddedTokenSplitter
from server.text.tokenizers.python_tokenizer import PythonTokenizer, TokenSpan
from server.text.tokenizers.tokenizer_files import TokenizerFiles
from server.text.tokens.token_bound import BYTES
from server.text.tokens.token_bytes import TokenBytes
from server.text.tokens.tokenizer import SpecialIds, TokenizerError

_FIRST_BYTE, _FIRST_SENTINEL = 3, 259
_EOS, _UNK = 1, 2


class ByT5Tokenizer(PythonTokenizer):
    """Tokenizer with one token per byte. A text ends with `</s>`.

    Order of the ids: `<pad>`, `</s>`, `<unk>`, the 256 bytes, then the sentinels `<extra_id_0>`, `<extra_id_1>`...
    Raises TokenizerError for settings that do not describe a ByT5 tokenizer.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        sentinels = files.config.get("extra_ids", 125) or len(files.extra_special)
        if not isinstance(sentinels, int) or files.clean_up:
            raise TokenizerError("tokenizer_config.json does not describe a ByT5 tokenizer")
        first = [files.roles[role].content for role in ("pad", "eos", "unk")]
        self._added_ids = dict(zip(first, range(3), strict=True))
        self._added_ids |= {f"<extra_id_{index}>": _FIRST_SENTINEL + index for index in range(sentinels)}
        self._added_tokens = {index: token for token, index in self._added_ids.items()}
        settings = {token: AddedToken(token, lstrip=True, rstrip=True) for token in first}
        self._splitter = AddedTokenSplitter(self._added_ids, settings)
        self.special_ids = frozenset(self._added_tokens)
        self.special = SpecialIds(pad=0, eos=_EOS, unk=_UNK)
        self.vocab_size = _FIRST_SENTINEL + sentinels
        self.token_bound = BYTES
        self.max_length = files.max_length

    def spans(self, group: tuple[str, ...], add_special_tokens: bool, offsets: bool) -> Iterator[TokenSpan]:
        for text in group:
            token_id = None
            for token_id, start, end in self._read(text):
                yield TokenSpan(token_id, start, end)
            # No second `</s>` after a text that ends with one.
            if add_special_tokens and token_id != _EOS:
                yield TokenSpan(_EOS, special=True)

    def _read(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yield (token id, start, end) of each byte or added token; start and end are character indices."""
        for part, at, is_added in self._splitter.split(text):
            if is_added:
                yield self._added_ids[part], at, at + len(part)
            else:
                for index, character in enumerate(part):
                    for byte in character.encode():
                        yield byte + _FIRST_BYTE, at + index, at + index + 1

    def stream(self, skip_special_tokens: bool = True) -> ByteStream:
        return ByteStream(self._added_tokens, self.special_ids if skip_special_tokens else frozenset())

    def join(self, tokens: Sequence[str]) -> str:
        return self.decode([index for token in tokens if (index := self.token_to_id(token)) is not None], False)

    @cached_property
    def token_bytes(self) -> TokenBytes:
        single = [bytes([byte]) for byte in range(256)]
        sentinels = self.vocab_size - _FIRST_SENTINEL
        return TokenBytes((*[b""] * _FIRST_BYTE, *single, *[b""] * sentinels), opens_with_space=False)

    def id_to_token(self, token_id: int) -> str | None:
        if _FIRST_BYTE <= token_id < _FIRST_SENTINEL:
            return chr(token_id - _FIRST_BYTE)
        return self._added_tokens.get(token_id)

    def token_to_id(self, token: str) -> int | None:
        if len(token) == 1 and ord(token) < 256:
            return ord(token) + _FIRST_BYTE
        return self._added_ids.get(token)


class ByteStream:
    """Incremental decoder of byte tokens. Implements `TokenStream`.

    Returns a character as soon as its bytes are complete. Invalid bytes are skipped.

    added_tokens: text of the tokens that are not bytes, by id.
    skipped: ids of tokens that add no text.
    """

    def __init__(self, added_tokens: dict[int, str], skipped: frozenset[int]) -> None:
        self._added_tokens, self._skipped = added_tokens, skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        if _FIRST_BYTE <= token_id < _FIRST_SENTINEL:
            return self._decoder.decode(bytes([token_id - _FIRST_BYTE]))
        return self._decoder.decode(self._added_tokens.get(token_id, "").encode())

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)

    def fork(self) -> ByteStream:
        other = copy(self)
        other._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        other._decoder.setstate(self._decoder.getstate())
        return other
