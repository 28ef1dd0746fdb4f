"""DeBERTa version 1 (He et al. 2021, arXiv:2006.03654): a position vector for each distance.

One tensor holds the projections of queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ModelConfig
from models.families.shared import disentangled_encoder
from models.families.shared.bert_config import architectures
from models.families.shared.bert_rules import linear
from models.families.shared.disentangled_encoder import LAYER, OURS
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from weights.rules import Rename, Rule, Split


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    Fields(hf).refuse_unless("talking_head", False)
    return disentangled_encoder.config(
        hf,
        architecture,
        default_vocab=50265,
        default_sizes=(768, 12, 12, 3072),
        key_bias=False,
        position_key_bias=False,
    )


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.encoder is not None
    heads, parts = model.encoder.first_attention.num_heads, ("query", "key", "value")
    own = rf"{LAYER}attention\.self\."
    attention = (
        Split(rf"{own}in_proj\.weight", [f"{OURS}attention.{part}.weight" for part in parts], groups=heads),
        Rename(rf"{own}q_bias", f"{OURS}attention.query.bias"),
        Rename(rf"{own}v_bias", f"{OURS}attention.value.bias"),
        Rename(rf"{own}pos_proj\.weight", f"{OURS}attention.position_key.weight"),
        linear(rf"{own}pos_q_proj", f"{OURS}attention.position_query"),
    )
    return disentangled_encoder.rules(model, hf, attention)


FAMILY = Family(
    name="deberta",
    model_types=("deberta",),
    architectures=architectures("Deberta"),
    config=_config,
    rules=_rules,
)
