"""StarCoder2 (Lozhkov et al. 2024, arXiv:2402.19173): LLaMA with layer norms and biases.

The feed-forward has no gate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import FeedForwardConfig, ModelConfig, NormConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias, layer_eps, rotary_settings, sliding_window
from models.families.shared.rotary_decoder import llama_decoder, rotary_rules
from weights.gguf.metadata import Metadata
from weights.rules import Rename, Rule

_DEFAULTS = {
    "vocab_size": 49152,
    "hidden_size": 3072,
    "intermediate_size": 12288,
    "num_hidden_layers": 30,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "hidden_act": "gelu_pytorch_tanh",
    "norm_epsilon": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    bias, width = fields.flag("use_bias", True), fields.integer("intermediate_size")
    return llama_decoder(
        fields,
        FeedForwardConfig(width, fields.activation("hidden_act"), bias=bias),
        norm=NormConfig("layer", fields.number("norm_epsilon")),
        window=fields.optional_integer("sliding_window"),
        qkv_bias=bias,
        output_bias=bias,
        default_tied=True,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        Rename(layer + r"mlp\.c_fc\.(weight|bias)", ours + r"feed_forward.up.\2"),
        Rename(layer + r"mlp\.c_proj\.(weight|bias)", ours + r"feed_forward.down.\2"),
        *rotary_rules(model, hf, architecture),
    )


def gguf_settings(of: Metadata) -> Settings:
    return rotary_settings(
        of,
        model_type="starcoder2",
        norm_epsilon=layer_eps(of),
        use_bias=has_bias(of, "attn_q"),
        sliding_window=sliding_window(of),
    )


FAMILY = decoder_family(
    "starcoder2",
    "Starcoder2",
    config,
    rules,
    answers=False,
    gguf=GgufFamily({"starcoder2": gguf_settings}),
)
