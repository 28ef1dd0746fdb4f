"""What a full KV block is known by, so that texts that begin alike find each other's blocks. Knows tokens, no blocks.

A block's key is a hash over the key of the block before it and its own token ids: equal keys mean equal texts from the
first token on. The chain starts from a root that differs between clients who must not learn of each other's prompts,
not even from the time an answer takes. The hash is cryptographic (BLAKE2, RFC 7693), because two texts with one key
would read each other's past.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

_KEY_BYTES = 16


def root_key(salt: str) -> bytes:
    """Where the chain of a text begins. salt: everything beside the tokens that must tell two texts apart."""
    return blake2b(salt.encode(), digest_size=_KEY_BYTES).digest()


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The key of a block of these tokens after the block `parent`, or after a root."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=_KEY_BYTES).digest()


def extend_keys(keys: list[bytes], root: bytes, tokens: Sequence[int], block_size: int) -> None:
    """Append what is missing, until `keys` has a key for each full block of `tokens`."""
    for start in range(len(keys) * block_size, len(tokens) - block_size + 1, block_size):
        keys.append(block_key(keys[-1] if keys else root, tokens[start : start + block_size]))
