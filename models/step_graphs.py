"""Decode steps as CUDA graphs: one captured step for each bucket of rows, replayed with new inputs.

A step of few rows takes the device less time than Python needs to launch its kernels; a replay is one launch. A graph
computes embedding, layers, head, and the largest logit of each row, for the smallest bucket that holds the rows; the
other rows of the bucket have no keys and write nothing. Its inputs are in memory that does not move: the numbers of a
step reach the device by one copy from pinned memory. All graphs share one pool of memory, and the largest is captured
first, so that the others fit into its memory.

Prefill, adapters, mixers, and rotations that depend on the text length run eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from models.attention_metadata import AttentionMetadata
from models.backends import interface as ops
from models.backends.cuda.attention_view import CudaAttentionView
from models.backends.cuda.kernels.decode_attention import CHUNK_TOKENS, DecodeRows, Partials, partial_starts
from models.batch import DecoderBatch
from models.graph_sizes import GraphSizes
from models.kv_cache import KVCache
from models.layers.positions import PositionEncodings
from models.logits import DecoderOutput, LogitsRequest, LogitsTopK
from models.stack import Stack
from models.step_inputs.base import AttentionPattern, PagedStepInputs

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of rows for which a step is captured."""
MAX_PARTIALS = 1 << 14
"""Largest number of partial results of attention in a captured step; steps with more run eagerly."""

Head = Callable[[Tensor, Tensor | None], Tensor]


class GraphRunner(Protocol):
    """Captures and replays work of a device.

    capture: runs a function and records its work. Returns a function that replays the work in the same memory, and the
        result of the function, whose tensors each replay overwrites.
    pinned: zeroed host memory, [size], int64, from which the device copies without waiting.
    mark_copied: marks the place in the work of the device after the last copy from host memory.
    wait_until_copied: waits until the device has passed that place, so that host memory can be written again.
    """

    def capture(self, run: Callable[[], DecoderOutput]) -> tuple[Callable[[], object], DecoderOutput]: ...

    def pinned(self, size: int) -> Tensor: ...

    def mark_copied(self) -> None: ...

    def wait_until_copied(self) -> None: ...


class CudaGraphRunner:
    """Graphs of a CUDA device. Implements `GraphRunner`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def capture(self, run: Callable[[], DecoderOutput]) -> tuple[Callable[[], object], DecoderOutput]:
        # The first run compiles kernels and makes tables, which a capture must not.
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = run()
        return graph.replay, result

    def pinned(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int64, pin_memory=True)

    def mark_copied(self) -> None:
        self._copied.record()

    def wait_until_copied(self) -> None:
        self._copied.synchronize()


class _CacheRows(NamedTuple):
    """Rows of a cache in a captured step. tables: [bucket, blocks], int32. Numbers: [bucket], int64."""

    tables: Tensor
    key_lens: Tensor
    partial_starts: Tensor


class _Inputs(NamedTuple):
    """Inputs of a captured step on the device: [bucket] each, int64; caches: of the decoder, then of the source."""

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    caches: tuple[_CacheRows, ...]


class _Graph(NamedTuple):
    """A captured step and its results."""

    replay: Callable[[], object]
    output: DecoderOutput


class StepInputMemory:
    """Memory for the inputs of captured steps, which all buckets share, and the copy to it.

    rows: largest bucket. widths: number of columns of the block table of each cache.
    """

    def __init__(self, runner: GraphRunner, device: torch.device, rows: int, widths: tuple[int, ...]) -> None:
        self._runner = runner
        self._num_columns = 3 + 2 * len(widths)
        size = rows * (self._num_columns + sum(widths))
        self._host = runner.pinned(size)
        self._numbers = self._host.numpy()
        self._on_device = torch.zeros(size, dtype=torch.int64, device=device)
        self._tables = tuple(torch.zeros(rows, width, dtype=torch.int32, device=device) for width in widths)

    def inputs(self, bucket: int) -> _Inputs:
        """The inputs of a bucket's graph, as of a step without rows: its capture must not write to the cache."""
        numbers = self._on_device[: self._num_columns * bucket].view(self._num_columns, bucket)
        numbers.zero_()
        numbers[2] = -1
        columns = numbers.unbind()
        pairs = zip(columns[3::2], columns[4::2], strict=True)
        caches = (_CacheRows(table[:bucket], *pair) for table, pair in zip(self._tables, pairs, strict=True))
        return _Inputs(columns[0], columns[1], columns[2], tuple(caches))

    def write(self, batch: DecoderBatch, bucket: int) -> None:
        """Copy the inputs of a step to the memory of a bucket's graph. batch: on the CPU."""
        self._runner.wait_until_copied()
        rows = len(batch.query_lens)
        columns = self._numbers[: self._num_columns * bucket].reshape(self._num_columns, bucket)
        # Rows without keys; a token with a negative slot is not stored.
        columns[:, rows:] = 0
        columns[2, rows:] = -1
        for column, values in zip(columns, (batch.token_ids, batch.positions, batch.slot_mapping), strict=False):
            column[:rows] = values.numpy()
        sides = [(batch.key_lens, batch.block_tables)]
        if batch.source_block_tables is not None:
            sides.append((batch.source_lens, batch.source_block_tables))
        end = columns.size
        spans = []
        for index, (lens, tables) in enumerate(sides):
            columns[3 + 2 * index, :rows] = lens
            columns[4 + 2 * index, :rows] = partial_starts(lens)[:-1]
            spans.append((end, end + tables.numel(), tables.shape[1]))
            end += tables.numel()
            self._numbers[end - tables.numel() : end] = tables.numpy().ravel()
        self._on_device[:end].copy_(self._host[:end], non_blocking=True)
        self._runner.mark_copied()
        for static, (first, last, width) in zip(self._tables, spans, strict=True):
            static[:rows, :width].copy_(self._on_device[first:last].view(rows, width))


class _GraphStepInputs(PagedStepInputs):
    """Step inputs of a captured step. views: the rows of the cache and of the source cache, in memory of the graph."""

    def __init__(
        self,
        batch: DecoderBatch,
        cache: KVCache,
        cross_cache: KVCache | None,
        encodings: PositionEncodings,
        stack: Stack,
        views: tuple[CudaAttentionView, ...],
    ) -> None:
        super().__init__(batch, cache, cross_cache, encodings, stack.config)
        self._views = views

    def _make_metadata(self, pattern: AttentionPattern) -> AttentionMetadata:
        metadata = super()._make_metadata(pattern)
        metadata.set_view(self._views[1 if pattern.cross else 0])
        return metadata


class StepGraphs:
    """The captured steps of a decoder and its caches.

    head: see `Executor`.
    logits: [rows or more, vocab], float32, memory for the logits.
    sizes: limits of the steps.
    """

    def __init__(
        self,
        stack: Stack,
        head: Head,
        logits: Tensor,
        cache: KVCache,
        cross_cache: KVCache | None,
        sizes: GraphSizes,
        runner: GraphRunner,
    ) -> None:
        self._stack, self._head, self._sizes = stack, head, sizes
        self._cache, self._cross_cache = cache, cross_cache
        buckets = [bucket for bucket in BUCKETS if bucket <= sizes.rows]
        self._max_rows = buckets[-1]
        lengths = [(cache, sizes.context)] + ([] if cross_cache is None else [(cross_cache, sizes.source)])
        widths = tuple(min(-(-length // one.block_size), one.num_blocks) for one, length in lengths)
        self._memory = StepInputMemory(runner, cache.device, self._max_rows, widths)
        self._logits = logits
        chunks = max(-(-length // CHUNK_TOKENS) for _, length in lengths)
        self._max_partials = min(self._max_rows * chunks, MAX_PARTIALS)
        self._partials: dict[tuple[int, int], Partials] = {}
        # Graphs read the tables of positions where they are, so these are made once, for the largest context.
        self._bias = stack.bias(sizes.context)
        if isinstance(self._bias, Tensor):
            self._bias = self._bias.float().contiguous()
        self._graphs = {bucket: _Graph(*runner.capture(self._step_of(bucket))) for bucket in reversed(buckets)}

    def takes(self, query_lens: Sequence[int], key_lens: Sequence[int], source_lens: Sequence[int]) -> bool:
        """Whether a step with these rows fits a graph. Arguments as in `DecoderBatch`."""
        return (
            len(query_lens) <= self._max_rows
            and max(query_lens) == 1
            and min(query_lens) == 1
            and max(key_lens) <= self._sizes.context
            and max(source_lens, default=0) <= self._sizes.source
            and partial_starts(key_lens)[-1] <= self._max_partials
            and partial_starts(source_lens)[-1] <= self._max_partials
        )

    def run(self, batch: DecoderBatch, request: LogitsRequest) -> DecoderOutput:
        """Replay a step. batch: on the CPU; its rows are those that `takes` accepts, and all of them need logits.

        The results are in memory that the next step overwrites.
        """
        rows = len(batch.query_lens)
        bucket = next(bucket for bucket in BUCKETS if bucket >= rows)
        self._memory.write(batch, bucket)
        replay, (hidden, logits, top_k) = self._graphs[bucket]
        replay()
        assert logits is not None and top_k is not None
        logits = logits[:rows]
        if request.top_k > 1 or request.with_logsumexp:
            top_k = ops.logits_top_k(logits, min(request.top_k, logits.shape[1]), request.with_logsumexp)
        else:
            top_k = LogitsTopK(top_k.values[:rows], top_k.ids[:rows], None, top_k.is_finite[:rows])
        return DecoderOutput(hidden[:rows], logits, top_k)

    def _step_of(self, bucket: int) -> Callable[[], DecoderOutput]:
        """The work of a step with as many rows as a bucket."""
        inputs, stack, sizes = self._memory.inputs(bucket), self._stack, self._sizes
        encodings = stack.encodings(inputs.positions, sizes.context)
        cross = inputs.caches[1] if len(inputs.caches) > 1 else None
        batch = DecoderBatch(
            token_ids=inputs.token_ids,
            positions=inputs.positions,
            query_lens=(1,) * bucket,
            key_lens=(sizes.context,) * bucket,
            slot_mapping=inputs.slots,
            block_tables=inputs.caches[0].tables,
            source_lens=() if cross is None else (sizes.source,) * bucket,
            source_block_tables=None if cross is None else cross.tables,
        )

        def run() -> DecoderOutput:
            scales = stack.query_scales(inputs.positions)
            positions = replace(encodings, score_bias=self._bias, query_scales=scales)
            views = tuple(
                CudaAttentionView.of_rows(
                    DecodeRows(one.tables, one.key_lens.int(), one.partial_starts.int()),
                    max_key_len,
                    self._max_partials,
                    self._partials,
                )
                for one, max_key_len in zip(inputs.caches, (sizes.context, sizes.source), strict=False)
            )
            step = _GraphStepInputs(batch, self._cache, self._cross_cache, positions, stack, views)
            x = stack.embedding(inputs.token_ids, inputs.positions)
            stack.set_layer_inputs(step, inputs.token_ids, x)
            hidden = stack.run_layers(x, step)
            logits = self._head(hidden, self._logits)
            return DecoderOutput(hidden, logits, ops.logits_top_k(logits))

        return run
