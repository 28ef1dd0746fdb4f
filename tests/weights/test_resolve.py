"""Finding a checkpoint directory: local paths, the hub cache, downloads, and error messages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from weights.errors import ResolveError
from weights.resolve import ADAPTER_WEIGHTS, file_in, has_weights, resolve


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A fake Hugging Face hub that writes files to a cache folder.

    remote: files of each repository.
    calls: all downloads so far.
    """

    class Hub:
        def __init__(self):
            self.remote: dict[str, list[str]] = {}
            self.reachable = True
            self.calls: list[tuple[str, str | None, bool]] = []

        def snapshot_download(self, repo, *, revision, allow_patterns, ignore_patterns, local_files_only):
            self.calls.append((repo, revision, local_files_only))
            folder = tmp_path / "cache" / repo.replace("/", "--")
            if local_files_only:
                if not folder.exists():
                    raise LocalEntryNotFoundError("not in cache")
                return str(folder)
            if not self.reachable:
                raise LocalEntryNotFoundError("cannot reach the hub")
            folder.mkdir(parents=True, exist_ok=True)
            for name in huggingface_hub.utils.filter_repo_objects(
                self.remote[repo], allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
            ):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text("{}")
            return str(folder)

    ours = Hub()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", ours.snapshot_download)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return ours


def test_directory_resolves_to_itself(tmp_path: Path):
    (tmp_path / "config.json").touch()
    assert resolve(str(tmp_path)) == tmp_path


def test_only_needed_files_are_downloaded(hub):
    needed = {"model.safetensors", "config.json", "vocab.txt", "source.spm", "modules.json", "1_Pooling/config.json"}
    needed |= {f"0_Transformer/{name}" for name in ("model.safetensors", "config.json", "vocab.txt", "tokenizer.json")}
    other = {"pytorch_model.bin", "tf_model.h5", "onnx/model.safetensors", "code.py", "onnx/tokenizer.json"}
    hub.remote = {"org/m": sorted(needed | other)}
    directory = resolve("org/m@v1")
    assert {str(path.relative_to(directory)) for path in directory.rglob("*.*") if path.is_file()} == needed
    assert hub.calls == [("org/m", "v1", True), ("org/m", "v1", False)]


def test_pickles_are_downloaded_only_without_safetensors(hub):
    hub.remote = {"org/m": ["pytorch_model.bin", "config.json", "training_args.bin"]}
    assert {path.name for path in resolve("org/m").iterdir()} == {"pytorch_model.bin", "config.json"}


def test_complete_cache_needs_no_download(hub):
    hub.remote = {"org/m": ["model.safetensors", "config.json"]}
    resolve("org/m")
    hub.reachable = False
    assert (resolve("org/m") / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("org/none", "not a directory, not in the local hub cache, and the hub cannot be reached"),
        ("./no/such/dir", "there is no directory './no/such/dir'"),
        ("a/b/c", "there is no directory 'a/b/c'"),
        ("", "neither a directory nor a hub id"),
        ("org/..", "not"),
    ],
)
def test_error_lists_the_tried_places_in_one_line(hub, source: str, expected: str):
    hub.reachable = False
    with pytest.raises(ResolveError) as error:
        resolve(source)
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_offline_setting_prevents_downloads(hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ResolveError, match="HF_HUB_OFFLINE"):
        resolve("org/none")
    assert hub.calls == [("org/none", None, True)]


def test_adapter_is_complete_with_adapter_weights(hub):
    hub.remote = {"org/a": ["adapter_model.safetensors", "adapter_config.json", "training_args.bin"]}
    with pytest.raises(ResolveError, match=r"no weights \(model\.safetensors or"):
        resolve("org/a")
    directory = resolve("org/a", ADAPTER_WEIGHTS)
    assert {path.name for path in directory.iterdir()} == {"adapter_model.safetensors", "adapter_config.json"}


def test_repository_without_weights_is_refused(hub):
    hub.remote = {"org/m": ["config.json", "flax_model.msgpack"]}
    with pytest.raises(ResolveError, match="no weights"):
        resolve("org/m")


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
    """Serving the folder of one module alone would give other vectors."""
    modules = [{"type": "sentence_transformers.models.Router", "path": ""}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "query_0_Transformer").mkdir()
    (tmp_path / "query_0_Transformer" / "config.json").touch()
    with pytest.raises(ResolveError, match="modules Router: supported are") as raised:
        resolve(str(tmp_path))
    assert "query_0" not in str(raised.value)


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
