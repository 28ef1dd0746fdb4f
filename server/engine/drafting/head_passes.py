"""Passes of a draft head over pairs of some texts, as CUDA graphs where they were captured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.backends.cuda.graphs.captures import CaptureTime
from models.backends.cuda.graphs.graph_sizes import GraphSizes
from models.backends.logits import LogitsRequest, LogitsTopK
from models.draft_head import DraftHead
from models.steps.batch import DecoderBatch
from models.steps.kv_cache import KVCache
from server.engine.device.captured_parts import Part, capture_head
from server.engine.device.device_copies import to_device
from server.engine.device.slots import padded_tables, slots_of
from server.engine.drafting.head_texts import HeadText
from server.engine.sequences.sequence import CachedSequence, SequenceGroup

if TYPE_CHECKING:
    from models.backends.cuda.graphs.head_graphs import HeadGraphs

_CPU = torch.device("cpu")


@dataclass(slots=True)
class HeadPart:
    """Consecutive pairs of one text that a pass of the head computes (see `head_texts`).

    first, end: the first position, and the position after the last one.
    outputs: number of positions at the end after which the next token is predicted.
    drafts: whether predicted tokens are appended to `draft`.
    draft: tokens of the draft so far.
    hidden: [1, hidden], state of the head that the next token of the draft reads; None before the first token.
    """

    group: SequenceGroup
    text: HeadText
    first: int
    end: int
    outputs: int
    drafts: bool
    draft: list[int]
    hidden: Tensor | None = None

    @property
    def sequence(self) -> CachedSequence:
        return self.group.sequences[0]

    @property
    def num_pairs(self) -> int:
        return self.end - self.first

    def take(self, count: int) -> HeadPart:
        """Remove the first `count` pairs, and return them as a part without outputs."""
        taken = HeadPart(self.group, self.text, self.first, self.first + count, 0, False, [])
        self.first += count
        self.outputs = min(self.outputs, self.num_pairs)
        return taken


class Predicted(NamedTuple):
    """Results of a pass: logits, their top-k, and hidden states of the head.

    Each has one row for each predicted token.
    """

    logits: Tensor
    top_k: LogitsTopK
    hidden: Tensor


class HeadPasses:
    """Runs passes of a draft head.

    cache: keys and values of the head.
    """

    def __init__(self, head: DraftHead, cache: KVCache) -> None:
        self._head, self.cache = head, cache
        self._graphs: HeadGraphs | None = None

    def capture(self, limits: GraphSizes, time: CaptureTime) -> dict[Part, str]:
        """Capture passes as CUDA graphs. Larger passes run eagerly.

        limits: limits of the captured passes. time: limits how many graphs are captured.
        Returns the reason if all passes run eagerly.
        """
        self._graphs, reasons = capture_head(self._head, self.cache, limits, time)
        return reasons

    def run(self, parts: Sequence[HeadPart], token_ids: list[int], states: Tensor) -> Predicted | None:
        """Run the head, which writes the keys and values of the parts.

        token_ids: the token after each position of the parts. states: [tokens, hidden], see `DraftHead.decode`.
        Returns None if no part has outputs.
        """
        size = self.cache.block_size
        positions = np.concatenate([np.arange(part.first, part.end) - part.text.start for part in parts])
        slots = [slot for part in parts for slot in slots_of(part.text.table, part.first, part.end, size)]
        columns = np.array([token_ids, positions, slots], dtype=np.int64)
        tables = padded_tables([part.text.table[part.text.start // size : -(-part.end // size)] for part in parts])
        lens, outputs = tuple(part.num_pairs for part in parts), tuple(part.outputs for part in parts)

        def batch_on(device: torch.device) -> DecoderBatch:
            on_device = to_device(columns, device)
            return DecoderBatch(
                token_ids=on_device[0],
                positions=on_device[1],
                query_lens=lens,
                key_lens=tuple(part.end - part.text.start for part in parts),
                slot_mapping=on_device[2],
                block_tables=to_device(tables, device),
                output_lens=None if outputs == lens else outputs,
            )

        num_outputs = sum(outputs)
        request = LogitsRequest() if 0 < num_outputs <= self._head.max_logits_rows else None
        output = None if self._graphs is None else self._graphs.run(batch_on(_CPU), states, request)
        if output is None:
            output = self._head.decode(batch_on(self._head.device), states, self.cache, request)
        if not num_outputs:
            return None
        if output.logits is None or output.top_k is None:
            return Predicted(*self._head.logits_top_k(output.hidden, LogitsRequest()), output.hidden)
        return Predicted(output.logits, output.top_k, output.hidden)
