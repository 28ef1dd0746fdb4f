"""mT5 (Xue et al. 2021, arXiv:2010.11934): T5 version 1.1 for 101 languages."""

from __future__ import annotations

from models.config import LanguageModelHead
from models.families.shared.fields import Fields
from models.families.shared.t5_family import MT5_SIZES, t5_family
from models.families.shared.t5_heads import with_t5_heads


def _head(fields: Fields) -> LanguageModelHead:
    """A language model head with unscaled logits and a separate matrix, not tied to the token embeddings.

    `tie_word_embeddings` is ignored, because transformers 5 writes true even for untied logits.
    """
    return LanguageModelHead(tied=False)


FAMILY = with_t5_heads("MT5", t5_family("mt5", "MT5", MT5_SIZES, _head))
