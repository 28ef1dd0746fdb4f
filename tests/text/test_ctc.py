"""CTC labels become the same tokens and words as in transformers, and the files of a checkpoint are read as there."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import transformers

from server.text.speech.ctc import CtcToken, CtcTokens
from server.text.tokenizers.load import load_tokenizer
from server.text.tokens.tokenizer import TokenizerError
from tests.parity.ctc import VOCABULARY, write_tokenizer

BLANK, SPACE = VOCABULARY["<pad>"], VOCABULARY["|"]


def write(directory: Path, **settings: Any) -> Path:
    write_tokenizer(directory, **settings)
    (directory / "config.json").write_text(json.dumps({"model_type": "wav2vec2", "pad_token_id": 0}))
    return directory


def edit(directory: Path, file: str, **changes: Any) -> None:
    path = directory / f"{file}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_repeated_labels_are_one_token_unless_a_blank_is_between_them(tmp_path) -> None:
    tokens = CtcTokens.from_checkpoint(write(tmp_path), load_tokenizer(tmp_path))
    assert tokens == CtcTokens(BLANK, SPACE, frozenset(range(4)), True)
    found = tokens.collapse([5, 5, BLANK, 5, 1, 6, SPACE, SPACE, BLANK, SPACE, 7], first=10)
    assert found == [
        CtcToken(5, 10, 12),
        CtcToken(5, 13, 14),
        CtcToken(6, 15, 16),
        CtcToken(SPACE, 16, 18),
        CtcToken(SPACE, 19, 20),
        CtcToken(7, 20, 21),
    ]
    assert [[token.token_id for token in word] for word in tokens.words(found)] == [[5, 5, 6], [7]]
    assert tokens.words(tokens.collapse([SPACE, BLANK])) == [] == tokens.collapse([])


@pytest.mark.parametrize("lower_case", [False, True])
def test_texts_and_word_times_equal_transformers(tmp_path, lower_case: bool) -> None:
    write(tmp_path, do_lower_case=lower_case)
    tokenizer, oracle = load_tokenizer(tmp_path), transformers.Wav2Vec2CTCTokenizer.from_pretrained(tmp_path)
    tokens, generator = CtcTokens.from_checkpoint(tmp_path, tokenizer), random.Random(0)
    for _ in range(50):
        labels = generator.choices([BLANK, SPACE, *range(5, 12)], weights=[3, 2, *[1] * 7], k=60)
        theirs = oracle.decode(labels, output_word_offsets=True)
        words = tokens.words(tokens.collapse(labels))
        texts = [tokenizer.decode([token.token_id for token in word]) for word in words]
        assert " ".join(texts) == " ".join(theirs.text.split())
        spans = [(word["start_offset"], word["end_offset"]) for word in theirs.word_offsets if word["word"].strip()]
        assert [(word[0].first, word[-1].end) for word in words] == spans
    said = "don't hello" if lower_case else "DON'T HELLO"
    (encoding,) = tokenizer.encode([said])
    assert encoding.ids == oracle(said).input_ids and tokenizer.decode(encoding.ids) == said
    assert tokenizer.encode(["É"])[0].ids == [VOCABULARY["<unk>"]]


@pytest.mark.parametrize(
    ("file", "change", "named"),
    [
        ("preprocessor_config", {"sampling_rate": 8000}, "sampling_rate"),
        ("preprocessor_config", {"feature_size": 80}, "feature_size"),
        ("preprocessor_config", {"do_normalize": "yes"}, "do_normalize"),
        ("tokenizer_config", {"replace_word_delimiter_char": "-"}, "replace_word_delimiter_char"),
        ("tokenizer_config", {"tokenizer_class": "Wav2Vec2PhonemeCTCTokenizer"}, "Wav2Vec2PhonemeCTCTokenizer"),
        ("vocab", {"eng": {"A": 1}}, "vocabulary for each language"),
        ("vocab", {"A": "1"}, "vocab.json"),
        ("vocab", {"A": -1}, "vocab.json"),
    ],
    ids=str,
)
def test_files_that_are_not_supported_are_refused_by_name(tmp_path, file: str, change: dict, named: str) -> None:
    edit(write(tmp_path), file, **change)
    with pytest.raises(TokenizerError, match=named):
        CtcTokens.from_checkpoint(tmp_path, load_tokenizer(tmp_path))


def test_a_damaged_vocabulary_is_refused(tmp_path) -> None:
    (write(tmp_path) / "vocab.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"vocab\.json is damaged"):
        load_tokenizer(tmp_path)


def test_a_vocabulary_without_words_is_one_word(tmp_path) -> None:
    write(tmp_path, word_delimiter_token=None)
    tokens = CtcTokens.from_checkpoint(tmp_path, load_tokenizer(tmp_path))
    assert tokens.delimiter is None and len(tokens.words(tokens.collapse([5, SPACE, 6]))) == 1
