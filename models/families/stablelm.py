"""StableLM (Bellagente et al. 2024, arXiv:2402.17834): LLaMA with layer norms and a quarter of each head rotating; in
some checkpoints attention and feed-forward stand side by side behind one norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.config import LayerConfig, ModelConfig, NormConfig, NormSlots, QueryKeyNorm
from models.families.decoder_heads import with_heads
from models.families.family import Family
from models.families.fields import Fields
from models.families.rotary_decoder import rotary_decoder
from models.families.rotary_decoder import rules as llama_rules
from weights.rules import Rename, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    norm = NormConfig("layer", fields.number("layer_norm_eps", 1e-5))
    model = rotary_decoder(
        fields,
        windows=(None,) * fields.integer("num_hidden_layers", 32),
        num_kv_heads=fields.integer("num_key_value_heads", 32),
        max_positions=fields.integer("max_position_embeddings", 4096),
        qkv_bias=fields.flag("use_qkv_bias", False),
        norm=norm,
        default_rope_share=0.25,
    )
    assert model.decoder is not None
    layers = model.decoder.layers
    if fields.flag("qk_layernorm", False):
        layers = tuple(_normalised(layer, replace(norm, bias=False)) for layer in layers)
    if fields.flag("use_parallel_residual", False):
        layers = tuple(_side_by_side(layer) for layer in layers)
    return replace(model, decoder=replace(model.decoder, layers=layers))


def _normalised(layer: LayerConfig, norm: NormConfig) -> LayerConfig:
    return replace(layer, attention=replace(layer.attention, query_key_norm=QueryKeyNorm(norm, "own_head")))


def _side_by_side(layer: LayerConfig) -> LayerConfig:
    return replace(layer, parallel=True, feed_forward_norms=NormSlots())


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    heads = r"model\.layers\.(\d+)\.self_attn\."
    return (
        Rename(heads + r"q_layernorm\.norms\.(\d+)\.weight", r"decoder.layers.\1.attention.query_norm.heads.\2.weight"),
        Rename(heads + r"k_layernorm\.norms\.(\d+)\.weight", r"decoder.layers.\1.attention.key_norm.heads.\2.weight"),
        *llama_rules(model, hf, architecture),
    )


FAMILY = with_heads(
    "StableLm",
    Family(
        name="stablelm",
        model_types=("stablelm",),
        architectures={"StableLmForCausalLM": ("generate",)},
        config=config,
        rules=rules,
    ),
    answers=False,
)
