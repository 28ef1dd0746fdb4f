"""Block sparse attention of BigBird and BigBird-Pegasus (Zaheer et al. 2020, arXiv:2007.14062)."""

from __future__ import annotations

from models.config import AttentionConfig
from models.config.sparse_attention import BlockSparseAttentionConfig
from models.families.shared.fields import Fields


def block_sparse(fields: Fields, full: AttentionConfig) -> AttentionConfig:
    """The attention that `attention_type` names: block sparse (the default) or full.

    full: the full attention; block sparse attention has the same heads, widths and biases.
    Raises ConfigError for another `attention_type`.
    """
    fields.refuse_unless("attention_type", "block_sparse", "original_full")
    if fields.text("attention_type", "block_sparse") == "original_full":
        return full
    return BlockSparseAttentionConfig(
        **vars(full),
        block_size=fields.integer("block_size", 64),
        num_random_blocks=fields.integer("num_random_blocks", 3, least=0),
    )
