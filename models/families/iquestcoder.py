"""IQuest-Coder (IQuest Lab 2026): LLaMA with other defaults of its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.published_code import PublishedCode
from models.families.shared.rotary_decoder import gated_feed_forward, head_dim_of, llama_decoder, rotary_rules

_PUBLISHED = PublishedCode("IQuestLab", "iquestcoder", "IQuestCoder")
_DEFAULTS = {
    "vocab_size": 76800,
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_hidden_layers": 80,
    "num_attention_heads": 40,
    "max_position_embeddings": 131072,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, _PUBLISHED, defaults=_DEFAULTS)
    # The published code has these settings; no published checkpoint uses them.
    fields.refuse_unless("clip_qkv")
    fields.refuse_unless("use_sliding_window", False)
    bias = fields.flag("attention_bias", False)
    return llama_decoder(
        fields,
        gated_feed_forward(fields, bias=fields.flag("mlp_bias", False)),
        head_dim=head_dim_of(fields, fields.raw("head_dim", 128)),
        # Null means one head of keys and values per query head; absent means eight heads.
        num_kv_heads=fields.optional_integer("num_key_value_heads", absent=8),
        qkv_bias=bias,
        output_bias=bias,
    )


FAMILY = decoder_family(
    "iquestcoder",
    "Llama",
    config,
    rotary_rules,
    # transformers runs these checkpoints as LLaMA and writes the name of that class.
    generating=("LlamaForCausalLM", "IQuestCoderForCausalLM"),
)
