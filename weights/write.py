"""Write the tensors of a checkpoint one by one, so that only one of them must be in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from weights.read import DTYPES

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class SafetensorsWriter:
    """Writes one safetensors file, as a context manager. Every tensor must be written once, in any order.

    path: path of the file.
    layouts: for each tensor, by name, a tensor of the same dtype and shape, which may be on the meta device.
    Source: https://github.com/huggingface/safetensors, "Format".
    """

    def __init__(self, path: Path, layouts: Mapping[str, Tensor]) -> None:
        # Readers view the bytes as numbers, so every tensor begins at a multiple of its item size.
        order = sorted(layouts, key=lambda name: -layouts[name].dtype.itemsize)
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name in order:
            begin, end = end, end + layouts[name].nbytes
            dtype, shape = _NAMES[layouts[name].dtype], list(layouts[name].shape)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self._begin, self._header, self._missing = 8 + len(text), header, set(order)
        self.nbytes = self._begin + end
        self._file = path.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)
        self._file.truncate(self.nbytes)

    def write(self, name: str, tensor: Tensor) -> None:
        """Write one tensor. It must have the dtype and shape of `layouts[name]`, and may be written only once."""
        entry = self._header[name]
        assert (_NAMES[tensor.dtype], list(tensor.shape)) == (entry["dtype"], entry["shape"]), name
        self._missing.remove(name)
        self._file.seek(self._begin + entry["data_offsets"][0])
        self._file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        assert kind is not None or not self._missing, f"not written: {sorted(self._missing)[:3]}"
