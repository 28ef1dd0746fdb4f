"""GLM-4: LLaMA with biases of queries, keys and values.

One tensor holds the gate and up matrices of the feed-forward. Rotary positions apply to half of each head, in pairs of
neighbouring dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from models.config import ModelConfig
from models.families.shared.fields import Fields
from models.families.shared.rope import rope_config
from models.families.shared.rotary_decoder import gated_feed_forward, head_dim_of, llama_decoder, rotary_rules
from weights.rules import Rule, Split

PAD_TOKEN_ID = 151329


def glm_decoder(fields: Fields, norm_slots: Sequence[Literal["input", "output"]]) -> ModelConfig:
    """Configuration of a GLM-4 decoder. norm_slots: places of the norms in each sublayer: `input`, `output`."""
    return llama_decoder(
        fields,
        gated_feed_forward(fields),
        rope=rope_config(fields, head_dim_of(fields), default_share=0.5, pairing="interleaved"),
        qkv_bias=fields.flag("attention_bias", True),
        norm_slots=norm_slots,
    )


def glm_rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    gate_up = [rf"decoder.layers.\1.feed_forward.{name}.weight" for name in ("gate", "up")]
    return (
        Split(r"model\.layers\.(\d+)\.mlp\.gate_up_proj\.weight", gate_up),
        *rotary_rules(model, hf, architecture),
    )
