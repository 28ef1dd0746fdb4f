"""Steps of a text encoder as CUDA graphs: one captured step for each of a few numbers of tokens.

A graph computes the hidden states of all tokens. For an encoder-decoder, it also computes the keys and values of
cross-attention and stores them in their cache. Unused places of a step are tokens of no text: they are embedded and
multiplied, attend to nothing and are not stored. No operation mixes them with other tokens.

All graphs write the hidden states to the same memory, so that a graph keeps no memory for its results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.backends.cuda.attention_view import CudaAttentionView
from models.backends.cuda.graphs.captures import CaptureTime, capture_sizes
from models.backends.cuda.graphs.device_numbers import DeviceNumbers
from models.backends.cuda.graphs.graph_runner import GraphRunner
from models.backends.cuda.graphs.graph_sizes import EncoderSizes
from models.backends.cuda.graphs.graph_steps import GraphPositions, GraphTextInputs
from models.backends.cuda.graphs.query_spans import RowsLayout
from models.backends.cuda.graphs.token_sizes import MIN_TEXT_TOKENS, sizes_up_to, smallest_size
from models.backends.cuda.kernels.tile_attention import TileRows
from models.stack import Stack
from models.steps.batch import EncoderBatch, SourceBatch

StoreKeys = Callable[[Tensor, Tensor], None]
"""Stores the cross-attention keys of hidden states, [tokens, hidden], in slots, [tokens], int64, of a cache."""


class _EncoderLayout(NamedTuple):
    """Layout of the integers that describe a captured step. tokens: largest number of tokens of the step."""

    tokens: int

    @property
    def rows(self) -> RowsLayout:
        """Layout of the texts, with two columns: number of keys, and index of the first key."""
        return RowsLayout(self.tokens, max(self.tokens // MIN_TEXT_TOKENS, 1), 2)

    @property
    def size(self) -> int:
        """Number of integers that describe a step."""
        return 2 * self.tokens + self.rows.size


class EncoderGraphs:
    """The captured steps of an encoder of texts, or of a decoder that encodes texts.

    store_keys: stores the cross-attention keys of an encoder-decoder, and does nothing for other models.
    dtype: dtype of the hidden states. device: device of the model.
    limits: limits of the steps. time: limits how many graphs are captured.
    sizes: numbers of tokens for which a step is captured, ascending.
    """

    def __init__(
        self,
        stack: Stack,
        store_keys: StoreKeys,
        dtype: torch.dtype,
        device: torch.device,
        limits: EncoderSizes,
        runner: GraphRunner,
        time: CaptureTime,
    ) -> None:
        self._stack, self._store_keys, self._dtype, self._limits = stack, store_keys, dtype, limits
        sizes = sizes_up_to(limits.tokens)
        self._numbers = DeviceNumbers(runner, device, _EncoderLayout(sizes[-1]).size)
        self._token_ids, self._types = torch.zeros(2, sizes[-1], dtype=torch.int64, device=device)
        self._positions = GraphPositions(stack, limits.text_tokens)
        self._first_positions = torch.zeros(_EncoderLayout(sizes[-1]).rows.rows, dtype=torch.int32, device=device)
        self._hidden: Tensor | None = None
        self._graphs = capture_sizes(runner, sizes, self._step_of, time)
        self.sizes = tuple(self._graphs)

    def takes(self, batch: SourceBatch) -> bool:
        """Whether a captured graph can run a step."""
        return (
            isinstance(batch, EncoderBatch)
            and not batch.adapters
            and max(batch.lengths) <= self._limits.text_tokens
            and self._size_of(batch) is not None
        )

    def _size_of(self, batch: EncoderBatch) -> int | None:
        """The number of tokens of the graph that runs a step; None if there is none."""
        tokens, texts = batch.offsets[-1], len(batch.lengths)
        size = smallest_size(self.sizes, max(tokens, texts * MIN_TEXT_TOKENS if texts > 1 else 1))
        return None if size is None or smallest_size((size,), tokens) is None else size

    def run(self, batch: SourceBatch, slots: Sequence[int] | None = None) -> Tensor:
        """Replay a step.

        batch: on the device of the model; `takes` accepts it.
        slots: cache slots of the tokens, for their cross-attention keys; None to store none.
        Returns the hidden states, [tokens, hidden], or [batch, hidden] if the batch has `output_positions`, in memory
        that the next step overwrites.
        """
        assert isinstance(batch, EncoderBatch), "`takes` accepts texts only"
        size, count = self._size_of(batch), batch.offsets[-1]
        assert size is not None, "`takes` accepts the step"
        self._write(batch, _EncoderLayout(size), slots)
        replay, hidden = self._graphs[size]
        replay()
        hidden = hidden[:count]
        return hidden if batch.output_rows is None else hidden[batch.output_rows]

    def _write(self, batch: EncoderBatch, layout: _EncoderLayout, slots: Sequence[int] | None) -> None:
        """Copy the integers that describe a step to the memory of its graph."""
        numbers, count, tokens = self._numbers.to_write(), batch.offsets[-1], layout.tokens
        lengths, starts = np.array(batch.lengths), np.array(batch.offsets[:-1])
        places, own_slots, rows = numbers[:tokens], numbers[tokens : 2 * tokens], numbers[2 * tokens : layout.size]
        places[:count] = np.arange(count) - starts.repeat(lengths)
        places[count:] = 0
        own_slots[: len(slots or ())] = slots or ()
        own_slots[len(slots or ()) :] = -1
        key_lens = lengths if batch.attended is None else np.array(batch.attended)
        layout.rows.write(rows, lengths, key_lens, [key_lens, starts])
        self._numbers.send(layout.size)
        # Places beyond these keep tokens of earlier steps, which are valid.
        self._token_ids[:count].copy_(batch.token_ids)
        if batch.token_type_ids is None:
            self._types[:count].zero_()
        else:
            self._types[:count].copy_(batch.token_type_ids)

    def _step_of(self, size: int) -> Callable[[], Tensor]:
        """A function that runs one step of `size` tokens, for the capture of a graph."""
        layout, stack = _EncoderLayout(size), self._stack
        places, slots, rows = torch.split(self._numbers.copied[: layout.size], [size, size, layout.rows.size])
        # A step without texts: its tokens attend to nothing and are not stored.
        places.zero_()
        rows.zero_()
        slots.fill_(-1)
        encodings = self._positions.before_capture(places)
        first_positions = self._first_positions[: layout.rows.rows]
        batch = EncoderBatch(self._token_ids[:size], (size,), self._types[:size]).with_positions(places)

        def run() -> Tensor:
            positions = self._positions.in_capture(encodings, places)
            starts, (key_lens, key_starts), spans = layout.rows.read(rows.int())
            view = CudaAttentionView.of_tiles(TileRows(starts, key_lens, first_positions, spans, key_starts))
            step = GraphTextInputs(batch, positions, stack, self._dtype, view)
            x = stack.embedding.embed(batch)  # type: ignore[arg-type]
            stack.set_layer_inputs(step, batch.token_ids, x)
            hidden = stack.run_layers(x, step)
            self._store_keys(hidden, slots)
            if self._hidden is None:
                self._hidden = torch.empty_like(hidden)
            return self._hidden[:size].copy_(hidden)

        return run
