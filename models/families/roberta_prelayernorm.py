"""RoBERTa with a norm before each sublayer, such as the efficient_mlm models (Wettig et al. 2022, arXiv:2202.08005)."""

from __future__ import annotations

from models.families.shared.pre_norm_roberta import pre_norm_roberta_family

FAMILY = pre_norm_roberta_family(
    "roberta-prelayernorm",
    "RobertaPreLayerNorm",
    prefix=r"(?:roberta_prelayernorm\.)?",
    norms={"attention_norm": r"attention\.LayerNorm", "feed_forward_norm": r"intermediate\.LayerNorm"},
    final_norm="LayerNorm",
    embedding_norm=True,
    defaults={"vocab_size": 50265},
)
