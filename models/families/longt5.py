"""LongT5 (Guo et al. 2022, arXiv:2112.07916): T5 with a sliding window in the encoder.

Optionally, tokens also attend to summary vectors of all blocks of the source.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.config import AttentionConfig, ConfigError, LanguageModelHead, ModelConfig, PoolingHead
from models.config.sparse_attention import BandedAttentionConfig, TransientGlobalAttentionConfig
from models.families.shared.fields import Fields
from models.families.shared.t5_family import T5_SIZES, scaled_head, t5_family
from models.families.shared.t5_layers import t5_attention, t5_buckets, t5_model, t5_rules
from weights.rules import Rename, Rule

_MAX_SOURCE = 16384
"""Longest source in tokens. The model itself has no limit; this is the longest source in the paper (section 4)."""


def _model(fields: Fields, head: LanguageModelHead | PoolingHead) -> ModelConfig:
    return t5_model(fields, head, encoder_attention=_sparse_attention(fields), max_source_positions=_MAX_SOURCE)


def _sparse_attention(fields: Fields) -> AttentionConfig:
    settings = {**vars(t5_attention(fields, causal=False)), "window": fields.integer("local_radius", 127) + 1}
    fields.refuse_unless("encoder_attention_type", "local", "transient-global")
    if fields.text("encoder_attention_type", "local") == "local":
        return BandedAttentionConfig(**settings)
    width = fields.integer("global_block_size", 16)
    if width & (width - 1):
        # The reference implementation counts blocks by adding fractions, which are exact only for powers of two.
        raise ConfigError(f"'global_block_size': {width} is not supported, only powers of two")
    return TransientGlobalAttentionConfig(
        **settings,
        summary_tokens=width,
        summary_norm_eps=fields.positive("layer_norm_epsilon", 1e-6),
        summary_buckets=t5_buckets(fields, bidirectional=True),
    )


def _rules(model: ModelConfig) -> Sequence[Rule]:
    assert model.encoder is not None
    numbers = range(len(model.encoder.layers))
    block = r"encoder\.block\.(\d+)\.layer\.0\.(?:Local|TransientGlobal)SelfAttention\."
    first, ours = block.replace(r"(\d+)", "0"), r"encoder.layers.\1.attention."
    return (
        *(
            Rename(block + rf"{short}\.weight", ours + f"{long}.weight")
            for short, long in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output"))
        ),
        Rename(first + r"relative_attention_bias\.weight", "encoder.score_bias.weight"),
        Rename(block + r"global_input_layer_norm\.weight", ours + "summary_norm.weight"),
        Rule(
            first + r"global_relative_attention_bias\.weight",
            tuple(f"encoder.layers.{number}.attention.summary_bias.weight" for number in numbers),
            (lambda tensors: [tensors[0] for _ in numbers],),
        ),
        *t5_rules(model),
    )


FAMILY = t5_family("longt5", "LongT5", T5_SIZES, scaled_head, model=_model, rules=_rules)
