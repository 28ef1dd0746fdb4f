"""Supported families, by the `model_type` of a checkpoint's `config.json`. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ConfigError, UnservedFamilyError
from models.families import (
    afmoe,
    albert,
    apertus,
    arcee,
    bamba,
    bart,
    bert,
    bidirectional_pplx_qwen3,
    big_bird,
    bigbird_pegasus,
    biogpt,
    blenderbot,
    blenderbot_small,
    bloom,
    camembert,
    clip,
    cohere,
    cohere2,
    cohere2_moe,
    cohere_asr,
    convbert,
    cwm,
    data2vec_text,
    deberta,
    deberta_v2,
    deepseek_v2,
    deepseek_v3,
    distilbert,
    electra,
    embedding_gemma2,
    encoder_decoder,
    ernie,
    ernie4_5,
    ernie4_5_moe,
    eurobert,
    exaone,
    exaone4,
    falcon,
    falcon_h1,
    fsmt,
    gemma,
    gemma2,
    gemma3,
    gemma3n,
    gemma4,
    gemma4_unified,
    glm,
    glm4,
    glm4_moe,
    glm4_moe_lite,
    gpt2,
    gpt_bigcode,
    gpt_neo,
    gpt_neox,
    gpt_oss,
    gptj,
    granite,
    granite_swa,
    granitemoe,
    granitemoe_swa,
    granitemoehybrid,
    granitemoeshared,
    gte,
    helium,
    hubert,
    hunyuan_v1_dense,
    hunyuan_v1_moe,
    hy_v3,
    hyperclovax,
    internlm3,
    iquestcoder,
    jais2,
    jina_bert,
    jina_embeddings_v3,
    jina_embeddings_v5,
    lara_mini,
    led,
    lfm2,
    lfm2_moe,
    lfm3,
    llama,
    llama4,
    llama_bidirec,
    longformer,
    longt5,
    m2m_100,
    mamba2,
    marian,
    mbart,
    megatron_bert,
    mellum,
    minicpm3,
    ministral3,
    mistral,
    mistral4,
    mixtral,
    mobilebert,
    modernbert,
    modernbert_decoder,
    moonshine,
    moonshine_streaming,
    mpnet,
    mpt,
    mt5,
    mvp,
    native,
    nemotron,
    nemotron_h,
    nomic_bert,
    olmo,
    olmo2,
    olmo3,
    olmo_hybrid,
    olmoe,
    openai_gpt,
    openai_privacy_filter,
    opt,
    parakeet,
    pegasus,
    pegasus_x,
    persimmon,
    phi,
    phi3,
    phimoe,
    plbart,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_5,
    qwen3_5_moe,
    qwen3_moe,
    qwen3_next,
    rembert,
    roberta,
    roberta_prelayernorm,
    roformer,
    seed_oss,
    smollm3,
    squeezebert,
    stablelm,
    starcoder2,
    switch_transformers,
    t5,
    t5gemma,
    t5gemma2,
    ultrabert,
    umt5,
    unispeech,
    unispeech_sat,
    vaultgemma,
    voyage_qwen3,
    wav2vec2,
    wavlm,
    whisper,
    xglm,
    xlm_roberta,
    xlm_roberta_xl,
    youtu,
)
from models.families.shared.family import Family
from models.families.shared.fields import short
from models.families.shared.unserved import why_not_served
from models.families.shared.wrappers import WRAPPERS, wrapped_family

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
    xlm_roberta_xl,
    data2vec_text,
    roberta_prelayernorm,
    megatron_bert,
    ernie,
    rembert,
    roformer,
    squeezebert,
    mobilebert,
    convbert,
    eurobert,
    gte,
    jina_embeddings_v3,
    jina_embeddings_v5,
    embedding_gemma2,
    jina_bert,
    llama_bidirec,
    openai_privacy_filter,
    bidirectional_pplx_qwen3,
    ultrabert,
    voyage_qwen3,
    wav2vec2,
    wavlm,
    parakeet,
    hubert,
    unispeech,
    unispeech_sat,
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
    qwen3_next,
    qwen3_5,
    qwen3_5_moe,
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
    ministral3,
    lfm2,
    lfm2_moe,
    lfm3,
    granitemoehybrid,
    falcon_h1,
    nemotron_h,
    mamba2,
    gpt_bigcode,
    xglm,
    biogpt,
    persimmon,
    modernbert_decoder,
    gemma3n,
    gemma4,
    gemma4_unified,
    gpt_oss,
    deepseek_v2,
    deepseek_v3,
    mistral4,
    llama4,
    cwm,
    internlm3,
    iquestcoder,
    vaultgemma,
    granite_swa,
    jais2,
    granitemoeshared,
    youtu,
    minicpm3,
    glm4_moe_lite,
    mellum,
    cohere2_moe,
    hunyuan_v1_moe,
    hy_v3,
    afmoe,
    bamba,
    granitemoe_swa,
    exaone,
    olmo_hybrid,
    lara_mini,
    hyperclovax,
    clip,
)
_ENCODER_DECODERS = (
    t5,
    mt5,
    umt5,
    bart,
    plbart,
    mvp,
    marian,
    fsmt,
    mbart,
    m2m_100,
    pegasus,
    pegasus_x,
    blenderbot,
    blenderbot_small,
    led,
    longt5,
    bigbird_pegasus,
    t5gemma,
    t5gemma2,
    encoder_decoder,
    switch_transformers,
    whisper,
    moonshine,
    moonshine_streaming,
    cohere_asr,
)
_BY_STACKS = {
    "encoder": _ENCODERS,
    "decoder": _DECODERS,
    "encoder-decoder": _ENCODER_DECODERS,
    "any of them": (native,),
}

FAMILIES: Mapping[str, Family] = {
    kind: module.FAMILY for modules in _BY_STACKS.values() for module in modules for kind in module.FAMILY.model_types
}
STACKS: Mapping[str, str] = {module.FAMILY.name: stacks for stacks, modules in _BY_STACKS.items() for module in modules}
"""`encoder`, `decoder`, `encoder-decoder` or `any of them`, by family name. Used for the tables of docs/families.md."""


def family_of(hf: Mapping[str, Any]) -> tuple[Family, str]:
    """Return the family and the name of the architecture that a `config.json` describes.

    Without `architectures` in the file, the family's first architecture is used. If the file lists several supported
    architectures and the first has no head, the first is used, and the heads of the others are not loaded.
    Raises UnservedFamilyError for a `model_type` that is not served. Its message has the reason and the nearest served
    family. Raises ConfigError for architectures that are not served.
    """
    kind = hf.get("model_type")
    wrapped = wrapped_family(hf, FAMILIES)
    if wrapped is not None:
        return wrapped, _architecture(wrapped, hf)
    if not isinstance(kind, str) or kind not in FAMILIES:
        classes: dict[str, str] = {}
        for name, known in FAMILIES.items():
            # Several families may list one class. It belongs to the first of them.
            classes = {**dict.fromkeys(known.architectures, name), **classes}
        raise UnservedFamilyError(why_not_served(kind, {**FAMILIES, **WRAPPERS}, classes, hf.get("architectures")))
    family = next((known for known in FAMILIES.values() if _is_published_as(known, kind, hf)), FAMILIES[kind])
    return family, _architecture(family, hf)


def _architecture(family: Family, hf: Mapping[str, Any]) -> str:
    named = hf.get("architectures") or [next(iter(family.architectures))]
    if (
        isinstance(named, list)
        and named[1:]
        and all(architecture in tuple(family.architectures) for architecture in named)
    ):
        named = named[:1] if family.architectures[named[0]] == ("embed",) else named
    if not isinstance(named, list) or len(named) != 1 or named[0] not in tuple(family.architectures):
        served = ", ".join(family.architectures)
        raise ConfigError(
            f"'architectures': {short(named)} is not supported for {hf['model_type']}, only one of {served}"
        )
    return str(named[0])


def _is_published_as(family: Family, kind: str, hf: Mapping[str, Any]) -> bool:
    """Whether a checkpoint with a foreign `model_type` uses the published code of `family`.

    kind: the checkpoint's `model_type`. With an `auto_map`, every entry must name that code. Without one, the only
        architecture must be a class of `family` and not a class of the family that `kind` names.
    """
    code, named = family.published_as.get(kind), hf.get("architectures")
    if code is None:
        return False
    if not hf.get("auto_map"):
        first = named[0] if isinstance(named, list) and len(named) == 1 else None
        return first in tuple(family.architectures) and first not in tuple(FAMILIES[kind].architectures)
    return code.is_all_of(hf["auto_map"])
