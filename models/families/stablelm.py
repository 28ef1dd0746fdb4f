"""StableLM (Bellagente et al. 2024, arXiv:2402.17834): LLaMA with layer norms and a quarter of each head rotating; in
some checkpoints attention and feed-forward stand side by side behind one norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.config import LayerConfig, ModelConfig, NormConfig, NormSlots
from models.families.decoder_heads import with_heads
from models.families.family import Family
from models.families.fields import Fields
from models.families.rotary_decoder import rotary_decoder, rules
from models.generation_defaults import GenerationDefaults


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    fields.refuse_unless("qk_layernorm", False)
    model = rotary_decoder(
        fields,
        windows=(None,) * fields.integer("num_hidden_layers", 32),
        num_kv_heads=fields.integer("num_key_value_heads", 32),
        max_positions=fields.integer("max_position_embeddings", 4096),
        qkv_bias=fields.flag("use_qkv_bias", False),
        norm=NormConfig("layer", fields.number("layer_norm_eps", 1e-5)),
        default_rope_share=0.25,
    )
    if not fields.flag("use_parallel_residual", False):
        return model
    assert model.decoder is not None
    layers = tuple(_side_by_side(layer) for layer in model.decoder.layers)
    return replace(model, decoder=replace(model.decoder, layers=layers))


def _side_by_side(layer: LayerConfig) -> LayerConfig:
    return replace(layer, parallel=True, feed_forward_norms=NormSlots())


FAMILY = with_heads(
    "StableLm",
    Family(
        name="stablelm",
        model_types=("stablelm",),
        architectures={"StableLmForCausalLM": ("generate",)},
        config=config,
        rules=rules,
        generation=GenerationDefaults(bos_token_id=0, end_token_ids=(0,)),
    ),
)
