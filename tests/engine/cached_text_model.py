"""A fake model whose cache stores tokens instead of keys and values.

Its logits depend on the text that a row finds in the cache through its block table. A wrong, freed or overwritten block
therefore changes the text of an answer. A fake model with mixers also keeps the text that it has read in a slot of a
state memory, in place of a state. That text must be the one in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from models.backends.logits import DecoderOutput, LogitsRequest
from server.engine.cache.lane_blocks import SlotCopies
from server.engine.scheduling.schedule import Schedule
from server.engine.sequences.sequence import SequenceGroup
from tests.engine.stored_logits import StoredLogits

if TYPE_CHECKING:
    from tests.engine.captured_texts import CapturedSearchTexts, CapturedTexts

END, STOP = 1, 2
TOKENS = [b"", b"", b"", *(bytes([letter]) for letter in b"abcdefghijklmnopq")]
VOCAB = len(TOKENS)
CHUNK_TOKENS = 4
"""Length of the chunks of the fake model with mixers."""


@lru_cache(maxsize=1 << 16)
def logits_after(text: tuple[int, ...]) -> torch.Tensor:
    """Logits that the fake model computes for the next token after a text.

    They depend on the whole text, but most on its last two tokens, so that generated texts repeat themselves.
    """
    near = np.random.default_rng([7, *text[-2:]]).normal(size=VOCAB) * 3
    far = np.random.default_rng([9, *text]).normal(size=VOCAB)
    return torch.from_numpy((near + far).astype(np.float32))


class CachedTextRunner:
    """Runner of the fake model.

    broken: ids of requests whose rows have logits that are not finite.
    captured, captured_searches: captured steps; None without them.
    num_copied: number of copies between blocks.
    states: text in each slot of the state memory, with the number of its tokens that ran in chunks.
    """

    device = torch.device("cpu")

    def __init__(self, block_size: int, max_logits_rows: int) -> None:
        self.model = StoredLogits(max_logits_rows)
        self.block_size = block_size
        self.cache: dict[int, int | None] = {}
        self.broken: set[int] = set()
        self.captured: CapturedTexts | None = None
        self.captured_searches: CapturedSearchTexts | None = None
        self.num_copied = 0
        self.states: dict[int, tuple[tuple[int, ...], int]] = {}

    def run(self, schedule: Schedule, logits: LogitsRequest | None = None) -> tuple[DecoderOutput, torch.Tensor | None]:
        self.copy_blocks(schedule.copies)
        outputs = []
        for row in schedule.rows:
            sequence, start = row.sequence, row.sequence.num_computed_tokens
            tokens = [*sequence.tokens[start : start + row.num_tokens], *sequence.draft]
            is_broken = row.group.sequence_id in self.broken
            for position, token in enumerate(tokens, start):
                self.cache[self.slot(sequence.block_table, position)] = None if is_broken else token
        if any(row.sequence.state is not None for row in schedule.rows):
            self.run_states(schedule)
        for row in schedule.rows:
            sequence = row.sequence
            end = sequence.num_computed_tokens + row.num_tokens + len(sequence.draft)
            text = [self.cache.get(self.slot(sequence.block_table, position)) for position in range(end)]
            if row.needs_logits:
                ends = range(end - len(sequence.draft), end + 1)
                outputs += [self.logits_of(row.group, text[:stop]) for stop in ends]
        hidden = torch.stack(outputs) if outputs else torch.zeros(0, VOCAB)
        found = self.model.logits_top_k(hidden, logits) if logits is not None else ()
        return DecoderOutput(hidden, *found), None

    def copy_blocks(self, copies: Sequence[tuple[int, int, int, int]]) -> None:
        size = self.block_size
        self.num_copied += len(copies)
        for source, destination, first, end in copies:
            for offset in range(first, end):
                self.cache[destination * size + offset] = self.cache.get(source * size + offset)

    def copy_slots(self, copies: Sequence[SlotCopies]) -> None:
        for sources, destinations in copies:
            tokens = [self.cache.get(slot) for slot in sources.tolist()]
            self.cache |= dict(zip(destinations.tolist(), tokens, strict=True))

    def run_states(self, schedule: Schedule) -> None:
        """Extend the text of each state by its tokens, and check that no row reads what another one writes."""
        parts = [(row, part) for row in schedule.rows for part in row.sequence.state.parts]
        for row, part in parts:
            others = [other for owner, other in parts if owner is not row]
            assert part.slot not in [slot for other in others for slot in (other.source, other.slot)], "a shared slot"
        for row in schedule.rows:
            sequence, place = row.sequence, row.sequence.num_computed_tokens
            prompt = row.group.num_prompt_tokens
            tokens = [*sequence.tokens, *sequence.draft]
            for part in sequence.state.parts:
                text, chunked = ((), 0) if part.source is None else self.states[part.source]
                assert text == tuple(tokens[:place]), "a row starts from the state of another text"
                assert chunked == min(place, prompt), "a token of the state ran in the wrong form"
                place += part.num_tokens
                assert not part.is_prompt or (len(text) % CHUNK_TOKENS == 0 and place <= prompt)
                assert part.is_prompt or len(text) >= prompt
                self.states[part.slot] = tuple(tokens[:place]), chunked + part.is_prompt * part.num_tokens

    def slot(self, table: list[int], position: int) -> int:
        return table[position // self.block_size] * self.block_size + position % self.block_size

    def logits_of(self, group: SequenceGroup, text: list[int | None]) -> torch.Tensor:
        if group.sequence_id in self.broken:
            return torch.full((VOCAB,), torch.nan)
        known = [token for token in text if token is not None]
        assert len(known) == len(text), "a row reads values that are not finite, or that nobody wrote"
        return logits_after(tuple(known))

    def clear(self, self_blocks: list[int], cross_blocks: list[int]) -> None:
        for block in self_blocks:
            for offset in range(self.block_size):
                self.cache[block * self.block_size + offset] = 0
