"""Common parts of the Hunyuan decoders: the rotary base for long texts, and the rules for norms of queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.families.shared.fields import Fields
from weights.rules import Rename

_THEIRS, _OURS = r"model\.layers\.(\d+)\.self_attn\.", r"decoder.layers.\1.attention."
HEAD_NORM_RULES = (
    Rename(_THEIRS + r"query_layernorm\.weight", _OURS + "query_norm.weight"),
    Rename(_THEIRS + r"key_layernorm\.weight", _OURS + "key_norm.weight"),
)


def with_stretched_base(fields: Fields, hf: Mapping[str, Any], head_dim: int) -> Fields:
    """The settings with `alpha` included in the rotary base; `fields` unchanged for scaling without `alpha`.

    Checkpoints call this scaling `dynamic`, but with `alpha` it does not depend on the length of the text. The base is
    multiplied by `alpha ** (head_dim / (head_dim - 2))`.
    """
    where = "rope_scaling" if fields.raw("rope_scaling") else "rope_parameters"
    settings = fields.raw(where)
    if not isinstance(settings, dict) or not settings.get("alpha"):
        return fields
    if settings.get("rope_type", settings.get("type")) != "dynamic":
        return fields
    inner = Fields({"rope_theta": fields.raw("rope_theta"), **settings})
    theta = inner.positive("rope_theta") * inner.positive("alpha") ** (head_dim / (head_dim - 2))
    return Fields({**hf, "rope_scaling": None, "rope_parameters": {"rope_theta": theta}})
