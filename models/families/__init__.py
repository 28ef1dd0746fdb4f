"""The families Triptych serves, by the `model_type` of a checkpoint's `config.json`. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ConfigError
from models.families import (
    bart,
    bert,
    bloom,
    distilbert,
    falcon,
    gemma,
    gemma2,
    gpt2,
    gpt_neo,
    gpt_neox,
    gptj,
    led,
    llama,
    longformer,
    marian,
    mistral,
    mpt,
    olmo2,
    openai_gpt,
    opt,
    phi,
    phi3,
    qwen2,
    qwen3,
    roberta,
    stablelm,
    starcoder2,
    t5,
)
from models.families.family import Family
from models.families.fields import short

_ENCODERS = (bert, roberta, distilbert, longformer)
_DECODERS = (
    openai_gpt,
    gpt2,
    gpt_neo,
    gptj,
    gpt_neox,
    opt,
    bloom,
    mpt,
    falcon,
    llama,
    mistral,
    qwen2,
    qwen3,
    phi,
    phi3,
    gemma,
    gemma2,
    olmo2,
    stablelm,
    starcoder2,
)
_ENCODER_DECODERS = (t5, bart, marian, led)
_MODULES = (*_ENCODERS, *_DECODERS, *_ENCODER_DECODERS)

FAMILIES: Mapping[str, Family] = {kind: module.FAMILY for module in _MODULES for kind in module.FAMILY.model_types}


def family_of(hf: Mapping[str, Any]) -> tuple[Family, str]:
    """The family of a `config.json`, and which of its architectures the checkpoint is.

    Raises ConfigError naming what is served, for an unknown `model_type` or architecture.
    """
    kind = hf.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ConfigError(f"'model_type': {short(kind)} is not supported, only {', '.join(sorted(FAMILIES))}")
    family = FAMILIES[kind]
    named = hf.get("architectures") or [next(iter(family.architectures))]
    if not isinstance(named, list) or len(named) != 1 or named[0] not in tuple(family.architectures):
        served = ", ".join(family.architectures)
        raise ConfigError(f"'architectures': {short(named)} is not supported for {kind}, only one of {served}")
    return family, named[0]
