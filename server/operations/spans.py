"""Answer spans in a context, from a start logit and an end logit of each token.

Source: Devlin et al. 2019, arXiv:1810.04805, section 4.2. Scores are those of transformers' question answering: the
probability of the first token as a start times the probability of the last token as an end. Probabilities are over the
tokens of the context and the classifier token, which takes the probability of having no answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.operations.encode import Numbers
from server.text.tokenizer import Encoding
from server.text.windows import Window

MAX_ANSWER_TOKENS = 15


@dataclass(frozen=True)
class AnswerSpan:
    """An answer. start, end: characters of the context."""

    score: float
    start: int
    end: int


def best_spans(
    encoding: Encoding,
    run: tuple[int, int],
    parts: list[tuple[Window, Numbers]],
    cls_id: int | None,
    top_k: int,
    max_answer_tokens: int = MAX_ANSWER_TOKENS,
) -> list[AnswerSpan]:
    """The likeliest answers over all windows, each place once, by descending score. Answers are whole words.

    run: (start, end) of the context's tokens in the encoding.
    parts: each window with its logits [tokens of the window, 2].
    cls_id: id of the classifier token, if the tokenizer has one.
    max_answer_tokens: longest answer.
    """
    words = _word_places(encoding, run)
    best: dict[tuple[int, int], AnswerSpan] = {}
    for window, logits in parts:
        found: set[tuple[int, int]] = set()
        for score, first, last in _token_spans(encoding, run, window, logits, cls_id, max_answer_tokens):
            place = words[first][0], words[last][1]
            found.add(place)
            if place not in best or score > best[place].score:
                best[place] = AnswerSpan(score, *place)
            if len(found) == top_k:
                break
    return sorted(best.values(), key=lambda span: -span.score)[:top_k]


def _word_places(encoding: Encoding, run: tuple[int, int]) -> dict[int, tuple[int, int]]:
    """For each token of the context, (start, end) of its word in characters."""
    places: dict[object, tuple[int, int]] = {}
    keys: dict[int, object] = {}
    for index in range(*run):
        word = encoding.words[index] if encoding.words else None
        keys[index] = ("token", index) if word is None else word
        start, end = encoding.offsets[index]
        known = places.get(keys[index], (start, end))
        places[keys[index]] = min(known[0], start), max(known[1], end)
    return {index: places[key] for index, key in keys.items()}


def _token_spans(
    encoding: Encoding,
    run: tuple[int, int],
    window: Window,
    logits: Numbers,
    cls_id: int | None,
    max_answer_tokens: int,
) -> Iterator[tuple[float, int, int]]:
    """(score, first token, last token) by descending score. Tokens are indices of the encoding."""
    in_context = np.array([run[0] <= index < run[1] for index in window])
    counted = in_context | np.array([encoding.special[i] and encoding.ids[i] == cls_id for i in window])
    begins, ends = (_softmax(logits[:, side], counted)[in_context] for side in (0, 1))
    tokens = [index for index, inside in zip(window, in_context, strict=True) if inside]
    scores = np.outer(begins, ends)
    firsts, lasts = np.nonzero(np.tril(np.triu(np.ones_like(scores)), max_answer_tokens - 1))
    for place in np.argsort(-scores[firsts, lasts], kind="stable").tolist():
        first, last = int(firsts[place]), int(lasts[place])
        yield float(scores[first, last]), tokens[first], tokens[last]


def _softmax(logits: Numbers, counted: NDArray[np.bool_]) -> Numbers:
    """Softmax over the counted tokens; zero for the others."""
    masked = np.where(counted, logits, -np.inf)
    powers = np.exp(masked - masked.max())
    return np.asarray(powers / powers.sum(), dtype=np.float32)
