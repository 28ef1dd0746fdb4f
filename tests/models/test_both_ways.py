"""A decoder family with `is_causal: false` is an encoder, or it refuses the setting by name."""

from __future__ import annotations

from typing import Any

import pytest

from models.config import ConfigError
from models.families import FAMILIES
from tests.models.family_bases import BASES
from tests.parity import lara_mini

PICTURES = ("gemma3", "gemma3n", "gemma4", "gemma4_unified", "llama4", "qwen3_5", "qwen3_5_moe")
"""Families that also read pictures. Their settings are in `text_config`."""
REFUSED = {
    *("bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt", "openai-gpt", "opt", "xglm"),
    *("biogpt", "persimmon", "phi", "modernbert-decoder", "gemma3_text", "gemma3n_text", "gemma4_text"),
    *("gemma4_unified_text", "gpt_oss", "llama4_text", "mistral4", "deepseek_v2", "deepseek_v3", "glm4_moe_lite"),
    *("minicpm3", "youtu"),
    # Layers that read only earlier tokens.
    *("bamba", "falcon_h1", "granitemoehybrid", "lara_mini", "lfm2", "lfm2_moe", "lfm3", "mamba2", "nemotron_h"),
    *("olmo_hybrid", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
    *PICTURES,
}


def settings(kind: str) -> dict[str, Any]:
    """A small `config.json` of a decoder family, with the architecture that generates text."""
    if kind in PICTURES:
        base = BASES["qwen3_5"]["text_config"] if kind.startswith("qwen") else BASES[f"{kind}_text"]
        text = {name: value for name, value in base.items() if name not in ("model_type", "architectures")}
        whole = next(name for name in FAMILIES[kind].architectures if name.endswith("ForConditionalGeneration"))
        return {"model_type": kind, "architectures": [whole], "text_config": text}
    convolutions = {"layer_types": ["conv", "full_attention"] * 2} if kind == "lfm2" else {}
    return lara_mini.SETTINGS if kind == "lara_mini" else {**BASES[kind], **convolutions}


DECODERS = [kind for kind, family in FAMILIES.items() if family.body is not None and kind != "jina_bert"]
"""The families of decoders. Of the other families, only `jina_bert` has a class without a head in `Family.body`."""


@pytest.mark.parametrize("kind", DECODERS)
def test_encoder_or_refusal(kind: str):
    family, hf = FAMILIES[kind], settings(kind)
    generating = hf["architectures"][0]
    both_ways = {**hf, "is_causal": False}
    architectures = [name for name in family.architectures if not name.endswith("ForConditionalGeneration")]
    if kind in PICTURES:
        both_ways = {**hf, "text_config": {**hf["text_config"], "is_causal": False}}
        architectures = [generating]
    as_decoder = family.config(hf, generating)
    assert as_decoder.decoder is not None
    for architecture in architectures:
        if kind in REFUSED or "generate" in family.architectures[architecture]:
            with pytest.raises(ConfigError, match="'is_causal'"):
                family.config(both_ways, architecture)
            continue
        model = family.config(both_ways, architecture)
        assert model.encoder is not None and model.decoder is None
        rules = [*family.rules(model, both_ways, architecture)]
        rules += [] if family.gguf is None else family.gguf.rules(model)
        names = [name for rule in rules for name in (*rule.names, rule.constant) if name]
        assert {name.partition(".")[0] for name in names} == {"encoder", "head"}
