"""Tiny tokenizers of the encoder families, saved by transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.text.checkpoints import CORPUS

BERT_TOKENS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")


def _unigram() -> list[tuple[str, float]]:
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=[], unk_token="<unk>", show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    pieces = {piece: score for piece, score in json.loads(backend.to_str())["model"]["vocab"] if piece != "<unk>"}
    words = {f"▁{word}" for text in CORPUS for word in text.split()}
    return list((dict.fromkeys(sorted(words), -8.0) | pieces).items())


def _pieces(first: tuple[str, ...], last: tuple[str, ...] = ()) -> list[tuple[str, float]]:
    return [*((token, 0.0) for token in first), *_unigram(), *((token, 0.0) for token in last)]


def _words(first: tuple[str, ...], last: tuple[str, ...] = ()) -> dict[str, int]:
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, show_progress=False))
    words = [word for word, _ in sorted(backend.get_vocab().items(), key=lambda item: item[1])]
    return {token: index for index, token in enumerate((*first, *words, *last))}


def _byte_level(special: tuple[str, ...]) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def _modernbert() -> Any:
    """A tokenizer for ModernBERT, which has no tokenizer class, so the files must contain all settings."""
    backend = _byte_level((*BERT_TOKENS, "[MASK]"))
    backend.normalizer = normalizers.NFC()
    cls, sep = (("[CLS]", 1), ("[SEP]", 2))
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[cls, sep]
    )
    roles = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        mask_token=transformers.AddedToken("[MASK]", lstrip=True),
        model_input_names=["input_ids", "attention_mask"],
        **roles,
    )


def _deberta() -> Any:
    state = json.loads(_byte_level((*BERT_TOKENS, "[MASK]")).to_str())["model"]
    return transformers.DebertaTokenizer(vocab=state["vocab"], merges=[tuple(merge) for merge in state["merges"]])


REFERENCES: Mapping[str, Callable[[], Any]] = {
    "xlm-roberta": lambda: transformers.XLMRobertaTokenizer(
        vocab=_pieces(("<s>", "<pad>", "</s>", "<unk>"), ("<mask>",))
    ),
    "camembert": lambda: transformers.CamembertTokenizer(
        vocab=_pieces(("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"), ("<s>", "</s>", "<mask>"))
    ),
    "electra": lambda: transformers.BertTokenizer(vocab=_words((*BERT_TOKENS, "[MASK]"))),
    "albert": lambda: transformers.AlbertTokenizer(vocab=_pieces(("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"))),
    "mpnet": lambda: transformers.MPNetTokenizer(vocab=_words(("<s>", "<pad>", "</s>", "[UNK]"), ("<mask>",))),
    "modernbert": _modernbert,
    "nomic_bert": lambda: transformers.BertTokenizer(vocab=_words((*BERT_TOKENS, "[MASK]"))),
    "deberta": _deberta,
    "deberta-v2": lambda: transformers.DebertaV2Tokenizer(vocab=_pieces(BERT_TOKENS, ("[MASK]",))),
}


def write(directory: Path, kind: str) -> Any:
    """Save the tokenizer of a family and return it."""
    reference = REFERENCES[kind]()
    reference.save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps({"model_type": kind}))
    return reference
