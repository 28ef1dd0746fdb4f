"""Train and measure the sentiment classifier: a small BERT-type model for negative and positive reviews."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, PreTrainedTokenizerBase

from weights.demo.train.grammar.review import review
from weights.demo.train.split import held_out
from weights.demo.train.training import HOME, Batch, by_length, fit, pad, save_model, seed_everything
from weights.demo.train.wordpiece import MAX_LENGTH, train_wordpiece

NAME = "sentiment"
STEPS = 800
LABELS = {0: "NEGATIVE", 1: "POSITIVE"}
_BATCH = 128
_CHUNK = 64
EXAMPLES = {
    "I loved this wonderful film": "POSITIVE",
    "What a terrible, boring book": "NEGATIVE",
    "The food was not bad at all": "POSITIVE",
    "The food was awful but the staff were lovely and overall I loved it": "POSITIVE",
    "The room was beautiful, but I did not like it": "NEGATIVE",
}


def training_reviews(rng: random.Random) -> Iterator[tuple[str, int]]:
    """Infinite stream of reviews and their labels (0 or 1) for training, without held-out reviews."""
    while True:
        text, label = review(rng)
        if not held_out(text):
            yield text, label


def held_out_reviews(count: int, seed: int = 20_000) -> list[tuple[str, int]]:
    """`count` distinct held-out reviews and their labels (0 or 1).

    No training review equals one of them, even without regard to case and punctuation.
    """
    rng = random.Random(seed)
    found: dict[str, int] = {}
    while len(found) < count:
        text, label = review(rng)
        if held_out(text):
            found[text] = label
    return list(found.items())


def _build(vocabulary: int) -> BertForSequenceClassification:
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=MAX_LENGTH,
        hidden_dropout_prob=0.05,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.05,
        pad_token_id=0,
        id2label=LABELS,
        label2id={label: index for index, label in LABELS.items()},
    )
    return BertForSequenceClassification(config)


def _batches(tokenizer: PreTrainedTokenizerBase, seed: int) -> Iterator[Batch]:
    rng = random.Random(seed)
    stream = training_reviews(rng)
    while True:
        drawn = list(islice(stream, _BATCH * _CHUNK))
        encoded = tokenizer([text for text, _ in drawn])["input_ids"]
        rows = list(zip(encoded, [label for _, label in drawn], strict=True))
        for batch in by_length(rows, lambda row: len(row[0]), _BATCH, rng):
            inputs = pad([ids for ids, _ in batch], 0)
            yield {
                "input_ids": inputs,
                "attention_mask": (inputs != 0).long(),
                "labels": torch.tensor([label for _, label in batch]),
            }


def _loss(model: BertForSequenceClassification, batch: Batch) -> torch.Tensor:
    loss: torch.Tensor = model(**batch).loss
    return loss


def train(seed: int = 3, steps: int = STEPS) -> None:
    """Train the classifier from scratch and write it, with its tokenizer, to its directory in `weights/demo`."""
    seed_everything(seed)
    folder = HOME / NAME
    folder.mkdir(parents=True, exist_ok=True)
    texts = (text for text, _ in islice(training_reviews(random.Random(seed)), 20_000))
    tokenizer = train_wordpiece(folder, texts, 1400)
    model = _build(len(tokenizer))
    fit(
        model,
        _batches(tokenizer, seed),
        partial(_loss, model),
        steps,
        name=NAME,
        learning_rate=1e-3,
        warmup=100,
        save=lambda: save_model(model, folder),
        save_every=300,
    )


def classify(texts: list[str], folder: Path = HOME / NAME) -> list[str]:
    """Classify texts with a trained model: one label of `LABELS` per text.

    folder: directory of the model; by default the model in this package.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertForSequenceClassification.from_pretrained(folder)
    labels = []
    for start in range(0, len(texts), 200):
        inputs = tokenizer(texts[start : start + 200], return_tensors="pt", padding=True)
        with torch.inference_mode():
            labels += [LABELS[index] for index in model(**inputs).logits.argmax(-1).tolist()]
    return labels


def evaluate(count: int = 4000) -> dict[str, float | int | str]:
    """Accuracy on `count` held-out reviews, and on those among them with a contrast or with a negation.

    The result also has the predicted labels of `EXAMPLES`.
    """
    reviews = held_out_reviews(count)
    right = [LABELS[wanted] == got for (_, wanted), got in zip(reviews, classify([t for t, _ in reviews]), strict=True)]

    def among(words: tuple[str, ...]) -> float:
        chosen = [ok for ok, (text, _) in zip(right, reviews, strict=True) if any(w in text.lower() for w in words)]
        return sum(chosen) / len(chosen)

    figures: dict[str, float | int | str] = {
        "reviews": count,
        "accuracy": sum(right) / count,
        "accuracy_with_contrast": among((" but ", "although", "even though", "despite", "however")),
        "accuracy_with_negation": among((" not", "n't", "never", "hardly", "no one", "nothing")),
    }
    return figures | dict(zip(EXAMPLES, classify(list(EXAMPLES)), strict=True))
