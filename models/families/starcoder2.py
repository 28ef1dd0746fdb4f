"""StarCoder2 (Lozhkov et al. 2024, arXiv:2402.19173): LLaMA with layer norms, biases and no gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import FeedForwardConfig, ModelConfig, NormConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.rope import rope_config, scaled_max_positions
from models.families.shared.rotary_decoder import head_dim_of, rotary_decoder, rotary_layer, rotary_rules
from weights.rules import Rename, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    head_dim, bias = head_dim_of(fields), fields.flag("use_bias", True)
    norm = NormConfig("layer", fields.number("norm_epsilon", 1e-5))
    rope = rope_config(fields, head_dim)
    activation = fields.activation("hidden_act", "gelu_pytorch_tanh")
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", 2),
        rope=rope,
        norm=norm,
        feed_forward=FeedForwardConfig(fields.integer("intermediate_size", 12288), activation, bias=bias),
        window=fields.optional_integer("sliding_window"),
        qkv_bias=bias,
        output_bias=bias,
    )
    layers = (layer,) * fields.integer("num_hidden_layers", 30)
    max_positions = scaled_max_positions(rope, fields.integer("max_position_embeddings", 4096))
    return rotary_decoder(fields, layers, norm, max_positions, default_tied=True)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        Rename(layer + r"mlp\.c_fc\.(weight|bias)", ours + r"feed_forward.up.\2"),
        Rename(layer + r"mlp\.c_proj\.(weight|bias)", ours + r"feed_forward.down.\2"),
        *rotary_rules(model, hf, architecture),
    )


FAMILY = decoder_family(
    "starcoder2",
    "Starcoder2",
    config,
    rules,
    answers=False,
)
