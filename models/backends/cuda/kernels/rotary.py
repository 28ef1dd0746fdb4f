"""Rotary position embedding, and the write of keys and values to a paged cache."""

from __future__ import annotations

from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, interleaved: bool) -> Tensor:
    """Rotate query or key heads by their positions, in float32.

    x: [tokens, heads, head_dim], model dtype; the last dimension contiguous, tokens and heads with any stride.
    cos, sin: [positions, dim / 2] or [positions, 1, dim / 2], float32, dim <= head_dim. Dimensions from dim on do not
        change.
    positions: [tokens], int64 or int32, row of each token in the tables; None where token i has row i.
    interleaved: pairs are (0, 1), (2, 3)..., else (0, dim / 2), (1, dim / 2 + 1)...
    Returns a new contiguous tensor like x. Source: Su et al. 2021, arXiv:2104.09864, section 3.4.2.
    """
    raise NotImplementedError


def write_slots(key_cache: Tensor, value_cache: Tensor, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """Store new keys and values in a paged cache.

    key_cache: [blocks, block_size, kv_heads, key_dim], contiguous. value_cache: likewise with value_dim.
    slots: [tokens], int64: `block * block_size + offset`. A token with a negative slot is not stored.
    key: [tokens, kv_heads, key_dim]. value: [tokens, kv_heads, value_dim]. Tokens and heads with any stride.
    """
    raise NotImplementedError


def rotate_and_write(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    interleaved: bool,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
) -> Tensor:
    """Rotate queries and keys, and store rotated keys and values in a paged cache, in one kernel.

    query: [tokens, heads, head_dim]. key, value: [tokens, kv_heads, ...]. They may be views of one merged product.
    The other arguments as for `rotate` and `write_slots`.
    Returns the rotated queries, contiguous.
    """
    raise NotImplementedError
