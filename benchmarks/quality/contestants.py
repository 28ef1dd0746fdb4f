"""Compare settings, quantised copies and llama.cpp's formats of a decoder with the decoder in float32."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from benchmarks import llama_library
from benchmarks.quality import gguf_files, llama_cpp, texts
from benchmarks.quality.copies import COPIES, written
from benchmarks.quality.decoders import CachedDecoder, Decoder
from benchmarks.quality.divergence import Model, measure, summarize
from benchmarks.quality.formats import FORMATS, type_of
from benchmarks.quality.kept import Kept
from models.backends.choice import Quantization
from server.ipc.wire.descriptions import KVCacheDType
from server.text.tokenizers.load import load_tokenizer
from weights.gguf.container import read_gguf

OURS = ("float32", "bfloat16", "int8", "int8-fast", "int6", "int5", "int4", "int4-32", "int4-32-zero", "int4-128")
INT8_CACHE = " with an int8 cache"
"""Suffix of the name of a contestant that is run with `--kv-cache-dtype int8`."""
CACHES = tuple(f"{name}{INT8_CACHE}" for name in ("float32", "int8"))
THEIRS = ("F32", *FORMATS)
ALL = (*OURS, *CACHES, *COPIES, *THEIRS)

Row = dict[str, Any]


def compare(
    file: Path, packages: Path, names: Sequence[str], windows: Sequence[list[int]], kept: Kept
) -> Iterator[Row]:
    """Measure contestants on one model, and yield a row of results for each.

    The outer loop runs over the texts, so that the reference's logits of a text are computed once for all contestants.

    file: GGUF file of the reference in float32. packages: folder with the installed packages of llama.cpp.
    names: contestants, some of `ALL`. windows: token ids of each text.
    kept: measurements of earlier runs, which are used again; new ones are added.
    """
    missing = {name: [window for window in windows if kept.get(name, window) is None] for name in names}
    if any(missing.values()):
        reference = Decoder(file, torch.float32)
        models = {
            name: _load(file, packages, name, len(windows[0]), reference.vocab_size, kept)
            for name in names
            if missing[name]
        }
        for number, window in enumerate(windows, 1):
            reading = [name for name in models if window in missing[name]]
            if not reading:
                continue
            found = measure(reference, [models[name] for name in reading], window, reference.vocab_size)
            for name, measured in zip(reading, found, strict=True):
                kept.put(name, window, measured)
            print(f"{file.stem}: {number} of {len(windows)} texts", flush=True)
    for name in names:
        measurements = [measured for window in windows if (measured := kept.get(name, window)) is not None]
        yield {"name": name, **kept.facts(name), **summarize(measurements).as_dict()}


def _load(file: Path, packages: Path, name: str, length: int, vocab_size: int, kept: Kept) -> Model:
    if name in OURS or name in CACHES:
        ours = load_ours(file, name)
        kept.describe(name, {"by": "triptych", "bits": ours.bits_per_weight, "types": ""})
        return ours
    if name in COPIES:
        copy = Decoder(written(file, name), torch.float32)
        kept.describe(name, {"by": "triptych", "bits": copy.bits_per_weight, "types": ""})
        return copy
    made = quantized_file(file, packages, name)
    kept.describe(name, {"by": "llama.cpp", "bits": gguf_files.bits_per_weight(made), "types": _types(made)})
    return llama_cpp.LlamaCpp(packages, made, length, vocab_size)


def settings_of(name: str) -> tuple[torch.dtype, Quantization | None]:
    """Dtype and quantization (None for none) of a contestant in `OURS`."""
    if name in ("float32", "bfloat16"):
        return getattr(torch, name), None
    return torch.float32, cast(Quantization, name)


def split(name: str) -> tuple[str, KVCacheDType]:
    """Precision of the weights, and dtype of the KV cache, of a contestant in `OURS` or `CACHES`."""
    return name.removesuffix(INT8_CACHE), "int8" if name.endswith(INT8_CACHE) else "auto"


def load_ours(path: Path, name: str) -> Decoder:
    """Load the decoder of a contestant in `OURS` or `CACHES`. path: checkpoint directory or GGUF file."""
    weights, cache = split(name)
    return (CachedDecoder if cache == "int8" else Decoder)(path, *settings_of(weights))


def quantized_file(file: Path, packages: Path, name: str) -> Path:
    """Path of a GGUF file with the reference in a format of llama.cpp. The first call writes it with ggml's functions.

    file: GGUF file of the reference. packages: folder with the installed packages of llama.cpp. name: the format.
    """
    if name == "F32":
        return file
    made = file.with_name(f"{file.stem}-{name}.gguf")
    if made.exists():
        return made
    tensors = read_gguf(file).tensors
    layers = 1 + max(int(tensor_name.split(".")[1]) for tensor_name in tensors if tensor_name.startswith("blk."))

    def encode(tensor: str, weights: Tensor) -> Any:
        kind = type_of(name, tensor, weights.shape[-1], layers, "output.weight" in tensors)
        return llama_library.quantize(packages, weights.contiguous().numpy(), kind), kind

    return gguf_files.rewrite(file, made, encode)


def tokenize(file: Path, tokens: int) -> list[list[int]]:
    """Token ids of the texts that models are compared on, by the tokenizer of a model.

    file: GGUF file of the model. tokens: least number of tokens of all texts together.
    """
    return texts.windows(load_tokenizer(file), tokens)


def _types(file: Path) -> str:
    counts = Counter(kind for _, _, kind in gguf_files.matrices(file))
    return ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
