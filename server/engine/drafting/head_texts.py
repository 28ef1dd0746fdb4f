"""The state of one sequence for a draft head: hidden states that the head has not read yet, and measured acceptance.

A head has a pair for each position of a text: a hidden state of the model, and the token after the position. It keeps
keys and values of its pairs in blocks with the numbers of the model's KV blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from server.engine.drafting.acceptance import Acceptance
from server.engine.drafting.ngrams import MIN_PROBABILITY
from server.engine.sequences.sequence import CachedSequence

CATCH_UP_TOKENS, MAX_PATIENCE = 64, 512
"""Intervals, in steps without drafts, at which the head catches up with a text.

It then reads the latest hidden states in one pass, and its predictions are compared with the text. The first interval
is `CATCH_UP_TOKENS`. While drafts do not pay, each interval is twice as long as the one before, up to `MAX_PATIENCE`.
"""
_FIRST_RATE, _LATER_RATE = 0.75, 0.65
"""Assumed share of right predictions before any is measured: of the first token of a draft, and of each further token
if all tokens before it are right."""
_PRIOR_WEIGHT, _MODEL_WEIGHT = 8.0, 4.0
"""Weights of prior rates, as numbers of predictions: the weight of the assumed rates in the rates of a model, and the
weight of a model's rates in the rates of a text."""
_MODEL_DECAY, _TEXT_DECAY = 0.998, 0.95
"""Each new prediction multiplies the weight of earlier ones by this factor: for a model, and for a text."""


class HeadRates:
    """Share of right predictions over all texts of a model, for each index of a token in its draft.

    num_tokens: length of the longest draft. num_right: number of right predictions so far. A draft is at most one token
        longer than this number, so that a head that is never right costs little.
    """

    def __init__(self, num_tokens: int) -> None:
        self._assumed = [_FIRST_RATE] + [_LATER_RATE] * (num_tokens - 1)
        self.acceptance = Acceptance(_MODEL_DECAY, num_tokens)
        self.num_right = 0

    def current(self) -> list[float]:
        return self.acceptance.rates(self._assumed, _PRIOR_WEIGHT)

    def of_text(self) -> Acceptance:
        """Create the record of right and wrong predictions of a new text."""
        return Acceptance(_TEXT_DECAY, len(self._assumed))


class HeadText:
    """The positions of a sequence that a draft head has read, and the hidden states that it will read next.

    table: block table of the sequence. After a preemption, the sequence has another list, and this object is not used
        again.
    start: first position whose pair the head reads; a multiple of the block size. For the head, it is position 0.
    written: the head has read the pairs of the positions from `start` to `written - 1`.
    end: hidden states are known for all positions before this one.
    choice_step: number of the step in which a draft length is chosen next. There are no drafts before this step.
    read_step: number of the step in which the head last drafted or caught up with the text.
    patience: number of steps after `read_step` at which the head catches up again.
    """

    def __init__(
        self, table: list[int], start: int, step: int, rates: HeadRates, acceptance: Acceptance | None = None
    ) -> None:
        self.table = table
        self.start = self.written = self.end = start
        self._rates = rates
        self.acceptance = rates.of_text() if acceptance is None else acceptance
        self.choice_step, self.read_step, self.patience = step, step, CATCH_UP_TOKENS
        self._states: list[Tensor] = []
        self._draft: tuple[int, list[int]] = 0, []

    def belongs_to(self, sequence: CachedSequence) -> bool:
        """Whether the sequence still has the blocks for which this text was made."""
        return self.table is sequence.block_table

    def known_pairs(self, sequence: CachedSequence) -> int:
        """Number of leading positions that have a known pair: both the hidden state and the next token are known."""
        return min(self.end, len(sequence.tokens) - 1)

    def add(self, first: int, states: Tensor) -> None:
        """Add the hidden states that a step has computed. They replace known states of the same and later positions.

        States after a wrong draft token are dropped in this way.

        first: position of the first state, at most `end`. states: [tokens, width].
        """
        while self.end > max(first, self.written):
            surplus, last = self.end - max(first, self.written), self._states.pop()
            rows = last.shape[0]
            if rows > surplus:
                self._states.append(last[:-surplus])
            self.end -= min(rows, surplus)
        known, rows = max(self.written - first, 0), states.shape[0]
        if known < rows:
            self._states.append(states[known:] if known else states)
        self.end = first + rows

    def take(self, end: int) -> list[Tensor]:
        """Remove and return the hidden states of the positions from `written` to `end - 1`.

        They then count as written.
        """
        count, found = end - self.written, list[Tensor]()
        while count:
            first = self._states.pop(0)
            if first.shape[0] > count:
                self._states.insert(0, first[count:])
                first = first[:count]
            found.append(first)
            count -= first.shape[0]
        self.written = end
        return found

    def skip(self, start: int) -> None:
        """Begin the reading of the draft head at a later position.

        start: the position, a multiple of the block size.
        """
        if self.written < start <= self.end:
            self.take(start)
            self.start = start

    def drafted(self, num_tokens: int, draft: Sequence[int]) -> None:
        """Record a draft, to be compared with the text later. num_tokens: tokens of the text before the draft."""
        self._draft = num_tokens, list(draft)

    def settle(self, tokens: Sequence[int]) -> None:
        """Compare the last draft with the text. tokens: all tokens of the sequence."""
        (first, draft), self._draft = self._draft, (0, [])
        for place, token in enumerate(draft[: len(tokens) - first]):
            is_right = tokens[first + place] == token
            self.observe(place, is_right)
            if not is_right:
                break

    def observe(self, place: int, is_right: bool) -> None:
        """Count one predicted token. place: index of the token in its draft."""
        self._rates.num_right += is_right
        for acceptance in (self.acceptance, self._rates.acceptance):
            acceptance.count(place, is_right)

    def probabilities(self, count: int) -> list[float]:
        """For each of the next `count` draft tokens, the probability that it and all tokens before it are right.

        The list ends before the first probability below MIN_PROBABILITY.
        """
        found, product = list[float](), 1.0
        count = min(count, 1 + self._rates.num_right)
        for rate in self.acceptance.rates(self._rates.current(), _MODEL_WEIGHT)[:count]:
            product *= rate
            if product < MIN_PROBABILITY:
                break
            found.append(product)
        return found


class FilledBlocks:
    """Blocks in which the head has written all pairs.

    A text that finds such blocks in the prefix cache can continue from them.
    The pair of a block's last position also depends on the first token after the block. If another text continues with
    a different token, its head reads one wrong pair. This can make a draft worse, but changes no result.

    block_size: number of tokens in a block.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._keys: dict[int, bytes] = {}

    def write(self, text: HeadText, sequence: CachedSequence, first: int, end: int) -> None:
        """Record that pairs were written. first, end: the first position, and the position after the last one.

        Blocks without all their pairs are not recorded as filled.
        """
        size = self.block_size
        for index in range(first // size, -(-end // size)):
            is_full = index * size >= text.start and (index + 1) * size <= min(end, text.written)
            if is_full and index < len(sequence.block_keys):
                self._keys[sequence.block_table[index]] = sequence.block_keys[index]
            else:
                self._keys.pop(sequence.block_table[index], None)

    def start(self, sequence: CachedSequence, position: int) -> int:
        """First position from which the head can read a sequence; a multiple of the block size.

        It is before `position` if the blocks before `position` are filled, and after `position` if no block begins at
        `position`.
        """
        size, table, keys = self.block_size, sequence.block_table, sequence.block_keys
        if position % size:
            return position + size - position % size
        index = position // size
        while 0 < index <= len(keys) and self._keys.get(table[index - 1]) == keys[index - 1]:
            index -= 1
        return index * size

    def forget(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._keys.pop(block, None)

    def forget_all(self) -> None:
        self._keys.clear()
