"""Switch Transformers (Fedus et al. 2021, arXiv:2101.03961): T5 whose router chooses one expert for each token.

In the encoder an expert computes at most `expert_capacity` tokens of a text, and skips later tokens, whose hidden
states pass unchanged. The decoder has no such limit, because generation computes one token of a text at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from models.config import (
    FeedForwardConfig,
    LanguageModelHead,
    MixtureOfExpertsConfig,
    ModelConfig,
    PoolingHead,
    RouterConfig,
)
from models.families.shared.fields import Fields
from models.families.shared.t5_family import T5_SIZES, t5_family
from models.families.shared.t5_layers import FeedForwards, t5_model, t5_rules
from weights.rules import Rename, Rule

_SIZES = {**T5_SIZES, "d_model": 768, "num_layers": 12, "num_heads": 12}


def _model(fields: Fields, head: LanguageModelHead | PoolingHead) -> ModelConfig:
    fields.refuse_unless("router_dtype", "float32")
    fields.refuse_unless("is_gated_act", False)
    dense = FeedForwardConfig(fields.integer("d_ff"), fields.activation("dense_act_fn", "relu"), bias=False)
    experts = MixtureOfExpertsConfig(
        dense,
        num_experts=fields.integer("num_experts", 8),
        experts_per_token=1,
        router=RouterConfig(normalized=False, bias=fields.flag("router_bias", False)),
    )
    limited = replace(experts, capacity=fields.integer("expert_capacity", 64))
    layers = fields.integer("num_layers")
    # Null means as many as in the encoder; absent means twelve.
    decoder_layers = fields.optional_integer("num_decoder_layers", absent=12) or layers
    feed_forwards = (
        _feed_forwards(fields, "encoder", layers, dense, limited),
        _feed_forwards(fields, "decoder", decoder_layers, dense, experts),
    )
    return t5_model(fields, head, feed_forwards=feed_forwards)


def _feed_forwards(
    fields: Fields, side: str, layers: int, dense: FeedForwardConfig, experts: MixtureOfExpertsConfig
) -> FeedForwards:
    """The feed-forward of each layer: `experts` in layers 1, 1 + step, 1 + 2 * step and so on, else `dense`.

    The step is the setting `sparse_step`. A step of 1 gives all layers experts, a step of 0 gives none.
    side: `encoder` or `decoder`, the prefix of the settings.
    """
    sparse = fields.integer(f"num_sparse_{side}_layers", 3, least=0)
    step = fields.integer(f"{side}_sparse_step", layers // sparse if sparse else layers, least=0)
    return [experts if step == 1 or (step > 0 and index % step == 1) else dense for index in range(layers)]


def _head(fields: Fields) -> LanguageModelHead:
    """The language model head. Logits that are tied to the token embeddings are scaled by `d_model ** -0.5`."""
    tied = fields.flag("tie_word_embeddings", True)
    return LanguageModelHead(tied=tied, scale=fields.integer("d_model") ** -0.5 if tied else 1.0)


def _rules(model: ModelConfig) -> Sequence[Rule]:
    layer, ours = r"(encoder|decoder)\.block\.(\d+)\.layer\.\d\.mlp\.", r"\1.layers.\2.feed_forward."
    return (
        Rename(layer + r"wi\.weight", ours + "up.weight"),
        Rename(layer + r"wo\.weight", ours + "down.weight"),
        Rename(layer + r"router\.classifier\.(weight|bias)", ours + r"router.\3"),
        Rename(layer + r"experts\.expert_(\d+)\.wi\.weight", ours + r"experts.\3.up.weight"),
        Rename(layer + r"experts\.expert_(\d+)\.wo\.weight", ours + r"experts.\3.down.weight"),
        *t5_rules(model),
    )


FAMILY = t5_family("switch_transformers", "SwitchTransformers", _SIZES, _head, model=_model, rules=_rules)
