"""Prefix cache keys of full KV blocks: a hash over the key of the previous block and the block's token ids.

Equal keys mean equal texts from the first token on. The chain starts from a root key that differs between clients, so
that no client can find out the prompts of another client, not even by timing. The hash is cryptographic (BLAKE2, RFC
7693), because two texts with the same key would read each other's keys and values.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

_KEY_BYTES = 16


def root_key(salt: str) -> bytes:
    """Root key of a chain. salt: sequences with different salts share no blocks, even if their tokens are equal."""
    return blake2b(salt.encode(), digest_size=_KEY_BYTES).digest()


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Key of a block. parent: key of the previous block, or the root key. tokens: token ids of the block."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=_KEY_BYTES).digest()


def extend_keys(keys: list[bytes], root: bytes, tokens: Sequence[int], block_size: int) -> None:
    """Append keys until `keys` has one for each full block of `tokens`. root: root key of the chain."""
    for start in range(len(keys) * block_size, len(tokens) - block_size + 1, block_size):
        keys.append(block_key(keys[-1] if keys else root, tokens[start : start + block_size]))
