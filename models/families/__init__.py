"""The families Triptych serves, by the `model_type` of a checkpoint's `config.json`. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ConfigError
from models.families import (
    albert,
    bart,
    bert,
    blenderbot,
    blenderbot_small,
    bloom,
    camembert,
    deberta,
    deberta_v2,
    distilbert,
    electra,
    falcon,
    gemma,
    gemma2,
    gpt2,
    gpt_neo,
    gpt_neox,
    gptj,
    llama,
    m2m_100,
    marian,
    mbart,
    mistral,
    modernbert,
    mpnet,
    mpt,
    mt5,
    nomic_bert,
    olmo2,
    openai_gpt,
    opt,
    pegasus,
    phi,
    phi3,
    qwen2,
    qwen3,
    roberta,
    stablelm,
    starcoder2,
    t5,
    umt5,
    whisper,
    xlm_roberta,
)
from models.families.family import Family
from models.families.fields import short

_ENCODERS = (
    bert,
    roberta,
    distilbert,
    xlm_roberta,
    camembert,
    electra,
    albert,
    mpnet,
    modernbert,
    nomic_bert,
    deberta,
    deberta_v2,
)
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
_ENCODER_DECODERS = (t5, mt5, umt5, bart, marian, mbart, m2m_100, pegasus, blenderbot, blenderbot_small, whisper)
_MODULES = (*_ENCODERS, *_DECODERS, *_ENCODER_DECODERS)

FAMILIES: Mapping[str, Family] = {kind: module.FAMILY for module in _MODULES for kind in module.FAMILY.model_types}

_REFUSED: Mapping[str, str] = {
    "nllb-moe": "its experts drop tokens beyond their capacity, so that an answer depends on its batch",
    "prophetnet": "its decoder predicts from a second stream of hidden states, which no other family has",
    "xlm-prophetnet": "its decoder predicts from a second stream of hidden states, which no other family has",
}
"""Kinds that are known and still not served, each with the reason."""


def family_of(hf: Mapping[str, Any]) -> tuple[Family, str]:
    """The family of a `config.json`, and which of its architectures the checkpoint is.

    Raises ConfigError naming what is served, for an unknown `model_type` or architecture.
    """
    kind = hf.get("model_type")
    if isinstance(kind, str) and kind in _REFUSED:
        raise ConfigError(f"'model_type': {short(kind)} is not supported: {_REFUSED[kind]}")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ConfigError(f"'model_type': {short(kind)} is not supported, only {', '.join(sorted(FAMILIES))}")
    family = FAMILIES[kind]
    named = hf.get("architectures") or [next(iter(family.architectures))]
    if not isinstance(named, list) or len(named) != 1 or named[0] not in tuple(family.architectures):
        served = ", ".join(family.architectures)
        raise ConfigError(f"'architectures': {short(named)} is not supported for {kind}, only one of {served}")
    return family, named[0]
