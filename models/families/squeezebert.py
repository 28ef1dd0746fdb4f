"""SqueezeBERT (Iandola et al. 2020, arXiv:2006.11316): BERT with grouped linear layers.

A grouped layer is loaded as a full matrix with the groups' blocks on its diagonal and zeros elsewhere, which gives the
same results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ConfigError, ModelConfig, NormConfig
from models.families.shared.bert_config import (
    architectures,
    bert_attention,
    bert_embedding,
    bert_feed_forward,
    bert_head,
    bert_model,
    encoder_fields,
    post_norm_layer,
)
from models.families.shared.bert_rules import bert_head_rules, embedding_rules, norm
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from weights.rules import Rename, Rule, block_diagonal

_PREFIX = r"(?:transformer\.)?"
_LAYER_NORM = NormConfig("layer", 1e-12)
"""Norm inside the layers. Its epsilon is fixed; `layer_norm_eps` applies to the other norms only."""
_GROUPED = {
    "attention.query": ("attention.query", "q_groups", 4),
    "attention.key": ("attention.key", "k_groups", 4),
    "attention.value": ("attention.value", "v_groups", 4),
    "post_attention.conv1d": ("attention.output", "post_attention_groups", 1),
    "intermediate.conv1d": ("feed_forward.up", "intermediate_groups", 4),
    "output.conv1d": ("feed_forward.down", "output_groups", 4),
}
"""Grouped linear layers, by name in the checkpoint: (name in the model, setting with the number of groups, default)."""


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = encoder_fields(hf)
    hidden, inner = fields.integer("hidden_size"), fields.integer("intermediate_size")
    fields.refuse_unless("embedding_size", hidden)
    for ours, setting, default in _GROUPED.values():
        groups = fields.integer(setting, default)
        if hidden % groups or (ours.startswith("feed_forward") and inner % groups):
            raise ConfigError(f"{setting!r}: {groups} groups do not divide the widths {hidden} and {inner}")
    layer = post_norm_layer(bert_attention(fields), bert_feed_forward(fields), _LAYER_NORM)
    layers = (layer,) * fields.integer("num_hidden_layers")
    return bert_model(fields, bert_head(fields, architecture), bert_embedding(fields), layers)


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = rf"{_PREFIX}encoder\.layers\.(\d+)\.", r"encoder.layers.\1."
    fields, rules = Fields(hf), list[Rule]()
    for theirs, (name, setting, default) in _GROUPED.items():
        pattern, groups = layer + theirs.replace(".", r"\."), fields.integer(setting, default)
        rules.append(Rule(rf"{pattern}\.weight", (f"{ours}{name}.weight",), (block_diagonal(groups),)))
        rules.append(Rename(rf"{pattern}\.bias", f"{ours}{name}.bias"))
    return (
        *embedding_rules(rf"{_PREFIX}embeddings"),
        *rules,
        *norm(rf"{layer}post_attention\.layernorm", f"{ours}attention_norms.residual"),
        *norm(rf"{layer}output\.layernorm", f"{ours}feed_forward_norms.residual"),
        *bert_head_rules(model.head, _PREFIX),
    )


FAMILY = Family(
    name="squeezebert",
    model_types=("squeezebert",),
    architectures=architectures("SqueezeBert"),
    config=_config,
    rules=_rules,
)
