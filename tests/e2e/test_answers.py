"""`/question_answer` with decoders and encoder-decoders equals transformers, also with several windows.

Some of these models' tokenizers put no separator between the question and the context.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers

from tests.e2e.conftest import RunningServer, serving
from tests.e2e.encoder_checkpoints import LONGEST, tokenizer
from tests.e2e.test_encoder_tasks import TEXTS, likeliest_spans
from tests.e2e.test_oracle import post
from tests.parity.checkpoints import write_model
from tests.text.checkpoints import write_byte_level

_BART = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
MODELS = {
    "gpt2": ("gpt2", "GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": LONGEST}),
    "bart": ("roberta", "Bart", {**_BART, "d_model": 32, "num_labels": 2, "max_position_embeddings": LONGEST}),
}
QUESTION, WORDS = "Who counts e-mails?", " ".join(TEXTS[::-1]).split()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("answers")
    for name, (words, stem, sizes) in MODELS.items():
        write_byte_level(root / name, words)
        vocabulary = json.loads((root / name / "vocab.json").read_text())
        ends = {f"{role}_token_id": vocabulary.get(token) for role, token in (("bos", "<s>"), ("eos", "</s>"))}
        config = getattr(transformers, f"{stem}Config")(vocab_size=len(vocabulary), **sizes, **ends)
        write_model(root / name, config, f"{stem}ForQuestionAnswering", std=0.3)
    return {name: root / name for name in MODELS}


@pytest.fixture(scope="module")
def server(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = [f"{name}={directory}" for name, directory in checkpoints.items()]
    with serving(tmp_path_factory.mktemp("server") / "log", *models) as running:
        yield running


def test_only_one_of_the_tokenizers_puts_a_separator_between_the_texts(checkpoints: dict[str, Path]) -> None:
    assert [None in tokenizer(checkpoint)("a", "b").sequence_ids(0) for checkpoint in checkpoints.values()] == [
        False,
        True,
    ]


@pytest.mark.parametrize("top_k", [1, 8])
@pytest.mark.parametrize("repeated", [1, 4])
@pytest.mark.parametrize("name", MODELS)
def test_answers(server: RunningServer, checkpoints: dict[str, Path], name: str, repeated: int, top_k: int) -> None:
    context = " ".join(word for turn in range(repeated) for word in WORDS[turn:] + WORDS[:turn])
    body = {"model": name, "question": QUESTION, "context": context, "top_k": top_k}
    found = post(server, "/question_answer", body)
    expected = likeliest_spans(checkpoints[name], QUESTION, context, top_k)
    assert [answer["score"] for answer in found] == pytest.approx([score for score, _, _ in expected], rel=1e-3)
    assert [(answer["start"], answer["end"]) for answer in found] == [(start, end) for _, start, end in expected]
