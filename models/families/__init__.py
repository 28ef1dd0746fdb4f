"""Supported families, by the `model_type` of a checkpoint's `config.json`. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ConfigError
from models.families import (
    albert,
    apertus,
    arcee,
    bart,
    bert,
    big_bird,
    bigbird_pegasus,
    blenderbot,
    blenderbot_small,
    bloom,
    camembert,
    cohere,
    cohere2,
    deberta,
    deberta_v2,
    distilbert,
    electra,
    ernie4_5,
    ernie4_5_moe,
    exaone4,
    falcon,
    gemma,
    gemma2,
    gemma3,
    glm,
    glm4,
    glm4_moe,
    gpt2,
    gpt_neo,
    gpt_neox,
    gptj,
    granite,
    granitemoe,
    helium,
    hunyuan_v1_dense,
    led,
    llama,
    longformer,
    longt5,
    m2m_100,
    marian,
    mbart,
    mistral,
    mixtral,
    modernbert,
    mpnet,
    mpt,
    mt5,
    native,
    nemotron,
    nomic_bert,
    olmo,
    olmo2,
    olmo3,
    olmoe,
    openai_gpt,
    opt,
    pegasus,
    phi,
    phi3,
    phimoe,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    roberta,
    seed_oss,
    smollm3,
    stablelm,
    starcoder2,
    t5,
    umt5,
    whisper,
    xlm_roberta,
)
from models.families.shared.family import Family
from models.families.shared.fields import short
from models.families.shared.refused import REFUSED

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
    longformer,
    big_bird,
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
    mixtral,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    phi,
    phi3,
    gemma,
    gemma2,
    gemma3,
    olmo2,
    smollm3,
    stablelm,
    starcoder2,
    granite,
    granitemoe,
    cohere,
    cohere2,
    glm,
    glm4,
    glm4_moe,
    exaone4,
    ernie4_5,
    ernie4_5_moe,
    olmo,
    olmo3,
    olmoe,
    nemotron,
    helium,
    arcee,
    hunyuan_v1_dense,
    seed_oss,
    apertus,
    phimoe,
)
_ENCODER_DECODERS = (
    t5,
    mt5,
    umt5,
    bart,
    marian,
    mbart,
    m2m_100,
    pegasus,
    blenderbot,
    blenderbot_small,
    led,
    longt5,
    bigbird_pegasus,
    whisper,
)
_MODULES = (*_ENCODERS, *_DECODERS, *_ENCODER_DECODERS, native)

FAMILIES: Mapping[str, Family] = {kind: module.FAMILY for module in _MODULES for kind in module.FAMILY.model_types}


def family_of(hf: Mapping[str, Any]) -> tuple[Family, str]:
    """The family and the architecture of a `config.json`.

    Without `architectures` in the file, the first architecture of the family is used.
    Raises ConfigError for an unknown `model_type` or architecture, with the supported ones, and for a `model_type` of
    `REFUSED`, with the reason.
    """
    kind = hf.get("model_type")
    if isinstance(kind, str) and kind in REFUSED:
        raise ConfigError(f"'model_type': {kind!r} is not supported: {REFUSED[kind]}")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ConfigError(f"'model_type': {short(kind)} is not supported, only {', '.join(sorted(FAMILIES))}")
    family = FAMILIES[kind]
    named = hf.get("architectures") or [next(iter(family.architectures))]
    if not isinstance(named, list) or len(named) != 1 or named[0] not in tuple(family.architectures):
        served = ", ".join(family.architectures)
        raise ConfigError(f"'architectures': {short(named)} is not supported for {kind}, only one of {served}")
    return family, named[0]
