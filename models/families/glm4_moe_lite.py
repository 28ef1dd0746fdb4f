"""GLM-4.7-Flash (Z.ai 2026): GLM-4.5 with the latent attention of DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import LayerConfig, MixtureOfExpertsConfig, ModelConfig, NormSlots
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.latent_attention import latent_attention, latent_rules
from models.families.shared.mixture_of_experts import corrected_router, typed_feed_forwards
from models.families.shared.prediction_head import layer_after_the_last
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import gated_feed_forward, rms_norm, rotary_decoder
from weights.rules import Drop, Rule

_DEFAULTS = {
    "vocab_size": 154880,
    "hidden_size": 2048,
    "intermediate_size": 10240,
    "num_hidden_layers": 47,
    "num_attention_heads": 20,
    "max_position_embeddings": 202752,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 64,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.8,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    rope = rope_config(
        fields,
        fields.integer("qk_rope_head_dim"),
        pairing="interleaved" if fields.flag("rope_interleave", True) else "half",
    )
    norm = rms_norm(fields)
    width = fields.integer("moe_intermediate_size")
    experts = MixtureOfExpertsConfig(
        gated_feed_forward(fields, width),
        num_experts=fields.integer("n_routed_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        router=corrected_router(fields),
        shared=gated_feed_forward(fields, width * fields.integer("n_shared_experts")),
    )
    attention, norms = latent_attention(fields, rope, default_query_rank=768), NormSlots(input=norm)
    layers = [
        LayerConfig(attention, norms, feed_forward, norms)
        for feed_forward in typed_feed_forwards(fields, gated_feed_forward(fields), experts, dense_layers=1)
    ]
    return rotary_decoder(fields, layers, norm, scaled_max_positions(rope, fields.integer("max_position_embeddings")))


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None
    return (
        # The additional layer after the decoder layers only drafts tokens.
        Drop(rf"model\.layers\.{len(model.decoder.layers)}\..*"),
        *latent_rules(model, hf, architecture),
    )


FAMILY = decoder_family(
    "glm4_moe_lite",
    "Glm4MoeLite",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
    prediction_head=layer_after_the_last(rules),
)
