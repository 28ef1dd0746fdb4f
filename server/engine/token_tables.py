"""Token settings of a request as arrays, built once and read in every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.ipc.params import GenerationParams

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenTables:
    """Token settings of one request.

    biased: [n], int64, ids of `logit_bias`. biases: [n], float32, their values.
    allowed: [n], int64, ids of `allowed_token_ids`; empty if all tokens are allowed.
    source: [n], int64, source text of an encoder-decoder or prompt of a decoder; empty unless
        `encoder_no_repeat_ngram_size` is set.
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
