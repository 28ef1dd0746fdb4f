"""Stages of `benchmarks.gpu` that run a model without an engine: decode steps, prefill, encoder, attention alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.gpu_device import Limits, seconds_per_call, seconds_per_captured_call, seconds_per_step_ahead
from benchmarks.gpu_result import Result, Setup, Stage
from benchmarks.random_models import (
    BLOCK_SIZE,
    Cost,
    config_of,
    decode_batch,
    decode_cost,
    encoder_batch,
    layers_cost,
    prefill_batch,
    random_cache,
    random_model,
)
from models.backends import choice
from models.backends.attention_metadata import AttentionMetadata
from models.backends.choice import backend
from models.backends.cuda.graphs.graph_sizes import GraphSizes
from models.backends.logits import LogitsRequest
from models.backends.torch.sampling import Filters
from models.checkpoint.pack_weights import WeightPacker
from models.steps.batch import DecoderBatch
from models.steps.kv_cache import KVCache
from models.transformer import Transformer

if TYPE_CHECKING:
    from models.backends.cuda.graphs.step_graphs import StepGraphs

GOALS: dict[tuple[str, int], float] = {
    ("llama-1b", 1): 0.55,
    ("llama-1b", 64): 0.60,
    ("llama-1b", 256): 0.60,
    ("llama-8b", 1): 0.78,
    ("llama-8b", 64): 0.70,
    ("llama-8b", 256): 0.65,
}
"""Goal of a decode step: shortest possible duration divided by the measured one, by shape and number of rows."""
ATTENTION_GOAL, PREFILL_GOAL, BERT_GOAL = 0.70, 0.55, 0.45
MIN_ATTENTION_BYTES = 128 << 20
"""Size of keys and values that is too large for the cache of any device."""
SOURCE_TOKENS = 512
"""Number of source tokens for encoder-decoders."""


def decode(shape: str, quantization: choice.Quantization | None = None) -> Stage:
    """Return the stage that measures decode steps of a model with this shape, with several numbers of rows.

    quantization: quantization of the weights, None for none.
    """
    name = shape if quantization is None else f"{shape} in {quantization}"

    def measure(setup: Setup, limits: Limits) -> Iterator[Result]:
        hf = config_of(shape, setup.tiny)
        model = random_model(hf, limits.torch_dtype, limits.torch_device)
        is_encoder_decoder = model.config.is_encoder_decoder
        source = (SOURCE_TOKENS if not setup.tiny else 16) if is_encoder_decoder else 0
        context = setup.context if not is_encoder_decoder else min(setup.context, 128)
        costs = {rows: decode_cost(model, rows, context, source, limits.torch_dtype) for rows in setup.rows}
        dense_bytes = sum(parameter.nbytes for parameter in model.parameters())
        packer = WeightPacker(model, limits.torch_dtype, limits.torch_device, quantization)
        packed_bytes = packer.finish()
        saved_bytes = 0 if quantization is None else dense_bytes - packed_bytes
        for rows in setup.rows:
            cost = costs[rows]._replace(bytes=costs[rows].bytes - saved_bytes)
            seconds, how = seconds_per_decode_step(model, rows, context, source, setup.tiny)
            yield Result.of_time(
                f"{name}, decode, {rows} rows, context {context}",
                seconds,
                cost.seconds(limits.bytes_per_second, limits.operations_per_second),
                rows / seconds,
                "tokens/s",
                GOALS.get((name, rows)),
                how,
            )

    return measure


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

    def measure(setup: Setup, limits: Limits) -> Iterator[Result]:
        model = random_model(config_of(shape, setup.tiny), limits.torch_dtype, limits.torch_device)
        assert model.decoder is not None
        costs = {n: layers_cost(model, model.decoder, n, n * (n + 1) // 2, 1) for n in setup.prompts}
        WeightPacker(model, limits.torch_dtype, limits.torch_device).finish()
        for tokens in setup.prompts:
            cache = random_cache(model, 1, tokens, limits.torch_dtype)
            batch = prefill_batch(tokens, limits.torch_device, model.vocab_size)
            seconds = seconds_per_call(partial(eager_step, model, batch, cache), limits.torch_device, setup.tiny)
            yield Result.of_time(
                f"{shape}, prefill, {tokens} tokens",
                seconds,
                costs[tokens].seconds(limits.bytes_per_second, limits.operations_per_second),
                tokens / seconds,
                "tokens/s",
                PREFILL_GOAL if shape == "llama-8b" and tokens == max(setup.prompts) else None,
            )
            del cache, batch

    return measure


def encode(shape: str) -> Stage:
    """Return the stage that measures steps of an encoder with this shape, with several numbers of texts."""

    def measure(setup: Setup, limits: Limits) -> Iterator[Result]:
        model = random_model(config_of(shape, setup.tiny), limits.torch_dtype, limits.torch_device)
        assert model.encoder is not None
        length = setup.text_tokens
        costs = {n: layers_cost(model, model.encoder, n * length, n * length**2, 0) for n in setup.texts}
        WeightPacker(model, limits.torch_dtype, limits.torch_device).finish()
        for texts in setup.texts:
            batch = encoder_batch(texts, length, limits.torch_device, model.vocab_size)
            seconds = seconds_per_call(partial(model.encode, batch), limits.torch_device, setup.tiny)
            yield Result.of_time(
                f"{shape}, {texts} texts of {length} tokens",
                seconds,
                costs[texts].seconds(limits.bytes_per_second, limits.operations_per_second),
                texts / seconds,
                "texts/s",
                BERT_GOAL if texts == max(setup.texts) else None,
            )

    return measure


def attention(setup: Setup, limits: Limits) -> Iterator[Result]:
    """Stage that measures decode attention of one layer of the 8B model.

    Numbers of rows whose keys and values would fit into the device's cache are left out.
    """
    hf, device, dtype = config_of("llama-8b", setup.tiny), limits.torch_device, limits.torch_dtype
    heads, kv_heads, dim = hf["num_attention_heads"], hf["num_key_value_heads"], hf["head_dim"]
    for rows in setup.rows:
        context = 4 * setup.context if rows <= 64 else setup.context
        size = 2 * rows * context * kv_heads * dim * dtype.itemsize
        if size < MIN_ATTENTION_BYTES and not setup.tiny:
            continue
        batch = decode_batch(rows, context, BLOCK_SIZE, device)
        keys, values = torch.randn(2, batch.block_tables.numel(), BLOCK_SIZE, kv_heads, dim, dtype=dtype, device=device)
        query = torch.randn(rows, heads, dim, dtype=dtype, device=device)
        # The layers of a step share the metadata, so its cost is not part of the measurement.
        metadata = AttentionMetadata(
            batch.query_lens, batch.key_lens, causal=True, block_tables=batch.block_tables, block_size=BLOCK_SIZE
        )
        call = partial(backend(query).paged_attention, query, keys, values, metadata, dim**-0.5)
        seconds = seconds_per_captured_call(call, device, setup.tiny)
        yield Result.of_time(
            f"decode attention of one layer, {rows} rows, context {context}",
            seconds,
            Cost(size, 4 * heads * dim * rows * context).seconds(limits.bytes_per_second, limits.operations_per_second),
            size / seconds / 1e9,
            "GB/s",
            ATTENTION_GOAL if rows == 64 else None,
        )
        del keys, values, query, batch, metadata
