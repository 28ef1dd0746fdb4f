"""Steps of a decoder with prefill or drafts as CUDA graphs: one captured step for each of a few numbers of tokens.

A row has any number of tokens, so all rows attend in tiles of queries (`kernels.tile_attention`). The last layer
computes all tokens, and the output rows are selected after it. Unused places of a step are tokens of no row: they are
embedded and multiplied, attend to nothing and are not stored. No operation mixes them with other tokens.

Steps in which each row has one token are not computed here: `step_graphs` splits the keys of a long text among several
programs, and tiles do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.backends.choice import backend
from models.backends.cuda.attention_view import CudaAttentionView
from models.backends.cuda.graphs.captures import CaptureTime, capture_sizes
from models.backends.cuda.graphs.device_numbers import DeviceNumbers
from models.backends.cuda.graphs.graph_runner import GraphRunner
from models.backends.cuda.graphs.graph_steps import GraphDecoder, GraphPagedInputs, GraphPositions
from models.backends.cuda.graphs.query_spans import Numbers, RowsLayout
from models.backends.cuda.graphs.token_sizes import sizes_up_to, smallest_size
from models.backends.cuda.kernels.tile_attention import TileRows
from models.backends.logits import DecoderOutput, LogitsRequest, LogitsTopK
from models.steps.batch import DecoderBatch


class _MixedLayout(NamedTuple):
    """Layout of the integers that describe a captured step. outputs: largest number of output rows."""

    tokens: int
    outputs: int
    rows: RowsLayout

    @property
    def size(self) -> int:
        """Number of integers that describe a step, without its block tables."""
        return 3 * self.tokens + self.outputs + self.rows.size


class _Inputs(NamedTuple):
    """The integers that describe a captured step, on the device.

    token_ids, positions, slots: [tokens], int64. output_rows: [outputs], int64. rows: [`RowsLayout.size`], int64.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    output_rows: Tensor
    rows: Tensor

    @classmethod
    def of(cls, numbers: Tensor, layout: _MixedLayout) -> _Inputs:
        tokens = layout.tokens
        return cls(*torch.split(numbers[: layout.size], [tokens] * 3 + [layout.outputs, layout.rows.size]))


class MixedGraphs:
    """The captured steps of a decoder with prefill or drafts, or the passes of a draft head over several positions.

    decoder: `limits.tokens` is above 0. time: limits how many graphs are captured.
    sizes: numbers of tokens for which a step is captured, ascending.
    """

    def __init__(self, decoder: GraphDecoder, runner: GraphRunner, time: CaptureTime) -> None:
        self._decoder, self._limits = decoder, decoder.limits
        rows, widths, device = decoder.limits.rows, decoder.table_widths, decoder.cache.device
        self._tables = [torch.zeros(rows, width, dtype=torch.int32, device=device) for width in widths]
        sizes = sizes_up_to(decoder.limits.tokens)
        self._numbers = DeviceNumbers(runner, device, self._layout(sizes[-1]).size + rows * sum(widths))
        self._kept_states = decoder.memory_for_states(sizes[-1])
        self._positions = GraphPositions(decoder.stack, decoder.limits.context)
        self._graphs = capture_sizes(runner, sizes, self._step_of, time)
        self.sizes = tuple(self._graphs)

    def _layout(self, tokens: int) -> _MixedLayout:
        rows = min(tokens, self._limits.rows)
        columns = 2 if self._decoder.cross_cache is None else 3
        return _MixedLayout(tokens, min(tokens, len(self._decoder.logits)), RowsLayout(tokens, rows, columns))

    def takes(self, batch: DecoderBatch, num_outputs: int) -> bool:
        """Whether a captured graph can run a step.

        num_outputs: number of tokens that need logits.
        """
        return (
            max(batch.query_lens) > 1
            and not batch.adapters
            and max(batch.key_lens) <= self._limits.context
            and max(batch.source_lens, default=0) <= self._limits.source
            and self._size_of(batch, num_outputs) is not None
        )

    def _size_of(self, batch: DecoderBatch, num_outputs: int) -> int | None:
        """The number of tokens of the graph that runs a step; None if there is none."""
        rows = len(batch.query_lens)
        if rows > self._limits.rows or num_outputs > len(self._decoder.logits):
            return None
        return smallest_size(self.sizes, max(len(batch.token_ids), rows))

    def run(self, batch: DecoderBatch, request: LogitsRequest | None) -> DecoderOutput:
        """Replay a step.

        batch: on the CPU; `takes` accepts it.
        request: number of top logits, and whether log-probabilities are needed; None for no logits.

        The results are in memory that the next step overwrites, except for `draft_states`.
        """
        output_rows = batch.output_rows
        found = np.arange(len(batch.token_ids)) if output_rows is None else output_rows.numpy()
        size, count = self._size_of(batch, len(found)), len(found)
        assert size is not None, "`takes` accepts the step"
        self._write(batch, found, self._layout(size))
        replay, output = self._graphs[size]
        replay()
        assert output.logits is not None and output.top_k is not None
        hidden, logits, top_k = output.hidden[:count], output.logits[:count], output.top_k
        states = None if self._kept_states is None else self._kept_states[: len(batch.token_ids)].clone()
        if request is None:
            return DecoderOutput(hidden, draft_states=states)
        if request.top_k > 1 or request.with_logsumexp:
            k = min(request.top_k, logits.shape[1])
            top_k = backend(logits).logits_top_k(logits, k, request.with_logsumexp)
        else:
            top_k = LogitsTopK(top_k.values[:count], top_k.ids[:count], None, top_k.is_finite[:count])
        return DecoderOutput(hidden, logits, top_k, states)

    def _write(self, batch: DecoderBatch, output_rows: Numbers, layout: _MixedLayout) -> None:
        """Copy the integers that describe a step to the device. output_rows: [outputs], int64."""
        numbers, count = self._numbers.to_write(), len(batch.token_ids)
        tokens = numbers[: 3 * layout.tokens].reshape(3, layout.tokens)
        tokens[:, count:] = 0
        tokens[2, count:] = -1
        for place, column in zip(tokens, (batch.token_ids, batch.positions, batch.slot_mapping), strict=True):
            place[:count] = column.numpy()
        end = 3 * layout.tokens + layout.outputs
        outputs, rows = numbers[end - layout.outputs : end], numbers[end : layout.size]
        outputs[: len(output_rows)] = output_rows
        outputs[len(output_rows) :] = 0
        query_lens, key_lens = np.array(batch.query_lens), np.array(batch.key_lens)
        columns, tables = [key_lens, key_lens - query_lens], [batch.block_tables]
        if batch.source_block_tables is not None:
            columns.append(np.array(batch.source_lens))
            tables.append(batch.source_block_tables)
        layout.rows.write(rows, query_lens, key_lens, columns)
        end = layout.size
        for table in tables:
            numbers[end : end + table.numel()] = table.numpy().ravel()
            end += table.numel()
        parts = torch.split(self._numbers.send(end)[layout.size :], [table.numel() for table in tables])
        for static, table, part in zip(self._tables, tables, parts, strict=True):
            static[: table.shape[0], : table.shape[1]].copy_(part.view(table.shape))

    def _step_of(self, size: int) -> Callable[[], DecoderOutput]:
        """A function that runs one step of `size` tokens, for the capture of a graph."""
        layout, decoder, limits = self._layout(size), self._decoder, self._limits
        inputs = _Inputs.of(self._numbers.copied, layout)
        # A step without rows: its tokens attend to nothing and are not stored.
        inputs.slots.fill_(-1)
        for zeros in (inputs.token_ids, inputs.positions, inputs.output_rows, inputs.rows):
            zeros.zero_()
        encodings = self._positions.before_capture(inputs.positions)
        rows = layout.rows.rows
        batch = DecoderBatch(
            token_ids=inputs.token_ids,
            positions=inputs.positions,
            query_lens=(size, *[0] * (rows - 1)),
            key_lens=(limits.context,) * rows,
            slot_mapping=inputs.slots,
            block_tables=self._tables[0],
            source_lens=() if decoder.cross_cache is None else (limits.source,) * rows,
            source_block_tables=None if decoder.cross_cache is None else self._tables[1],
        )

        def run() -> DecoderOutput:
            positions = self._positions.in_capture(encodings, inputs.positions)
            starts, (key_lens, first_positions, *source_lens), spans = layout.rows.read(inputs.rows.int())
            views = tuple(
                CudaAttentionView.of_tiles(TileRows(starts, lens, first_positions, spans, block_tables=table))
                for lens, table in zip([key_lens, *source_lens], self._tables, strict=True)
            )
            step = GraphPagedInputs(batch, decoder, positions, views)
            every = step.run(inputs.token_ids, inputs.positions, self._kept_states)
            hidden = torch.index_select(every, 0, inputs.output_rows)
            logits = decoder.head(hidden, decoder.logits)
            return DecoderOutput(hidden, logits, backend(logits).logits_top_k(logits))

        return run
