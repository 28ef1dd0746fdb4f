"""Tokenizers that the `tokenizers` library runs.

Texts are encoded with the library's batch calls, which release Python's global lock, so that a long text does not block
other threads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property

from tokenizers import AddedToken, models, normalizers
from tokenizers import Encoding as LibraryEncoding
from tokenizers import Tokenizer as LibraryTokenizer

from server.text.tokenizers.added_tokens import add_in_order
from server.text.tokenizers.bounds import (
    MAX_ADDED_BYTES,
    MAX_ADDED_TOKENS,
    MAX_ENTRIES,
    MAX_ENTRY,
    MAX_IDS,
    MAX_UNIGRAM_ENTRY,
    check,
    check_entries,
)
from server.text.tokenizers.fairseq import DEFAULT_SOURCE, set_source_language
from server.text.tokenizers.marked_tokens import MarkedTokens
from server.text.tokenizers.tokenizer_files import TokenizerFiles
from server.text.tokens.computed import Computed
from server.text.tokens.library_calls import LibraryCalls
from server.text.tokens.marked_text import MarkedText
from server.text.tokens.streams import UnknownDecoder, VocabularyStream, clean_up, clean_up_steps, decoder_chain
from server.text.tokens.token_bound import bound_of
from server.text.tokens.token_bytes import TokenBytes, bytes_of_decoder
from server.text.tokens.tokenizer import Encoding, SpecialIds, TokenizerError

MAX_LOCKED_TOKENS = 1 << 13
"""Most tokens for a library call that holds Python's global lock; these take a few milliseconds."""


class FastTokenizer:
    """A tokenizer of the `tokenizers` library with the settings of a checkpoint.

    backend: the library's tokenizer; owned and changed by this object.
    files: contents of the other tokenizer files of the checkpoint, such as `tokenizer_config.json`.
    checked_size: highest id of the vocabulary plus one, if the caller has checked the length of the vocabulary's
        entries. None: the size is found and the entries are checked here, which takes longer.
    Raises TokenizerError for a vocabulary that exceeds a limit, and for a decoder (token ids to text) that cannot run
    incrementally.
    """

    def __init__(self, backend: LibraryTokenizer, files: TokenizerFiles, checked_size: int | None = None) -> None:
        backend.no_truncation()
        backend.no_padding()
        added = _add_tokens(backend, files)
        if files.kind in DEFAULT_SOURCE:
            set_source_language(backend, files)
        if files.lower_case:
            steps = [] if backend.normalizer is None else [backend.normalizer]
            backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])
        self._backend, self._calls = backend, LibraryCalls()
        self._clean_up = files.clean_up and not isinstance(backend.model, models.BPE)
        special = (backend.token_to_id(token.content) for token in added.values() if token.special)
        self.special_ids = frozenset(index for index in special if index is not None)
        self.special = SpecialIds(**{role: backend.token_to_id(token.content) for role, token in files.roles.items()})
        self.vocab_size = _vocab_size(backend, added, checked_size)
        self.max_length = files.max_length
        inputs = files.config.get("model_input_names")
        self._has_types = not isinstance(inputs, list) or "token_type_ids" in inputs
        self.marks_subwords = bool(getattr(backend.model, "continuing_subword_prefix", None))
        decoder = backend.decoder
        self.token_bound = bound_of(backend)
        self._decoder = None if decoder is None else json.loads(decoder.__getstate__())
        try:
            self._chain = decoder_chain(self._decoder, clean_up_steps() if self._clean_up else ())
        except (UnknownDecoder, KeyError, TypeError) as error:
            raise TokenizerError(f"tokenizer.json: {error}") from None

    def encode(
        self,
        texts: Sequence[str],
        *,
        pairs: Sequence[str] | None = None,
        add_special_tokens: bool = True,
        offsets: bool = True,
    ) -> list[Encoding]:
        inputs = list(texts) if pairs is None else list(zip(texts, pairs, strict=True))
        batch = self._backend.encode_batch if offsets else self._backend.encode_batch_fast
        with self._calls.call():
            encodings = batch(inputs, add_special_tokens=add_special_tokens)
        return [
            Encoding(
                ids=encoded.ids,
                type_ids=encoded.type_ids if self._has_types else [0] * len(encoded.ids),
                special=[bool(mark) for mark in encoded.special_tokens_mask],
                offsets=_offsets(encoded) if offsets else [],
                words=encoded.word_ids if offsets else [],
                sides=encoded.sequence_ids if offsets else [],
            )
            for encoded in encodings
        ]

    @cached_property
    def special_texts(self) -> frozenset[str]:
        return frozenset(token.content for token in self._backend.get_added_tokens_decoder().values() if token.special)

    @cached_property
    def _marked_tokens(self) -> MarkedTokens:
        return MarkedTokens(self._backend)

    def encode_marked(self, marked: MarkedText) -> list[int]:
        if self._marked_tokens.works:
            with self._calls.call():
                return self._marked_tokens.encode(marked)
        pieces = self.encode(marked.pieces(), add_special_tokens=False, offsets=False)
        return [index for piece in pieces for index in piece.ids]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        with self._calls.call():
            if len(ids) <= MAX_LOCKED_TOKENS:
                text: str = self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
            else:
                (text,) = self._backend.decode_batch([ids], skip_special_tokens=skip_special_tokens)
        return clean_up(text) if self._clean_up else text

    def stream(self, skip_special_tokens: bool = True) -> VocabularyStream:
        skipped = self.special_ids if skip_special_tokens else frozenset()
        return VocabularyStream(self._backend.id_to_token, self._chain.fork(), skipped)

    def join(self, tokens: Sequence[str]) -> str:
        decoder = self._backend.decoder
        if decoder is None:
            return " ".join(tokens)
        with self._calls.call():
            return str(decoder.decode(list(tokens)))

    def id_to_token(self, token_id: int) -> str | None:
        token: str | None = self._backend.id_to_token(token_id)
        return token

    def token_to_id(self, token: str) -> int | None:
        index: int | None = self._backend.token_to_id(token)
        return index

    @cached_property
    def token_bytes(self) -> TokenBytes:
        to_bytes, opens_with_space = bytes_of_decoder(self._decoder)
        silent = self.special_ids | {self.special.unk}
        tokens = (None if index in silent else self.id_to_token(index) for index in range(self.vocab_size))
        return TokenBytes(tuple(b"" if token is None else to_bytes(token) for token in tokens), opens_with_space)


def _offsets(encoded: LibraryEncoding) -> Sequence[tuple[int, int]]:
    """Return (start, end) of each token, as character indices. For a long text they are computed when they are read."""
    if len(encoded) <= MAX_LOCKED_TOKENS:
        listed: list[tuple[int, int]] = encoded.offsets
        return listed
    return Computed(len(encoded), lambda index: encoded.token_to_chars(index) or (0, 0))


def _vocab_size(backend: LibraryTokenizer, added: Mapping[int, AddedToken], checked_size: int | None = None) -> int:
    """Return the highest token id plus one. It takes longer for a vocabulary with gaps, which is copied.

    added: all added tokens, by id.
    checked_size: highest id of the main vocabulary plus one, if the length of its entries is checked already.
    Raises TokenizerError for a vocabulary with too many or too long entries, or too high an id.
    """
    size: int = backend.get_vocab_size()
    check(size, MAX_ENTRIES + MAX_ADDED_TOKENS, "entries in its vocabulary")
    if checked_size is not None and backend.id_to_token(checked_size - 1) is not None:
        check_entries((token.content for token in added.values()), "tokenizer.json", MAX_ENTRY)
        highest_size = max(checked_size, max(added, default=-1) + 1)
        check(highest_size, MAX_IDS, "as an id of its vocabulary")
        return highest_size
    most = MAX_UNIGRAM_ENTRY if isinstance(backend.model, models.Unigram) else MAX_ENTRY
    entries = [entry for entry in map(backend.id_to_token, range(size)) if entry is not None]
    if len(entries) == size:
        check_entries(entries, "tokenizer.json", most)
        return size
    vocabulary = backend.get_vocab()
    check_entries(vocabulary, "tokenizer.json", most)
    highest: int = max(vocabulary.values())
    check(highest + 1, MAX_IDS, "as an id of its vocabulary")
    return highest + 1


def _add_tokens(backend: LibraryTokenizer, files: TokenizerFiles) -> Mapping[int, AddedToken]:
    """Add the tokens of the JSON files that the backend lacks. Returns all added tokens, by id.

    A special token that comes from the defaults of the family, and not from the files, is added only if the vocabulary
    contains it. Raises TokenizerError for too many bytes of added tokens.
    """
    roles = [
        token
        for role, token in files.roles.items()
        if role in files.stated_roles or backend.token_to_id(token.content) is not None
    ]
    special = {token.content for token in (*roles, *files.extra_special)}
    found: Mapping[int, AddedToken] = backend.get_added_tokens_decoder()
    known = {token.content for token in found.values()}
    missing: dict[str, AddedToken] = {}
    for token in (*files.added.values(), *roles, *files.extra_special):
        if token.content not in known:
            missing.setdefault(token.content, token)
    check(sum(len(content.encode()) for content in missing), MAX_ADDED_BYTES, "bytes of added tokens")
    if not missing:
        return found
    add_in_order(backend, missing.values(), special)
    every: Mapping[int, AddedToken] = backend.get_added_tokens_decoder()
    return every
