"""Decoders as encoders: /embed, /classify, /rerank and /token_classify equal sentence-transformers and transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import sentence_transformers
import torch
import transformers
from tokenizers import Tokenizer, processors

from tests.e2e.conftest import RunningServer, serving
from tests.e2e.test_oracle import post
from tests.parity.checkpoints import write_model
from tests.text.checkpoints import write_llama

VOCAB = 600
LONGEST = 48
TEXTS = [
    "The old sailor sees two houses!",
    "Über uns schreibt the café.",
    "My sister's friend doesn't like naïve questions? Nobody counts 1,234.56 of e-mails",
]
LABELS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC"}
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LONGEST,
}
_NAMED = {"id2label": LABELS, "label2id": {label: at for at, label in LABELS.items()}}
MODELS = {
    "embed": ("Qwen3ForCausalLM", transformers.Qwen3Config(**_SIZES, head_dim=12)),
    "body": ("MixtralModel", transformers.MixtralConfig(**_SIZES, num_local_experts=4)),
    "classify": (
        "LlamaForSequenceClassification",
        # As in many published checkpoints, the end token is also the padding token.
        transformers.LlamaConfig(**_SIZES, num_labels=5, pad_token_id=2, eos_token_id=2),
    ),
    "rank": ("Gemma2ForSequenceClassification", transformers.Gemma2Config(**_SIZES, num_labels=1, head_dim=12)),
    "tag": ("MistralForTokenClassification", transformers.MistralConfig(**_SIZES, sliding_window=7, **_NAMED)),
}


def write_decoder(directory: Path, name: str) -> Path:
    """Write a checkpoint with a tokenizer that puts `</s>` at the end of every text."""
    architecture, config = MODELS[name]
    write_llama(directory)
    path = directory / "tokenizer.json"
    backend = Tokenizer.from_file(str(path))
    ends = {"special_tokens": [("<s>", 1), ("</s>", 2)]}
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s>:1 $B:1 </s>:1", **ends
    )
    backend.save(str(path))
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps({**settings, "pad_token": "</s>"}))
    write_model(directory, config, architecture, std=0.4 if name == "tag" else 0.1)
    return directory


def write_sentence_files(directory: Path) -> None:
    """Write the sentence-transformers files of Qwen3-Embedding: last-token pooling, then normalization."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(kinds.items())
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("decoders")
    made = {name: write_decoder(root / name, name) for name in MODELS}
    write_sentence_files(made["embed"])
    return made


@pytest.fixture(scope="module")
def server(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = [f"{name}={directory}" for name, directory in checkpoints.items()]
    with serving(tmp_path_factory.mktemp("server") / "log", *models) as running:
        yield running


def reference_tokenizer(directory: Path):
    return transformers.AutoTokenizer.from_pretrained(directory, model_max_length=LONGEST)


def test_vectors_of_a_directory_of_sentence_transformers(server: RunningServer, checkpoints: dict[str, Path]) -> None:
    oracle = sentence_transformers.SentenceTransformer(str(checkpoints["embed"]), device="cpu")
    expected = torch.tensor(oracle.encode(TEXTS, batch_size=1))
    found = post(server, "/embed", {"model": "embed", "inputs": TEXTS})
    torch.testing.assert_close(torch.tensor(found), expected, atol=1e-5, rtol=0)
    for text, vector in zip(TEXTS, found, strict=True):
        alone = post(server, "/embed", {"model": "embed", "inputs": text})
        torch.testing.assert_close(torch.tensor(alone[0]), torch.tensor(vector), atol=1e-5, rtol=0)
    refused = server.post("/generate", json={"model": "embed", "prompt": "The old"})
    assert refused.status_code == 422


@torch.inference_mode()
def test_vectors_of_a_checkpoint_without_an_output_head(server: RunningServer, checkpoints: dict[str, Path]) -> None:
    model = transformers.AutoModel.from_pretrained(checkpoints["body"])
    tokenizer = reference_tokenizer(checkpoints["body"])
    last = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, -1] for text in TEXTS]
    expected = torch.nn.functional.normalize(torch.stack(last), dim=-1)
    found = post(server, "/embed", {"model": "body", "inputs": TEXTS})
    torch.testing.assert_close(torch.tensor(found), expected, atol=1e-5, rtol=0)


@torch.inference_mode()
def test_classes(server: RunningServer, checkpoints: dict[str, Path]) -> None:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(checkpoints["classify"])
    tokenizer = reference_tokenizer(checkpoints["classify"])
    for text, found in zip(TEXTS, post(server, "/classify", {"model": "classify", "inputs": TEXTS}), strict=True):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        assert ids[0, -1] == model.config.pad_token_id, "the text must end as padding would"
        scores = model(ids).logits[0].softmax(-1)
        assert {scored["label"]: scored["score"] for scored in found} == pytest.approx(
            {f"LABEL_{at}": float(score) for at, score in enumerate(scores)}, abs=1e-5
        )


@torch.inference_mode()
def test_ranks(server: RunningServer, checkpoints: dict[str, Path]) -> None:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(checkpoints["rank"])
    tokenizer = reference_tokenizer(checkpoints["rank"])
    pairs = [tokenizer("Nobody?", text, return_tensors="pt")["input_ids"] for text in TEXTS]
    expected = [float(model(pair).logits) for pair in pairs]
    body = {"model": "rank", "query": "Nobody?", "texts": TEXTS, "raw_scores": True}
    found = post(server, "/rerank", body)
    assert [document["index"] for document in found] == sorted(range(len(TEXTS)), key=lambda index: -expected[index])
    assert [document["score"] for document in found] == pytest.approx(
        [expected[document["index"]] for document in found], abs=1e-4
    )


def test_entities(server: RunningServer, checkpoints: dict[str, Path]) -> None:
    directory = checkpoints["tag"]
    oracle = transformers.pipeline(
        "token-classification",
        str(directory),
        tokenizer=reference_tokenizer(directory),
        device="cpu",
        aggregation_strategy="simple",
    )
    body = {"model": "tag", "inputs": TEXTS, "aggregation_strategy": "simple"}
    expected = [oracle(text) for text in TEXTS]
    assert sum(map(len, expected)) > 4, "one entity everywhere would prove nothing"
    for found, entities in zip(post(server, "/token_classify", body), expected, strict=True):
        assert [entity | {"score": 0} for entity in found] == [entity | {"score": 0} for entity in entities]
        scores = [float(entity["score"]) for entity in entities]
        assert [entity["score"] for entity in found] == pytest.approx(scores, rel=1e-3)
