"""The library of llama.cpp, through ctypes: quantises matrices, and computes logits of a GGUF file.

It comes from the wheel `xllamacpp`, which is built for many processors and not for the newest instructions, or from a
folder with `libllama.so` and the libraries beside it: a build for the processor at hand, or one with a library for each
instruction set, such as the npm package `@node-llama-cpp/linux-x64`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
from numpy.typing import NDArray

_PARAMETER_BYTES = 1024
"""More than any of the parameter structs has. Only their first fields, which have been stable for years, are set."""


class _Parameters(ctypes.Structure):
    """Parameters of a model or of a context, of which only the first fields of a context are known here."""

    _fields_ = (
        ("n_ctx", ctypes.c_uint32),
        ("n_batch", ctypes.c_uint32),
        ("n_ubatch", ctypes.c_uint32),
        ("n_seq_max", ctypes.c_uint32),
        ("rest", ctypes.c_uint8 * (_PARAMETER_BYTES - 16)),
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
def library(folder: Path) -> ctypes.CDLL:
    """The library in a folder: of installed packages, or with `libllama.so`."""
    built = _in(folder, "llama")
    if built is not None:
        backends = ctypes.CDLL(str(_in(folder, "ggml")), mode=ctypes.RTLD_GLOBAL)
        if hasattr(backends, "ggml_backend_load_all_from_path"):
            # It takes the library of the best instruction set of the processor.
            backends.ggml_backend_load_all_from_path(str(folder).encode())
    (path,) = [built] if built is not None else folder.glob("xllamacpp/*.so")
    loaded = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    if built is not None:
        # It is in a library of its own there.
        quantize_chunk = ctypes.CDLL(str(_in(folder, "ggml-base"))).ggml_quantize_chunk
        setattr(loaded, "ggml_quantize_chunk", quantize_chunk)  # noqa: B010
    pointers = ("llama_model_load_from_file", "llama_init_from_model", "llama_get_memory", "llama_get_logits")
    for name in (*pointers, "llama_get_logits_ith"):
        getattr(loaded, name).restype = ctypes.c_void_p
    loaded.llama_print_system_info.restype = ctypes.c_char_p
    for name in ("llama_model_default_params", "llama_context_default_params"):
        getattr(loaded, name).restype = _Parameters
    loaded.llama_batch_init.restype = _Batch
    loaded.ggml_quantize_chunk.restype = ctypes.c_size_t
    loaded.llama_log_set(_SILENT, None)
    loaded.llama_backend_init()
    return loaded


def _in(folder: Path, name: str) -> Path | None:
    """The file of a library in a folder, whose name may have a version; None if it is not there."""
    return next(iter(sorted([*folder.glob(f"lib{name}.so"), *folder.glob(f"lib{name}.v*.so")])), None)


def instructions(folder: Path) -> str:
    """The instruction sets that the library uses, in its own words."""
    return str(library(folder).llama_print_system_info().decode())


def quantize(folder: Path, weights: NDArray[np.float32], kind: gguf.GGMLQuantizationType) -> NDArray[np.uint8]:
    """The bytes of a matrix in a type of ggml, made by `ggml_quantize_chunk`: [..., bytes of a row].

    weights: [..., in], contiguous.
    """
    width = weights.shape[-1]
    out = np.empty(gguf.quant_shape_to_byte_shape(weights.shape, kind), dtype=np.uint8)
    size = library(folder).ggml_quantize_chunk(
        ctypes.c_int(kind.value),
        ctypes.c_void_p(weights.ctypes.data),
        ctypes.c_void_p(out.ctypes.data),
        ctypes.c_int64(0),
        ctypes.c_int64(weights.size // width),
        ctypes.c_int64(width),
        None,
    )
    assert size == out.nbytes, f"ggml wrote {size} bytes of {out.nbytes}"
    return out


class Row(NamedTuple):
    """A token of a step. sequence: index of its sequence. has_logits: whether its logits are computed."""

    token: int
    position: int
    sequence: int
    has_logits: bool


class LlamaModel:
    """A GGUF file and a context.

    folder: see `library`. tokens: most tokens of all sequences together. batch: most tokens of a step.
    computed: most tokens that are computed at a time, or None for as many as in a step.
    sequences: number of sequences. threads: number of threads.
    """

    def __init__(
        self,
        folder: Path,
        file: Path,
        vocab_size: int,
        threads: int,
        tokens: int,
        batch: int,
        computed: int | None = None,
        sequences: int = 1,
    ) -> None:
        self._library, self._vocab_size = library(folder), vocab_size
        model = self._library.llama_model_load_from_file(str(file).encode(), self._library.llama_model_default_params())
        assert model, "llama.cpp does not read the file"
        parameters = self._library.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = tokens, batch, computed or batch
        parameters.n_seq_max = sequences
        self._context = ctypes.c_void_p(self._library.llama_init_from_model(ctypes.c_void_p(model), parameters))
        self._library.llama_set_n_threads(self._context, threads, threads)
        self._batch = self._library.llama_batch_init(batch, 0, 1)

    def clear(self) -> None:
        """Forget all tokens."""
        memory = ctypes.c_void_p(self._library.llama_get_memory(self._context))
        self._library.llama_memory_clear(memory, ctypes.c_bool(True))

    def forget(self, sequence: int) -> None:
        """Forget the tokens of a sequence."""
        memory = ctypes.c_void_p(self._library.llama_get_memory(self._context))
        self._library.llama_memory_seq_rm(memory, ctypes.c_int32(sequence), ctypes.c_int32(-1), ctypes.c_int32(-1))

    def step(self, rows: Sequence[Row]) -> None:
        """Compute some tokens."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, row in enumerate(rows):
            batch.token[index], batch.pos[index] = row.token, row.position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, row.sequence
            batch.logits[index] = row.has_logits
        status = self._library.llama_decode(self._context, batch)
        assert status == 0, f"llama_decode returned {status}"

    def all_logits(self, count: int) -> NDArray[np.float32]:
        """The logits of the last step, of which all rows have logits: [count, vocab]. The next step overwrites them."""
        return self._array(self._library.llama_get_logits(self._context), (count, self._vocab_size))

    def logits(self, index: int) -> NDArray[np.float32]:
        """The logits of a row of the last step: [vocab]. The next step overwrites them."""
        address = self._library.llama_get_logits_ith(self._context, ctypes.c_int32(index))
        return self._array(address, (self._vocab_size,))

    @staticmethod
    def _array(address: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
        numbers = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(numbers, shape)
