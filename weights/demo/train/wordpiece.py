"""Train the lower-casing WordPiece tokenizer of the two BERT-type demo models."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertTokenizer, PreTrainedTokenizerBase

MAX_LENGTH = 128
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def train_wordpiece(folder: Path, texts: Iterable[str], size: int) -> PreTrainedTokenizerBase:
    """Train a vocabulary of `size` entries on texts, and return the tokenizer.

    Writes tokenizer.json, vocab.txt and tokenizer_config.json to `folder`.
    """
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    alphabet = list("abcdefghijklmnopqrstuvwxyz0123456789.,!?'-")
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=_SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    wrapped = BertTokenizer(
        tokenizer_object=tokenizer,
        do_lower_case=True,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    wrapped.save_pretrained(folder)
    entries = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece, _ in entries), "utf-8")
    return wrapped
