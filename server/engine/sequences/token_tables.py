"""The settings of a request for its tokens (biased, allowed, banned...) as arrays: built once, read in every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.engine.beams.allowed_sequences import AllowedSequences, TrieArrays, arrays_of
from server.ipc.wire.params import GenerationParams

Ids = NDArray[np.int64]


def is_needed(params: GenerationParams) -> bool:
    """Whether these settings can change logits."""
    return bool(
        params.bad_words_ids
        or params.min_new_tokens
        or params.suppress_token_ids
        or params.begin_suppress_token_ids
        or params.forced_bos_token_id is not None
        or params.forced_eos_token_id is not None
        or params.has_sequences
        or _changes_otherwise(params)
    )


def _changes_otherwise(params: GenerationParams) -> bool:
    """Whether any setting besides allowed sequences, fixed bans and forced tokens changes logits.

    Fixed bans and forced tokens are the same for every text.
    """
    return bool(
        params.repetition_penalty != 1.0
        or params.presence_penalty
        or params.frequency_penalty
        or params.no_repeat_ngram_size
        or params.encoder_no_repeat_ngram_size
        or params.timestamps is not None
        or params.allowed_token_ids
        or params.logit_bias
        or params.sections
    )


@dataclass(frozen=True, slots=True)
class TokenTables:
    """The settings of one request that make some tokens likelier or impossible, as arrays.

    biased: [n], int64, ids of `logit_bias`. biases: [n], float32, their values.
    allowed: [n], int64, ids of `allowed_token_ids`; empty if all tokens are allowed.
    change_logits: whether any setting can change logits.
    banned: tokens that are banned whenever the next token is not forced.
    bad_phrases: entries of `bad_words_ids` with several tokens.
    only_ban: whether the settings only ban and force tokens, and do so independently of the text.
    only_sequences: whether the settings only limit the answer to the allowed sequences, and ban and force tokens
        independently of the text.
    source: [n], int64, source text of an encoder-decoder or prompt of a decoder; empty unless
        `encoder_no_repeat_ngram_size` is set.
    sequences: the only token sequences that are allowed as answers; None if all answers are allowed.
    """

    biased: Ids
    biases: NDArray[np.float32]
    allowed: Ids
    source: Ids
    change_logits: bool
    banned: list[int]
    bad_phrases: list[list[int]]
    only_ban: bool
    only_sequences: bool
    sequences: AllowedSequences | None

    @classmethod
    def of(cls, params: GenerationParams, source: Sequence[int], stored: TrieArrays | None = None) -> TokenTables:
        """Build the arrays of a request.

        params: settings of the request. source: source text of an encoder-decoder, or prompt of a decoder.
        stored: the stored set that `params.sequence_set` names; None if the request names no stored set.
        """
        words = [word[0] for word in params.bad_words_ids if len(word) == 1]
        phrases = [word for word in params.bad_words_ids if len(word) > 1]
        arrays = stored if params.allowed_sequences is None else arrays_of(params.allowed_sequences)
        is_simple = not (phrases or _changes_otherwise(params))
        return cls(
            biased=np.fromiter(params.logit_bias.keys(), np.int64, len(params.logit_bias)),
            biases=np.fromiter(params.logit_bias.values(), np.float32, len(params.logit_bias)),
            allowed=np.asarray(params.allowed_token_ids, dtype=np.int64),
            source=np.asarray(source if params.encoder_no_repeat_ngram_size else (), dtype=np.int64),
            change_logits=is_needed(params),
            banned=[*(word for word in words if word not in params.end_token_ids), *params.suppress_token_ids],
            bad_phrases=phrases,
            only_ban=is_simple and not params.has_sequences,
            only_sequences=is_simple and params.has_sequences,
            sequences=None if arrays is None else AllowedSequences(arrays, params.end_token_ids),
        )
