"""Runs a schedule: packs it into batches, calls the transformer, returns hidden states. No policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.batch import AudioBatch, DecoderBatch, EncoderBatch
from models.kv_cache import KVCache
from models.scoring import Scoring
from server.engine.logits import Logits
from server.engine.scheduler import Schedule, ScheduledRow
from server.engine.sequence import Request

Ids = NDArray[np.int64]


class Model(Protocol):
    """What the engine asks of `models.transformer.Transformer`."""

    def encode(self, batch: EncoderBatch | AudioBatch) -> Tensor: ...

    def write_cross(
        self,
        encoder_hidden: Tensor,
        slot_mapping: Tensor,
        cross_cache: KVCache,
        sources: EncoderBatch | AudioBatch | None = None,
    ) -> None: ...

    def decode(
        self,
        batch: DecoderBatch,
        cache: KVCache,
        cross_cache: KVCache | None = None,
        scoring: Scoring | None = None,
    ) -> Tensor: ...

    @property
    def num_logits(self) -> int: ...

    def logits(self, hidden: Tensor, adapters: Sequence[str] = (), out: Tensor | None = None) -> Tensor: ...

    def align(self, source: EncoderBatch, target: EncoderBatch) -> Tensor: ...

    def output_positions(self, batch: EncoderBatch) -> tuple[int, ...] | None: ...

    def classify(self, hidden: Tensor, batch: EncoderBatch) -> Tensor: ...

    def classify_tokens(self, hidden: Tensor, batch: EncoderBatch) -> Tensor: ...


class Runner:
    """One model, its device and its caches. cross_cache is None for a decoder.

    rotates_by_length: whether the model's decoder needs `DecoderBatch.rope_lengths`.
    """

    def __init__(
        self,
        model: Model,
        device: torch.device,
        self_cache: KVCache | None,
        cross_cache: KVCache | None,
        rotates_by_length: bool = False,
    ) -> None:
        self.rotates_by_length = rotates_by_length
        self.model = model
        self.device = device
        self.self_cache = self_cache
        self.cross_cache = cross_cache
        self.logits = Logits(model, model.num_logits, device)

    def run(self, schedule: Schedule, scoring: Scoring | None = None) -> tuple[Tensor, Tensor | None]:
        """Compute a step. scoring: to be done with the rows that need logits, where no prompt is scored.

        Returns the hidden states that logits are to be made of, [rows, hidden]: of the rows that need them, in their
        order, one of the last token and one of each token of the draft; and where a prompt is scored those of all
        tokens, [tokens, hidden], else None.
        """
        assert self.self_cache is not None
        if schedule.sources:
            self._encode_sources(schedule)
        self.self_cache.copy_blocks(schedule.copies)
        batch = self._decoder_batch(schedule.rows, self.self_cache.block_size)
        if not schedule.scores_prompts:
            return self.model.decode(batch, self.self_cache, self.cross_cache, scoring), None
        assert scoring is None, "logits of prompts go where those of the scoring are"
        hidden = self.model.decode(replace(batch, output_lens=None), self.self_cache, self.cross_cache)
        return hidden if batch.wanted is None else hidden[batch.wanted], hidden

    @torch.inference_mode()
    def align(self, source_ids: Sequence[int], decoder_ids: Sequence[int], num_new: int, adapter: str) -> bytes:
        """What each of the last `num_new` tokens looked at when it was made: float32, little-endian, [num_new, source].

        A pass of its own through the whole model, so that it is the same whatever batch, beams or drafts made the text.
        Raises FloatingPointError for numbers that are not finite.
        """
        source = self.encoder_batch([source_ids], [None], [adapter])
        target = self.encoder_batch([decoder_ids[:-1]], [None], [adapter])
        weights = self.model.align(source, target)[-num_new:]
        if not torch.isfinite(weights).all():
            raise FloatingPointError("attention is not finite")
        return weights.cpu().numpy().astype("<f4").tobytes()

    def encoder_batch(
        self, texts: Sequence[Sequence[int]], types: Sequence[Sequence[int] | None], adapters: Sequence[str]
    ) -> EncoderBatch:
        """Pack whole texts. types: token types of each, or None for all zero. adapters: the name of each one's."""
        lengths = tuple(len(text) for text in texts)
        type_ids = None
        if any(given is not None for given in types):
            columns = [given or [0] * length for given, length in zip(types, lengths, strict=True)]
            type_ids = self._tensor(list(chain.from_iterable(columns)))
        return EncoderBatch(self._tensor(list(chain.from_iterable(texts))), lengths, type_ids, named(adapters))

    def source_batch(self, requests: Sequence[Request]) -> EncoderBatch | AudioBatch:
        """Pack whole sources."""
        texts = [request.source_token_ids for request in requests]
        return self.encoder_batch(texts, [None] * len(texts), [request.adapter for request in requests])

    def clear(self, self_blocks: Sequence[int], cross_blocks: Sequence[int]) -> None:
        """Zero blocks that may hold numbers which are not finite."""
        if self.self_cache is not None:
            self.self_cache.clear(self_blocks)
        if self.cross_cache is not None:
            self.cross_cache.clear(cross_blocks)

    def _encode_sources(self, schedule: Schedule) -> None:
        assert self.cross_cache is not None
        batch = self.source_batch(schedule.sources)
        hidden = self.model.encode(batch)
        size = self.cross_cache.block_size
        slots: list[int] = []
        for request in schedule.sources:
            slots += slots_of(request.cross_block_table, 0, request.num_source_tokens, size)
        self.model.write_cross(hidden, self._tensor(slots), self.cross_cache, batch)

    def _decoder_batch(self, rows: Sequence[ScheduledRow], block_size: int) -> DecoderBatch:
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        lengths: list[int] = []
        counts, ends, tables, wanted = [], [], [], []
        for row in rows:
            sequence = row.sequence
            start, draft = sequence.num_computed_tokens, sequence.draft
            end = start + row.num_tokens
            token_ids += sequence.tokens[start:end]
            token_ids += draft
            wanted.append(1 + len(draft) if row.needs_logits else 0)
            end += len(draft)
            positions += range(start, end)
            table = sequence.block_table[: -(-end // block_size)]
            slots += slots_of(table, start, end, block_size)
            if self.rotates_by_length:
                lengths += [max(row.request.rope_tokens, position + 1) for position in range(start, end)]
            counts.append(end - start)
            ends.append(end)
            tables.append(table)
        # One copy to the device for all columns.
        columns = [token_ids, positions, slots]
        packed = self._tensor([*columns, lengths] if self.rotates_by_length else columns).unbind()
        source_lens: tuple[int, ...] = ()
        source_tables = None
        if self.cross_cache is not None:
            source_lens = tuple(row.request.num_source_tokens for row in rows)
            tables_of = {row.request: row.request.cross_block_table for row in rows}
            numbers = {request: number for number, request in enumerate(tables_of)}
            each = padded_tables(list(tables_of.values()))
            source_tables = self._tensor(each[[numbers[row.request] for row in rows]])
        return DecoderBatch(
            token_ids=packed[0],
            positions=packed[1],
            query_lens=tuple(counts),
            key_lens=tuple(ends),
            slot_mapping=packed[2],
            block_tables=self._tensor(padded_tables(tables)),
            source_lens=source_lens,
            source_block_tables=source_tables,
            adapters=named([row.request.adapter for row in rows]),
            rope_lengths=packed[3] if self.rotates_by_length else None,
            output_lens=None if wanted == counts else tuple(wanted),
        )

    def _tensor(self, values: Ids | Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        array = np.asarray(values, dtype=np.int64)
        return torch.from_numpy(array).to(self.device, non_blocking=True)


def named(adapters: Sequence[str]) -> tuple[str, ...]:
    """The adapters of a batch as it wants them: nothing where nobody uses one."""
    return tuple(adapters) if any(adapters) else ()


def slots_of(table: Sequence[int], start: int, end: int, block_size: int) -> list[int]:
    """Cache slots of the tokens start..end-1 of a sequence."""
    first = start // block_size
    blocks = [block * block_size for block in table[first : -(-end // block_size)]]
    slots = [slot for block in blocks for slot in range(block, block + block_size)]
    return slots[start - first * block_size : end - first * block_size]


def padded_tables(tables: Sequence[Sequence[int]]) -> Ids:
    """[rows, blocks]: each table, filled up with its own first block, so that no row ever reads another's."""
    width = max(len(table) for table in tables)
    return np.array([[*table, *[table[0]] * (width - len(table))] for table in tables], dtype=np.int64)
