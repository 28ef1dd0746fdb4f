"""StableLM (Bellagente et al. 2024, arXiv:2402.17834): LLaMA with layer norms.

Rotary positions apply to a part of each head, by default a quarter. In some checkpoints attention and feed-forward run
in parallel after one norm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ModelConfig, NormConfig, QueryKeyNorm
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, layer_eps, partly_rotary_settings
from models.families.shared.rope import rope_config
from models.families.shared.rotary_decoder import gated_feed_forward, head_dim_of, llama_decoder, rotary_rules
from weights.gguf.metadata import Metadata
from weights.rules import Rename, Rule

_DEFAULTS = {
    "vocab_size": 50304,
    "hidden_size": 2560,
    "intermediate_size": 6912,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "layer_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    eps = fields.number("layer_norm_eps")
    head_norm = QueryKeyNorm(NormConfig("layer", eps, bias=False), "own_head")
    return llama_decoder(
        fields,
        gated_feed_forward(fields),
        rope=rope_config(fields, head_dim_of(fields), default_share=0.25),
        norm=NormConfig("layer", eps),
        qkv_bias=fields.flag("use_qkv_bias", False),
        query_key_norm=head_norm if fields.flag("qk_layernorm", False) else None,
        parallel=fields.flag("use_parallel_residual", False),
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    heads = r"model\.layers\.(\d+)\.self_attn\."
    return (
        Rename(heads + r"q_layernorm\.norms\.(\d+)\.weight", r"decoder.layers.\1.attention.query_norm.heads.\2.weight"),
        Rename(heads + r"k_layernorm\.norms\.(\d+)\.weight", r"decoder.layers.\1.attention.key_norm.heads.\2.weight"),
        *rotary_rules(model, hf, architecture),
    )


def gguf_settings(of: Metadata) -> Settings:
    return partly_rotary_settings(
        of,
        model_type="stablelm",
        layer_norm_eps=layer_eps(of),
        use_qkv_bias=has_bias(of, "attn_q"),
        qk_layernorm=of.has("blk.0.attn_q_norm.weight"),
        use_parallel_residual=not of.has("blk.0.ffn_norm.weight"),
    )


FAMILY = decoder_family(
    "stablelm",
    "StableLm",
    config,
    rules,
    answers=False,
    gguf=GgufFamily({"stablelm": gguf_settings}),
)
