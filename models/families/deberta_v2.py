"""DeBERTa versions 2 and 3 (He et al. 2021, arXiv:2006.03654 and arXiv:2111.09543): distances are grouped in buckets.

Distance vectors may use the same query and key projections as the tokens. The first layer may have a convolution in
parallel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ModelConfig
from models.families.shared import disentangled_encoder
from models.families.shared.bert_config import architectures
from models.families.shared.bert_rules import linear, norm
from models.families.shared.disentangled_encoder import LAYER, OURS, PREFIX
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from weights.rules import Rule


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    buckets = hf.get("position_buckets")
    fields.refuse_unless("norm_rel_ebd", "none", "layer_norm")
    if buckets is not None and not (isinstance(buckets, int) and buckets < 1):
        buckets = fields.integer("position_buckets")
    return disentangled_encoder.config(
        hf,
        architecture,
        default_vocab=128100,
        default_sizes=(1536, 24, 24, 6144),
        key_bias=True,
        position_key_bias=True,
        own_projections=not fields.flag("share_att_key", False),
        num_buckets=buckets if buckets and buckets > 0 else None,
        distance_norm=hf.get("norm_rel_ebd") == "layer_norm",
        convolution=fields.integer("conv_kernel_size", 0, least=0) > 0,
    )


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    own = rf"{LAYER}attention\.self\."
    attention = (
        *(linear(rf"{own}{part}_proj", f"{OURS}attention.{part}") for part in ("query", "key", "value")),
        linear(rf"{own}pos_key_proj", f"{OURS}attention.position_key"),
        linear(rf"{own}pos_query_proj", f"{OURS}attention.position_query"),
        linear(rf"{PREFIX}encoder\.conv\.conv", "encoder.layers.0.convolution"),
        *norm(rf"{PREFIX}encoder\.conv\.LayerNorm", "encoder.layers.0.convolution_norm"),
    )
    return disentangled_encoder.rules(model, hf, attention)


FAMILY = Family(
    name="deberta-v2",
    model_types=("deberta-v2",),
    architectures=architectures("DebertaV2"),
    config=_config,
    rules=_rules,
)
