"""Results of `/embed_sparse` and of late chunking equal those computed with transformers and numpy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from tests.e2e.conftest import RunningServer, serving
from tests.e2e.encoder_checkpoints import LONGEST, tokenizer, write_encoder
from tests.text.checkpoints import CORPUS

MASKED = ("bert", "roberta", "distilbert", "modernbert", "deberta-v2")
BODIES = ("bert", "roberta", "xlm-roberta")
TEXTS = [CORPUS[0], "a", " ".join(CORPUS[3:12]), "NOBODY sees THE café", CORPUS[40]]
TEXT = "The old sailor slept. A café by the sea\u00a0was open. Nobody saw the frog!"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    found = {f"{family}-mlm": write_encoder(root / f"{family}-mlm", family, "MaskedLM", std=0.3) for family in MASKED}
    found |= {family: write_encoder(root / family, family, "MaskedLM") for family in BODIES}
    for family in BODIES:  # without its head, a checkpoint serves embeddings
        directory = found[family]
        transformers.AutoModel.from_pretrained(directory).save_pretrained(directory)
    return found


@pytest.fixture(scope="module")
def server(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = [f"{name}={directory}" for name, directory in checkpoints.items()]
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, *models, "--dtype", "float32", "--device", "cpu") as running:
        yield running


def post(server: RunningServer, path: str, **body: object) -> list:
    response = server.post(path, json=body)
    assert response.status_code == 200, response.text
    found: list = response.json()
    return found


def dense(vector: list[dict], size: int) -> np.ndarray:
    values = np.zeros(size, np.float32)
    for term in vector:
        values[term["index"]] = term["value"]
    return values


@pytest.mark.parametrize("family", MASKED)
def test_sparse_vectors(server: RunningServer, checkpoints: dict[str, Path], family: str) -> None:
    directory = checkpoints[f"{family}-mlm"]
    model = transformers.AutoModelForMaskedLM.from_pretrained(directory, attn_implementation="eager").eval()
    padded = tokenizer(directory)(TEXTS, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
    with torch.inference_mode():
        logits = model(**padded).logits
    weights = torch.log1p(torch.relu(logits)) * padded["attention_mask"][:, :, None]
    expected = weights.amax(1).numpy()
    together = post(server, "/embed_sparse", model=f"{family}-mlm", inputs=TEXTS)
    for text, found, row in zip(TEXTS, together, expected, strict=True):
        indices = [term["index"] for term in found]
        assert indices == sorted(indices) and all(term["value"] > 0 for term in found)
        np.testing.assert_allclose(dense(found, len(row)), row, rtol=1e-3, atol=1e-4)
        assert post(server, "/embed_sparse", model=f"{family}-mlm", inputs=text) == [found], "batch-mates matter"


def test_a_model_without_the_head_is_refused(server: RunningServer) -> None:
    refusal = server.post("/embed_sparse", json={"model": "bert", "inputs": "a"})
    assert refusal.status_code == 422 and "it answers /embed" in refusal.json()["error"]["message"]


@pytest.mark.parametrize("family", BODIES)
def test_late_chunking(server: RunningServer, checkpoints: dict[str, Path], family: str) -> None:
    directory = checkpoints[family]
    model = transformers.AutoModel.from_pretrained(directory, attn_implementation="eager").eval()
    encoded = tokenizer(directory)(TEXT, return_tensors="pt", return_offsets_mapping=True)
    offsets = encoded.pop("offset_mapping")[0].tolist()
    with torch.inference_mode():
        hidden = model(**encoded).last_hidden_state[0]
    sentences = [TEXT.index("A café"), TEXT.index("Nobody")]
    bounds = [(0, sentences[0] - 1), (sentences[0], sentences[1] - 1), (sentences[1], len(TEXT))]

    def expected(start: int, end: int) -> np.ndarray:
        """The expected vector of a part of the text: the mean over its tokens, scaled to unit length.

        Its tokens are those from the first to the last token that overlaps the part. Tokens without characters do not
        overlap.

        start, end: the part, as indices of characters.
        """
        places = [index for index, (first, last) in enumerate(offsets) if first < last and first < end and last > start]
        vector = hidden[places[0] : places[-1] + 1].mean(0).numpy()
        return vector / np.linalg.norm(vector)

    found = post(server, "/embed", model=family, inputs=TEXT, chunks="sentences")
    assert [(chunk["start"], chunk["end"]) for chunk in found] == bounds
    chosen = [(4, 10), (0, len(TEXT)), (6, 30)]
    again = post(server, "/embed", model=family, inputs=TEXT, chunks=chosen)
    for chunk in found + again:
        np.testing.assert_allclose(chunk["embedding"], expected(chunk["start"], chunk["end"]), rtol=1e-3, atol=1e-5)
    alone = post(server, "/embed", model=family, inputs=TEXT[bounds[1][0] : bounds[1][1]])[0]
    assert not np.allclose(alone, found[1]["embedding"], atol=1e-3), "the text around a part does not matter"
