"""Decides from the fields of a message whether its requests may run in steps that are launched ahead.

A step is launched ahead if it starts before the host has read the tokens of the previous step. It chooses its tokens on
the device, which supports only some settings. A request may therefore set only the fields listed here. A new field of
the messages is refused until it is listed.
Imports no torch.
"""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache

import msgspec

from server.engine.beams.beam_groups import make_search
from server.ipc.wire.generate_messages import GenerateRow
from server.ipc.wire.params import GenerationParams

_BY_DEVICE = frozenset({"do_sample", "temperature", "top_k", "top_p", "min_p"})
"""Fields whose effect captured steps compute on the device (`models.backends.cuda.graphs.step_graphs`)."""
_BY_ENDS = frozenset({"end_token_ids", "stop_token_ids", "attention", "alignment"})
"""Fields that the host applies when it reads a token, or when the sequence has ended."""
_BY_PROMPT = frozenset({"top_logprobs", "probe"})
"""Fields that only concern the prompt, as `top_logprobs` does without `logprobs`. No step is launched ahead before the
prompt is scored."""
_BY_BEAMS = frozenset({"stream", "renormalize_logits"})
"""Fields without effect on the tokens of a sequence without beams."""
PARAMS_FIELDS = _BY_DEVICE | _BY_ENDS | _BY_PROMPT | _BY_BEAMS
"""Fields of `GenerationParams` that a request without beams may set if its steps are to be launched ahead."""
_OF_SEARCHES = frozenset({"num_beams", "num_return_sequences", "length_penalty", "early_stopping"})
"""Fields that the host applies when it reads the continuations that a beam search considers."""
_OF_EVERY_TEXT = frozenset(
    {
        "min_new_tokens",
        "bad_words_ids",
        "suppress_token_ids",
        "begin_suppress_token_ids",
        "forced_bos_token_id",
        "forced_eos_token_id",
    }
)
"""Fields that ban or force tokens, in the same way for all texts of a length, if `bad_words_ids` has single tokens
only. Steps of beam searches process logits as usual, on the device (`server.engine.choosing.candidates`)."""
SEARCH_FIELDS = (PARAMS_FIELDS - {"do_sample"}) | _OF_SEARCHES | _OF_EVERY_TEXT
"""Fields of `GenerationParams` that a beam search may set if its steps are to be launched ahead.

A search draws no tokens, so the filters of sampling have no effect on it.
"""
MAX_CANDIDATES = 63
"""Largest number of continuations that a beam search may consider on the device (`models.backends.torch.beams`)."""
ROW_FIELDS = frozenset(
    {
        "sequence_id",
        "max_new_tokens",
        "prompt",
        "decoder_token_ids",
        "seed",
        "prompt_logprobs",
        "text_drops_space",
        "recorded_tokens",
        "attention",
    }
)
"""Fields of `GenerateRow` that a request may set if its steps are to be launched ahead."""


def may_run_ahead(params: GenerationParams, row: GenerateRow) -> bool:
    """Whether a row sets only fields that steps launched ahead support."""
    fields = PARAMS_FIELDS if params.num_beams == 1 else SEARCH_FIELDS
    if not (_set_fields(params) <= fields and _set_fields(row) <= ROW_FIELDS):
        return False
    return params.num_beams == 1 or _is_narrow(params)


def _is_narrow(params: GenerationParams) -> bool:
    """Whether a beam search considers at most `MAX_CANDIDATES` continuations, and bans single tokens only."""
    search = make_search(params, 1, frozenset((*params.end_token_ids, *params.stop_token_ids)))
    assert search is not None, "a request without beams has no search"
    return search.num_candidates <= MAX_CANDIDATES and all(len(word) == 1 for word in params.bad_words_ids)


def _set_fields(message: msgspec.Struct) -> Set[str]:
    """Names of the fields whose values differ from their defaults. Fields without a default always count."""
    return {name for name, neutral in _neutral(type(message)) if getattr(message, name) != neutral}


@lru_cache(maxsize=16)
def _neutral(struct: type[msgspec.Struct]) -> list[tuple[str, object]]:
    """Name and default of each field of a message class."""
    return [
        (field.name, field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory())
        for field in msgspec.structs.fields(struct)
    ]
