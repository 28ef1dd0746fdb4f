"""UMT5 (Chung et al. 2023, arXiv:2304.09151): mT5 with position buckets of its own in every layer."""

from __future__ import annotations

from models.config import LanguageModelHead
from models.families.shared.fields import Fields
from models.families.shared.t5_family import MT5_SIZES, t5_family
from models.families.shared.t5_heads import with_t5_heads


def _head(fields: Fields) -> LanguageModelHead:
    """Tied logits are scaled, published ones are neither. transformers 5 takes all for tied when it scales, and still
    keeps a table of their own where the checkpoint has one; see docs/decisions/0013."""
    tied = fields.flag("tie_word_embeddings", True)
    return LanguageModelHead(tied=False, scale=fields.integer("d_model") ** -0.5 if tied else 1.0)


FAMILY = with_t5_heads("UMT5", t5_family("umt5", "UMT5", MT5_SIZES, _head, bias_per_layer=True))
