"""Answers of the encoder routes equal those of transformers' pipelines for the same checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from transformers.pipelines.document_question_answering import select_starts_ends

from tests.e2e.conftest import RunningServer, serving
from tests.e2e.encoder_checkpoints import FAMILIES, LONGEST, tokenizer, write_encoder
from tests.e2e.test_oracle import post

LABELS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC"}
HEADS = {
    "fill": ("MaskedLM", {}),
    "rank": ("SequenceClassification", {"num_labels": 1}),
    "answer": ("QuestionAnswering", {}),
    "tag": ("TokenClassification", {"id2label": LABELS, "label2id": {label: at for at, label in LABELS.items()}}),
}
TEXTS = [
    "The old sailor sees two houses!",
    "Über uns schreibt the café.",
    "My sister's friend doesn't like naïve questions? Nobody counts 1,234.56 of e-mails",
]
every_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("encoders")
    return {
        f"{family}-{name}": write_encoder(root / f"{family}-{name}", family, head, **settings)
        for family in FAMILIES
        for name, (head, settings) in HEADS.items()
    }


@pytest.fixture(scope="module")
def server(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = [f"{name}={directory}" for name, directory in checkpoints.items()]
    with serving(tmp_path_factory.mktemp("server") / "log", *models) as running:
        yield running


def pipeline(task: str, directory: Path, **settings):
    return transformers.pipeline(task, str(directory), tokenizer=tokenizer(directory), device="cpu", **settings)


@every_family
@pytest.mark.parametrize(
    "fields", [{}, {"top_k": 9}, {"targets": ["."], "top_k": 3}], ids=["default", "nine", "targets"]
)
def test_fill_mask(server: RunningServer, checkpoints: dict[str, Path], family: str, fields: dict) -> None:
    name = f"{family}-fill"
    oracle = pipeline("fill-mask", checkpoints[name])
    mask = oracle.tokenizer.mask_token
    if "targets" in fields:
        words = [token for token in oracle.tokenizer.get_vocab() if token.isalpha() and len(token) > 2]
        fields = fields | {"targets": [*fields["targets"], *sorted(words)[:4]]}
    texts = [text.replace(word, mask) for text, word in zip(TEXTS, ("sailor", "the café", "Nobody"), strict=True)]
    for text, found in zip(texts, post(server, "/fill_mask", {"model": name, "inputs": texts, **fields}), strict=True):
        expected = oracle(text, **fields)
        assert [filled["token"] for filled in found] == [filled["token"] for filled in expected]
        for ours, theirs in zip(found, expected, strict=True):
            assert ours["score"] == pytest.approx(theirs["score"], rel=1e-3)
            assert (ours["token_str"], ours["sequence"]) == (theirs["token_str"], theirs["sequence"])


@every_family
@torch.inference_mode()
def test_rerank(server: RunningServer, checkpoints: dict[str, Path], family: str) -> None:
    name = f"{family}-rank"
    reader = tokenizer(checkpoints[name])
    model = transformers.AutoModelForSequenceClassification.from_pretrained(checkpoints[name])
    expected = [float(model(**reader("Nobody?", text, return_tensors="pt")).logits) for text in TEXTS]
    body = {"model": name, "query": "Nobody?", "texts": TEXTS}
    raw = post(server, "/rerank", {**body, "raw_scores": True})
    assert [document["index"] for document in raw] == sorted(range(len(TEXTS)), key=lambda index: -expected[index])
    assert [document["score"] for document in raw] == pytest.approx(
        [expected[document["index"]] for document in raw], abs=1e-4
    )
    scores = [document["score"] for document in post(server, "/rerank", body)]
    assert scores == pytest.approx(torch.tensor(sorted(expected, reverse=True)).sigmoid().tolist(), abs=1e-5)


def assert_same_entities(found: list[dict], expected: list[dict]) -> None:
    assert [entity | {"score": 0} for entity in found] == [entity | {"score": 0} for entity in expected]
    scores = [float(entity["score"]) for entity in expected]
    assert [entity["score"] for entity in found] == pytest.approx(scores, rel=1e-3)


@every_family
@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
def test_entities(server: RunningServer, checkpoints: dict[str, Path], family: str, strategy: str) -> None:
    oracle = pipeline("token-classification", checkpoints[f"{family}-tag"], aggregation_strategy=strategy)
    texts = [*TEXTS, "L'élève aime [MASK] 日本語 e-mails !"]
    body = {"model": f"{family}-tag", "inputs": texts, "aggregation_strategy": strategy}
    expected = [oracle(text) for text in texts]
    assert sum(map(len, expected)) > 6, "the random checkpoint must find several entities"
    for found, entities in zip(post(server, "/token_classify", body), expected, strict=True):
        assert_same_entities(found, entities)
    if strategy == "simple":
        assert_same_entities(post(server, "/ner", {"model": f"{family}-tag", "inputs": texts[0]}), expected[0])


@every_family
@pytest.mark.parametrize("strategy", ["simple", "average"])
@pytest.mark.parametrize("stride", [0, 7, 20])
def test_entities_of_long_texts(
    server: RunningServer, checkpoints: dict[str, Path], family: str, strategy: str, stride: int
) -> None:
    oracle = pipeline(
        "token-classification", checkpoints[f"{family}-tag"], aggregation_strategy=strategy, stride=stride
    )
    text = " ".join(TEXTS * 4)
    body = {"model": f"{family}-tag", "inputs": text, "aggregation_strategy": strategy, "stride": stride}
    assert_same_entities(post(server, "/token_classify", body), oracle(text))


@torch.inference_mode()
def likeliest_spans(directory: Path, question: str, context: str, top_k: int) -> list[tuple[float, int, int]]:
    """The best answers according to transformers, in descending order: (score, start, end) in characters.

    An answer consists of whole words. Each place occurs once, with its best score over all windows.
    """
    reader = tokenizer(directory)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(directory)
    whole = reader(question, context, return_offsets_mapping=True)
    windows = reader(
        question,
        context,
        truncation="only_second",
        max_length=LONGEST,
        stride=LONGEST // 2,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    words: dict[tuple[int, int], tuple[int, int]] = {}
    for index, sequence in enumerate(whole.sequence_ids(0)):
        if sequence == 1:
            place = whole.word_to_chars(0, whole.token_to_word(0, index), sequence_index=1)
            words[whole["offset_mapping"][index]] = (place.start, place.end)
    best: dict[tuple[int, int], float] = {}
    for window, ids in enumerate(windows["input_ids"]):
        inputs = {
            name: torch.tensor([windows[name][window]]) for name in ("input_ids", "token_type_ids") if name in windows
        }
        output = model(**inputs)
        masked = [
            sequence != 1 and not (sequence is None and token == reader.cls_token_id)
            for sequence, token in zip(windows.sequence_ids(window), ids, strict=True)
        ]
        starts, ends, scores, _ = select_starts_ends(
            output.start_logits.numpy(), output.end_logits.numpy(), np.array(masked, dtype=int), None, top_k=10_000
        )
        for start, end, score in zip(starts, ends, scores, strict=True):
            if score > 0 and windows.sequence_ids(window)[start] == windows.sequence_ids(window)[end] == 1:
                first, last = (windows["offset_mapping"][window][index] for index in (start, end))
                place = (words[first][0], words[last][1])
                best[place] = max(best.get(place, 0.0), float(score))
    return sorted(((score, *place) for place, score in best.items()), reverse=True)[:top_k]


@every_family
@pytest.mark.parametrize("top_k", [1, 8])
@pytest.mark.parametrize("repeated", [1, 4])
def test_answers(server: RunningServer, checkpoints: dict[str, Path], family: str, top_k: int, repeated: int) -> None:
    name, question, words = f"{family}-answer", "Who counts e-mails?", " ".join(TEXTS[::-1]).split()
    # Each repetition starts at another word, because two windows with the same text would have equal scores.
    context = " ".join(word for turn in range(repeated) for word in words[turn:] + words[:turn])
    body = {"model": name, "question": question, "context": context}
    found = post(server, "/question_answer", body if top_k == 1 else body | {"top_k": top_k})
    expected = likeliest_spans(checkpoints[name], question, context, top_k)
    assert [answer["score"] for answer in found] == pytest.approx([score for score, _, _ in expected], rel=1e-3)
    assert [(answer["start"], answer["end"]) for answer in found] == [(start, end) for _, start, end in expected]
    assert [answer["answer"] for answer in found] == [context[start:end] for _, start, end in expected]
