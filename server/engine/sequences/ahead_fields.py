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

from server.ipc.wire.messages import GenerateRow
from server.ipc.wire.params import GenerationParams

_BY_DEVICE = frozenset({"do_sample", "temperature", "top_k", "top_p", "min_p"})
"""Fields that captured steps implement on the device (`models.backends.cuda.graphs.step_graphs`)."""
_BY_ENDS = frozenset({"end_token_ids", "stop_token_ids", "attention", "alignment"})
"""Fields that the host applies when it reads a token, or when the sequence has ended."""
_BY_PROMPT = frozenset({"top_logprobs", "probe"})
"""Fields that only concern the prompt, as `top_logprobs` does without `logprobs`. No step is launched ahead before the
prompt is scored."""
_BY_BEAMS = frozenset({"stream", "renormalize_logits"})
"""Fields without effect on the tokens of a sequence without beams."""
PARAMS_FIELDS = _BY_DEVICE | _BY_ENDS | _BY_PROMPT | _BY_BEAMS
"""Fields of `GenerationParams` that a request which runs ahead may set."""
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
"""Fields of `GenerateRow` that a request which runs ahead may set."""


def may_run_ahead(params: GenerationParams, row: GenerateRow) -> bool:
    """Whether a row sets only fields that steps launched ahead support."""
    return _set_fields(params) <= PARAMS_FIELDS and _set_fields(row) <= ROW_FIELDS


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
