"""Read one small vector of numbers from a safetensors file, without the library. Imports no torch.

The file begins with the length of a JSON header, 8 bytes, then the header, then the numbers.
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
"""Longest header, in bytes, and longest vector. A file of this kind has one tensor, with a number for each token."""
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_vector(directory: Path, file: str, tensor: str) -> NDArray[np.float32]:
    """The numbers of a tensor with one dimension: [n], float32.

    file: path of a safetensors file inside the directory. tensor: its name.
    Raises ResolveError, one line, for a missing or damaged file, and for a tensor that is no such vector.
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
