"""The positions in the text of SentencePiece pieces equal those that the library reports."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from typing import Any

import pytest
import sentencepiece

from server.text.tokenizers.marian import _located_pieces

SENTENCES = [
    "The old sailor sees the café by the sea.",
    "Nobody dislikes e-mails, or does he?",
    "It costs 3.50 €, they say.",
    "ÀÉÎ are capital letters.",
    "日本語の本があります。",
]
KINDS: dict[str, dict[str, Any]] = {
    "unigram": {"model_type": "unigram"},
    "bpe": {"model_type": "bpe"},
    "byte fallback": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 340},
    "suffix": {"model_type": "unigram", "treat_whitespace_as_suffix": True},
    "no prefix": {"model_type": "unigram", "add_dummy_prefix": False},
    "spaces kept": {"model_type": "unigram", "remove_extra_whitespaces": False},
    "own symbols": {"model_type": "unigram", "user_defined_symbols": ["sea", "<x>", "ab"]},
}


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest) -> Any:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 4),
        model_writer=written,
        **{"vocab_size": 80, "minloglevel": 2, "hard_vocab_limit": False, **KINDS[request.param]},
    )
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


def texts() -> Iterator[str]:
    yield from SENTENCES
    rng = random.Random(0)
    for _ in range(300):
        yield "".join(
            rng.choices([*"abcdesT é.’-  \t▁本ﬁ①😀\u0300<>\xa0", "sea", "<x>", "<0x41>", "<s>"], k=rng.randrange(1, 20))
        )
        words = rng.choice(SENTENCES).split()
        rng.shuffle(words)
        yield " ".join(words)


def test_places_of_pieces(model: Any) -> None:
    for text in texts():
        characters = [len(text.encode()[:at].decode(errors="ignore")) for at in range(len(text.encode()) + 1)]
        pieces = model.encode(text, return_type="proto").pieces
        reported = [(piece.piece, characters[piece.begin], characters[piece.end]) for piece in pieces]
        assert list(_located_pieces(model, text)) == reported, text
