"""StarCoder2 (Lozhkov et al. 2024, arXiv:2402.19173): a rotary decoder with layer norms, biases and no gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import FeedForwardConfig, ModelConfig, NormConfig
from models.families.decoder_heads import with_heads
from models.families.family import Family
from models.families.fields import Fields
from models.families.rotary_decoder import rotary_decoder
from models.families.rotary_decoder import rules as llama_rules
from weights.rules import Rename, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    bias = fields.flag("use_bias", True)
    activation = fields.activation("hidden_act", "gelu_pytorch_tanh")
    return rotary_decoder(
        fields,
        windows=(fields.optional_integer("sliding_window"),) * fields.integer("num_hidden_layers", 30),
        num_kv_heads=fields.integer("num_key_value_heads", 2),
        max_positions=fields.integer("max_position_embeddings", 4096),
        qkv_bias=bias,
        output_bias=bias,
        norm=NormConfig("layer", fields.number("norm_epsilon", 1e-5)),
        feed_forward=FeedForwardConfig(fields.integer("intermediate_size", 12288), activation, bias=bias),
        default_tied=True,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        Rename(layer + r"mlp\.c_fc\.(weight|bias)", ours + r"feed_forward.up.\2"),
        Rename(layer + r"mlp\.c_proj\.(weight|bias)", ours + r"feed_forward.down.\2"),
        *llama_rules(model, hf, architecture),
    )


FAMILY = with_heads(
    "Starcoder2",
    Family(
        name="starcoder2",
        model_types=("starcoder2",),
        architectures={"Starcoder2ForCausalLM": ("generate",)},
        config=config,
        rules=rules,
    ),
    answers=False,
)
