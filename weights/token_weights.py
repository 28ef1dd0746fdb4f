"""Read one small vector from a safetensors file without the safetensors library. Imports no torch.

The file has the length of a JSON header in 8 bytes, then the header, then the numbers.
Source: https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from weights.errors import ResolveError
from weights.resolve import file_in

MAX_HEADER, MAX_NUMBERS = 1 << 20, 1 << 22
"""Longest header in bytes, and longest vector. Such a file has one tensor, with one number for each token."""
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_vector(directory: Path, file: str, tensor: str) -> NDArray[np.float32]:
    """Read a tensor with one dimension. Returns [length], float32.

    file: path of a safetensors file inside the checkpoint directory. tensor: name of the tensor.
    Raises ResolveError for a missing or damaged file, and for a tensor that has another number of dimensions, another
    dtype than float64, float32 or float16, or numbers that are not finite.
    """
    path = file_in(directory, file)
    if path is None:
        raise ResolveError(f"the checkpoint has no {file!r}")
    try:
        with path.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = msgspec.json.decode(opened.read(min(length, MAX_HEADER)), type=dict[str, msgspec.Raw])
            stored = msgspec.json.decode(header[tensor], type=_Tensor)
            begin, end = stored.data_offsets
            size = np.dtype(_DTYPES[stored.dtype]).itemsize
            if not 0 <= end - begin <= MAX_NUMBERS * size or stored.shape != [(end - begin) // size]:
                raise ValueError
            opened.seek(8 + length + begin)
            content = opened.read(end - begin)
        numbers = np.frombuffer(content, dtype=_DTYPES[stored.dtype]).astype(np.float32)
        if len(content) != end - begin or not np.isfinite(numbers).all():
            raise ValueError
    except (OSError, msgspec.MsgspecError, KeyError, ValueError, OverflowError):
        raise ResolveError(f"{file!r} has no readable {tensor!r} with one finite number for each token") from None
    return numbers
