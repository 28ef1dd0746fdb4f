"""Hostile weight files, and hostile files that are read together with weights. Each case changes a small checkpoint."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.hostile.base import config, header, tensors, write_json

Case = Callable[[Path], Path | None]
"""Function that changes the checkpoint in a directory. Returns the path to read, or None for the directory itself."""


LONG = "x" * 5000


ESCAPES = "model.\x1b[2J\x1b]0;owned\x07.weight"


def _index(weight_map: Any) -> Case:
    def apply(directory: Path) -> None:
        (directory / "model.safetensors").unlink()
        write_json(directory, "model.safetensors.index.json", {"weight_map": weight_map})

    return apply


def _index_text(content: bytes) -> Case:
    def apply(directory: Path) -> None:
        (directory / "model.safetensors").unlink()
        (directory / "model.safetensors.index.json").write_bytes(content)

    return apply


def _bin(write: Callable[[Path], None]) -> Case:
    def apply(directory: Path) -> None:
        (directory / "model.safetensors").unlink()
        write(directory / "pytorch_model.bin")

    return apply


class _Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("1",)


def _pickle_of_code(path: Path) -> None:
    torch.save({"model.norm.weight": _Code()}, path)


def _bomb(path: Path) -> None:
    """Write a compression bomb: a torch archive with 2 GB of compressed zeros."""
    plain = io.BytesIO()
    torch.save({"model.norm.weight": torch.zeros(16)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            if "/data/" in name:
                with target.open(name, "w", force_zip64=True) as file:
                    for _ in range(2048):
                        file.write(bytes(1 << 20))
            else:
                target.writestr(name, source.read(name))


def _pickle_of_lists(path: Path) -> None:
    """Write a pickle that doubles a list 40 times."""
    code = b"\x80\x02]q\x00" + b"".join(b"]q\x01(h\x00h\x00eq\x00" for _ in range(40)) + b"."
    path.write_bytes(code)


def _pickle_of_long_text(path: Path) -> None:
    """Write a pickle that claims to contain a text of 4 GB."""
    path.write_bytes(b"\x80\x02X" + b"\xff\xff\xff\xff" + b"a" * 64)


def _expanded_storage(path: Path) -> None:
    """Write a tensor of 2 ** 40 elements that are all the same element of its storage."""
    torch.save({"model.norm.weight": torch.zeros(1).expand(1 << 40)}, path)


def _many_pickled(path: Path) -> None:
    empty = torch.zeros(0)
    torch.save({f"model.layers.{number}.x": empty for number in range(300_000)}, path)


def _many_empty(directory: Path) -> None:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header({f"model.layers.{number}.mlp.up_proj.weight": entry for number in range(300_000)})(directory)


def _many_dropped(directory: Path) -> None:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header({f"model.layers.{number}.self_attn.rotary_emb.inv_freq": entry for number in range(300_000)})(directory)


def _wide(directory: Path) -> None:
    """Write a tensor whose number of elements overflows 64 bits."""
    header({"model.norm.weight": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 0]}})(directory)


def _quantized(**settings: Any) -> Case:
    """Return a case with the settings of a GPTQ checkpoint."""
    return config(quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 128, **settings})


def _gptq_regex(directory: Path) -> None:
    """Write a GPTQ checkpoint whose settings have a regular expression with exponential backtracking."""
    _quantized(dynamic={"+:(([a-z._0-9]+)+)+!": {"bits": 8}})(directory)
    tensors(
        lambda content: {
            **{name: tensor for name, tensor in content.items() if "up_proj" not in name},
            **{
                f"model.layers.{layer}.mlp.up_proj.{part}": np.zeros(shape, dtype)
                for layer in range(2)
                for part, shape, dtype in (
                    ("qweight", (2, 32), np.int32),
                    ("qzeros", (1, 4), np.int32),
                    ("scales", (1, 32), np.float32),
                )
            },
        }
    )(directory)


def _special(name: str, *dropped: str) -> Case:
    """Return a case that replaces a file by a named pipe, which would block a reader for ever.

    dropped: further files to delete.
    """

    def apply(directory: Path) -> Path | None:
        for file in (name, *dropped):
            (directory / file).unlink(missing_ok=True)
        os.mkfifo(directory / name)
        return directory / name if name.endswith(".gguf") else None

    return apply


def _endless(name: str) -> Case:
    """Return a case that adds a link to `/dev/zero`, which never ends. name: name of the link."""
    return lambda directory: (directory / name).symlink_to("/dev/zero")


def _one_number(path: Path) -> None:
    """Write a model of 13 GB whose tensors all consist of the same stored number."""
    number, wide = torch.zeros(1), 8192
    shapes = {"model.embed_tokens.weight": (200_000, wide), "model.norm.weight": (wide,)}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}self_attn.{name}_proj.weight": (wide, wide) for name in "qkvo"}
        shapes |= {f"{prefix}mlp.{name}_proj.weight": (4 * wide, wide) for name in ("gate", "up")}
        shapes[f"{prefix}mlp.down_proj.weight"] = (wide, 4 * wide)
        shapes |= {f"{prefix}{name}.weight": (wide,) for name in ("input_layernorm", "post_attention_layernorm")}
    torch.save({name: number.expand(shape) for name, shape in shapes.items()}, path)
    config(
        vocab_size=200_000,
        hidden_size=wide,
        intermediate_size=4 * wide,
        num_attention_heads=64,
        num_key_value_heads=64,
        head_dim=128,
    )(path.parent)


def _overlapping_parts(path: Path) -> None:
    """Write a torch archive whose directory lists its largest member 2,000 times, each time as another storage."""
    plain = io.BytesIO()
    torch.save({"model.norm.weight": torch.zeros(1 << 18)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
        large = max(target.infolist(), key=lambda entry: entry.file_size)
        for number in range(2000):
            again = copy(large)
            again.filename = f"{large.filename}{number}"
            target.filelist.append(again)
            target.NameToInfo[again.filename] = again


def _header_of_many(directory: Path) -> None:
    """Write a safetensors file whose header has 90 MB and 1,600,000 tensors."""
    entry = b'":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    header(b"{" + b",".join(b'"%x%b' % (number, entry) for number in range(1_600_000)) + b"}")(directory)


def _router(directory: Path) -> None:
    router = "sentence_transformers.models.Router"
    write_json(directory, "modules.json", [{"type": router, "path": "."}])
    route = ["x"] * 50_000
    write_json(directory, "router_config.json", {"types": {"x": router}, "structure": {"query": route}})


def text_file(name: str, content: bytes, size: int = 0) -> Case:
    """Return a case that writes a file. size: size of the file, filled with zeros; 0 for the size of the content."""

    def apply(directory: Path) -> None:
        (directory / name).write_bytes(content)
        if size:
            os.truncate(directory / name, size)

    return apply


WEIGHTS: dict[str, Case] = {
    "shard name of 5,000 characters": _index({"model.norm.weight": LONG}),
    "shard name with escapes": _index({"model.norm.weight": "\x1b[2J.safetensors"}),
    "300,000 shards": _index({f"x{number}": f"{number}.safetensors" for number in range(300_000)}),
    "index without names": _index({}),
    "index of numbers": _index({"model.norm.weight": 7}),
    "index of 40 MB": _index({f"model.layers.{number}.x": "model.safetensors" for number in range(900_000)}),
    "index that nests": _index_text(b"[" * 100_000),
    "index of 4,500,000 tensors": _index_text(
        b'{"weight_map":{' + b",".join(b'"%x":"a"' % number for number in range(4_500_000)) + b"}}"
    ),
    "config.json is a pipe": _special("config.json"),
    "modules.json with 50,000 modules of a router": _router,
    "modules.json is a pipe": _special("modules.json"),
    "modules.json is a link to /dev/zero": _endless("modules.json"),
    "SHA256SUMS of 3 GB": text_file("SHA256SUMS", b"", 3 << 30),
    "SHA256SUMS with a file 1,000,000 times": text_file("SHA256SUMS", (b"a" * 64 + b"  x\n") * 1_000_000),
    "1,600,000 tensors in a header": _header_of_many,
    "shape of 45,000,000 numbers": header(
        b'{"model.norm.weight":{"dtype":"F32","shape":[' + b"1," * 45_000_000 + b'1],"data_offsets":[0,4]}}', bytes(4)
    ),
    "pickle, a model of 13 GB in one number": _bin(_one_number),
    "archive whose parts overlap": _bin(_overlapping_parts),
    "300,000 empty tensors": _many_empty,
    "300,000 unused tensors": _many_dropped,
    "tensor's name with escapes": tensors(lambda content: {**content, ESCAPES: np.zeros(2, np.float32)}),
    "tensor's name of 5,000 characters": tensors(lambda content: {**content, LONG: np.zeros(2, np.float32)}),
    "shape beyond 64 bits": _wide,
    "header longer than the file": header({}, length=1 << 62),
    "header of 90 MB": header(b'{"__metadata__": {"x": "' + b"a" * 90_000_000 + b'"}}'),
    "header that nests": header(b'{"x": ' + b"[" * 100_000 + b"}"),
    "offsets out of order": header({"x": {"dtype": "F32", "shape": [1], "data_offsets": [8, 4]}}, bytes(8)),
    "pickle of code": _bin(_pickle_of_code),
    "pickle that doubles lists": _bin(_pickle_of_lists),
    "pickle with a length of 4 GB": _bin(_pickle_of_long_text),
    "pickle of plain numbers": _bin(lambda path: path.write_bytes(pickle.dumps({"a": 1}))),
    "tensor of 2 ** 40 numbers in one place": _bin(_expanded_storage),
    "300,000 pickled tensors": _bin(_many_pickled),
    "compressed archive of 2 GB": _bin(_bomb),
    "quantized, group_size 1e30": _quantized(group_size=10**30),
    "quantized, bits 1e30": _quantized(bits=10**30),
    "quantized, expression that backtracks": _gptq_regex,
    "quant_method is a list": _quantized(quant_method=["gptq"]),
    "quant_method with escapes": _quantized(quant_method="\x1b[2J" + LONG),
}
