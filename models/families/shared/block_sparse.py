"""What BigBird and BigBird-Pegasus share: full attention or blocks, as `attention_type` says."""

from __future__ import annotations

from dataclasses import replace

from models.config import AttentionConfig, StackConfig
from models.config.sparse_attention import BlockSparseAttentionConfig
from models.families.shared.fields import Fields


def with_blocks(stack: StackConfig, fields: Fields) -> StackConfig:
    """An encoder's stack as the settings have it. `use_bias` is of queries, keys and values.

    Raises ConfigError naming the setting.
    """
    fields.refuse_unless("attention_type", "block_sparse", "original_full")
    sparse = fields.text("attention_type", "block_sparse") == "block_sparse"

    def attention(full: AttentionConfig) -> AttentionConfig:
        if not sparse:
            return full
        return BlockSparseAttentionConfig(
            **vars(full),
            block_size=fields.integer("block_size", 64),
            num_random_blocks=fields.integer("num_random_blocks", 3, least=0),
        )

    return replace(stack, layers=tuple(replace(one, attention=attention(one.attention)) for one in stack.layers))


def without_biases(attention: AttentionConfig, output: bool) -> AttentionConfig:
    """Queries, keys and values without biases; output: whether the output keeps its own."""
    return replace(attention, query_bias=False, key_bias=False, value_bias=False, output_bias=output)
