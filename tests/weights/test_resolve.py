"""Finding a checkpoint directory: local paths, the hub cache, downloads, and error messages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import huggingface_hub.constants
import pytest

from weights import router_views
from weights.errors import ResolveError
from weights.resolve import file_in, has_weights, resolve


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set an empty cache and a hub that cannot be reached. `test_hub.py` uses a stand-in for the hub."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:1")


def test_directory_resolves_to_itself(tmp_path: Path):
    (tmp_path / "config.json").touch()
    assert resolve(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("org/none", "not a directory, not in the local hub cache, and the hub cannot be reached"),
        ("./no/such/dir", "there is no directory './no/such/dir'"),
        ("a/b/c", "there is no directory 'a/b/c'"),
        ("", "neither a directory nor a hub id"),
        ("org/..", "not"),
        ("org/none@../../up", "there is no directory 'org/none@../../up'"),
        ("org/none@a/../b", "there is no directory 'org/none@a/../b'"),
    ],
)
def test_error_lists_the_tried_places_in_one_line(source: str, expected: str):
    with pytest.raises(ResolveError) as error:
        resolve(source)
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_offline_setting_prevents_downloads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ResolveError, match="HF_HUB_OFFLINE"):
        resolve("org/none")


def test_file_in_place_of_a_directory_is_refused(tmp_path: Path):
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ResolveError, match="is a file"):
        resolve(str(tmp_path / "model.safetensors"))


def test_modules_name_the_folder_of_the_transformer(tmp_path: Path):
    modules = [{"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "vocab.txt").touch()
    folder = tmp_path / "0_Transformer"
    folder.mkdir()
    (folder / "config.json").touch()
    assert resolve(str(tmp_path)) == tmp_path
    assert not has_weights(tmp_path)
    (folder / "model.safetensors").touch()
    assert has_weights(tmp_path)
    assert file_in(tmp_path, "config.json") == folder / "config.json"
    assert file_in(tmp_path, "vocab.txt") is None
    assert file_in(tmp_path, "modules.json") == tmp_path / "modules.json"
    modules[0]["path"] = "./"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert file_in(tmp_path, "vocab.txt") == tmp_path / "vocab.txt"
    modules[0]["path"] = "../elsewhere"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ResolveError, match="own directory"):
        file_in(tmp_path, "config.json")


def test_other_modules_are_named(tmp_path: Path):
    """An embedding model with an unsupported module is refused: without this module, it would give other embeddings."""
    modules = [{"type": "sentence_transformers.models.CNN", "path": "0_CNN"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "0_CNN").mkdir()
    (tmp_path / "0_CNN" / "config.json").touch()
    with pytest.raises(ResolveError, match="modules CNN: supported are") as raised:
        resolve(str(tmp_path))
    assert "0_CNN" not in str(raised.value)


def test_the_transformer_of_a_router_is_that_of_documents(tmp_path: Path):
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Asym", "path": ""}]))
    with pytest.raises(ResolveError):  # no configuration of the router
        resolve(str(tmp_path))
    types = {"query_0_A": "a.Transformer", "document_0_B": "b.Transformer"}
    structure = {"query": ["query_0_A"], "document": ["document_0_B"]}
    (tmp_path / "config.json").write_text(json.dumps({"types": types, "structure": structure}))
    (tmp_path / "document_0_B").mkdir()
    (tmp_path / "document_0_B" / "config.json").touch()
    (tmp_path / "document_0_B" / "model.safetensors").touch()
    assert resolve(str(tmp_path)) == tmp_path and has_weights(tmp_path)
    assert file_in(tmp_path, "config.json") == tmp_path / "document_0_B" / "config.json"


def test_weights_are_complete_only_with_all_shards(tmp_path: Path):
    assert not has_weights(tmp_path)
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").touch()
    assert not has_weights(tmp_path)
    (tmp_path / "model-2.safetensors").touch()
    assert has_weights(tmp_path)


def test_resolve_imports_no_torch():
    code = "import sys, weights.resolve; sys.exit('torch' in sys.modules or 'huggingface_hub' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_files_are_found_where_no_temporary_file_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_folder() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(router_views, "gettempdir", no_folder)
    for directory in (tmp_path / "model", tmp_path / "triptych-routes-1" / "query"):
        directory.mkdir(parents=True)
        (directory / "config.json").write_text("{}")
        assert file_in(directory, "config.json") == directory / "config.json"
