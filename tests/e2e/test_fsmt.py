"""FSMT translates texts exactly as transformers does, including tokenization."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

pytest.importorskip("sacremoses")

from server.text.tokenizers.load import load_tokenizer
from tests.e2e.conftest import RunningServer, serving
from tests.e2e.test_oracle import post
from tests.parity.checkpoints import write_model
from tests.text import checkpoints

TEXTS = [
    "The old sailor sees the café.",
    "Nobody doesn't like e-mails",
    'My sister\'s friend: "two houses!"',
    "Mr. Smith counts 1,234.56 of (parentheses)…",
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = checkpoints.write_fsmt(tmp_path_factory.mktemp("fsmt"))
    size = load_tokenizer(directory).vocab_size
    config = transformers.FSMTConfig(
        langs=["en", "ru"],
        src_vocab_size=size,
        tgt_vocab_size=size,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        max_position_embeddings=64,
        num_beams=1,
    )
    write_model(directory, config, "FSMTForConditionalGeneration", seed=4, std=0.5)
    return directory


@pytest.fixture(scope="module")
def server(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serving(tmp_path_factory.mktemp("server") / "log", f"fsmt={directory}") as running:
        yield running


@pytest.mark.parametrize("num_beams", [1, 4])
def test_translations(server: RunningServer, directory: Path, num_beams: int) -> None:
    tokenizer = transformers.FSMTTokenizer.from_pretrained(directory)
    model = transformers.FSMTForConditionalGeneration.from_pretrained(directory).eval()
    answers = set[str]()
    for text in TEXTS:
        with torch.inference_mode():
            ids = model.generate(
                **tokenizer(text, return_tensors="pt"), max_new_tokens=16, num_beams=num_beams, no_repeat_ngram_size=2
            )
        expected = tokenizer.decode(ids[0], skip_special_tokens=True)
        body = {"inputs": text, "source_lang": "en", "target_lang": "ru", "num_beams": num_beams}
        body |= {"max_new_tokens": 16, "split_sentences": False, "no_repeat_ngram_size": 2}
        assert post(server, "/translate", body)["translations"][0]["text"] == expected, text
        answers.add(expected)
    assert len(answers) > 1, "control: the answers depend on the text"


def test_another_pair_is_refused(server: RunningServer) -> None:
    response = server.post("/translate", json={"inputs": "a", "source_lang": "ru", "target_lang": "en"})
    assert response.status_code == 422 and "en-ru" in response.text


def test_a_stream_gives_the_same_text(server: RunningServer) -> None:
    body = {"prompt": TEXTS[0], "max_new_tokens": 24, "num_beams": 1}
    whole = post(server, "/generate", body)["choices"][0]["text"]
    streamed = server.post("/generate", json={**body, "stream": True})
    assert streamed.status_code == 200
    parts = [line for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert len(parts) > 4
    texts = [json.loads(part[6:]) for part in parts if part != "data: [DONE]"]
    assert whole and "".join(event.get("text", "") for event in texts) == whole
