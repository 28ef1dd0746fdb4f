"""The tokenizer of a static embedding model (one vector per token): it adds no special tokens around a text.

Model2Vec also drops unknown tokens, because their vector has no meaning. Sources: model2vec 0.10,
`StaticModel.tokenize`; sentence-transformers 6.2, `StaticEmbedding`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tokenizers import Tokenizer as LibraryTokenizer

from server.text.tokenizers.fast import FastTokenizer
from server.text.tokenizers.tokenizer_files import TokenizerFiles
from server.text.tokens.tokenizer import Encoding


class StaticTokenizer(FastTokenizer):
    """A tokenizer of the `tokenizers` library that adds no special tokens around a text.

    dropped: id of the token that is removed from every text; None for no token.
    """

    def __init__(self, backend: LibraryTokenizer, files: TokenizerFiles, dropped: int | None) -> None:
        super().__init__(backend, files)
        self._dropped = dropped

    def encode(
        self,
        texts: Sequence[str],
        *,
        pairs: Sequence[str] | None = None,
        add_special_tokens: bool = True,
        offsets: bool = True,
    ) -> list[Encoding]:
        encodings = super().encode(texts, pairs=pairs, add_special_tokens=False, offsets=offsets)
        return [self._kept(encoding) if self._dropped in encoding.ids else encoding for encoding in encodings]

    def _kept(self, encoding: Encoding) -> Encoding:
        places = [place for place, index in enumerate(encoding.ids) if index != self._dropped]
        has_offsets = bool(encoding.offsets)
        return Encoding(
            [encoding.ids[place] for place in places],
            [encoding.type_ids[place] for place in places],
            [encoding.special[place] for place in places],
            [encoding.offsets[place] for place in places] if has_offsets else [],
            [encoding.words[place] for place in places] if has_offsets else [],
            [encoding.sides[place] for place in places] if has_offsets else [],
        )


def static_tokenizer(backend: LibraryTokenizer, files: TokenizerFiles, drops_unknown: bool) -> StaticTokenizer:
    """Create the tokenizer of a static embedding model.

    drops_unknown: whether unknown tokens are removed from texts, as in Model2Vec.
    """
    return StaticTokenizer(backend, files, _unknown(backend) if drops_unknown else None)


def _unknown(backend: LibraryTokenizer) -> int | None:
    """Id of the token for text outside the vocabulary; None for a model without such a token."""
    model = backend.model
    if hasattr(model, "unk_token"):
        index: int | None = None if model.unk_token is None else backend.token_to_id(model.unk_token)
        return index
    unknown: int | None = json.loads(model.__getstate__()).get("unk_id")
    return unknown
