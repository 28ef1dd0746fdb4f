"""ERNIE 4.5 without experts (Baidu 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.config import ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.ernie4_5 import ernie4_5_decoder
from models.families.shared.fields import Fields
from models.families.shared.rotary_decoder import gated_feed_forward, rotary_rules

_DEFAULTS = {"vocab_size": 103424, "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 18}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    # Null means one head for keys and values per query head; absent means two heads.
    heads = hf.get("num_attention_heads") or _DEFAULTS["num_attention_heads"]
    kv_heads = heads if "num_key_value_heads" in hf else 2
    fields = Fields(hf, defaults={**_DEFAULTS, "num_key_value_heads": kv_heads})
    width, bias = fields.integer("intermediate_size", 3072), fields.flag("use_bias", False)
    feed_forward = gated_feed_forward(fields, width, bias)
    return ernie4_5_decoder(fields, lambda index: feed_forward, fields.raw("head_dim", 128))


FAMILY = decoder_family(
    "ernie4_5",
    "Ernie4_5",
    config,
    rotary_rules,
    texts=False,
    tokens=False,
    answers=False,
)
