"""The text encoder of CLIP equals transformers: hidden states, embeddings, and sentence-transformers checkpoints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
import transformers
from transformers import CLIPConfig, CLIPTextConfig, CLIPTokenizer, CLIPVisionConfig

from models.config import ConfigError
from server.text.tokenizers.load import load_tokenizer
from tests.e2e.conftest import RunningServer, serving
from tests.parity.checkpoints import edit_config, load, random_ids, save, write_model
from tests.parity.paged import Rows, chunked, one_shot
from tests.text import checkpoints
from tests.text.checkpoints import CORPUS, TORTURE

VOCAB = 97
LENGTHS = (5, 19, 1, 12)
TEXTS = ["a photo of a cat", "The OLD sailor's café!", "a", "two  houses <|endoftext|> and more", " ".join(CORPUS[:9])]
_TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
    "projection_dim": 24,
    "bos_token_id": 95,
    "eos_token_id": 96,
}
_PICTURES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_PICTURES |= {"image_size": 32, "patch_size": 8}


def whole(**text: object) -> CLIPConfig:
    """The configuration of a complete CLIP, for pictures and texts, with embeddings of 24 dimensions."""
    parts = {"text_config": CLIPTextConfig(**{**_TEXT, **text}), "vision_config": CLIPVisionConfig(**_PICTURES)}
    return CLIPConfig(**parts, projection_dim=24)


CASES = {
    "whole": ("CLIPModel", whole()),
    "whole-gelu-deeper": ("CLIPModel", whole(num_hidden_layers=3, hidden_act="gelu", num_attention_heads=2)),
    "projected-gelu-deeper": (
        "CLIPTextModelWithProjection",
        CLIPTextConfig(**{**_TEXT, "num_hidden_layers": 3, "hidden_act": "gelu", "num_attention_heads": 2}),
    ),
    "text": ("CLIPTextModel", CLIPTextConfig(**_TEXT, layer_norm_eps=1e-3)),
}


@torch.inference_mode()
def vectors(oracle, architecture: str, ids: list[int]) -> torch.Tensor:
    """The embedding of one text, computed by transformers."""
    inputs = {"input_ids": torch.tensor([ids], device=oracle.device)}
    if architecture == "CLIPModel":
        return oracle.get_text_features(**inputs).pooler_output[0]
    output = oracle(**inputs)
    return output.text_embeds[0] if architecture == "CLIPTextModelWithProjection" else output.pooler_output[0]


@pytest.mark.parametrize("way", [one_shot, chunked])
@pytest.mark.parametrize("case", CASES)
def test_vectors(case: str, way, tmp_path: Path, device: torch.device) -> None:
    architecture, config = CASES[case]
    oracle = save(tmp_path, config, architecture).to(device)
    loaded = load(tmp_path, device)
    assert loaded.tasks == ("embed",)
    texts = [[95, *text, 96] for text in random_ids(95, LENGTHS)]
    hidden = way(Rows(loaded.transformer), texts)
    for ours, ids in zip(hidden, texts, strict=True):
        theirs = vectors(oracle, architecture, ids)
        assert theirs.std() > 0.1
        torch.testing.assert_close(ours[-1], theirs, atol=1e-4, rtol=1e-4)


def test_settings_of_the_first_releases_replace_the_others(tmp_path: Path, device: torch.device) -> None:
    write_model(tmp_path, whole(), "CLIPModel")
    settings = json.loads((tmp_path / "config.json").read_text())["text_config"]
    edit_config(tmp_path, text_config={"hidden_size": 8}, text_config_dict=settings)
    assert load(tmp_path, device).config.hidden_size == 32
    edit_config(tmp_path, text_config_dict=[1])
    with pytest.raises(ConfigError, match="text_config_dict"):
        load(tmp_path, device)


# ------------------------------------------------------------------------------------------------- checkpoints on disk


def write(directory: Path, architecture: str = "CLIPModel") -> Path:
    """Write a random CLIP and its tokenizer with transformers."""
    checkpoints.write_clip(directory)
    tokenizer = load_tokenizer(directory)
    ids = {
        "vocab_size": tokenizer.vocab_size,
        "bos_token_id": tokenizer.special.bos,
        "eos_token_id": tokenizer.special.eos,
    }
    config = whole(**ids) if architecture == "CLIPModel" else CLIPTextConfig(**{**_TEXT, **ids})
    write_model(directory, config, architecture, std=0.3)
    return directory


def as_sentence_transformer(directory: Path, folder: str, kind: str, settings: dict[str, object]) -> Path:
    """Move a checkpoint into a folder, with the files of sentence-transformers around it."""
    inner = directory / folder if folder else directory
    if folder:
        inner.mkdir()
        for path in list(directory.iterdir()):
            if path != inner:
                path.rename(inner / path.name)
    pictures = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32}}
    (inner / "preprocessor_config.json").write_text(json.dumps({**pictures, "crop_size": {"height": 32, "width": 32}}))
    modules = [{"idx": 0, "name": "0", "path": folder, "type": kind}]
    (directory / "modules.json").write_text(json.dumps(modules))
    if settings:
        (inner / "sentence_bert_config.json").write_text(json.dumps(settings))
    return directory


NEW = {
    "transformer_task": "feature-extraction",
    "modality_config": {
        "text": {"method": "get_text_features", "method_output_name": "pooler_output"},
        "image": {"method": "get_image_features", "method_output_name": "pooler_output"},
    },
    "module_output_name": "sentence_embedding",
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("clip")
    old = as_sentence_transformer(write(root / "old"), "0_CLIPModel", "sentence_transformers.models.CLIPModel", {})
    kind = "sentence_transformers.base.modules.transformer.Transformer"
    new = as_sentence_transformer(write(root / "new"), "", kind, NEW)
    return {"plain": write(root / "plain", "CLIPTextModelWithProjection"), "old": old, "new": new}


@pytest.fixture(scope="module")
def server(saved: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    named = [f"{name}={path}" for name, path in saved.items()]
    with serving(tmp_path_factory.mktemp("log") / "log", *named, "--dtype", "float32", "--device", "cpu") as running:
        yield running


@pytest.mark.parametrize("name", ["plain", "old", "new"])
def test_texts_over_http(server: RunningServer, saved: dict[str, Path], name: str) -> None:
    inner = saved[name] / "0_CLIPModel" if name == "old" else saved[name]
    tokenizer = CLIPTokenizer.from_pretrained(inner)
    architecture = "CLIPTextModelWithProjection" if name == "plain" else "CLIPModel"
    oracle = getattr(transformers, architecture).from_pretrained(inner).eval()
    body = {"model": name, "inputs": TEXTS, "normalize": False, "truncate": True}
    response = httpx.post(f"{server.url}/embed", json=body, timeout=60)
    assert response.status_code == 200, response.text
    for text, found in zip(TEXTS, response.json(), strict=True):
        ids = tokenizer(text, truncation=True, max_length=40).input_ids
        expected = vectors(oracle, architecture, ids).numpy()
        np.testing.assert_allclose(np.array(found), expected, atol=2e-4, err_msg=text)


def test_sentence_transformers_gives_the_same(server: RunningServer, saved: dict[str, Path]) -> None:
    oracle = pytest.importorskip("sentence_transformers").SentenceTransformer(str(saved["new"]), device="cpu")
    texts = [text for text in TEXTS if "endoftext" not in text][:3]
    body = {"model": "new", "inputs": texts, "normalize": False}
    found = httpx.post(f"{server.url}/embed", json=body, timeout=60).json()
    np.testing.assert_allclose(np.array(found), oracle.encode(texts), atol=2e-4)


def test_other_methods_are_refused(saved: dict[str, Path], tmp_path: Path, device: torch.device) -> None:
    shutil.copytree(saved["new"], tmp_path, dirs_exist_ok=True)
    other = {**NEW, "modality_config": {"text": {"method": "forward", "method_output_name": "text_embeds"}}}
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(other))
    with pytest.raises(ConfigError, match="method"):
        load(tmp_path, device)


@pytest.mark.parametrize("with_json", [False, True])
def test_the_tokenizer(tmp_path: Path, with_json: bool) -> None:
    directory = checkpoints.write_clip(tmp_path)
    reference = CLIPTokenizer.from_pretrained(directory)
    if with_json:
        reference.save_pretrained(directory)
        (directory / "merges.txt").unlink(missing_ok=True)
    ours = load_tokenizer(directory)
    texts = [text for text in TORTURE if "endoftext" not in text]
    for offsets in (True, False):
        encodings = ours.encode(texts, offsets=offsets)
        assert [encoding.ids for encoding in encodings] == [reference(text).input_ids for text in texts]
    for text in texts:
        ids = reference(text).input_ids
        assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True)
    (cut,) = ours.encode(["one <|endoftext|> two"])
    assert cut.ids == reference("one <|endoftext|> two").input_ids[: len(cut.ids)] and cut.ids[-1] == ours.special.eos
    assert len(cut.offsets) == len(cut.ids) and cut.ids.count(ours.special.eos) == 1
