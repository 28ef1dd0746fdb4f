"""Decodes telephone audio: mu-law and A-law of 8 bits, 8,000 samples a second. Source: ITU-T G.711 (1988)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RATE = 8_000


def decode_ulaw(data: bytes) -> bytes:
    """Convert samples in mu-law, one byte each, to PCM of 16 bits, little-endian."""
    return _MU_LAW[np.frombuffer(data, dtype=np.uint8)].tobytes()


def decode_alaw(data: bytes) -> bytes:
    """Convert samples in A-law, one byte each, to PCM of 16 bits, little-endian."""
    return _A_LAW[np.frombuffer(data, dtype=np.uint8)].tobytes()


def _mu_law() -> NDArray[np.int16]:
    codes = ~np.arange(256, dtype=np.uint8)
    exponents, mantissas = (codes.astype(np.int32) >> 4) & 7, codes.astype(np.int32) & 15
    values = (((mantissas << 3) + 132) << exponents) - 132
    return np.where(codes & 0x80, -values, values).astype("<i2")


def _a_law() -> NDArray[np.int16]:
    codes = np.arange(256, dtype=np.int32) ^ 0x55
    exponents, mantissas = (codes >> 4) & 7, (codes & 15) << 4
    values = np.where(exponents > 0, (mantissas + 264) << np.maximum(exponents - 1, 0), mantissas + 8)
    return np.where(codes & 0x80, values, -values).astype("<i2")


_MU_LAW, _A_LAW = _mu_law(), _a_law()
