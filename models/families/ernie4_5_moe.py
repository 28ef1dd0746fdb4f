"""ERNIE 4.5 with mixtures of experts (Baidu 2025)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import FeedForwardConfig, MixtureOfExpertsConfig, ModelConfig, RouterConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.ernie4_5 import ernie4_5_decoder
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, rms_eps, rotary_settings
from models.families.shared.mixture_of_experts import rotary_expert_rules
from models.families.shared.rotary_decoder import gated_feed_forward
from weights.gguf.metadata import Metadata
from weights.rules import Drop, Rule

_DEFAULTS = {
    "vocab_size": 103424,
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_hidden_layers": 28,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1536,
    "moe_num_experts": 64,
    "moe_k": 6,
    "moe_num_shared_experts": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    bias, width = fields.flag("use_bias", False), fields.integer("moe_intermediate_size")
    shared = fields.integer("moe_num_shared_experts", least=0)
    experts = MixtureOfExpertsConfig(
        gated_feed_forward(fields, width),
        num_experts=fields.integer("moe_num_experts"),
        experts_per_token=fields.integer("moe_k"),
        # The published code limits the sum of the shares from below, instead of adding this number to it. The results
        # differ only where the scores of all chosen experts are below it.
        router=RouterConfig(normalized=True, correction=True, epsilon=fields.positive("moe_norm_min", 1e-12)),
        shared=gated_feed_forward(fields, width * shared, bias=bias) if shared else None,
    )
    dense = gated_feed_forward(fields, bias=bias)
    interval = fields.integer("moe_layer_interval", 1)
    first = fields.integer("moe_layer_start_index", 1, least=0)
    last = fields.integer("moe_layer_end_index", -1, least=-1)
    last = fields.integer("num_hidden_layers") - 1 if last == -1 else last

    def feed_forward_of(index: int) -> FeedForwardConfig | MixtureOfExpertsConfig:
        return experts if (index + 1) % interval == 0 and first <= index <= last else dense

    return ernie4_5_decoder(fields, feed_forward_of, logit_bias=bias)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    statics = r"model\.layers\.(\d+)\.mlp\.(?:gate\.)?moe_statics\.e_score_correction_bias"
    return (
        # Modules that predict further tokens; generation token by token does not use them.
        Drop(r".*mtp.*"),
        Rule(statics, (r"decoder.layers.\1.feed_forward.router.correction",), (_as_vector,)),
        *rotary_expert_rules(model, hf, architecture),
    )


def _as_vector(tensors: Sequence[Any]) -> Sequence[Any]:
    """Reshape the router's correction from [1, experts], as in the file, to [experts]."""
    return [tensors[0].flatten()]


def gguf_settings(of: Metadata) -> Settings:
    sparse, step = of.layers_with("ffn_gate_inp.weight"), of.integer("interleave_moe_layer_step", 1)
    return rotary_settings(
        of,
        model_type="ernie4_5_moe",
        use_bias=has_bias(of, "attn_q"),
        moe_num_experts=of.integer("expert_count"),
        moe_k=of.integer("expert_used_count"),
        moe_intermediate_size=of.integer("expert_feed_forward_length"),
        moe_num_shared_experts=of.integer("expert_shared_count", 0),
        moe_layer_interval=step,
        moe_layer_start_index=min(sparse, default=of.layers),
        moe_layer_end_index=max(sparse, default=-1),
        **rms_eps(of),
    )


FAMILY = decoder_family(
    "ernie4_5_moe",
    "Ernie4_5_Moe",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
    gguf=GgufFamily({"ernie4_5-moe": gguf_settings}),
)
