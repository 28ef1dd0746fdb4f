"""Reading tensors of a checkpoint directory: file layouts, damaged files, pickles that run code, and links."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from weights.errors import WeightsError
from weights.read import open_checkpoint

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16), "c": torch.zeros(2, 2)}


def _refused(directory: Path) -> str:
    with pytest.raises(WeightsError) as error, open_checkpoint(directory) as tensors:
        for tensor in tensors.values():
            tensor.read()
    message = str(error.value)
    assert "\n" not in message and str(directory) not in message
    return message


def _write_shards(directory: Path, save=save_file, suffix: str = "safetensors", stem: str = "model") -> Path:
    files = {name: f"{stem}-0000{index}-of-00003.{suffix}" for index, name in enumerate(TENSORS, 1)}
    for name, file in files.items():
        save({name: TENSORS[name]}, str(directory / file))
    (directory / f"{stem}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return directory


def _write(directory: Path, layout: str) -> Path:
    if layout == "safetensors":
        save_file(TENSORS, directory / "model.safetensors")
    elif layout == "bin":
        torch.save(TENSORS, directory / "pytorch_model.bin")
    elif layout == "old bin":
        torch.save(TENSORS, directory / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    elif layout == "shards":
        _write_shards(directory)
    else:
        _write_shards(directory, torch.save, "bin", "pytorch_model")
    return directory


@pytest.mark.parametrize("layout", ["safetensors", "bin", "old bin", "shards", "bin shards"])
def test_all_layouts_have_the_same_tensors(tmp_path: Path, layout: str):
    with open_checkpoint(_write(tmp_path, layout)) as tensors:
        assert set(tensors) == set(TENSORS)
        for name, expected in TENSORS.items():
            assert tensors[name].shape == tuple(expected.shape)
            assert tensors[name].dtype == expected.dtype
            assert tensors[name].nbytes == expected.numel() * expected.itemsize
            assert torch.equal(tensors[name].read(), expected)


def test_safetensors_are_preferred_to_pickles(tmp_path: Path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(os.system))
    with open_checkpoint(tmp_path) as tensors:
        assert {tensor.file for tensor in tensors.values()} == {"model.safetensors"}


class _RunsCode:
    def __reduce__(self):
        return os.system, ("touch code_ran",)


def test_pickles_that_run_code_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"a": torch.ones(2), "b": _RunsCode()}, tmp_path / "pytorch_model.bin")
    assert "pytorch_model.bin" in _refused(tmp_path)
    assert not (tmp_path / "code_ran").exists()


def test_pickles_of_other_objects_are_refused(tmp_path: Path):
    torch.save([torch.ones(2)], tmp_path / "pytorch_model.bin")
    assert "named tensors" in _refused(tmp_path)


@pytest.mark.parametrize("layout", ["safetensors", "bin", "old bin"])
@pytest.mark.parametrize("keep", [0, 5, 40, -3])
def test_truncated_files_are_named(tmp_path: Path, layout: str, keep: int):
    (file,) = _write(tmp_path, layout).iterdir()
    file.write_bytes(file.read_bytes()[:keep])
    assert file.name in _refused(tmp_path)


def test_file_with_a_damaged_header_is_named(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    assert "model.safetensors" in _refused(tmp_path)


def test_missing_shard_is_named(tmp_path: Path):
    (_write_shards(tmp_path) / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors" in _refused(tmp_path)


def test_index_with_an_absent_tensor_is_refused(tmp_path: Path):
    index = _write_shards(tmp_path) / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["d"] = "model-00001-of-00003.safetensors"
    index.write_text(json.dumps(content))
    assert "'d'" in _refused(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "[" * 100_000])
def test_damaged_index_is_refused(tmp_path: Path, content: str):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    assert "index" in _refused(tmp_path)


def test_tensor_in_two_shards_is_refused(tmp_path: Path):
    save_file(TENSORS, _write_shards(tmp_path) / "model-00002-of-00003.safetensors")
    assert "'a'" in _refused(tmp_path)


def test_empty_directory_is_refused(tmp_path: Path):
    assert "neither model.safetensors nor pytorch_model.bin" in _refused(tmp_path)


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/outside.safetensors", "..", "sub/../../outside.safetensors"]
)
def test_index_with_a_path_outside_the_directory_is_refused(tmp_path: Path, name: str):
    save_file(TENSORS, tmp_path / "outside.safetensors")
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    assert "own directory" in _refused(directory)


def test_links_to_other_repositories_and_missing_files_are_refused(tmp_path: Path):
    repo = tmp_path / "models--org--name"
    snapshot, blobs = repo / "snapshots" / "abc", repo / "blobs"
    for directory in (snapshot, blobs, tmp_path / "models--other" / "blobs"):
        directory.mkdir(parents=True)
    for blob in (blobs / "123", tmp_path / "models--other" / "blobs" / "456"):
        save_file(TENSORS, blob)
    link = snapshot / "model.safetensors"
    link.symlink_to("../../blobs/123")
    with open_checkpoint(snapshot) as tensors:
        assert torch.equal(tensors["a"].read(), TENSORS["a"])
    link.unlink()
    link.symlink_to("../../../models--other/blobs/456")
    assert "leads out" in _refused(snapshot)
    link.unlink()
    link.symlink_to("../../blobs/nothing")
    assert "missing file" in _refused(snapshot)


def test_directory_in_place_of_a_file_is_refused(tmp_path: Path):
    (tmp_path / "model.safetensors").mkdir()
    assert "not a regular file" in _refused(tmp_path)
