"""Downloads from the Hugging Face hub: the files, one revision, continued downloads, hashes, and error messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from tests.stand_in_hub import TOKEN, StandInHub, commit_of, stand_in_hub
from weights.errors import ResolveError
from weights.hub import fetch as fetching
from weights.hub.cache import cached_models, remove, snapshot
from weights.hub.choose import needed_files
from weights.resolve import ADAPTER_WEIGHTS, MODEL_WEIGHTS, resolve


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StandInHub]:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(fetching, "time", SimpleNamespace(sleep=lambda seconds: None))
    with stand_in_hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield server


CONFIG = {"config__json": b"{}"}
WEIGHTS = bytes(range(256)) * 40


def names(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


def test_one_revision_is_pinned_for_every_file(hub: StandInHub) -> None:
    hub.add("org/m", model__safetensors=WEIGHTS, **CONFIG)
    hub.add("org/m", "v1", model__safetensors=WEIGHTS[::-1], **CONFIG)
    directory = resolve("org/m@v1")
    assert (directory / "model.safetensors").read_bytes() == WEIGHTS[::-1]
    commit = commit_of("org/m", "v1")
    asked = [path for _, path, _ in hub.requests if "/resolve/" in path]
    assert directory.name == commit and asked and all(f"/resolve/{commit}/" in path for path in asked)
    assert resolve("org/m").name == commit_of("org/m", "main")
    assert resolve(f"org/m@{commit}") == directory


def test_a_complete_cache_needs_no_request(hub: StandInHub) -> None:
    hub.add("org/m", model__safetensors=WEIGHTS, **CONFIG)
    directory = resolve("org/m")
    hub.requests.clear()
    assert resolve("org/m") == directory and hub.requests == []


def test_a_break_in_the_middle_of_a_file_is_continued(hub: StandInHub) -> None:
    hub.add("org/m", model__safetensors=WEIGHTS, **CONFIG)
    hub.breaks["model.safetensors"] = [1000, 2000]
    assert (resolve("org/m") / "model.safetensors").read_bytes() == WEIGHTS
    assert [begin for name, begin in hub.ranges if name == "model.safetensors"] == [0, 1000, 3000]


def test_a_later_command_continues_what_an_earlier_one_received(
    hub: StandInHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/m", model__safetensors=WEIGHTS, **CONFIG)
    hub.breaks["model.safetensors"] = [1000, *[0] * 30]
    with pytest.raises(ResolveError, match=r"cannot be reached.*continued later"):
        resolve("org/m")
    assert snapshot("org/m", None) is None
    hub.breaks.clear()
    hub.ranges.clear()
    assert (resolve("org/m") / "model.safetensors").read_bytes() == WEIGHTS
    assert ("model.safetensors", 1000) in hub.ranges and ("model.safetensors", 0) not in hub.ranges


def test_bytes_with_a_wrong_hash_are_not_kept(hub: StandInHub) -> None:
    hub.add("org/m", model__safetensors=WEIGHTS, config__json=b'{"a": 1}')
    hub.damaged = {"model.safetensors": 1, "config.json": 1}
    assert (resolve("org/m") / "model.safetensors").read_bytes() == WEIGHTS
    hub.add("org/n", model__safetensors=WEIGHTS[1:], **CONFIG)
    hub.damaged = {"model.safetensors": 2}
    with pytest.raises(ResolveError, match=r"model\.safetensors of 'org/n' arrived twice with another hash"):
        resolve("org/n")
    assert not list(Path(constants.HF_HUB_CACHE).glob("models--org--n/**/*.incomplete"))


def test_the_storage_server_does_not_get_the_token(hub: StandInHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/m", model__safetensors=WEIGHTS, **CONFIG)
    hub.private.add("org/m")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    resolve("org/m")
    tokens = {"/storage/" in path: token for _, path, token in hub.requests}
    assert tokens == {False: f"Bearer {TOKEN}", True: ""}


@pytest.mark.parametrize(
    ("source", "token", "message"),
    [
        ("org/none", "", "no repository of this name, or it is private: set HF_TOKEN"),
        ("org/none", "hf_wrong", "no repository of this name, or it is private: set HF_TOKEN"),
        ("org/gated", "", "the model is gated: accept its terms .* HF_TOKEN"),
        ("org/gated", "hf_wrong", "the model is gated: accept its terms .* HF_TOKEN"),
        ("org/private", "", "it is private: set HF_TOKEN"),
        ("org/m@v9", "", "no revision of this name"),
        ("org/empty", "", r"has no weights \(model\.safetensors or pytorch_model\.bin\)"),
        ("org/m:Q4_K_M", "", "no GGUF file"),
    ],
)
def test_a_refusal_says_what_helps(
    hub: StandInHub, source: str, token: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("m", "gated", "private"):
        hub.add(f"org/{name}", model__safetensors=WEIGHTS, **CONFIG)
    hub.add("org/empty", flax_model__msgpack=b"x", **CONFIG)
    hub.gated, hub.private = {"org/gated"}, {"org/private"}
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(ResolveError, match=message) as error:
        resolve(source)
    assert "\n" not in str(error.value) and str(error.value).startswith(f"{source!r} is not a directory")


def test_a_gated_model_with_access(hub: StandInHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/gated", model__safetensors=WEIGHTS, **CONFIG)
    hub.gated = {"org/gated"}
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert names(resolve("org/gated")) == {"model.safetensors", "config.json"}


def test_a_hub_that_cannot_be_reached_is_named(hub: StandInHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ResolveError, match=r"cannot be reached \(http://127\.0\.0\.1:1, or another HF_ENDPOINT\)"):
        resolve("org/m")


def test_too_small_a_disk_is_told_before_anything_is_fetched(hub: StandInHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/m", model__safetensors=WEIGHTS, **CONFIG)
    monkeypatch.setattr(fetching, "_SPARE_BYTES", 1 << 60)
    with pytest.raises(ResolveError, match="MiB are free: make room, or set HF_HOME"):
        resolve("org/m")
    assert hub.ranges == []


def test_one_gguf_model_with_its_pieces(hub: StandInHub) -> None:
    files = {f"m-{kind}.gguf": kind.encode() for kind in ("Q4_K_M", "Q4_K_S", "Q8_0")}
    files |= {f"BF16/m-BF16-0000{number}-of-00002.gguf": bytes([number]) for number in (1, 2)}
    hub.repositories["org/g"] = {"main": files | {"mmproj-F16.gguf": b"x", "README.md": b"x"}}
    assert resolve("org/g:q4_k_m").name == "m-Q4_K_M.gguf" and hub.fetched() == {"m-Q4_K_M.gguf"}
    hub.ranges.clear()
    first = resolve("org/g:BF16")
    assert first.name == "m-BF16-00001-of-00002.gguf" and len(hub.fetched()) == 2
    with pytest.raises(ResolveError, match="no GGUF model Q4_K: choose one of BF16, Q4_K_M, Q4_K_S, Q8_0"):
        resolve("org/g:Q4_K")
    hub.repositories["org/one"] = {"main": {"m-Q8_0.gguf": b"x", "README.md": b"x"}}
    assert resolve("org/one").name == "m-Q8_0.gguf"


def test_several_gguf_models_need_a_choice(hub: StandInHub) -> None:
    hub.repositories["org/g"] = {"main": {"m-Q4_0.gguf": b"x", "m-Q8_0.gguf": b"y"}}
    with pytest.raises(ResolveError, match=r"several GGUF models: choose one of Q4_0, Q8_0"):
        resolve("org/g")


@pytest.mark.parametrize(
    ("files", "needed"),
    [
        (
            "config.json model.safetensors pytorch_model.bin tf_model.h5 onnx/model.safetensors a.py",
            "config.json model.safetensors",
        ),
        ("config.json pytorch_model.bin training_args.bin", "config.json pytorch_model.bin"),
        (
            "model-00001-of-00002.safetensors model-00002-of-00002.safetensors model.safetensors.index.json "
            "consolidated.safetensors consolidated-00001-of-00001.safetensors",
            "model-00001-of-00002.safetensors model-00002-of-00002.safetensors model.safetensors.index.json",
        ),
        ("model.safetensors model.fp16.safetensors m-Q4_0.gguf", "model.safetensors"),
        (
            "modules.json 0_Transformer/model.safetensors 0_Transformer/vocab.txt 1_Pooling/config.json",
            "modules.json 0_Transformer/model.safetensors 0_Transformer/vocab.txt 1_Pooling/config.json",
        ),
        (
            "config.json query_0_Static/model.safetensors document_0_MLM/tokenizer.json onnx/model.safetensors",
            "config.json query_0_Static/model.safetensors document_0_MLM/tokenizer.json",
        ),
        (
            "config.json model.safetensors 2_Dense/model.safetensors",
            "config.json model.safetensors 2_Dense/model.safetensors",
        ),
        (
            "model.safetensors adapters/retrieval/adapter_config.json adapters/retrieval/adapter_model.safetensors",
            "model.safetensors adapters/retrieval/adapter_config.json adapters/retrieval/adapter_model.safetensors",
        ),
        (
            "weights-a.safetensors weights.safetensors.index.json",
            "weights-a.safetensors weights.safetensors.index.json",
        ),
    ],
)
def test_only_needed_files_are_chosen(files: str, needed: str) -> None:
    assert needed_files(files.split(), MODEL_WEIGHTS, None) == sorted(needed.split())


def test_an_adapter_is_chosen_by_its_own_weights() -> None:
    files = ["adapter_model.safetensors", "adapter_config.json", "model.safetensors", "training_args.bin"]
    assert needed_files(files, ADAPTER_WEIGHTS, None) == ["adapter_config.json", "adapter_model.safetensors"]
    with pytest.raises(ResolveError, match="no weights"):
        needed_files(["adapter_model.safetensors", "adapter_config.json"], MODEL_WEIGHTS, None)


def test_hashes_that_are_no_hashes_name_no_file(hub: StandInHub, tmp_path: Path) -> None:
    assert fetching._hash("../../x") is None and fetching._hash("a" * 64) == "a" * 64


def test_the_cache_is_listed_and_cleared(hub: StandInHub) -> None:
    hub.add("org/m", model__safetensors=WEIGHTS, **CONFIG)
    hub.add("org/m", "v1", model__safetensors=WEIGHTS, config__json=json.dumps({"a": 1}).encode())
    resolve("org/m"), resolve("org/m@v1")
    (model,) = cached_models()
    assert (model.name, model.revisions) == ("org/m", ("main", "v1")) and model.bytes > len(WEIGHTS)
    assert remove(model.commits) == model.bytes and cached_models() == []


def test_after_a_failure_no_further_file_is_begun(hub: StandInHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/m", **{f"model-{number:05}-of-00030__safetensors": WEIGHTS for number in range(30)}, **CONFIG)
    begun: list[str] = []

    def refuse(download: fetching.Download, file: fetching.HubFile) -> None:
        begun.append(file.name)
        if len(begun) == 1:
            raise ResolveError("the hub refuses it")
        Event().wait(0.05)

    monkeypatch.setattr(fetching, "_fetch", refuse)
    with pytest.raises(ResolveError, match="the hub refuses it"):
        resolve("org/m")
    assert len(begun) < 30


def test_an_answer_that_is_too_long_does_not_fill_the_disk(hub: StandInHub, tmp_path: Path) -> None:
    whole = WEIGHTS * 2000
    hub.add("org/m", model__safetensors=whole, **CONFIG)
    partial = tmp_path / "partial"
    address = f"{hub.url}/org/m/resolve/{commit_of('org/m', 'main')}/model.safetensors"
    fetching._append(address, {}, partial, 0, 100)
    assert 100 < partial.stat().st_size < len(whole)
