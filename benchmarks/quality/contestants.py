"""What is compared with a decoder in float32: our settings, and the formats of llama.cpp."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from benchmarks.quality import gguf_files, llama_cpp, texts
from benchmarks.quality.decoders import Decoder, next_tokens
from benchmarks.quality.divergence import divergence
from benchmarks.quality.formats import FORMATS, type_of
from models.backends.choice import Quantization
from server.text.tokenizers.load import load_tokenizer
from weights.gguf.container import read_gguf

OURS = ("float32", "bfloat16", "int8", "int8-fast", "int4", "int4-32", "int4-32-zero", "int4-128")
THEIRS = ("F32", *FORMATS)
ALL = (*OURS, *THEIRS)

Row = dict[str, Any]


def compare(file: Path, packages: Path, names: Sequence[str], windows: Sequence[list[int]]) -> Iterator[Row]:
    """Measure contestants on one model. Yields a row for each, as soon as it is measured.

    file: GGUF file of the reference, in float32. names: some of `ALL`.
    """
    reference, following = Decoder(file, windows, torch.float32), next_tokens(windows)
    for name in names:
        before = time.monotonic()
        if name in OURS:
            ours = Decoder(file, windows, *settings_of(name))
            found = divergence(reference.logits, ours.logits, following, reference.vocab_size)
            row: Row = {"by": "triptych", "bits": ours.bits_per_weight, "types": ""}
        else:
            made = quantized_file(file, packages, name)
            theirs = llama_cpp.LlamaCpp(packages, made, windows, reference.vocab_size)
            found = divergence(reference.logits, theirs.logits, following, reference.vocab_size)
            theirs.close()
            row = {"by": "llama.cpp", "bits": gguf_files.bits_per_weight(made), "types": _types(made)}
        yield {"name": name, **row, **found.as_dict(), "seconds": time.monotonic() - before}


def settings_of(name: str) -> tuple[torch.dtype, Quantization | None]:
    """Dtype and quantization of one of `OURS`."""
    if name in ("float32", "bfloat16"):
        return getattr(torch, name), None
    return torch.float32, cast(Quantization, name)


def quantized_file(file: Path, packages: Path, name: str) -> Path:
    """The reference in a format of llama.cpp, made by ggml."""
    if name == "F32":
        return file
    made = file.with_name(f"{file.stem}-{name}.gguf")
    if made.exists():
        return made
    tensors = read_gguf(file).tensors
    layers = 1 + max(int(tensor_name.split(".")[1]) for tensor_name in tensors if tensor_name.startswith("blk."))

    def encode(tensor: str, weights: Tensor) -> Any:
        kind = type_of(name, tensor, weights.shape[-1], layers, "output.weight" in tensors)
        return llama_cpp.quantize(packages, weights, kind), kind

    return gguf_files.rewrite(file, made, encode)


def tokenize(file: Path, tokens: int) -> list[list[int]]:
    """The texts in the tokens of a model."""
    return texts.windows(load_tokenizer(file), tokens)


def _types(file: Path) -> str:
    counts = Counter(kind for _, _, kind in gguf_files.matrices(file))
    return ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
