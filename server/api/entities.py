"""From a label's score for each token to entities: names of things and their places in the text.

The rules are those of transformers' token classification pipeline, whose aggregation strategies these are. Labels may
say where an entity begins (`B-PER`) and goes on (`I-PER`), after Ramshaw and Marcus 1995, arXiv:cmp-lg/9505040.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from server.api.windows import Window
from server.text.tokenizer import Encoding, Tokenizer

Strategy = Literal["none", "simple", "first", "average", "max"]
OUTSIDE = "O"
"""The label of what is no entity."""


@dataclass(frozen=True)
class Piece:
    """A token of the text. scores: [labels], adding up to 1. index: among the text's tokens. continues: a word."""

    word: str
    scores: NDArray[np.float32]
    start: int
    end: int
    index: int
    continues: bool


@dataclass(frozen=True)
class Labelled:
    """A token or a word with its label."""

    label: str
    score: float
    word: str
    start: int
    end: int
    index: int


def pieces(
    text: str, encoding: Encoding, window: Window, logits: NDArray[np.float32], tokenizer: Tokenizer
) -> list[Piece]:
    """The tokens of the text in one window. logits: [tokens of the window, labels]."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores = powers / powers.sum(axis=1, keepdims=True)
    found = []
    for row, index in enumerate(window):
        if encoding.special[index]:
            continue
        start, end = encoding.offsets[index]
        word, said = encoding.tokens[index], text[start:end]
        if tokenizer.marks_subwords:
            continues = len(word) != len(said)
        else:
            continues = start > 0 and " " not in text[start - 1 : start + 1]
        if encoding.ids[index] == tokenizer.special.unk:
            word, continues = said, False
        found.append(Piece(word, scores[row], start, end, index, continues))
    return found


def entities(
    found: Sequence[Piece], strategy: Strategy, labels: Sequence[str], tokenizer: Tokenizer
) -> list[dict[str, Any]]:
    """The entities of one window, in the order of the text.

    `none` gives tokens, `simple` joins neighbours of one label; the others first give each word one label: that of its
    `first` token, of the `average` of its tokens, or of the token with the highest score (`max`).
    """
    if strategy in ("none", "simple"):
        tokens = [_best(piece, piece.scores, labels) for piece in found]
    else:
        tokens = [_word(word, strategy, labels, tokenizer) for word in _words(found)]
    if strategy == "none":
        return [
            {"entity": t.label, "score": t.score, "index": t.index, "word": t.word, "start": t.start, "end": t.end}
            for t in tokens
            if t.label != OUTSIDE
        ]
    groups = [_group(group, tokenizer) for group in _groups(tokens)]
    return [group for group in groups if group["entity_group"] != OUTSIDE]


def without_overlaps(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entities of windows that overlap: of two at one place the longer one, or the surer of two that are as long."""
    kept: list[dict[str, Any]] = []
    for entity in sorted(found, key=lambda one: int(one["start"])):
        if not kept or not kept[-1]["start"] <= entity["start"] < kept[-1]["end"]:
            kept.append(entity)
        elif _weight(entity) > _weight(kept[-1]):
            kept[-1] = entity
    return kept


def _weight(entity: dict[str, Any]) -> tuple[int, float]:
    return entity["end"] - entity["start"], entity["score"]


def _best(piece: Piece, scores: NDArray[np.float32], labels: Sequence[str]) -> Labelled:
    label = int(scores.argmax())
    return Labelled(labels[label], float(scores[label]), piece.word, piece.start, piece.end, piece.index)


def _words(found: Sequence[Piece]) -> list[list[Piece]]:
    words: list[list[Piece]] = []
    for piece in found:
        if words and piece.continues:
            words[-1].append(piece)
        else:
            words.append([piece])
    return words


def _word(word: list[Piece], strategy: Strategy, labels: Sequence[str], tokenizer: Tokenizer) -> Labelled:
    if strategy == "first":
        scores = word[0].scores
    elif strategy == "max":
        scores = max(word, key=lambda piece: float(piece.scores.max())).scores
    else:
        scores = np.stack([piece.scores for piece in word]).mean(axis=0)
    text = tokenizer.join([piece.word for piece in word])
    first = word[0]
    return _best(Piece(text, scores, first.start, word[-1].end, first.index, False), scores, labels)


def _groups(tokens: Sequence[Labelled]) -> list[list[Labelled]]:
    """Neighbours of one label; a token that begins an entity begins a group."""
    groups: list[list[Labelled]] = []
    for token in tokens:
        begins = token.label.startswith("B-")
        if groups and not begins and _name(token.label) == _name(groups[-1][-1].label):
            groups[-1].append(token)
        else:
            groups.append([token])
    return groups


def _name(label: str) -> str:
    return label[2:] if label.startswith(("B-", "I-")) else label


def _group(group: list[Labelled], tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "entity_group": group[0].label.split("-", 1)[-1],
        "score": float(np.mean([token.score for token in group])),
        "word": tokenizer.join([token.word for token in group]),
        "start": group[0].start,
        "end": group[-1].end,
    }
