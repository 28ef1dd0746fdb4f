"""Use the library of llama.cpp through ctypes: quantise matrices, and compute the logits of a GGUF file.

The library comes from the wheel `xllamacpp`, which is built without the newest instructions so that it runs on many
processors, or from a folder with `libllama.so` and the libraries it needs. The folder may contain a build for this
machine's processor, or a build with a library for each instruction set (npm package `@node-llama-cpp/linux-x64`).
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
"""Size of the buffer for a parameter struct of the library. It is larger than every such struct."""


class _Parameters(ctypes.Structure):
    """Parameter struct of a model or a context. Only the first fields of a context's struct have names here."""

    _fields_ = (
        ("n_ctx", ctypes.c_uint32),
        ("n_batch", ctypes.c_uint32),
        ("n_ubatch", ctypes.c_uint32),
        ("n_seq_max", ctypes.c_uint32),
        ("rest", ctypes.c_uint8 * (_PARAMETER_BYTES - 16)),
    )


class _Batch(ctypes.Structure):
    """The struct `llama_batch` of llama.h."""

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
    """Load the library of llama.cpp, silently, once per folder.

    folder: folder of installed packages with `xllamacpp`, or a folder with `libllama.so`.
    """
    built = _in(folder, "llama")
    if built is not None:
        backends = ctypes.CDLL(str(_in(folder, "ggml")), mode=ctypes.RTLD_GLOBAL)
        if hasattr(backends, "ggml_backend_load_all_from_path"):
            # This call loads the library for the best instruction set of the processor.
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
    """Path of the shared library `name` in a folder, or None. The file name may end with a version."""
    return next(iter(sorted([*folder.glob(f"lib{name}.so"), *folder.glob(f"lib{name}.v*.so")])), None)


def instructions(folder: Path) -> str:
    """The instruction sets that the library uses, as it reports them."""
    return str(library(folder).llama_print_system_info().decode())


def quantize(folder: Path, weights: NDArray[np.float32], kind: gguf.GGMLQuantizationType) -> NDArray[np.uint8]:
    """Quantise a matrix to a type of ggml with `ggml_quantize_chunk`. Returns [..., bytes of a row], uint8.

    folder: folder of the library. weights: [..., in], contiguous. kind: the type.
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
    """A token in a step. sequence: index of its sequence. has_logits: whether its logits are computed."""

    token: int
    position: int
    sequence: int
    has_logits: bool


class LlamaModel:
    """A model in a GGUF file with a context of llama.cpp.

    folder: folder of the library.
    tokens: largest number of tokens of all sequences together. batch: largest number of tokens in a step.
    computed: largest number of tokens that are computed at once, or None for `batch`.
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
        """Remove the tokens of all sequences from the context."""
        memory = ctypes.c_void_p(self._library.llama_get_memory(self._context))
        self._library.llama_memory_clear(memory, ctypes.c_bool(True))

    def forget(self, sequence: int) -> None:
        """Remove the tokens of a sequence from the context."""
        memory = ctypes.c_void_p(self._library.llama_get_memory(self._context))
        self._library.llama_memory_seq_rm(memory, ctypes.c_int32(sequence), ctypes.c_int32(-1), ctypes.c_int32(-1))

    def step(self, rows: Sequence[Row]) -> None:
        """Compute a step with these tokens. `logits` and `all_logits` then return its logits."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, row in enumerate(rows):
            batch.token[index], batch.pos[index] = row.token, row.position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, row.sequence
            batch.logits[index] = row.has_logits
        status = self._library.llama_decode(self._context, batch)
        assert status == 0, f"llama_decode returned {status}"

    def all_logits(self, count: int) -> NDArray[np.float32]:
        """The logits of all `count` rows of the last step: [count, vocab]. The next step overwrites them.

        All rows must have `has_logits` set.
        """
        return self._array(self._library.llama_get_logits(self._context), (count, self._vocab_size))

    def logits(self, index: int) -> NDArray[np.float32]:
        """The logits of the row `index` of the last step: [vocab]. The next step overwrites them."""
        address = self._library.llama_get_logits_ith(self._context, ctypes.c_int32(index))
        return self._array(address, (self._vocab_size,))

    @staticmethod
    def _array(address: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
        numbers = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(numbers, shape)
