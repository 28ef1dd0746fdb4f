"""LongT5 (Guo et al. 2022, arXiv:2112.07916): T5 whose encoder sees a window, or a window and sums of all the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.config import AttentionConfig, BucketBiasConfig, ConfigError, ModelConfig
from models.config.sparse_attention import BandedAttentionConfig, TransientGlobalAttentionConfig
from models.families.shared.fields import Fields
from models.families.shared.t5_family import T5_SIZES, scaled_head, t5_family
from models.families.shared.t5_layers import t5_rules
from weights.rules import Rename, Rule

_T5 = t5_family("longt5", "LongT5", T5_SIZES, scaled_head)
_LONGEST_SOURCE = 16384
"""Nothing in the model limits a source; the paper's longest are these (section 4)."""


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    model, fields = _T5.config(hf, architecture), Fields(hf)
    assert model.encoder is not None
    attention = _sparse(fields, model.encoder.layers[0].attention, model.encoder.score_bias)
    layers = tuple(replace(layer, attention=attention) for layer in model.encoder.layers)
    model = replace(model, encoder=replace(model.encoder, layers=layers))
    if model.decoder is None:
        return replace(model, max_positions=_LONGEST_SOURCE)
    return replace(model, max_source_positions=_LONGEST_SOURCE)


def _sparse(fields: Fields, full: AttentionConfig, buckets: object) -> AttentionConfig:
    settings = {**vars(full), "window": fields.integer("local_radius", 127) + 1}
    fields.refuse_unless("encoder_attention_type", "local", "transient-global")
    if fields.text("encoder_attention_type", "local") == "local":
        return BandedAttentionConfig(**settings)
    width = fields.integer("global_block_size", 16)
    if width & (width - 1):
        # The reference counts blocks by adding up fractions, which are exact for these alone.
        raise ConfigError(f"'global_block_size': {width} is not supported, only powers of two")
    assert isinstance(buckets, BucketBiasConfig)
    return TransientGlobalAttentionConfig(
        **settings,
        summary_tokens=width,
        summary_norm_eps=fields.positive("layer_norm_epsilon", 1e-6),
        summary_buckets=buckets,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
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


FAMILY = replace(_T5, config=config, rules=rules)
