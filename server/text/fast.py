"""Any tokenizer that the `tokenizers` library runs.

Texts go through its batch calls, which work without Python's lock, so that a long text holds nobody up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property

from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers

from server.text.fairseq import DEFAULT_SOURCE, set_source_language
from server.text.spelling import Spelling, speller
from server.text.streams import Chain, UnknownDecoder, clean_up, clean_up_steps, decoder_chain
from server.text.tokenizer import Encoding, SpecialIds, TokenizerError
from server.text.tokenizer_files import TokenizerFiles


class FastTokenizer:
    """A `tokenizers` backend with a checkpoint's settings on top. Raises TokenizerError for one it cannot stream."""

    def __init__(self, backend: Backend, files: TokenizerFiles) -> None:
        backend.no_truncation()
        backend.no_padding()
        _add_tokens(backend, files)
        if files.kind in DEFAULT_SOURCE:
            set_source_language(backend, files)
        if files.lower_case:
            usual = [] if backend.normalizer is None else [backend.normalizer]
            backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *usual])
        self._backend = backend
        self._clean_up = files.clean_up and not isinstance(backend.model, models.BPE)
        added = backend.get_added_tokens_decoder()
        special = {token.content for token in added.values() if token.special}
        vocabulary = backend.get_vocab()
        self.special_ids = frozenset(index for token, index in vocabulary.items() if token in special)
        self.special = SpecialIds(**{role: vocabulary.get(token.content) for role, token in files.roles.items()})
        self.vocab_size = max(vocabulary.values()) + 1
        self.max_length = files.max_length
        inputs = files.config.get("model_input_names")
        self._typed = not isinstance(inputs, list) or "token_type_ids" in inputs
        self.marks_subwords = bool(getattr(backend.model, "continuing_subword_prefix", None))
        decoder = backend.decoder
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
        return [
            Encoding(
                ids=found.ids,
                type_ids=found.type_ids if self._typed else [0] * len(found.ids),
                special=[bool(mark) for mark in found.special_tokens_mask],
                offsets=found.offsets if offsets else [],
                tokens=found.tokens if offsets else [],
                words=found.word_ids if offsets else [],
                sides=found.sequence_ids if offsets else [],
            )
            for found in batch(inputs, add_special_tokens=add_special_tokens)
        ]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        text: str = self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        return clean_up(text) if self._clean_up else text

    def stream(self, skip_special_tokens: bool = True) -> _FastStream:
        return _FastStream(self._backend, self._chain.fork(), self.special_ids if skip_special_tokens else frozenset())

    def join(self, tokens: Sequence[str]) -> str:
        decoder = self._backend.decoder
        return " ".join(tokens) if decoder is None else str(decoder.decode(list(tokens)))

    def id_to_token(self, token_id: int) -> str | None:
        token: str | None = self._backend.id_to_token(token_id)
        return token

    def token_to_id(self, token: str) -> int | None:
        index: int | None = self._backend.token_to_id(token)
        return index

    @cached_property
    def spelling(self) -> Spelling:
        spell, opens_with_space = speller(self._decoder)
        silent = self.special_ids | {self.special.unk}
        names = (None if index in silent else self.id_to_token(index) for index in range(self.vocab_size))
        return Spelling(tuple(b"" if name is None else spell(name) for name in names), opens_with_space)


class _FastStream:
    def __init__(self, backend: Backend, chain: Chain, skipped: frozenset[int]) -> None:
        self._backend, self._chain, self._skipped = backend, chain, skipped

    def push(self, token_id: int) -> str:
        token = None if token_id in self._skipped else self._backend.id_to_token(token_id)
        return "" if token is None else self._chain.push(token)

    def finish(self) -> str:
        return self._chain.finish()

    def fork(self) -> _FastStream:
        return _FastStream(self._backend, self._chain.fork(), self._skipped)


def _add_tokens(backend: Backend, files: TokenizerFiles) -> None:
    """Tokens that the files around the backend know and it does not; a default role only if it is in the vocabulary."""
    roles = [
        token
        for role, token in files.roles.items()
        if role in files.stated_roles or backend.token_to_id(token.content) is not None
    ]
    special = {token.content for token in (*roles, *files.extra_special)}
    for token in (*files.added.values(), *roles, *files.extra_special):
        if token.content in {known.content for known in backend.get_added_tokens_decoder().values()}:
            continue
        if token.special or token.content in special:
            backend.add_special_tokens([token])
        else:
            backend.add_tokens([token])
