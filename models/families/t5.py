"""T5 versions 1.0 and 1.1 (Raffel et al. 2020, arXiv:1910.10683), including FLAN-T5, UL2 and ByT5."""

from __future__ import annotations

from models.families.shared.gguf import GgufFamily, Settings
from models.families.shared.t5_family import T5_SIZES, scaled_head, t5_family
from models.families.shared.t5_heads import with_t5_heads
from models.families.shared.t5_layers import has_biases_per_layer, t5_gguf_rules, t5_gguf_settings
from weights.gguf.metadata import Metadata


def gguf_settings(of: Metadata) -> Settings:
    return t5_gguf_settings(of, "t5")


_GGUF = GgufFamily(
    dict.fromkeys(("t5", "t5encoder"), gguf_settings), lambda of: not has_biases_per_layer(of), t5_gguf_rules
)
FAMILY = with_t5_heads(
    "T5", t5_family("t5", "T5", T5_SIZES, scaled_head, older_names=("T5WithLMHeadModel",), gguf=_GGUF)
)
