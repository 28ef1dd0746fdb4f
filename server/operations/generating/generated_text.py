"""Turn generated tokens into the text of one answer, token by token, with stop strings and log-probabilities.

The joined texts of all deltas are exactly the final text. A stream reads the same text, only earlier.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from server.ipc.wire.generate_messages import Hypothesis
from server.ipc.wire.logprobs import Logprobs, PackedLogprobs, TokenLogprob
from server.ipc.wire.params import GenerationParams
from server.text.tokens.computed import Computed
from server.text.tokens.detokenizer import IncrementalDetokenizer
from server.text.tokens.token_bytes import NoTokenBytes, TokenBytes
from server.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class TextOptions:
    """Options for converting tokens to text.

    stop: strings that end the text. include_stop: whether the stop string stays in the text.
    token_bytes: bytes of each token, if the answer follows a grammar or beam search has stop strings, which both work
        on bytes; otherwise None.
    marker_ids: ids of special tokens to report in `TextDelta.marks` instead of as text.
    """

    skip_special_tokens: bool = True
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    token_bytes: TokenBytes | None = None
    marker_ids: frozenset[int] = frozenset()

    @property
    def drops_space(self) -> bool:
        """Whether a space at the beginning of an answer is left out of its text.

        The tokenizer then begins every text with a space, and the answer is decoded from the bytes of its tokens.
        """
        return self.token_bytes is not None and self.token_bytes.opens_with_space


@dataclass(frozen=True)
class SpelledToken:
    """A token with its text.

    token: the token's text, or the name of a special token.
    data: the bytes that the token adds to a text; empty for a special token. If these depend on other tokens, they are
        the UTF-8 bytes of `token`.
    """

    token_id: int
    token: str
    data: bytes


@dataclass(frozen=True)
class ScoredToken(SpelledToken):
    """A token with its log-probability, before temperature, penalties and masks.

    top: the likeliest tokens at the same position.
    """

    logprob: float
    top: list[ScoredToken] = field(default_factory=list)


@dataclass(frozen=True)
class AttentionMatrix:
    """Cross-attention weights of one answer. matrix: [target tokens, source tokens]."""

    source_tokens: list[str]
    target_tokens: list[str]
    matrix: Sequence[list[float]]


@dataclass(slots=True)
class TextDelta:
    """New text and tokens of one answer. The text is final: later tokens cannot change it.

    marks: (index in `text`, token id) of each reported special token.
    pieces: text that each token adds. `text` may also begin with the echo of the prompt, and end with text that was
        held back.
    """

    answer: GeneratedText
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    logprobs: Sequence[TokenLogprob] = ()
    marks: list[tuple[int, int]] = field(default_factory=list)

    def extend(self, later: TextDelta) -> None:
        """Append the next delta of the same answer."""
        self.marks += [(len(self.text) + place, token_id) for place, token_id in later.marks]
        self.text += later.text
        self.token_ids += later.token_ids
        self.pieces += later.pieces
        if later.logprobs:
            self.logprobs = Logprobs((*self.logprobs, *later.logprobs))


def load_token_bytes(tokenizer: Tokenizer) -> None:
    """Compute the bytes of all tokens, if the tokenizer has them. This is slow once, for a large vocabulary."""
    with suppress(NoTokenBytes):
        _ = tokenizer.token_bytes


def tokens_within(
    token_ids: Sequence[int], pieces: Sequence[str], place: int, begin: float, end: float, marker_ids: Collection[int]
) -> list[int]:
    """Indices of the tokens whose text begins within a part of an answer's text.

    pieces: text that each token adds.
    place: position of the first piece in the answer's text, in characters.
    begin, end: range of the part, in characters; `end` is exclusive.
    marker_ids: ids of special tokens that are reported as marks. A mark at the beginning or end of the part does not
        belong to it.
    """
    found = []
    for index, (token_id, piece) in enumerate(zip(token_ids, pieces, strict=True)):
        after = place + len(piece)
        if begin < after < end if token_id in marker_ids else begin <= place < end:
            found.append(index)
        place = after
    return found


class GeneratedText:
    """One answer of a sequence, which grows while its tokens arrive.

    row: index of the sequence in the call.
    rank: index among the hypotheses of the sequence, best first.
    index: index of the answer in the request's result.
    continues: token ids before the answer (a decoder's prompt, or a forced prefix), if any.
    echo: text that is put before the generated text.
    is_empty: drop all tokens, because the request asks for an answer without tokens. The engine always generates one.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: GenerationParams,
        row: int,
        rank: int,
        options: TextOptions,
        continues: Sequence[int] = (),
        echo: str = "",
        is_empty: bool = False,
    ) -> None:
        self.row = row
        self.rank = rank
        self.index = row * params.num_return_sequences + rank
        self.tokenizer = tokenizer
        self.text = ""
        self.token_ids: list[int] = []
        self.pieces: list[str] = []
        self.logprobs = Logprobs()
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.score: float | None = None
        self.is_beam = params.num_beams > 1
        self._attention: bytes | None = None
        self._echo = echo
        self._is_empty = is_empty
        ends = () if options.include_stop else (*params.end_token_ids, *params.stop_token_ids)
        self._hidden_ids = frozenset(ends)
        self._marker_ids = options.marker_ids - self._hidden_ids
        self._stop_ids = frozenset(params.stop_token_ids)
        self._new_detokenizer: Callable[[], IncrementalDetokenizer] = partial(
            IncrementalDetokenizer,
            tokenizer,
            prompt_ids=continues,
            skip_special_tokens=options.skip_special_tokens,
            stop=options.stop,
            include_stop=options.include_stop,
            token_bytes=options.token_bytes,
            show_names=not params.stop_texts,
        )

    @cached_property
    def _detokenizer(self) -> IncrementalDetokenizer:
        """The decoder of the tokens.

        It is created for the first token, because creating thousands at once would take 0.3 s.
        """
        return self._new_detokenizer()

    def fail(self, reason: str) -> None:
        """End the answer with the text so far, after a failure. reason: value for `finish_reason`."""
        self.finish_reason, self.stop_reason = reason, None

    @property
    def done(self) -> bool:
        return self.finish_reason is not None

    def push(self, token_ids: Sequence[int], logprobs: PackedLogprobs | Logprobs | None) -> TextDelta:
        """Add new tokens, and return the new text. After a complete stop string, the answer is done and tokens are
        dropped."""
        text, self._echo = self._echo, ""
        pieces: list[str] = []
        marks: list[tuple[int, int]] = []
        for token_id in () if self._is_empty else token_ids:
            if self.finish_reason is not None:
                break
            piece = ""
            if token_id in self._marker_ids:
                piece = self._detokenizer.flush()
            elif token_id not in self._hidden_ids:
                piece = self._detokenizer.push_one(token_id)
            pieces.append(piece)
            text += piece
            if self._detokenizer.stopped is not None:
                self.finish_reason, self.stop_reason = "stop", self._detokenizer.stopped
            elif token_id in self._marker_ids:
                marks.append((len(text), token_id))
        count = len(pieces)
        own = Logprobs(logprobs)[:count] if logprobs else ()
        delta = TextDelta(self, text, list(token_ids[:count]), pieces, own, marks)
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.pieces += pieces
        if own:
            self.logprobs.extend(own)
        return delta

    def finish(self, hypothesis: Hypothesis) -> TextDelta:
        """Complete the answer, and return its last new text.

        hypothesis: all tokens of the answer, including those that `push` has received.
        """
        seen = len(self.token_ids)
        logprobs = Logprobs(hypothesis.logprobs)[seen:] if hypothesis.logprobs else None
        delta = self.push(hypothesis.token_ids[seen:], logprobs)
        self.score, self._attention = hypothesis.score, hypothesis.attention
        if not self.done:
            rest = self._detokenizer.finish()
            delta.text += rest
            self.text += rest
            self.finish_reason = "length" if self._is_empty else hypothesis.finish_reason
            if self._detokenizer.stopped is not None:
                self.finish_reason, self.stop_reason = "stop", self._detokenizer.stopped
            elif hypothesis.stop_token_id in self._stop_ids:
                self.stop_reason = hypothesis.stop_token_id
        self.__dict__.pop("_detokenizer", None)
        return delta

    @property
    def size(self) -> int:
        """Total count of tokens, log-probabilities and attention weights, an estimate of the answer's size."""
        return len(self.token_ids) + self.logprobs.num_values + len(self._attention or b"") // 4

    def mean_logprob(self) -> float:
        """Mean log-probability per token, before temperature, penalties and masks; minus infinity without tokens."""
        return sum(self.logprobs.own()) / len(self.logprobs) if self.logprobs else -math.inf

    def scored_tokens(self) -> Sequence[ScoredToken]:
        """All tokens with their log-probabilities; empty if the engine has reported none."""
        return Computed(len(self.logprobs), lambda index: self.scored(self.logprobs[index]))

    def scored(self, entry: TokenLogprob) -> ScoredToken:
        """Add the texts of its tokens to an entry of log-probabilities."""
        top = [ScoredToken(*self._spell(token_id), logprob) for token_id, logprob in entry.top]
        return ScoredToken(*self._spell(entry.token_id), entry.logprob, top)

    def spelled(self, token_id: int) -> SpelledToken:
        """A token of the vocabulary with its text and bytes."""
        return SpelledToken(*self._spell(token_id))

    def _spell(self, token_id: int) -> tuple[int, str, bytes]:
        """The fields of a `SpelledToken`: id, text and bytes."""
        token = self.tokenizer.decode([token_id], skip_special_tokens=False)
        try:
            by_id = self.tokenizer.token_bytes.by_id
        except NoTokenBytes:
            return token_id, token, b"" if token_id in self.tokenizer.special_ids else token.encode()
        return token_id, token, by_id[token_id] if token_id < len(by_id) else b""

    def token_spans(self) -> list[tuple[int, int]]:
        """(start, end) of each token in the text, in characters. Tokens that add no text have equal start and end."""
        return list(pairwise(accumulate(map(len, self.pieces), initial=0)))

    def tokens_within(self, begin: float, end: float, marker_ids: Collection[int]) -> list[int]:
        """Indices of the answer's tokens in a part of its text.

        begin, end: range of the part, in characters; `end` is exclusive.
        marker_ids: ids of special tokens that are reported as marks.
        """
        return tokens_within(self.token_ids, self.pieces, 0, begin, end, marker_ids)

    @property
    def has_attention(self) -> bool:
        """Whether the worker has sent attention weights."""
        return bool(self._attention)

    def attention_weights(self, num_source_tokens: int) -> npt.NDArray[np.float32]:
        """How strongly each token of the answer attended to each token of the source text.

        num_source_tokens: number of tokens of the source text.
        Returns [answer tokens, source tokens], float32; no rows if the worker has sent no weights.
        """
        rows = len(self.token_ids) if self._attention else 0
        weights = np.frombuffer(self._attention or b"", "<f4")[: rows * num_source_tokens]
        return weights.astype(np.float32, copy=False).reshape(rows, num_source_tokens)

    def alignment(self, source_ids: Sequence[int]) -> AttentionMatrix:
        """Cross-attention weights of the answer's tokens. source_ids: token ids of the source text."""
        return self.attention_matrix(source_ids, self.attention_weights(len(source_ids)), self.tokenizer)

    def attention_matrix(
        self, source_ids: Sequence[int], weights: npt.NDArray[np.float32], source_tokenizer: Tokenizer
    ) -> AttentionMatrix:
        """Attention weights of the answer's tokens, with the texts of all tokens.

        source_ids: token ids of the source text, of `source_tokenizer`.
        weights: [answer tokens, source tokens], or no rows.
        """
        return AttentionMatrix(
            [source_tokenizer.id_to_token(token_id) or "" for token_id in source_ids],
            [self.tokenizer.id_to_token(token_id) or "" for token_id in self.token_ids],
            Computed(len(weights), lambda row: weights[row].tolist()),
        )
