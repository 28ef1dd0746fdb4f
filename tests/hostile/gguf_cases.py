"""Hostile GGUF files. Their headers are written here byte by byte."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 5, 6, 7, 8, 9, 10

LLAMA: dict[str, tuple[int, Any]] = {
    "general.architecture": (STRING, "llama"),
    "llama.block_count": (UINT32, 2),
    "llama.context_length": (UINT32, 128),
    "llama.embedding_length": (UINT32, 16),
    "llama.feed_forward_length": (UINT32, 32),
    "llama.attention.head_count": (UINT32, 2),
    "llama.attention.layer_norm_rms_epsilon": (FLOAT32, 1e-6),
    "llama.rope.freq_base": (FLOAT32, 10000.0),
    "tokenizer.ggml.model": (STRING, "gpt2"),
    "tokenizer.ggml.pre": (STRING, "gpt-2"),
    "tokenizer.ggml.tokens": (ARRAY, (STRING, ["a", "b", "ab"])),
    "tokenizer.ggml.token_type": (ARRAY, (UINT32, [1, 1, 1])),
    "tokenizer.ggml.merges": (ARRAY, (STRING, ["a b"])),
}


def text(value: str | bytes) -> bytes:
    content = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(content)) + content


def value(kind: int, content: Any) -> bytes:
    if isinstance(content, bytes):
        return content
    if kind == STRING:
        return text(content)
    if kind == ARRAY:
        of, items = content
        return struct.pack("<IQ", of, len(items)) + b"".join(value(of, item) for item in items)
    return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<B", UINT64: "<Q"}[kind], content)


def gguf(
    metadata: Mapping[str, tuple[int, Any]],
    tensors: Sequence[tuple[str, Sequence[int], int, int]] = (),
    counts: tuple[int, int] | None = None,
    data: bytes = bytes(1 << 16),
) -> bytes:
    """The bytes of a GGUF file.

    metadata: type and value of each key. tensors: name, shape, type and offset of each tensor.
    counts: stated numbers of tensors and of keys; None for the true ones. data: bytes after the header.
    """
    stated = counts or (len(tensors), len(metadata))
    content = bytearray(b"GGUF" + struct.pack("<IQQ", 3, *stated))
    for key, (kind, entry) in metadata.items():
        content += text(key) + struct.pack("<I", kind) + value(kind, entry)
    for name, shape, kind, offset in tensors:
        content += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
    return bytes(content + data)


_OF_LAYER: dict[str, tuple[int, ...]] = {
    "attn_norm": (16,),
    "attn_q": (16, 16),
    "attn_k": (16, 16),
    "attn_v": (16, 16),
    "attn_output": (16, 16),
    "ffn_norm": (16,),
    "ffn_gate": (16, 32),
    "ffn_up": (16, 32),
    "ffn_down": (32, 16),
}
SHARED = [
    ("token_embd.weight", (16, 3), 0, 0),
    ("output_norm.weight", (16,), 0, 0),
    *((f"blk.{layer}.{name}.weight", shape, 0, 0) for layer in range(2) for name, shape in _OF_LAYER.items()),
]
"""Table of all tensors of the model, whose data all have the same place in the file."""
WHOLE = [(name, shape, kind, 2048 * index) for index, (name, shape, kind, _) in enumerate(SHARED)]
"""Table of all tensors of the model, each with its own place in the file."""


def case(
    metadata: Mapping[str, tuple[int, Any]] | None = None,
    tensors: Sequence[tuple[str, Sequence[int], int, int]] = WHOLE,
    counts: tuple[int, int] | None = None,
) -> Callable[[Path], Path]:
    """Return a case that writes a GGUF file. metadata: keys that differ from `LLAMA`. Other arguments as for `gguf`."""
    return whole(lambda: gguf({**LLAMA, **(metadata or {})}, tensors, counts))


def whole(content: Callable[[], bytes]) -> Callable[[Path], Path]:
    def apply(directory: Path) -> Path:
        (directory / "m.gguf").write_bytes(content())
        return directory / "m.gguf"

    return apply


def _nested() -> bytes:
    return struct.pack("<IQ", ARRAY, 1) * 100_000 + struct.pack("<IQ", UINT32, 0)


def _pipe(directory: Path) -> Path:
    os.mkfifo(directory / "m.gguf")
    return directory / "m.gguf"


def _sparse(directory: Path, value: bytes) -> Path:
    """Write a sparse file of 3 GB whose only metadata value extends over its zeros.

    value: type and first bytes of the value.
    """
    path = directory / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("x") + value)
    os.truncate(path, (3 << 30) + 100)
    return path


def _sparse_text(directory: Path) -> Path:
    return _sparse(directory, struct.pack("<IQ", STRING, 3 << 30))


def _sparse_entry(directory: Path) -> Path:
    return _sparse(directory, struct.pack("<IIQQ", ARRAY, STRING, 1, 3 << 30))


CASES: dict[str, Callable[[Path], Path]] = {
    "GGUF, 2 ** 60 tensors": case(counts=(1 << 60, 1)),
    "GGUF, 2 ** 63 keys": case(counts=(1, 1 << 63)),
    "GGUF, key of 2 ** 62 bytes": whole(lambda: b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62) + bytes(64)),
    "GGUF, array of 2 ** 62 numbers": case({"x": (ARRAY, struct.pack("<IQ", UINT64, 1 << 62))}),
    "GGUF, array of 2 ** 62 texts": case({"x": (ARRAY, struct.pack("<IQ", STRING, 1 << 62))}),
    "GGUF, text that ends beyond 64 bits": case({"x": (ARRAY, struct.pack("<IQQQ", STRING, 2, (1 << 64) - 16, 8))}),
    "GGUF, array of arrays": case({"x": (ARRAY, _nested())}),
    "GGUF, alignment 2 ** 31": case({"general.alignment": (UINT32, 1 << 31)}),
    "GGUF, alignment 0": case({"general.alignment": (UINT32, 0)}),
    "GGUF, offset 2 ** 63": case(tensors=[("output_norm.weight", (16,), 0, 1 << 63)]),
    "GGUF, shape beyond 64 bits": case(tensors=[("output_norm.weight", (1 << 60, 1 << 60, 1 << 60, 1 << 60), 0, 0)]),
    "GGUF, shape with a zero": case(tensors=[("output_norm.weight", (0, 16), 0, 0)]),
    "GGUF, 200,000 tensors": whole(lambda: gguf(LLAMA, [(f"blk.{number}.x", (1,), 0, 0) for number in range(200_000)])),
    "GGUF, 500,000 keys": whole(
        lambda: gguf({**LLAMA, **{f"x{number}": (BOOL, 1) for number in range(500_000)}}, WHOLE)
    ),
    "GGUF, tensor's name with escapes": case(tensors=[*WHOLE, ("\x1b[2J", (16,), 0, 0)]),
    "GGUF, unknown type, name with escapes": case(tensors=[("\x1b[2J", (16,), 99, 0)]),
    "GGUF, key with escapes twice": whole(
        lambda: b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + (text("\x1b[2J") + struct.pack("<IB", BOOL, 1)) * 2 + bytes(64)
    ),
    "GGUF, architecture with escapes": case({"general.architecture": (STRING, "\x1b[2J")}),
    "GGUF, architecture is a number": case({"general.architecture": (UINT32, 7)}),
    "GGUF, block_count 4e9": case({"llama.block_count": (UINT32, 4_000_000_000)}),
    "GGUF, nextn_predict_layers 4e9": case({"llama.nextn_predict_layers": (UINT32, 4_000_000_000)}),
    "GGUF, nextn_predict_layers -1": case({"llama.nextn_predict_layers": (INT32, -1)}),
    "GGUF, nextn_predict_layers is a text": case({"llama.nextn_predict_layers": (STRING, "1")}),
    "GGUF, head_count 0": case({"llama.attention.head_count": (UINT32, 0)}),
    "GGUF, head_count 4e9": case({"llama.attention.head_count": (UINT32, 4_000_000_000)}),
    "GGUF, key_length 4e9": case({"llama.attention.key_length": (UINT32, 4_000_000_000)}),
    "GGUF, epsilon NaN": case({"llama.attention.layer_norm_rms_epsilon": (FLOAT32, float("nan"))}),
    "GGUF, freq_base NaN": case({"llama.rope.freq_base": (FLOAT32, float("nan"))}),
    "GGUF, freq_base 0": case({"llama.rope.freq_base": (FLOAT32, 0.0)}),
    "GGUF, freq_base -1": case({"llama.rope.freq_base": (FLOAT32, -1.0)}),
    "GGUF, entries that are not UTF-8": case(
        {"tokenizer.ggml.tokens": (ARRAY, struct.pack("<IQ", STRING, 3) + text("a") + text(b"\xff\xfe") + text("c"))}
    ),
    "GGUF, entries that are numbers": case({"tokenizer.ggml.tokens": (ARRAY, (UINT32, [1, 2, 3]))}),
    "GGUF, fewer kinds than entries": case({"tokenizer.ggml.token_type": (ARRAY, (UINT32, [1]))}),
    "GGUF, merges of unknown entries": case({"tokenizer.ggml.merges": (ARRAY, (STRING, ["q z", "", " "]))}),
    "GGUF, merges that are numbers": case({"tokenizer.ggml.merges": (ARRAY, (UINT32, [1, 2]))}),
    "GGUF, 1,500,000 entries": whole(
        lambda: gguf(
            {
                **LLAMA,
                "tokenizer.ggml.tokens": (
                    ARRAY,
                    struct.pack("<IQ", STRING, 1_500_000) + b"".join(text(str(n)) for n in range(1_500_000)),
                ),
                "tokenizer.ggml.token_type": (ARRAY, struct.pack("<IQ", UINT32, 1_500_000) + b"\1\0\0\0" * 1_500_000),
            },
            WHOLE,
        )
    ),
    "GGUF, entry of 20,000 characters": case(
        {
            "tokenizer.ggml.model": (STRING, "llama"),
            "tokenizer.ggml.tokens": (ARRAY, (STRING, ["<unk>", "a" * 20_000, "b"])),
            "tokenizer.ggml.token_type": (ARRAY, (UINT32, [2, 1, 1])),
            "tokenizer.ggml.scores": (ARRAY, (FLOAT32, [0.0, -1.0, -1.0])),
        }
    ),
    "GGUF, scores NaN": case(
        {
            "tokenizer.ggml.model": (STRING, "llama"),
            "tokenizer.ggml.tokens": (ARRAY, (STRING, ["<unk>", "a", "b"])),
            "tokenizer.ggml.token_type": (ARRAY, (UINT32, [2, 1, 1])),
            "tokenizer.ggml.scores": (ARRAY, (FLOAT32, [0.0, float("nan"), float("nan")])),
        }
    ),
    "GGUF, id of a role 4e9": case({"tokenizer.ggml.bos_token_id": (UINT32, 4_000_000_000)}),
    "GGUF, block_count 2 ** 64 - 1": case({"llama.block_count": (UINT64, (1 << 64) - 1)}),
    "GGUF, freq_base 1e300": case({"llama.rope.freq_base": (12, struct.pack("<d", 1e300))}),
    "GGUF, pre-tokenizer is a list": case({"tokenizer.ggml.pre": (ARRAY, (STRING, ["x"]))}),
    "GGUF, types are a number": case({"tokenizer.ggml.token_type": (UINT32, 1)}),
    "GGUF, merges are a text": case({"tokenizer.ggml.merges": (STRING, "a b")}),
    "GGUF, chat_templates is a number": case({"tokenizer.chat_templates": (UINT32, 7)}),
    "GGUF, xielu.alpha_p is a number": case({"xielu.alpha_p": (FLOAT32, 1.0)}),
    "GGUF, a pipe": _pipe,
    "GGUF, all tensors in the same bytes": case(tensors=SHARED),
    "GGUF, 8,000,000 texts in ten arrays": whole(
        lambda: gguf(
            {**LLAMA, **{f"x{n}": (ARRAY, struct.pack("<IQ", STRING, 800_000) + bytes(6_400_000)) for n in range(10)}},
            WHOLE,
        )
    ),
    "GGUF, types of 5,000,000 bytes": case(
        {"tokenizer.ggml.token_type": (ARRAY, struct.pack("<IQ", 0, 5_000_000) + bytes(5_000_000))}
    ),
    "GGUF, text of 3 GB": _sparse_text,
    "GGUF, entry of 3 GB": _sparse_entry,
    "GGUF, split.count 65,535": case({"split.count": (UINT32, 65_535)}),
}
