"""The library of llama.cpp from the wheel `xllamacpp`, through ctypes: quantises matrices and computes logits."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from benchmarks.quality.divergence import Logits

_PARAMETER_BYTES = 1024
"""More than any of the parameter structs has. Only their first fields, which have been stable for years, are set."""


class _Parameters(ctypes.Structure):
    """Parameters of a model or of a context, of which only the first fields of a context are known here."""

    _fields_ = (
        ("n_ctx", ctypes.c_uint32),
        ("n_batch", ctypes.c_uint32),
        ("n_ubatch", ctypes.c_uint32),
        ("rest", ctypes.c_uint8 * (_PARAMETER_BYTES - 12)),
    )


class _Batch(ctypes.Structure):
    """`llama_batch` of llama.h."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


_LOG_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_SILENT = _LOG_CALLBACK(lambda level, text, data: None)


@cache
def library(packages: Path) -> ctypes.CDLL:
    """The library in the folder of installed packages."""
    (path,) = packages.glob("xllamacpp/*.so")
    loaded = ctypes.CDLL(str(path))
    pointers = ("llama_model_load_from_file", "llama_init_from_model", "llama_get_memory", "llama_get_logits")
    for name in pointers:
        getattr(loaded, name).restype = ctypes.c_void_p
    for name in ("llama_model_default_params", "llama_context_default_params"):
        getattr(loaded, name).restype = _Parameters
    loaded.llama_batch_init.restype = _Batch
    loaded.ggml_quantize_chunk.restype = ctypes.c_size_t
    loaded.llama_log_set(_SILENT, None)
    loaded.llama_backend_init()
    return loaded


def quantize(packages: Path, weights: Tensor, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """The bytes of a matrix in a type of ggml, made by `ggml_quantize_chunk`: [..., bytes of a row]."""
    rows, width = weights.reshape(-1, weights.shape[-1]).shape
    shape = gguf.quant_shape_to_byte_shape(weights.shape, kind)
    out = np.empty(shape, dtype=np.uint8)
    size = library(packages).ggml_quantize_chunk(
        ctypes.c_int(kind.value),
        ctypes.c_void_p(weights.contiguous().data_ptr()),
        ctypes.c_void_p(out.ctypes.data),
        ctypes.c_int64(0),
        ctypes.c_int64(rows),
        ctypes.c_int64(width),
        None,
    )
    assert size == out.nbytes, f"ggml wrote {size} bytes of {out.nbytes}"
    return out


class LlamaCpp:
    """A model in a GGUF file, computed by llama.cpp. length: most tokens of a text."""

    def __init__(self, packages: Path, file: Path, length: int, vocab_size: int) -> None:
        self._library, self._vocab_size = library(packages), vocab_size
        model = self._library.llama_model_load_from_file(str(file).encode(), self._library.llama_model_default_params())
        assert model, "llama.cpp does not read the file"
        parameters = self._library.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = length
        self._context = ctypes.c_void_p(self._library.llama_init_from_model(ctypes.c_void_p(model), parameters))
        self._library.llama_set_n_threads(self._context, torch.get_num_threads(), torch.get_num_threads())
        self._batch = self._library.llama_batch_init(length, 0, 1)

    def read(self, text: Sequence[int]) -> Logits:
        """See `divergence.Model`."""
        logits = self._compute(text)
        return lambda first, last: logits[first:last]

    def _compute(self, tokens: Sequence[int]) -> Tensor:
        memory = ctypes.c_void_p(self._library.llama_get_memory(self._context))
        self._library.llama_memory_clear(memory, ctypes.c_bool(True))
        self._batch.n_tokens = len(tokens)
        for at, token in enumerate(tokens):
            self._batch.token[at], self._batch.pos[at] = token, at
            self._batch.n_seq_id[at], self._batch.seq_id[at][0], self._batch.logits[at] = 1, 0, 1
        status = self._library.llama_decode(self._context, self._batch)
        assert status == 0, f"llama_decode returned {status}"
        address = self._library.llama_get_logits(self._context)
        numbers = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
        found = np.ctypeslib.as_array(numbers, (len(tokens), self._vocab_size))
        return torch.from_numpy(found.copy())
