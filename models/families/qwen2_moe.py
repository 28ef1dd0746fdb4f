"""Qwen1.5-MoE and Qwen2-MoE (Yang et al. 2024, arXiv:2407.10671): Qwen2 with mixtures of experts, one of them for
every token."""

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
from models.families.windows import named_windows, switched_window
from weights.rules import Rename, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults={"vocab_size": 151936, "hidden_size": 2048, "num_attention_heads": 16})
    layers = fields.integer("num_hidden_layers", 24)
    model = rotary_decoder(
        fields,
        windows=_windows(fields, hf.get("layer_types"), layers),
        num_kv_heads=fields.integer("num_key_value_heads", 16),
        max_positions=fields.integer("max_position_embeddings", 32768),
        qkv_bias=fields.flag("qkv_bias", True),
        feed_forward=gated_experts(fields, fields.integer("intermediate_size", 5632)),
    )
    mixture = MixtureOfExpertsConfig(
        gated_experts(fields, fields.integer("moe_intermediate_size", 1408)),
        num_experts=fields.integer("num_experts", 60),
        experts_per_token=fields.integer("num_experts_per_tok", 4),
        normalized=fields.flag("norm_topk_prob", False),
        shared=gated_experts(fields, fields.integer("shared_expert_intermediate_size", 5632)),
    )
    return with_experts(model, mixture, sparse_layers(fields, hf.get("mlp_only_layers"), layers))


def _windows(fields: Fields, layer_types: Any, layers: int) -> list[int | None]:
    """Every other layer below `max_window_layers`, switched on by `use_sliding_window`, unless `layer_types` says."""
    window = switched_window(fields)
    if layer_types is None:
        last = fields.integer("max_window_layers", 28, least=0)
        return [window if index < last and index % 2 == 0 else None for index in range(layers)]
    return named_windows(layer_types, layers, window)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    shared, ours = r"model\.layers\.(\d+)\.mlp\.shared_expert", r"decoder.layers.\1.feed_forward."
    return (
        *expert_rules(model, "mlp", gate="gate_proj", up="up_proj", down="down_proj"),
        Rename(shared + r"\.(gate|up|down)_proj\.weight", ours + r"shared.\2.weight"),
        Rename(shared + r"_gate\.weight", ours + "shared_gate.weight"),
        *llama_rules(model, hf, architecture),
    )


FAMILY = with_heads(
    "Qwen2Moe",
    Family(
        name="qwen2_moe",
        model_types=("qwen2_moe",),
        architectures={"Qwen2MoeForCausalLM": ("generate",)},
        config=config,
        rules=rules,
    ),
)
