"""Train and measure the sentence encoder: a small BERT-type model that gives texts of similar meaning similar vectors.

The vector of a text is the mean of its hidden states, scaled to unit length.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerBase

from weights.demo.train.grammar.events import Event, event, near_miss, render
from weights.demo.train.split import held_out
from weights.demo.train.training import HOME, Batch, fit, pad, save_model, seed_everything
from weights.demo.train.wordpiece import MAX_LENGTH, train_wordpiece

NAME = "sentence-encoder"
STEPS = 1000
_EVENTS = 96  # events in a batch, each with two renderings and two near misses
_NEAR_MISSES = 2
_TEMPERATURE = 0.05


def _events(rng: random.Random) -> Iterator[Event]:
    """Infinite stream of random events for training, without held-out events."""
    while True:
        meant = event(rng)
        if not held_out(meant.key()):
            yield meant


def _paraphrases(rng: random.Random, meant: Event) -> tuple[str, str]:
    """Two different sentences that express the event `meant`."""
    first = second = render(rng, meant)
    while second == first:
        second = render(rng, meant)
    return first, second


def training_groups(rng: random.Random) -> Iterator[list[str]]:
    """Infinite stream of groups: a sentence, its paraphrase, and sentences for two near misses.

    No event of them is held out.
    """
    for meant in _events(rng):
        wrong: list[str] = []
        while len(wrong) < _NEAR_MISSES:
            missed = near_miss(rng, meant)
            if not held_out(missed.key()):
                wrong.append(render(rng, missed))
        yield [*_paraphrases(rng, meant), *wrong]


def held_out_triples(count: int, seed: int = 20_000) -> list[tuple[str, str, str]]:
    """For `count` distinct held-out events: a sentence, its paraphrase, and a sentence for a near miss."""
    rng = random.Random(seed)
    found: dict[str, tuple[str, str, str]] = {}
    while len(found) < count:
        meant = event(rng)
        if held_out(meant.key()):
            found[meant.key()] = (*_paraphrases(rng, meant), render(rng, near_miss(rng, meant)))
    return list(found.values())


def mean_pool(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean of each text's hidden states without padding, scaled to unit length: [batch, hidden].

    states: [batch, seq, hidden]. mask: [batch, seq], 1 for tokens and 0 for padding.
    """
    weights = mask.unsqueeze(-1).float()
    return torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1), dim=-1)


def _build(vocabulary: int) -> BertModel:
    return BertModel(
        BertConfig(
            vocab_size=vocabulary,
            hidden_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=384,
            max_position_embeddings=MAX_LENGTH,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=0.05,
            pad_token_id=0,
        )
    )


def _batches(tokenizer: PreTrainedTokenizerBase, seed: int) -> Iterator[Batch]:
    groups = training_groups(random.Random(seed))
    while True:
        batch = list(islice(groups, _EVENTS))
        # The rows are all sentences, then all paraphrases, then all near misses, each in the order of the groups.
        texts = [group[index] for index in range(2 + _NEAR_MISSES) for group in batch]
        inputs = pad(tokenizer(texts)["input_ids"], 0)
        yield {"input_ids": inputs, "attention_mask": (inputs != 0).long()}


def _loss(model: BertModel, batch: Batch) -> torch.Tensor:
    """Contrastive loss: each sentence must be closer to its paraphrase than to the batch's other texts.

    The other texts are the paraphrases of other sentences and all near misses.
    """
    vectors = mean_pool(model(**batch).last_hidden_state, batch["attention_mask"])
    scores = vectors[:_EVENTS] @ vectors[_EVENTS:].T / _TEMPERATURE
    backwards = scores[:, :_EVENTS].T
    wanted = torch.arange(_EVENTS)
    entropy = torch.nn.functional.cross_entropy
    return entropy(scores, wanted) + 0.3 * entropy(backwards, wanted)


def _save_sentence_transformers_layout(folder: Path) -> None:
    """Write the files from which sentence-transformers reads the pooling and the normalization."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds)
    ]
    pooling = {
        "word_embedding_dimension": 128,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    files: dict[str, object] = {
        "modules.json": modules,
        "1_Pooling/config.json": pooling,
        "sentence_bert_config.json": {"max_seq_length": MAX_LENGTH, "do_lower_case": False},
        "config_sentence_transformers.json": {"similarity_fn_name": "cosine", "prompts": {}},
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def train(seed: int = 4, steps: int = STEPS) -> None:
    """Train the encoder from scratch and write it, with its tokenizer, to its directory in `weights/demo`."""
    seed_everything(seed)
    folder = HOME / NAME
    folder.mkdir(parents=True, exist_ok=True)
    texts = (text for group in islice(training_groups(random.Random(seed)), 8000) for text in group)
    tokenizer = train_wordpiece(folder, texts, 1400)
    _save_sentence_transformers_layout(folder)
    model = _build(len(tokenizer))
    fit(
        model,
        _batches(tokenizer, seed),
        partial(_loss, model),
        steps,
        name=NAME,
        learning_rate=1e-3,
        warmup=150,
        save=lambda: save_model(model, folder),
        save_every=200,
    )


def embed(texts: list[str], folder: Path = HOME / NAME) -> torch.Tensor:
    """Vectors of texts, [texts, 128], of unit length. folder: directory of the model; by default the shipped one."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder)
    rows = []
    for start in range(0, len(texts), 200):
        inputs = tokenizer(texts[start : start + 200], return_tensors="pt", padding=True)
        with torch.inference_mode():
            rows.append(mean_pool(model(**inputs).last_hidden_state, inputs["attention_mask"]))
    return torch.cat(rows)


def evaluate(count: int = 4000) -> dict[str, float | int | str]:
    """Measure the encoder on `count` held-out sentences.

    The figures are the share of sentences that are closer to their paraphrase than to a near miss, the share that are
    closer to it than to a random sentence, and the mean cosines of all three.
    """
    triples = held_out_triples(count)
    anchors, paraphrases, misses = (embed([triple[index] for triple in triples]) for index in range(3))
    true = (anchors * paraphrases).sum(-1)
    hard = (anchors * misses).sum(-1)
    other = (anchors * paraphrases.roll(1, 0)).sum(-1)
    return {
        "triples": count,
        "paraphrase_above_hard_negative": float((true > hard).float().mean()),
        "paraphrase_above_random": float((true > other).float().mean()),
        "mean_cosine_paraphrase": float(true.mean()),
        "mean_cosine_hard_negative": float(hard.mean()),
        "mean_cosine_random": float(other.mean()),
    }
