"""A request's settings about single tokens, as arrays: made once, read at every step. Knows no logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.ipc.params import GenerationParams

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenTables:
    """What a request says of certain tokens, however far it is.

    biased: [n], ids of `logit_bias`, each once; biases: [n], float32, what to add to them.
    allowed: ids of `allowed_token_ids`, empty where everything is allowed.
    source: what a model read before the first new token: the source text of an encoder-decoder, a decoder's prompt.
        Kept only where `encoder_no_repeat_ngram_size` asks for it.
    """

    biased: Ids
    biases: NDArray[np.float32]
    allowed: Ids
    source: Ids

    @classmethod
    def of(cls, params: GenerationParams, source: Sequence[int]) -> TokenTables:
        return cls(
            biased=np.fromiter(params.logit_bias.keys(), np.int64, len(params.logit_bias)),
            biases=np.fromiter(params.logit_bias.values(), np.float32, len(params.logit_bias)),
            allowed=np.asarray(params.allowed_token_ids, dtype=np.int64),
            source=np.asarray(source if params.encoder_no_repeat_ngram_size else (), dtype=np.int64),
        )
