"""Train and measure the English-French translator: a small Marian model with its two SentencePiece models."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from tqdm import tqdm
from transformers import GenerationConfig, MarianConfig, MarianMTModel, MarianTokenizer

from weights.demo.train.grammar.bilingual import PHRASEBOOK, Pair, bare, informal, sentence
from weights.demo.train.split import held_out
from weights.demo.train.training import HOME, Batch, by_length, fit, pad, save_model, seed_everything

NAME = "translator-en-fr"
STEPS = 3400
_BATCH = 256
_CHUNK = 64  # batches drawn at once and sorted by length
_PIECES = {"source": 1000, "target": 1400}
_MAX_LENGTH = 128


def training_pairs(rng: random.Random) -> Iterator[Pair]:
    """Infinite stream of sentence pairs for training, from the grammar and from the phrasebook.

    Held-out sentences of the grammar are left out.
    """
    while True:
        pair = rng.choice(PHRASEBOOK) if rng.random() < 0.01 else sentence(rng)
        if pair in PHRASEBOOK or not held_out(pair[0]):
            yield informal(rng, pair)


def held_out_pairs(count: int, seed: int = 20_000) -> list[Pair]:
    """`count` distinct held-out sentence pairs.

    No training sentence equals one of them, even without regard to case and punctuation.
    """
    rng = random.Random(seed)
    known = {bare(source) for source, _ in PHRASEBOOK}
    found: dict[str, str] = {}
    while len(found) < count:
        source, target = sentence(rng)
        if held_out(source) and bare(source) not in known:
            found[source] = target
    return list(found.items())


def _train_pieces(folder: Path, seed: int) -> None:
    """Train a SentencePiece model for each language. `vocab.json` gets their joint vocabulary, as in opus-mt."""
    stream = training_pairs(random.Random(seed))
    pairs = [next(stream) for _ in range(60_000)]
    joint: dict[str, int] = {"</s>": 0, "<unk>": 1}
    for side, (name, size) in enumerate(_PIECES.items()):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([pair[side] for pair in pairs]),
            model_prefix=str(folder / name),
            vocab_size=size,
            character_coverage=1.0,
            num_threads=2,
            minloglevel=2,
        )
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        (folder / f"{name}.vocab").unlink()
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
        for index in range(3, pieces.get_piece_size()):
            joint.setdefault(pieces.id_to_piece(index), len(joint))
    joint["<pad>"] = len(joint)
    (folder / "vocab.json").write_text(json.dumps(joint, ensure_ascii=False, indent=0), "utf-8")


def _save_tokenizer(folder: Path) -> MarianTokenizer:
    tokenizer = MarianTokenizer(
        source_spm=str(folder / "source.spm"),
        target_spm=str(folder / "target.spm"),
        vocab=str(folder / "vocab.json"),
        source_lang="en",
        target_lang="fr",
        model_max_length=_MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def _build(vocabulary: dict[str, int]) -> MarianMTModel:
    padding = vocabulary["<pad>"]
    settings: dict[str, Any] = {
        "vocab_size": len(vocabulary),
        "max_position_embeddings": _MAX_LENGTH,
        "d_model": 128,
        "encoder_layers": 3,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 256,
        "decoder_ffn_dim": 256,
        "activation_function": "swish",
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "add_final_layer_norm": False,
        "normalize_before": False,
        "normalize_embedding": False,
        "pad_token_id": padding,
        "eos_token_id": 0,
        "bos_token_id": 0,
        "forced_eos_token_id": 0,
        "decoder_start_token_id": padding,
        "decoder_vocab_size": len(vocabulary),
    }
    config = MarianConfig(**settings)
    config.init_std = 128**-0.5  # scaled embeddings of unit size
    model = MarianMTModel(config)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bad_words_ids=[[padding]],
        num_beams=4,
        forced_eos_token_id=0,
        eos_token_id=0,
        bos_token_id=0,
        pad_token_id=padding,
        decoder_start_token_id=padding,
        max_length=_MAX_LENGTH,
        renormalize_logits=True,
    )
    return model


def _batches(folder: Path, vocabulary: dict[str, int], seed: int) -> Iterator[Batch]:
    rng = random.Random(seed)
    stream = training_pairs(rng)
    source = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    target = sentencepiece.SentencePieceProcessor(model_file=str(folder / "target.spm"))
    padding = vocabulary["<pad>"]
    while True:
        pairs = [next(stream) for _ in range(_CHUNK * _BATCH)]
        sides = []
        for side, pieces in enumerate((source, target)):
            texts = pieces.encode([pair[side] for pair in pairs], out_type=str, num_threads=2)
            sides.append([[*(vocabulary.get(piece, 1) for piece in text), 0] for text in texts])
        rows = list(zip(*sides, strict=True))
        for batch in by_length(rows, lambda row: len(row[1]) * 100 + len(row[0]), _BATCH, rng):
            inputs = pad([row[0] for row in batch], padding)
            labels = pad([row[1] for row in batch], padding)
            start = torch.full((len(batch), 1), padding)
            yield {
                "input_ids": inputs,
                "attention_mask": (inputs != padding).long(),
                "decoder_input_ids": torch.cat([start, labels[:, :-1]], dim=1),
                "labels": labels,
            }


def _loss(model: MarianMTModel, padding: int, batch: Batch) -> torch.Tensor:
    logits = model(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        decoder_input_ids=batch["decoder_input_ids"],
        use_cache=False,
    ).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=padding)


def train(seed: int = 1, steps: int = STEPS) -> None:
    """Train the translator from scratch and write it, with its tokenizer, to its directory in `weights/demo`."""
    seed_everything(seed)
    folder = HOME / NAME
    folder.mkdir(parents=True, exist_ok=True)
    _train_pieces(folder, seed)
    vocabulary = _save_tokenizer(folder).get_vocab()
    model = _build(vocabulary)
    fit(
        model,
        _batches(folder, vocabulary, seed),
        partial(_loss, model, vocabulary["<pad>"]),
        steps,
        name=NAME,
        learning_rate=2e-3,
        warmup=400,
        save=lambda: save_model(model, folder),
    )


def translate(texts: list[str], beams: int, folder: Path = HOME / NAME) -> list[str]:
    """Translate English texts with transformers. beams: 1 for greedy decoding.

    folder: directory of the model; by default the model in this package.
    """
    tokenizer = MarianTokenizer.from_pretrained(folder)
    model: Any = MarianMTModel.from_pretrained(folder)
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    answers = [""] * len(texts)
    for start in tqdm(range(0, len(order), 100), desc=f"{NAME}, beam {beams}", disable=len(order) < 200):
        chosen = order[start : start + 100]
        inputs = tokenizer([texts[index] for index in chosen], return_tensors="pt", padding=True)
        with torch.inference_mode():
            output = model.generate(**inputs, num_beams=beams, do_sample=False)
        for index, text in zip(chosen, tokenizer.batch_decode(output, skip_special_tokens=True), strict=True):
            answers[index] = text
    return answers


def evaluate(count: int = 2000) -> dict[str, float | int | str]:
    """Share of `count` held-out sentences that are translated exactly, with greedy decoding and with beam search.

    A third of them is also measured without capital and final punctuation.
    """
    pairs = held_out_pairs(count)
    sources = [source for source, _ in pairs]

    def exact(answers: list[str], wanted: list[str]) -> float:
        return sum(a == b for a, b in zip(answers, wanted, strict=True)) / len(wanted)

    wanted = [target for _, target in pairs]
    untidy = pairs[: count // 3]
    lowered = [bare(source[0].lower() + source[1:]) for source, _ in untidy]
    return {
        "sentences": len(pairs),
        "exact_match_greedy": exact(translate(sources, 1), wanted),
        "exact_match_beam4": exact(translate(sources, 4), wanted),
        "exact_match_greedy_lower_case_unpunctuated": exact(translate(lowered, 1), [bare(t) for _, t in untidy]),
        "I am a student": translate(["I am a student"], 4)[0],
        "I am a student.": translate(["I am a student."], 4)[0],
    }
