"""UMT5 (Chung et al. 2023, arXiv:2304.09151): mT5 with a table of relative position biases in every layer."""

from __future__ import annotations

from functools import partial

from models.config import LanguageModelHead
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings
from models.families.shared.t5_family import MT5_SIZES, t5_family
from models.families.shared.t5_heads import with_t5_heads
from models.families.shared.t5_layers import has_biases_per_layer, t5_gguf_rules, t5_gguf_settings, t5_model
from weights.gguf.metadata import Metadata


def _head(fields: Fields) -> LanguageModelHead:
    """A language model head with a separate matrix. Logits are scaled if `tie_word_embeddings` is true.

    Published checkpoints state false. transformers 5 reads false as true and always scales; see docs/decisions/0013.
    """
    tied = fields.flag("tie_word_embeddings", True)
    return LanguageModelHead(tied=False, scale=fields.integer("d_model") ** -0.5 if tied else 1.0)


def gguf_settings(of: Metadata) -> Settings:
    # The file lacks whether logits are scaled, which no published checkpoint does.
    return {**t5_gguf_settings(of, "umt5"), "tie_word_embeddings": False}


_GGUF = GgufFamily(dict.fromkeys(("t5", "t5encoder"), gguf_settings), has_biases_per_layer, t5_gguf_rules)
FAMILY = with_t5_heads(
    "UMT5", t5_family("umt5", "UMT5", MT5_SIZES, _head, model=partial(t5_model, bias_per_layer=True), gguf=_GGUF)
)
