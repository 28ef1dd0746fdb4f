"""InternLM3 (Shanghai AI Laboratory 2025): LLaMA with biases, if the settings `qkv_bias` and `bias` are true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ConfigError, ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.published_code import PublishedCode
from models.families.shared.rotary_decoder import gated_feed_forward, head_dim_of, llama_decoder, rotary_rules

_PUBLISHED = PublishedCode("internlm", "internlm3", "InternLM3")
_DEFAULTS = {
    "vocab_size": 128512,
    "hidden_size": 4096,
    "intermediate_size": 10240,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "max_position_embeddings": 32768,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, _PUBLISHED, defaults=_DEFAULTS)
    # Published files have the first names, those that transformers writes the second.
    of_keys = fields.flag("qkv_bias", fields.flag("attention_bias", False))
    of_others = fields.flag("bias", fields.flag("mlp_bias", False))
    if of_keys != of_others:
        raise ConfigError("'qkv_bias' and 'bias' must be equal, because the code we compare with supports no others")
    return llama_decoder(
        fields,
        gated_feed_forward(fields, bias=of_others),
        head_dim=head_dim_of(fields, fields.raw("head_dim", 128)),
        # Null means one head of keys and values per query head; absent means two heads.
        num_kv_heads=fields.optional_integer("num_key_value_heads", absent=2),
        qkv_bias=of_keys,
        output_bias=of_others,
    )


FAMILY = decoder_family(
    "internlm3",
    "Llama",
    config,
    rotary_rules,
    # transformers runs these checkpoints as LLaMA and writes the name of that class.
    generating=("LlamaForCausalLM", "InternLM3ForCausalLM"),
    pad_token_id=2,
)
