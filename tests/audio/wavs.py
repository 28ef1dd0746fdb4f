"""Write WAV files in all formats, including damaged ones."""

from __future__ import annotations

import struct

import numpy as np


def wav(
    samples: np.ndarray, rate: int = 16_000, bits: int = 16, *, is_float: bool = False, extensible: bool = False, **odd
) -> bytes:
    """The bytes of a WAV file.

    samples: [samples] or [samples, channels], from -1 to 1. rate: sampling rate in Hz. bits: bits per sample.
    is_float: whether samples are stored as floats. extensible: whether the header is WAVE_FORMAT_EXTENSIBLE.
    odd: wrong header values in place of the correct ones: `kind`, `channels`, `align`, `size`. `chunks` are bytes to
        insert before the audio data.
    """
    columns = samples if samples.ndim == 2 else samples[:, None]
    body = _body(columns, bits, is_float)
    kind = odd.get("kind", 3 if is_float else 1)
    channels = odd.get("channels", columns.shape[1])
    align = odd.get("align", channels * bits // 8)
    form = struct.pack("<HHIIHH", 0xFFFE if extensible else kind, channels, rate, rate * align, align, bits)
    if extensible:
        tail = bytes.fromhex("000000001000800000aa00389b71")
        form += struct.pack("<HHI", 22, bits, 0) + struct.pack("<H", kind) + tail
    chunks = chunk(b"fmt ", form) + odd.get("chunks", b"")
    audio = b"data" + struct.pack("<I", odd.get("size", len(body))) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunks) + len(audio)) + b"WAVE" + chunks + audio


def chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def _body(columns: np.ndarray, bits: int, is_float: bool) -> bytes:
    if is_float:
        return columns.astype(f"<f{bits // 8}").tobytes()
    if bits == 8:
        return np.round(columns * 127 + 128).astype(np.uint8).tobytes()
    whole = np.round(columns.astype(np.float64) * (2 ** (bits - 1) - 1)).astype("<i4")
    if bits == 24:
        return whole.ravel().view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return whole.astype(f"<i{bits // 8}").tobytes()
