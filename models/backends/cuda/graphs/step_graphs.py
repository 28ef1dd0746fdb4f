"""Decode steps as CUDA graphs: one captured step for each bucket of rows, replayed with new inputs.

A step of few rows takes the device less time than Python needs to launch its kernels; a replay is one launch. A graph
computes embedding, layers, head, and the largest logit of each row. A step uses the smallest bucket that holds its
rows; the other rows of the bucket have no keys and write nothing. The inputs of a graph are in memory that does not
move: the integers of a step reach the device by one copy from pinned memory. All graphs share one pool of memory, and
the largest is captured first, so that the others fit into its memory.

A step that chooses its tokens on the device leaves them there for the next step, which can therefore be launched before
the host has read them.

Adapters, mixers, and rotations that depend on the text length run eagerly. `mixed_graphs` has the steps with prefill.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.backends.choice import backend
from models.backends.cuda.attention_view import CudaAttentionView
from models.backends.cuda.graphs.captures import CaptureTime, capture_sizes
from models.backends.cuda.graphs.graph_inputs import StepInputMemory
from models.backends.cuda.graphs.graph_runner import DeviceEvent, GraphRunner
from models.backends.cuda.graphs.graph_steps import GraphDecoder, GraphPagedInputs, GraphPositions
from models.backends.cuda.kernels.decode_attention import KEY_CHUNK_TOKENS, DecodeRows, Partials, partial_starts
from models.backends.cuda.operations import draw_by_columns, filter_settings, with_uniforms
from models.backends.logits import DecoderOutput, LogitsRequest, LogitsTopK
from models.backends.torch.sampling import Filters
from models.steps.batch import DecoderBatch

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of rows for which a step is captured."""
MAX_PARTIALS = 1 << 14
"""Largest number of partial results of attention in a captured step; steps with more run eagerly."""


class ChosenTokens:
    """Tokens that a launched step chooses.

    host: [rows], int64, pinned memory to which the device copies them. copied: event after this copy.
    draft_states: `DecoderOutput.draft_states` of the step.
    """

    def __init__(self, host: Tensor, copied: DeviceEvent, draft_states: Tensor | None = None) -> None:
        self._host, self._copied, self.draft_states = host, copied, draft_states

    def read(self) -> list[int]:
        """Wait for the step. Returns the token of each row; -1 for a row with a logit that is not finite."""
        self._copied.synchronize()
        return self._host.tolist()


class StepGraphs:
    """The captured decode steps of a decoder, or the passes of a draft head in which each text has one position.

    time: limits how many graphs are captured.
    partials: memory for partial results of attention that other graphs have allocated; None to allocate it.
    """

    def __init__(
        self,
        decoder: GraphDecoder,
        runner: GraphRunner,
        time: CaptureTime,
        partials: dict[tuple[int, int], Partials] | None = None,
    ) -> None:
        self._decoder, self._limits, self._runner = decoder, decoder.limits, runner
        buckets = BUCKETS[: bisect_left(BUCKETS, decoder.limits.rows) + 1]
        self._max_rows = buckets[-1]
        device = decoder.cache.device
        self._memory = StepInputMemory(runner, device, self._max_rows, decoder.table_widths)
        self._kept_states = decoder.memory_for_states(self._max_rows)
        chunks = max(-(-length // KEY_CHUNK_TOKENS) for _, length in decoder.caches)
        self._max_partials = min(self._max_rows * chunks, MAX_PARTIALS)
        self._partials: dict[tuple[int, int], Partials] = {} if partials is None else partials
        self._positions = GraphPositions(decoder.stack, decoder.limits.context)
        # Two steps are under way at most: one whose tokens are read, and the next one.
        self._results = [(runner.pinned(self._max_rows), runner.event()) for _ in range(2)]
        self._num_launched = 0
        self._last_filters: Sequence[Filters] = ()
        self._settings: NDArray[np.float64] | None = None
        self._chosen = torch.zeros(self._max_rows, dtype=torch.int64, device=device)
        self._not_finite = torch.full((), -1, dtype=torch.int64, device=device)
        self._graphs = capture_sizes(runner, buckets, self._step_of, time)

    def takes(self, query_lens: Sequence[int], key_lens: Sequence[int], source_lens: Sequence[int]) -> bool:
        """Whether a captured graph can run a step: each row has one query, and no length exceeds the limits.

        query_lens, key_lens, source_lens: number of queries, keys and source tokens of each row.
        """
        return (
            len(query_lens) <= self._max_rows
            and max(query_lens) == 1
            and min(query_lens) == 1
            and max(key_lens) <= self._limits.context
            and max(source_lens, default=0) <= self._limits.source
            and self._has_room_for(key_lens)
            and self._has_room_for(source_lens)
        )

    def _has_room_for(self, key_lens: Sequence[int]) -> bool:
        """Whether the memory for partial results of attention is large enough for a step.

        key_lens: number of keys of each row.
        """
        bound = len(key_lens) * -(-max(key_lens, default=0) // KEY_CHUNK_TOKENS)
        return bound <= self._max_partials or partial_starts(key_lens)[-1] <= self._max_partials

    def run(self, batch: DecoderBatch, request: LogitsRequest) -> DecoderOutput:
        """Replay a step.

        batch: on the CPU; `takes` accepts its rows, and all of them need logits.
        request: number of top logits, and whether log-probabilities are needed.

        The results are in memory that the next step overwrites, except for `draft_states`.
        """
        output = self._replay(batch)[0]
        if request.top_k > 1 or request.with_logsumexp:
            logits = output.logits
            assert logits is not None
            k = min(request.top_k, logits.shape[1])
            return output._replace(top_k=backend(logits).logits_top_k(logits, k, request.with_logsumexp))
        return output

    def launch(self, batch: DecoderBatch, filters: Sequence[Filters], uniforms: NDArray[np.float64]) -> ChosenTokens:
        """Replay a step and choose a token for each row on the device. Reads nothing on the host.

        batch: on the CPU; `takes` accepts its rows, and all of them need logits. The token id `-1 - row` is the token
            that the last launched step has chosen for a row.
        filters: settings of the rows, not changed later; a temperature of 0 chooses the largest logit. typical_p must
            be 1.
        uniforms: [rows], float64, in [0, 1): the random number of each row.
        At most two launched steps may be unread: read the tokens of a step before the second step after it is launched.
        """
        rows = len(filters)
        settings = self._settings_of(filters)
        output, columns = self._replay(batch, None if settings is None else with_uniforms(settings, uniforms))
        chosen = self._choose(output, columns)
        host, copied = self._results[self._num_launched % 2]
        self._num_launched += 1
        host[:rows].copy_(chosen, non_blocking=True)
        copied.record()
        return ChosenTokens(host[:rows], copied, output.draft_states)

    def _settings_of(self, filters: Sequence[Filters]) -> NDArray[np.float64] | None:
        """The settings of rows as numbers (`filter_settings`); None if no row is sampled.

        Nothing is computed if the argument is the object of the last call, as in steps of the same rows.
        """
        if filters is not self._last_filters:
            draws = any(row.temperature > 0.0 for row in filters)
            self._last_filters, self._settings = filters, filter_settings(filters) if draws else None
        return self._settings

    def _choose(self, output: DecoderOutput, columns: Tensor | None) -> Tensor:
        """Choose a token for each row, and keep it for the next step.

        columns: settings for drawing the tokens; None to draw none.
        Returns [rows], int64: the tokens; -1 for a row with a logit that is not finite.
        """
        assert output.logits is not None and output.top_k is not None
        tokens = output.top_k.ids[:, 0]
        if columns is not None:
            is_drawn, drawn = draw_by_columns(output.logits, columns)
            tokens = torch.where(is_drawn, drawn, tokens)
        rows = len(tokens)
        chosen = torch.where(output.top_k.is_finite, tokens, self._not_finite, out=self._chosen[:rows])
        torch.clamp(chosen, min=0, out=self._memory.chosen[:rows])
        return chosen

    def _replay(
        self, batch: DecoderBatch, filters: NDArray[np.float64] | None = None
    ) -> tuple[DecoderOutput, Tensor | None]:
        """Copy the inputs and replay.

        Returns the results of the rows, and the filters on the device (None without filters).
        """
        rows = len(batch.query_lens)
        bucket = next(bucket for bucket in self._graphs if bucket >= rows)
        columns = self._memory.write(batch, bucket, filters)
        replay, (hidden, logits, top_k, _) = self._graphs[bucket]
        replay()
        assert logits is not None and top_k is not None
        top_k = LogitsTopK(top_k.values[:rows], top_k.ids[:rows], None, top_k.is_finite[:rows])
        states = None if self._kept_states is None else self._kept_states[:rows].clone()
        return DecoderOutput(hidden[:rows], logits[:rows], top_k, states), columns

    def _step_of(self, bucket: int) -> Callable[[], DecoderOutput]:
        """A function that runs one step of `bucket` rows, for the capture of a graph."""
        inputs, decoder, limits = self._memory.inputs(bucket), self._decoder, self._limits
        encodings = self._positions.before_capture(inputs.positions)
        cross = inputs.caches[1] if len(inputs.caches) > 1 else None
        batch = DecoderBatch(
            token_ids=inputs.token_places,
            positions=inputs.positions,
            query_lens=(1,) * bucket,
            key_lens=(limits.context,) * bucket,
            slot_mapping=inputs.slots,
            block_tables=inputs.caches[0].tables,
            source_lens=() if cross is None else (limits.source,) * bucket,
            source_block_tables=None if cross is None else cross.tables,
        )

        def run() -> DecoderOutput:
            positions = self._positions.in_capture(encodings, inputs.positions)
            views = tuple(
                CudaAttentionView.of_rows(
                    DecodeRows(cache_inputs.tables, cache_inputs.key_lens.int(), cache_inputs.partial_starts.int()),
                    max_key_len,
                    self._max_partials,
                    self._partials,
                )
                for cache_inputs, max_key_len in zip(inputs.caches, (limits.context, limits.source), strict=False)
            )
            step = GraphPagedInputs(batch, decoder, positions, views)
            token_ids = torch.index_select(self._memory.on_device, 0, inputs.token_places)
            hidden = step.run(token_ids, inputs.positions, self._kept_states)
            logits = decoder.head(hidden, decoder.logits)
            return DecoderOutput(hidden, logits, backend(logits).logits_top_k(logits))

        return run
