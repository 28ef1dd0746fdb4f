"""GGUF files that are damaged, split into several files, or of a kind that we do not support."""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from models.checkpoint.settings_files import read_settings
from weights.errors import GgufError, ResolveError, WeightsError
from weights.gguf.container import GgufFile, read_gguf
from weights.gguf.documents import document
from weights.read import open_checkpoint
from weights.resolve import resolve


def write(path: Path, architecture: str = "llama", change=lambda writer: None, tensors=None) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "<|im_end|>"])
    writer.add_token_types([1, 1, 3])
    writer.add_eos_token_id(2)
    writer.add_embedding_length(32)
    change(writer)
    for name, tensor in (tensors or {"token_embd.weight": np.ones((3, 32), np.float32)}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "model.gguf", tensors={"a": np.ones((3, 32), np.float32), "b": np.ones(32, np.float16)})


def test_the_header_of_the_gguf_package(file):
    read, theirs = read_gguf(file), gguf.GGUFReader(file)
    assert read.get("general.architecture") == "llama"
    assert read.get("tokenizer.ggml.tokens") == ["a", "b", "<|im_end|>"]
    assert read.texts("tokenizer.ggml.tokens", [2, 0]) == {0: "a", 2: "<|im_end|>"}
    assert read.get("tokenizer.ggml.token_type") == [1, 1, 3] and read.length("tokenizer.ggml.token_type") == 3
    for tensor in theirs.tensors:
        ours = read.tensors[tensor.name]
        assert (ours.type.name, ours.offset, ours.nbytes) == (
            tensor.tensor_type.name,
            tensor.data_offset,
            tensor.n_bytes,
        )
        assert list(ours.shape) == list(tensor.shape)[::-1] and bytes(ours.data()) == tensor.data.tobytes()


def test_every_shorter_file_is_refused(file):
    content = file.read_bytes()
    for length in range(0, len(content) - 31, 5):
        file.write_bytes(content[:length])
        with pytest.raises(GgufError) as error:
            GgufFile(file)
        assert "\n" not in str(error.value) and str(file.parent) not in str(error.value)


def test_a_file_with_changed_bytes_is_read_or_refused(file):
    content, chance = file.read_bytes(), random.Random(7)
    refused = 0
    for _ in range(400):
        changed = bytearray(content)
        for _ in range(chance.randint(1, 3)):
            changed[chance.randrange(4, 600)] = chance.choice((0, 1, 8, 9, 127, 128, 255))
        file.write_bytes(bytes(changed))
        try:
            read = read_gguf(file)
            for key in list(read._first._values):
                read.get(key)
            for tensor in read.tensors.values():
                assert len(tensor.data()) == tensor.nbytes
            for name in ("config.json", "tokenizer_config.json", "generation_config.json", "modules.json"):
                document(read, name)
        except GgufError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 100


@pytest.mark.parametrize(
    ("start", "content", "message"),
    [
        (0, b"GGML", "is not a GGUF file"),
        (4, struct.pack("<I", 1), "has GGUF version 1, which is not supported"),
        (4, struct.pack(">I", 3), "is written for big-endian processors"),
        (8, struct.pack("<Q", 1 << 60), "is truncated or damaged"),
        (16, struct.pack("<Q", 1 << 60), "is truncated or damaged"),
    ],
)
def test_a_header_that_is_not_supported(file, start, content, message):
    changed = bytearray(file.read_bytes())
    changed[start : start + len(content)] = content
    file.write_bytes(bytes(changed))
    with pytest.raises(GgufError, match=message):
        read_gguf(file)


def test_an_unknown_tensor_type_is_named(tmp_path):
    path = write(tmp_path / "model.gguf", tensors={"numbers": np.ones(32, np.int32)})
    with pytest.raises(GgufError, match=r"tensor 'numbers' has type I32, which is not supported, only F32, F16, Q4_0"):
        read_gguf(path)
    with pytest.raises(WeightsError, match="has type I32"), open_checkpoint(path):
        pass


def test_an_architecture_that_is_not_served_is_named(tmp_path):
    path = write(tmp_path / "model.gguf", architecture="mamba")
    with pytest.raises(
        GgufError, match=r"architecture 'mamba' is not supported in GGUF files; the nearest name is mamba2$"
    ):
        read_settings(path, "config.json")


def test_missing_and_unequal_settings_are_named(tmp_path):
    path = write(tmp_path / "model.gguf")
    with pytest.raises(GgufError, match=r"'llama\.block_count' is missing"):
        read_settings(path, "config.json")
    write(path, change=lambda writer: writer.add_block_count(1))
    with pytest.raises(GgufError, match=r"'llama\.attention\.layer_norm_rms_epsilon' is missing"):
        read_settings(path, "config.json")

    def change(writer):
        writer.add_block_count(1)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_head_count([4, 8])

    with pytest.raises(GgufError, match=r"'llama\.attention\.head_count' differs between layers"):
        read_settings(write(path, change=change), "config.json")


def test_what_is_a_model_and_what_is_not(tmp_path, file):
    assert resolve(str(file)) == resolve(str(tmp_path)) == file
    write(tmp_path / "mmproj-vision.gguf")
    assert resolve(str(tmp_path)) == file
    write(tmp_path / "other.gguf")
    with pytest.raises(ResolveError, match=r"has 2 GGUF models: choose from .*/model\.gguf, .*/other\.gguf$"):
        resolve(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert resolve(str(tmp_path)) == tmp_path


def test_a_model_in_pieces(tmp_path):
    first, second = (tmp_path / f"big-0000{number}-of-00002.gguf" for number in (1, 2))
    write(first, change=lambda writer: writer.add_uint16("split.count", 2))
    with pytest.raises(GgufError, match=r"is one of 2 pieces, of which 1 are missing \(big-00002-of-00002\.gguf\)"):
        read_gguf(first)
    write(second, tensors={"output.weight": np.full((3, 32), 2, np.float32)})
    assert resolve(str(tmp_path)) == first
    with open_checkpoint(first) as stored:
        assert set(stored) == {"token_embd.weight", "output.weight"}
        assert stored["output.weight"].read().unique().tolist() == [2.0]
    with pytest.raises(
        GgufError, match=r"is a later piece of a model: write its first piece, big-00001-of-00002\.gguf"
    ):
        read_gguf(second)
    write(second)
    with pytest.raises(GgufError, match=r"tensor 'token_embd\.weight' is in both"):
        read_gguf(first)
    alone = first.rename(tmp_path / "alone.gguf")
    with pytest.raises(GgufError, match=r"is one of 2 pieces, and its name must end in -00001-of-00002\.gguf"):
        read_gguf(alone)


def test_a_rewritten_file_is_read_again(file):
    assert read_gguf(file) is read_gguf(file)
    write(file, architecture="qwen2")
    assert read_gguf(file).get("general.architecture") == "qwen2"


def test_the_texts_of_a_file_are_read_without_torch(file):
    import subprocess

    code = (
        "import sys; from pathlib import Path; from weights.json_files import read_json_file; "
        f"read_json_file(Path({str(file)!r}), 'tokenizer_config.json'); "
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("small_first", [False, True])
def test_pieces_of_the_gguf_package(tmp_path, small_first):
    writer = gguf.GGUFWriter(
        tmp_path / "big.gguf", "llama", split_max_tensors=2, small_first_shard=small_first, use_temp_file=False
    )
    writer.add_embedding_length(32)
    tensors = {f"blk.{layer}.attn_norm.weight": np.full(32, layer, np.float32) for layer in range(5)}
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    count = 3 + small_first
    first = read_gguf(tmp_path / f"big-00001-of-{count:05}.gguf")
    assert first.get("llama.embedding_length") == 32
    assert {name: first.floats(name)[0] for name in tensors} == {name: tensor[0] for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({}, {}),
        (
            {"temp": 0.6, "top_k": 20, "top_p": 0.95},
            {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "do_sample": True},
        ),
        ({"penalty_repeat": 1.1}, {"repetition_penalty": 1.1, "do_sample": False}),
        ({"temp": 0.0, "top_k": 40}, {"top_k": 40, "do_sample": False}),
        ({"min_p": 0.05, "mirostat": 0}, {"min_p": 0.05, "do_sample": True}),
    ],
)
def test_sampling_defaults(tmp_path, stated, expected):
    def change(writer):
        for name, value in stated.items():
            (writer.add_float32 if isinstance(value, float) else writer.add_int32)(f"general.sampling.{name}", value)

    settings = document(read_gguf(write(tmp_path / "model.gguf", change=change)), "generation_config.json")
    assert settings == {"eos_token_id": [2], **expected}


def test_a_sampling_default_that_is_not_supported(tmp_path):
    path = write(tmp_path / "model.gguf", change=lambda writer: writer.add_int32("general.sampling.mirostat", 2))
    with pytest.raises(GgufError, match=r"'general\.sampling\.mirostat' is not supported"):
        document(read_gguf(path), "generation_config.json")
