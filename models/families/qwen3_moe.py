"""Qwen3-MoE (Yang et al. 2025, arXiv:2505.09388): Qwen3 with mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import MixtureOfExpertsConfig, ModelConfig
from models.families.decoder_heads import with_heads
from models.families.experts import expert_rules, gated_experts, sparse_layers, with_experts
from models.families.family import Family
from models.families.fields import Fields
from models.families.rotary_decoder import rotary_decoder
from models.families.rotary_decoder import rules as llama_rules
from models.families.windows import switched_window
from weights.rules import Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults={"vocab_size": 151936, "hidden_size": 2048})
    fields.refuse_unless("layer_types")
    layers, attention_bias = fields.integer("num_hidden_layers", 24), fields.flag("attention_bias", False)
    model = rotary_decoder(
        fields,
        windows=(switched_window(fields),) * layers,
        num_kv_heads=fields.integer("num_key_value_heads", 4),
        max_positions=fields.integer("max_position_embeddings", 32768),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        query_key_norms="head",
        feed_forward=gated_experts(fields, fields.integer("intermediate_size", 6144)),
    )
    mixture = MixtureOfExpertsConfig(
        gated_experts(fields, fields.integer("moe_intermediate_size", 768)),
        # transformers 5 writes the number of experts under Mixtral's name for it.
        num_experts=fields.integer("num_local_experts", fields.integer("num_experts", 128)),
        experts_per_token=fields.integer("num_experts_per_tok", 8),
        normalized=fields.flag("norm_topk_prob", False),
    )
    return with_experts(model, mixture, sparse_layers(fields, hf.get("mlp_only_layers"), layers))


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (
        *expert_rules(model, "mlp", gate="gate_proj", up="up_proj", down="down_proj"),
        *llama_rules(model, hf, architecture),
    )


FAMILY = with_heads(
    "Qwen3Moe",
    Family(
        name="qwen3_moe",
        model_types=("qwen3_moe",),
        architectures={"Qwen3MoeForCausalLM": ("generate",)},
        config=config,
        rules=rules,
    ),
)
