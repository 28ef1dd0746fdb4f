"""Translation through a pivot language equals two requests, one to each model, sentence by sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.conftest import REPOSITORY, RunningServer, serving
from tests.e2e.test_oracle import post
from tests.e2e.test_translation import write

SENTENCES = ["The little house is old.", "We like the garden.", "I am a student."]
PAIR = {"source_lang": "en", "target_lang": "es"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The demo translator from English to French, and a random Marian from French to Spanish."""
    root = tmp_path_factory.mktemp("pivot")
    directory: Path = write(root / "fr-es", "marian")
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps(settings | {"source_lang": "fr"}))
    demo = REPOSITORY / "weights" / "demo" / "translator-en-fr"
    with serving(root / "log", f"en-fr={demo}", f"fr-es={directory}") as running:
        yield running


def two_requests(server: RunningServer, texts: list[str], **more: object) -> tuple[list[dict], list[dict]]:
    first = post(server, "/translate", {"inputs": texts, "model": "en-fr", "split_sentences": False, **more})
    french = [translation["text"] for translation in first["translations"]]
    own = {"model": "fr-es", "target_lang": "es", "split_sentences": False, "max_new_tokens": 12, **more}
    return first["translations"], post(server, "/translate", {"inputs": french, **own})["translations"]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_texts_and_scores_are_those_of_two_requests(server: RunningServer, num_beams: int) -> None:
    first, second = two_requests(server, SENTENCES, num_beams=num_beams)
    body = {"inputs": [" ".join(SENTENCES), SENTENCES[0]], "num_beams": num_beams, "max_new_tokens": 12, **PAIR}
    whole, one = post(server, "/translate", body)["translations"]
    assert whole["text"] == " ".join([translation["text"] for translation in second])
    assert (one["text"], one["pivot"]) == (second[0]["text"], "fr")
    if num_beams > 1:
        assert one["score"] == pytest.approx(first[0]["score"] + second[0]["score"], abs=1e-4)


def test_attention_leads_from_the_translation_to_the_source(server: RunningServer) -> None:
    (first,), (second,) = two_requests(server, SENTENCES[:1], return_attention=True, num_beams=1)
    body = {"inputs": SENTENCES[0], "max_new_tokens": 12, "return_attention": True, "num_beams": 1, **PAIR}
    (found,) = post(server, "/translate", body)["translations"][0]["attention"]
    assert found["source_tokens"] == first["attention"][0]["source_tokens"]
    assert found["target_tokens"] == second["attention"][0]["target_tokens"]
    matrix = np.array(found["matrix"])
    assert matrix.shape == (len(found["target_tokens"]), len(found["source_tokens"]))
    np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-4)
    reached = np.array(second["attention"][0]["matrix"]) @ np.ones((len(second["attention"][0]["source_tokens"]), 1))
    np.testing.assert_allclose(reached[:, 0], 1, atol=1e-4)
    columns = np.array(first["attention"][0]["matrix"])
    assert (matrix <= columns.max(0) + 1e-4).all() and (matrix >= columns.min(0) - 1e-4).all()


def test_markup_placeholders_and_glossaries_survive(server: RunningServer) -> None:
    body = {"inputs": '<p>The <b>little</b> house <i class="x"></i>is {n}.</p>', "format": "html", **PAIR}
    found = post(server, "/translate", {**body, "max_new_tokens": 12})["translations"][0]["text"]
    assert found.startswith("<p>") and found.endswith("</p>")
    assert found.count('<i class="x"></i>') == found.count("{n}") == 1
    body = {"inputs": " ".join(SENTENCES), "glossary": {"garden": "sailor", "little house": "café"}, **PAIR}
    found = post(server, "/translate", {**body, "max_new_tokens": 30})["translations"][0]["text"]
    assert "sailor" in found.lower() and "café" in found.lower()
