"""The words of a transcript equal transformers, in languages with and without spaces, and for invalid UTF-8."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

from server.text.speech.words import split_words
from server.text.tokenizers.load import load_tokenizer
from tests.parity.speech import END, write_tokenizer

TEXTS = [
    ' He said: "Wait, (please) — don\'t go!" And then...',
    " ¿Qué? ¡No! [x] {y}  two  spaces ",
    "No space at the start, 3.5% of it.",
    " 你好，世界。これは「テスト」です！",
    " naïve café 😀 ok",
    "",
    " ",
    " . , ! ?",
]


class Adapter:
    """Gives our tokenizer the methods of transformers' Whisper tokenizer that the reference function calls."""

    language = None
    eos_token_id = END

    def __init__(self, tokenizer) -> None:
        self.tokenizer = tokenizer

    def decode(self, token_ids, decode_with_timestamps: bool = False) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory):
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    return load_tokenizer(directory)


def compare(tokenizer, ids: list[int], code: str, name: str) -> None:
    texts, tokens, indices = _combine_tokens_into_words(Adapter(tokenizer), ids, name)
    words = split_words(tokenizer, ids, code, END)
    assert [word.text for word in words] == texts
    assert [ids[word.first : word.end] for word in words] == tokens
    assert [list(range(word.first, word.end)) for word in words] == indices


@pytest.mark.parametrize(("code", "name"), [("en", "english"), ("zh", "chinese")])
@pytest.mark.parametrize("text", TEXTS)
def test_words_equal_transformers(tokenizer, text: str, code: str, name: str) -> None:
    (encoding,) = tokenizer.encode([text], add_special_tokens=False)
    compare(tokenizer, encoding.ids, code, name)


@pytest.mark.parametrize(("code", "name"), [("en", "english"), ("ja", "japanese")])
def test_random_bytes(tokenizer, code: str, name: str) -> None:
    chooser = random.Random(3)
    (encoding,) = tokenizer.encode([" .,!a\"'(é你。"], add_special_tokens=False)
    common = encoding.ids
    for _ in range(200):
        ids = [chooser.choice(common) if chooser.random() < 0.7 else chooser.randrange(256) for _ in range(12)]
        compare(tokenizer, ids, code, name)


def test_punctuation_belongs_to_a_word(tokenizer) -> None:
    (encoding,) = tokenizer.encode([' He said: "No!"'], add_special_tokens=False)
    assert [word.text for word in split_words(tokenizer, encoding.ids, "en", END)] == [" He", " said:", ' "No!"']
