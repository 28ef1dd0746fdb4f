"""Find answer spans in a context, from a start logit and an end logit of each token.

A score is the probability that the answer starts at its first token, times the probability that it ends at its last
token, as in transformers. These are probabilities over the tokens of the context and the classifier token, which stands
for no answer. Source: Devlin et al. 2019, arXiv:1810.04805, section 4.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nlargest

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from server.operations.encode import Numbers
from server.text.tokens.tokenizer import Encoding

MAX_ANSWER_TOKENS = 15
_KEPT_SPANS = 16
"""Maximum number of spans that are kept for each requested answer, before the worst spans are dropped."""


class AnswerSpan(Struct, frozen=True, gc=False):
    """An answer span. start, end: its range in the context, in characters; `end` is exclusive."""

    score: float
    start: int
    end: int


def best_spans(
    encoding: Encoding,
    run: tuple[int, int],
    parts: Iterable[tuple[Iterable[int], Numbers]],
    cls_id: int | None,
    top_k: int,
    max_answer_tokens: int = MAX_ANSWER_TOKENS,
) -> list[AnswerSpan]:
    """Find the likeliest answers over all windows, by descending score. Answers are whole words, and no span repeats.

    run: (start, end) of the context's tokens in the encoding.
    parts: for each window, the indices of its tokens in the encoding, and its logits [tokens of the window, 2].
    cls_id: id of the classifier token, or None if the tokenizer has none.
    max_answer_tokens: maximum length of an answer.
    """
    words = _WordPlaces(encoding, run)
    best: dict[tuple[int, int], AnswerSpan] = {}
    for window, logits in parts:
        found: set[tuple[int, int]] = set()
        for score, first, last in _token_spans(encoding, run, window, logits, cls_id, max_answer_tokens):
            place = words.place(first)[0], words.place(last)[1]
            found.add(place)
            if place not in best or score > best[place].score:
                best[place] = AnswerSpan(score, *place)
            if len(found) == top_k:
                break
        if len(best) > _KEPT_SPANS * top_k:
            best = {(span.start, span.end): span for span in _likeliest(best.values(), top_k)}
    return _likeliest(best.values(), top_k)


def _likeliest(spans: Iterable[AnswerSpan], count: int) -> list[AnswerSpan]:
    return nlargest(count, spans, key=lambda span: span.score)


class _WordPlaces:
    """Finds the words that contain given tokens of a context, and caches the results.

    encoding: tokens of the question and the context. run: (start, end) of the context's tokens in `encoding`.
    """

    def __init__(self, encoding: Encoding, run: tuple[int, int]) -> None:
        self._encoding, self._run = encoding, run
        self._places: dict[int, tuple[int, int]] = {}

    def place(self, token: int) -> tuple[int, int]:
        """(start, end), in characters, of the word that contains a token, or of the token itself if it is in no word.

        token: index of the token in the encoding.
        """
        words, offsets = self._encoding.words, self._encoding.offsets
        word = words[token] if words else None
        if word is None:
            return offsets[token]
        if word not in self._places:
            first, last = token, token
            while first > self._run[0] and words[first - 1] == word:
                first -= 1
            while last + 1 < self._run[1] and words[last + 1] == word:
                last += 1
            self._places[word] = offsets[first][0], offsets[last][1]
        return self._places[word]


def _token_spans(
    encoding: Encoding,
    run: tuple[int, int],
    window: Iterable[int],
    logits: Numbers,
    cls_id: int | None,
    max_answer_tokens: int,
) -> Iterator[tuple[float, int, int]]:
    """Yield the possible answers in one window as (score, first token, last token), by descending score.

    Tokens are indices in the encoding. window: indices of its tokens. logits: [tokens of the window, 2].
    """
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
    """Softmax over the tokens for which `counted` is True; zero for all other tokens."""
    masked = np.where(counted, logits, -np.inf)
    powers = np.exp(masked - masked.max())
    return np.asarray(powers / powers.sum(), dtype=np.float32)
