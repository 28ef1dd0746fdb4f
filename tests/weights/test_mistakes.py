"""A path that is not a checkpoint gives a one-line error that says what it is and what to write instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weights.errors import ResolveError
from weights.resolve import ADAPTER_WEIGHTS, resolve

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 548105171\n"
)


def checkpoint(directory: Path, weights: str = "weights") -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_text(weights)
    return directory


def refused(source: Path | str, *weights: tuple[str, ...]) -> str:
    with pytest.raises(ResolveError) as error:
        resolve(str(source), *weights)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_checkpoint_is_no_mistake(tmp_path: Path) -> None:
    directory = checkpoint(tmp_path / "run=3" / "llama")
    assert resolve(str(directory)) == directory


def test_a_parent_folder_lists_its_checkpoints(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d", "e"):
        checkpoint(tmp_path / name)
    message = refused(tmp_path)
    assert "is a directory of checkpoints" in message
    assert f"choose from a={tmp_path / 'a'} b={tmp_path / 'b'}" in message and message.endswith("(and 1 more)")


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    settings = tmp_path / "adapter_config.json"
    settings.write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    (tmp_path / "adapter_model.safetensors").touch()
    assert (
        f"is an adapter, not a model: serve its base model, for example llm=org/base --adapter NAME={tmp_path}@llm"
        in (refused(tmp_path))
    )
    settings.write_text("[]")
    assert "llm=PATH_OR_HUB_ID --adapter" in refused(tmp_path)
    assert resolve(str(tmp_path), ADAPTER_WEIGHTS) == tmp_path


def test_a_model_is_no_adapter(tmp_path: Path) -> None:
    assert f"is a model, not an adapter: serve it as NAME={tmp_path / 'm'}" in refused(
        checkpoint(tmp_path / "m"), ADAPTER_WEIGHTS
    )


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "source.spm"])
def test_a_git_lfs_pointer_is_named(tmp_path: Path, name: str) -> None:
    directory = checkpoint(tmp_path / "m")
    (directory / name).write_text(POINTER)
    assert f"{name!r} in '{directory}' is a Git LFS pointer of {len(POINTER)} bytes" in refused(directory)
    assert "run `git lfs pull`" in refused(directory)


def test_folders_of_the_hub_cache(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    checkpoint(repository / "snapshots" / "0123")
    assert refused(repository).endswith("is a folder of the hub cache: write its hub id, org/name")
    assert refused(tmp_path).endswith("is the hub cache: write a hub id, for example org/name")
    assert resolve(str(repository / "snapshots" / "0123")) == repository / "snapshots" / "0123"


def test_other_directories(tmp_path: Path) -> None:
    assert refused(tmp_path).endswith("is not a checkpoint: it has no config.json")
    (tmp_path / "one.gguf").touch()
    assert resolve(str(tmp_path)) == tmp_path / "one.gguf"
    (tmp_path / "two.gguf").touch()
    assert "has 2 GGUF models: choose from" in refused(tmp_path)


def test_a_missing_path_says_how_far_it_exists(tmp_path: Path) -> None:
    message = refused(tmp_path / "no" / "such")
    assert f"there is no directory '{tmp_path / 'no' / 'such'}'; '{tmp_path}' exists" in message
    assert "exists:" not in refused("./no/such")
