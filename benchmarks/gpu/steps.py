"""Stages of `benchmarks.gpu` that run a model without an engine: decode steps, prefill, encoders, attention alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.gpu.device import Limits, seconds_per_call, seconds_per_captured_call, seconds_per_step_ahead
from benchmarks.gpu.row import Result, Row, Setup, Skipped, Stage
from benchmarks.random_models import (
    BLOCK_SIZE,
    ENCODER_DECODERS,
    Cost,
    config_of,
    decode_batch,
    decode_cost,
    encoder_batch,
    layers_cost,
    prefill_batch,
    random_cache,
    random_model,
    recordings_batch,
)
from models.backends import choice
from models.backends.attention_metadata import AttentionMetadata
from models.backends.choice import backend
from models.backends.cuda.graphs.graph_sizes import GraphSizes
from models.backends.logits import LogitsRequest
from models.backends.torch.sampling import Filters
from models.checkpoint.pack_weights import WeightPacker
from models.steps.batch import DecoderBatch, SourceBatch
from models.steps.kv_cache import KVCache
from models.transformer import Transformer

if TYPE_CHECKING:
    from models.backends.cuda.graphs.step_graphs import StepGraphs

MIN_ATTENTION_BYTES = 128 << 20
"""Size of keys and values that is too large for the cache of any device."""
SOURCE_TOKENS = 512
"""Number of source tokens for encoder-decoders."""


def decode(shape: str, quantization: choice.Quantization | None = None) -> Stage:
    """Return the stage that measures decode steps of a model with this shape, with several numbers of rows.

    quantization: quantization of the weights, None for none. The share of a quantized step is its rate as a multiple of
        the rate without quantization, which another stage has measured.
    """
    name = shape if quantization is None else f"{shape} in {quantization}"

    def rows_of(setup: Setup, limits: Limits) -> Iterator[Row]:
        is_encoder_decoder = shape in ENCODER_DECODERS
        source = (SOURCE_TOKENS if not setup.tiny else 16) if is_encoder_decoder else 0
        context = setup.context if not is_encoder_decoder else min(setup.context, 128)

        @cache
        def built() -> tuple[Transformer, dict[int, Cost]]:
            model = random_model(config_of(shape, setup.tiny), limits.torch_dtype, limits.torch_device)
            costs = {rows: decode_cost(model, rows, context, source, limits.torch_dtype) for rows in setup.rows}
            dense_bytes = sum(parameter.nbytes for parameter in model.parameters())
            packed_bytes = WeightPacker(model, limits.torch_dtype, limits.torch_device, quantization).finish()
            saved = 0 if quantization is None else dense_bytes - packed_bytes
            return model, {rows: cost._replace(bytes=cost.bytes - saved) for rows, cost in costs.items()}

        def measure(rows: int, dense: str) -> Result:
            model, costs = built()
            seconds, how = seconds_per_decode_step(model, rows, context, source, setup.tiny)
            floor = costs[rows].seconds(limits.bytes_per_second, limits.operations_per_second)
            result = Result.of_time(seconds, floor, rows / seconds, "tokens/s", how)
            return result if quantization is None else result.against(setup.done.get(dense))

        for rows in setup.rows:
            what = f"decode, {counted(rows, 'row')}, context {context}"
            yield Row(f"{name}, {what}", partial(measure, rows, f"{shape}, {what}"))

    return rows_of


def counted(number: int, noun: str) -> str:
    """A number and a noun in singular or plural, such as "1 row" or "2 rows"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def seconds_per_decode_step(
    model: Transformer, rows: int, context: int, source: int, tiny: bool = False
) -> tuple[float, str]:
    """Duration in seconds of a greedy decode step as the engine runs it, and a text that says how it runs.

    CUDA graphs are launched ahead: a step starts before the host has read the tokens of the previous step.

    rows: number of rows. context: tokens of each row. source: source tokens of each row; 0 without an encoder.
    """
    call, how = greedy_step(model, rows, context, source)
    if how != _CAPTURED:
        return seconds_per_call(call, model.device, tiny), how
    graphs, batch = call.args
    launch = partial(graphs.launch, batch, [Filters()] * rows, np.zeros(rows))
    return seconds_per_step_ahead(launch, tiny), f"{how}, launched ahead"


_CAPTURED = "CUDA graph"


def greedy_step(model: Transformer, rows: int, context: int, source: int) -> tuple[partial[torch.Tensor], str]:
    """Return a function that runs a greedy decode step and waits for it, and a text that says how the step runs.

    The step runs as a CUDA graph if the model supports it. The caches are filled with random numbers. The function
    returns token ids on the CPU, [rows, 1], int64.

    rows: number of rows. context: tokens of each row. source: source tokens of each row; 0 without an encoder.
    """
    cache = random_cache(model, rows, context, model.attention_dtype)
    cross = random_cache(model, rows, source, model.attention_dtype, cross=True) if source else None
    how = "eager"
    try:
        graphs = model.capture_steps(cache, cross, GraphSizes(rows, context, source))
    except RuntimeError as error:
        graphs, how = None, f"eager, because the capture failed: {str(error).strip().splitlines()[0][:120]}"
    device = model.device if graphs is None else torch.device("cpu")
    batch = decode_batch(rows, context, BLOCK_SIZE, device, model.vocab_size, source)
    if graphs is None:
        return partial(eager_step, model, batch, cache, cross), how
    return partial(_replayed_step, graphs, batch), _CAPTURED


def eager_step(model: Transformer, batch: DecoderBatch, cache: KVCache, cross: KVCache | None = None) -> torch.Tensor:
    """Run one greedy step without a CUDA graph. Returns token ids on the CPU, [output rows, 1], int64."""
    request, rows = LogitsRequest(), len(batch.query_lens)
    output = model.decode(batch, cache, cross, request if rows <= model.max_logits_rows else None)
    top_k = output.top_k if output.top_k is not None else model.logits_top_k(output.hidden, request)[1]
    return top_k.ids.cpu()


def _replayed_step(graphs: StepGraphs, batch: DecoderBatch) -> torch.Tensor:
    top_k = graphs.run(batch, LogitsRequest()).top_k
    assert top_k is not None
    return top_k.ids.cpu()


def prefill(shape: str) -> Stage:
    """Return the stage that measures the prefill of one prompt at several lengths, for a model with this shape."""

    def rows_of(setup: Setup, limits: Limits) -> Iterator[Row]:
        @cache
        def built() -> tuple[Transformer, dict[int, Cost]]:
            model = random_model(config_of(shape, setup.tiny), limits.torch_dtype, limits.torch_device)
            assert model.decoder is not None
            costs = {n: layers_cost(model, model.decoder, n, n * (n + 1) // 2, 1) for n in setup.prompts}
            WeightPacker(model, limits.torch_dtype, limits.torch_device).finish()
            return model, costs

        def measure(tokens: int) -> Result:
            model, costs = built()
            cache = random_cache(model, 1, tokens, limits.torch_dtype)
            batch = prefill_batch(tokens, limits.torch_device, model.vocab_size)
            seconds = seconds_per_call(partial(eager_step, model, batch, cache), limits.torch_device, setup.tiny)
            floor = costs[tokens].seconds(limits.bytes_per_second, limits.operations_per_second)
            return Result.of_time(seconds, floor, tokens / seconds, "tokens/s")

        for tokens in setup.prompts:
            yield Row(f"{shape}, prefill, {tokens} tokens", partial(measure, tokens))

    return rows_of


def encode(shape: str) -> Stage:
    """Return the stage that measures steps of an encoder with this shape, with several numbers of texts."""

    def rows_of(setup: Setup, limits: Limits) -> Iterator[Row]:
        length = setup.text_tokens
        encoder = cache(partial(_Encoder, shape, setup, limits, setup.texts, length))

        def measure(texts: int) -> Result:
            model = encoder().model
            batch = encoder_batch(texts, length, limits.torch_device, model.vocab_size)
            return encoder().measure(batch, texts, "texts/s")

        for texts in setup.texts:
            yield Row(f"{shape}, step, {counted(texts, 'text')} of {length} tokens", partial(measure, texts))

    return rows_of


def encode_recordings(shape: str) -> Stage:
    """Return the stage that measures encoder steps of a speech model with this shape, with several recordings.

    The floor is that of the encoder's layers. It leaves out the convolutions before them.
    """

    def rows_of(setup: Setup, limits: Limits) -> Iterator[Row]:
        encoder = cache(partial(_Encoder, shape, setup, limits, setup.recordings, setup.frames // 2))

        def measure(recordings: int) -> Result:
            mels = config_of(shape, setup.tiny)["num_mel_bins"]
            batch = recordings_batch(recordings, setup.frames, mels, limits.torch_device)
            return encoder().measure(batch, recordings, "recordings/s")

        for recordings in setup.recordings:
            yield Row(f"{shape}, encoder, {counted(recordings, 'recording')}", partial(measure, recordings))

    return rows_of


class _Encoder:
    """A model whose encoder steps are timed.

    shape: name of its shape. counts: numbers of texts or recordings in a step.
    length: number of tokens of each text or recording.
    """

    def __init__(self, shape: str, setup: Setup, limits: Limits, counts: tuple[int, ...], length: int) -> None:
        self._limits, self._tiny = limits, setup.tiny
        self.model = random_model(config_of(shape, setup.tiny), limits.torch_dtype, limits.torch_device)
        assert self.model.encoder is not None
        self._costs = {n: layers_cost(self.model, self.model.encoder, n * length, n * length**2, 0) for n in counts}
        WeightPacker(self.model, limits.torch_dtype, limits.torch_device).finish()

    def measure(self, batch: SourceBatch, count: int, unit: str) -> Result:
        """Time a step with a batch of `count` texts or recordings. unit: unit of the rate."""
        limits = self._limits
        seconds = seconds_per_call(partial(self.model.encode, batch), limits.torch_device, self._tiny)
        floor = self._costs[count].seconds(limits.bytes_per_second, limits.operations_per_second)
        return Result.of_time(seconds, floor, count / seconds, unit)


def attention(setup: Setup, limits: Limits) -> Iterator[Row]:
    """Stage that measures decode attention of one layer of the 8B model.

    Numbers of rows whose keys and values would fit into the device's cache are skipped.
    """
    for rows in setup.rows:
        context = 4 * setup.context if rows <= 64 else setup.context
        name = f"decode attention of one layer, {counted(rows, 'row')}, context {context}"
        yield Row(name, partial(_measure_attention, rows, context, setup, limits))


def _measure_attention(rows: int, context: int, setup: Setup, limits: Limits) -> Result:
    hf, device, dtype = config_of("llama-8b", setup.tiny), limits.torch_device, limits.torch_dtype
    heads, kv_heads, dim = hf["num_attention_heads"], hf["num_key_value_heads"], hf["head_dim"]
    size = 2 * rows * context * kv_heads * dim * dtype.itemsize
    if size < MIN_ATTENTION_BYTES and not setup.tiny:
        raise Skipped(f"{size >> 20} MiB of keys and values fit into the cache of the device")
    batch = decode_batch(rows, context, BLOCK_SIZE, device)
    keys, values = torch.randn(2, batch.block_tables.numel(), BLOCK_SIZE, kv_heads, dim, dtype=dtype, device=device)
    query = torch.randn(rows, heads, dim, dtype=dtype, device=device)
    # The layers of a step share the metadata, so its cost is not part of the measurement.
    metadata = AttentionMetadata(
        batch.query_lens, batch.key_lens, causal=True, block_tables=batch.block_tables, block_size=BLOCK_SIZE
    )
    call = partial(backend(query).paged_attention, query, keys, values, metadata, dim**-0.5)
    seconds = seconds_per_captured_call(call, device, setup.tiny)
    cost = Cost(size, 4 * heads * dim * rows * context)
    floor = cost.seconds(limits.bytes_per_second, limits.operations_per_second)
    return Result.of_time(seconds, floor, size / seconds / 1e9, "GB/s")
