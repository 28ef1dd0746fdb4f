"""KV caches of 8 bits: the tensors that the attention kernels read, and the kernel that rounds new keys and values."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from models.backends.cuda.kernels.codes import fp8_bits, round_to_even
from models.backends.cuda.kernels.launch import kernel, power_of_two, warps
from models.backends.rounded_slots import FP8, CacheSide, RoundedSlots


class CacheCodes(NamedTuple):
    """Keys and values of a cache as the attention kernels read them.

    key, value: float keys and values, or their codes of 8 bits.
    key_scales, value_scales: [blocks, kv_heads, block_size], bfloat16, scales of the codes. For a float cache, any
        tensors: they are not read.
    kind: kind of the codes: "int8" or "fp8"; "" for a float cache.
    """

    key: Tensor
    value: Tensor
    key_scales: Tensor
    value_scales: Tensor
    kind: str

    @classmethod
    def of(cls, key: CacheSide, value: CacheSide) -> CacheCodes:
        """The tensors of a cache. key, value: both float tensors, or both rounded to the same dtype."""
        if isinstance(key, RoundedSlots) and isinstance(value, RoundedSlots):
            assert key.dtype == value.dtype and key.scales.stride() == value.scales.stride(), "both sides are alike"
            kind = "fp8" if key.dtype == FP8 else "int8"
            return cls(key.codes, value.codes, key.scales, value.scales, kind)
        assert not isinstance(key, RoundedSlots) and not isinstance(value, RoundedSlots), "both sides are alike"
        return cls(key, value, key, value, "")


def write_rounded_slots(
    key_cache: RoundedSlots, value_cache: RoundedSlots, slots: Tensor, key: Tensor, value: Tensor
) -> None:
    """Round new keys and values with one scale per token and head, and store them in a paged cache.

    key_cache, value_cache: both in the same dtype. They may be the same slots.
    slots: [tokens], int64: `block * block_size + offset`. A token with a negative slot is not stored.
    key: [tokens, kv_heads, key_dim]. value: [tokens, kv_heads, value_dim]. The last dimension is contiguous; tokens and
        heads have any stride.
    """
    (tokens, heads, key_dim), value_dim = key.shape, value.shape[2]
    parts = CacheCodes.of(key_cache, value_cache)
    if tokens and heads:
        _write_rounded_kernel[tokens, heads, 1 if key_cache.codes is value_cache.codes else 2](
            key,
            value,
            *parts[:4],
            slots,
            *key.stride()[:2],
            *value.stride()[:2],
            heads,
            KEY_DIM=key_dim,
            VALUE_DIM=value_dim,
            KEY_TILE=power_of_two(key_dim),
            VALUE_TILE=power_of_two(value_dim),
            BLOCK_SIZE=key_cache.block_size,
            CODES=parts.kind,
            num_warps=warps(max(key_dim, value_dim)),
            # Rounding adds a large number to a product. Fused, both would be rounded once.
            enable_fp_fusion=False,
        )


@triton.jit
def _write_head(
    source,
    codes,
    scales,
    slot,
    head,
    num_heads,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    CODES: tl.constexpr,
):
    """Round one head of one token. source: address of the head."""
    places = tl.arange(0, TILE)
    inside = places < WIDTH
    x = tl.load(source + places, mask=inside, other=0.0).to(tl.float32)
    is_finite = tl.sum((x - x != 0.0).to(tl.int32), 0) == 0
    x = tl.where(is_finite, x, 0.0)
    size = tl.max(tl.abs(x), 0)
    scale = tl.where(size > 1e-30, tl.div_rn(size, 448.0 if CODES == "fp8" else 127.0), 0.0).to(scales.dtype.element_ty)
    wide = scale.to(tl.float32)
    multiples = x * tl.where(wide > 0.0, tl.div_rn(1.0, tl.where(wide > 0.0, wide, 1.0)), 0.0)
    rounded = fp8_bits(multiples) if CODES == "fp8" else round_to_even(multiples).to(tl.int32)
    target = codes + (slot * num_heads + head) * WIDTH + places
    tl.store(target, rounded.to(codes.dtype.element_ty), mask=inside)
    place = (slot // BLOCK_SIZE * num_heads + head) * BLOCK_SIZE + slot % BLOCK_SIZE
    tl.store(scales + place, tl.where(is_finite, wide, float("nan")).to(scales.dtype.element_ty))


@kernel(do_not_specialize=["slots"])
def _write_rounded_kernel(
    key,
    value,
    key_codes,
    value_codes,
    key_scales,
    value_scales,
    slots,
    key_token,
    key_head,
    value_token,
    value_head,
    num_heads,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_TILE: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    CODES: tl.constexpr,
):
    """Store one head of a token's key, or of its value."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        if tl.program_id(2) == 0:
            source = key + token * key_token + head * key_head
            _write_head(source, key_codes, key_scales, slot, head, num_heads, KEY_DIM, KEY_TILE, BLOCK_SIZE, CODES)
        else:
            source = value + token * value_token + head * value_head
            _write_head(
                source, value_codes, value_scales, slot, head, num_heads, VALUE_DIM, VALUE_TILE, BLOCK_SIZE, CODES
            )
