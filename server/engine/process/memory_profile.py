"""Size of the KV cache on a CUDA device: the memory that weights and steps leave free, found by running large steps.

The memory that a step takes besides the cache has two parts. One depends on the limits of a step (activations of the
longest prefill), the other grows with the cache (copies of keys and values of one layer). Two runs with small caches of
different size give both, for each kind of step. A first run before these two allocates the memory that is never
returned (kernels, memory for logits, workspaces of libraries). Memory for captured steps is added. The cache gets the
size at which everything fits.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import torch

from server.engine.encoding.ctc_engine import silence
from server.engine.loading.load import LoadError
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.scheduling.prefill_budget import PrefillBudget
from server.engine.scheduling.schedule import SOURCE_TOKENS_PER_TOKEN
from server.engine.stepping.engine import Engine, StepError
from server.engine.stepping.generation_engine import GenerationEngine
from server.ipc.wire.descriptions import EngineOptions
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams

log = logging.getLogger("triptych.worker")

SPARE_SHARE = 0.06
"""Part of the device's memory that stays free: for other processes, and for fragmentation of torch's memory."""
PROFILE_TOKENS = 64
"""Tokens per row for which the smaller of the two caches has room. The longest prompt of a step fits there too."""


class DeviceMemory(Protocol):
    """Measures the memory of a device.

    total_bytes: memory of the device.
    free_bytes: memory that a new tensor could take.
    peak_bytes: runs a function, and returns how much more memory was in use at its peak than before it.
    kept_bytes: runs a function, and returns how much memory its result keeps in use. The result is dropped.
    """

    @property
    def total_bytes(self) -> int: ...

    def free_bytes(self) -> int: ...

    def peak_bytes(self, run: Callable[[], None]) -> int: ...

    def kept_bytes(self, make: Callable[[], object]) -> int: ...


class CudaMemory:
    """The memory of a CUDA device. Implements `DeviceMemory`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def total_bytes(self) -> int:
        return torch.cuda.mem_get_info(self._device)[1]

    def free_bytes(self) -> int:
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self._device)[0]

    def peak_bytes(self, run: Callable[[], None]) -> int:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        run()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - before

    def kept_bytes(self, make: Callable[[], object]) -> int:
        before = self.free_bytes()
        made = make()
        taken = before - self.free_bytes()
        del made
        return max(taken, 0)


def kv_cache_bytes(
    memory: DeviceMemory,
    loaded: list[LoadedCheckpoint],
    options: EngineOptions,
    make_engine: Callable[[int], Engine],
    capture: Callable[[Engine], object],
) -> int:
    """Find the number of bytes for the KV caches of all models of a worker, by running the largest steps.

    memory: memory of the device, which already holds the weights.
    make_engine: builds an engine whose KV caches have the given number of bytes.
    capture: captures the CUDA graphs of an engine, with room for as many keys as the models allow.
    Raises LoadError if weights and steps leave less memory than the smaller cache of the two runs, or if a step fails.
    """
    token_bytes = sum(need.block_bytes for model in loaded for need in model.pool_needs(options).values())
    token_bytes = -(-token_bytes // options.block_size)
    prompts = [min(model.step_tokens(options).batch, model.context_tokens) for model in loaded if model.generates]
    small = max(token_bytes * max([PROFILE_TOKENS * options.max_batch_rows, *prompts]), 1)
    free = memory.free_bytes() - int(SPARE_SHARE * memory.total_bytes)

    def peak(size: int, probe: Probe) -> int:
        return memory.peak_bytes(lambda: _run(make_engine(size), probe))

    def with_graphs() -> Engine:
        engine = make_engine(small)
        capture(engine)
        return engine

    probes = _probes(loaded, options)
    try:
        for probe in probes:
            peak(small, probe)
        free = memory.free_bytes() - int(SPARE_SHARE * memory.total_bytes)
        peaks = [(peak(small, probe), peak(2 * small, probe)) for probe in probes] or [(small, 2 * small)]
        graphs = max(memory.kept_bytes(with_graphs) - small, 0)
        # The caches of the measurement must be gone before the real ones are allocated.
        memory.free_bytes()
    except torch.OutOfMemoryError as error:
        raise LoadError(_too_little(free)) from error
    size, beside = min(_size(free - graphs, small, *found) for found in peaks)
    if size < small:
        raise LoadError(_too_little(free))
    log.info(
        "KV cache of %d MiB; steps take up to %d MiB besides it, and CUDA graphs %d MiB",
        size >> 20,
        beside >> 20,
        graphs >> 20,
    )
    return size


def room_for_models(memory: DeviceMemory, options: EngineOptions) -> int:
    """Memory in bytes that models on demand may take of a device: `--memory`, or all but `SPARE_SHARE` of the device.

    memory: memory of the device, on which no model is loaded yet.
    Raises LoadError if the device has less free memory than `--memory`.
    """
    free = memory.free_bytes() - int(SPARE_SHARE * memory.total_bytes)
    if options.memory_bytes > free:
        raise LoadError(
            f"--memory is {options.memory_bytes >> 20:,} MiB, but models can have {max(free, 0) >> 20:,} MiB of the "
            f"CUDA device ({SPARE_SHARE:.0%} of it stay free)"
        )
    return options.memory_bytes or free


def _size(free: int, small: int, first: int, second: int) -> tuple[int, int]:
    """Size of the KV cache for which one kind of step fits into the free memory.

    free: bytes for the cache and the step together.
    first, second: peak memory of the step, in bytes, with a cache of `small` bytes and with one of twice that size.
    Returns the bytes of the cache, and the bytes of the step besides the cache.
    """
    # A peak holds the cache itself, so that the growth is at least 1.
    growth = max((second - first) / small, 1.0)
    size = int((free - max(first - growth * small, 0.0)) / growth)
    return size, free - size


def _too_little(free: int) -> str:
    return (
        f"the weights leave {max(free, 0) >> 20:,} MiB of the device, too little for steps and a KV cache; "
        "use a smaller model, a smaller --max-batch-rows or --max-batch-tokens, or set --kv-cache-memory"
    )


class UnmeasuredPrefill(PrefillBudget):
    """A prefill budget that learns no step times: every step has the limit that applies before the first measured step.

    While memory is measured, the rows of a step, and so its memory, must not depend on how long earlier steps took. The
    first steps take long, because they compile kernels.
    """

    def observe(self, decode_tokens: int, prefill_tokens: int, seconds: float) -> None: ...


class Probe(NamedTuple):
    """A request for a model that makes steps of the largest possible size.

    model: the model. make: makes the message for an engine.
    """

    model: str
    make: Callable[[Engine], Generate | Encode]


def _probes(loaded: list[LoadedCheckpoint], options: EngineOptions) -> list[Probe]:
    """The requests whose peak memory is measured: for each model, one for each kind of step, as large as possible.

    The peaks of different kinds of steps grow at different rates, so each request runs alone.
    """
    found: list[Probe] = []
    for model in loaded:
        name = model.spec.name
        # The steps of a decoder that reads recordings are not measured.
        if model.generates and not model.reads_recordings:
            found.append(Probe(name, partial(_with_generation, _largest_prefill, model, options)))
            found.append(Probe(name, partial(_with_generation, _streams, model, options)))
        if model.encodes and not model.reads_recordings:
            found.append(Probe(name, _always(_texts(model, options))))
    return found


def _always(message: Encode) -> Callable[[Engine], Encode]:
    """A function that returns the same message for every engine."""
    return lambda engine: message


def _with_generation(
    make: Callable[[LoadedCheckpoint, GenerationEngine, EngineOptions], Generate],
    model: LoadedCheckpoint,
    options: EngineOptions,
    engine: Engine,
) -> Generate:
    generation = engine.models[model.spec.name].generation
    assert generation is not None
    return make(model, generation, options)


def _run(engine: Engine, probe: Probe) -> None:
    """Run the steps of a probe. The engine cannot be used afterwards.

    Raises torch.OutOfMemoryError if the device has too little memory, and LoadError if a step fails otherwise.
    """
    for model in engine.models.values():
        if model.generation is not None:
            model.generation.scheduler.prefill_budget = UnmeasuredPrefill()
    engine.add(probe.make(engine))
    while engine.has_work:
        output = engine.step()
        if output is not None and output.failed:
            error = engine.step_error or StepError(False, output.failed[0].message)
            if error.is_of_memory:
                raise torch.OutOfMemoryError(error.text)
            raise LoadError(
                f"model {probe.model!r}: a step failed while the size of the KV cache was measured ({error.text}); "
                "--kv-cache-memory sets the size without a measurement"
            )


def _largest_prefill(model: LoadedCheckpoint, generation: GenerationEngine, options: EngineOptions) -> Generate:
    """A request whose prompts (or source texts) together fill one step. Each prompt is as long as possible."""
    tokens = model.step_tokens(options).batch
    if generation.is_encoder_decoder:
        tokens *= SOURCE_TOKENS_PER_TOKEN
        longest = _row_tokens(generation, "cross", 1)
    else:
        longest = max(_row_tokens(generation, "self", 1) - 1, 1)
    lengths = [longest] * (tokens // longest)
    if rest := tokens - sum(lengths):
        lengths.append(rest)
    return _generate(model, generation, lengths, 1)


def _streams(model: LoadedCheckpoint, generation: GenerationEngine, options: EngineOptions) -> Generate:
    """A message with the largest number of sampled rows that a step may have. The rows grow until the cache is full.

    The prompts are short, so that all rows are running before the first one ends.
    """
    pools = generation.scheduler.blocks.pools
    rows = max(min(options.max_batch_rows, *(pool.num_blocks for pool in pools.values())), 1)
    row_tokens = _row_tokens(generation, "self", rows)
    if generation.is_encoder_decoder:
        return _generate(model, generation, [_row_tokens(generation, "cross", rows)] * rows, max(row_tokens - 1, 1))
    prompt = max(row_tokens // 8, 1)
    return _generate(model, generation, [prompt] * rows, max(row_tokens - prompt, 1))


def _row_tokens(generation: GenerationEngine, name: str, rows: int) -> int:
    """Largest number of tokens per row for which a pool has blocks if `rows` rows share it equally.

    name: name of the pool.
    """
    pool = generation.scheduler.blocks.pools[name]
    longest = generation.limits.source_tokens if name == "cross" else generation.limits.context_tokens
    return min(pool.num_blocks // rows * pool.block_size, longest)


def _generate(model: LoadedCheckpoint, generation: GenerationEngine, lengths: list[int], new: int) -> Generate:
    """A request to generate, with one row for each of `lengths`, in tokens.

    Prompts differ in their first token, so that rows share no blocks.

    lengths: number of prompt tokens, or source tokens, of each row.
    new: number of tokens to generate per row.
    """
    limits = generation.limits
    starts = list(model.model.generation.decoder_start_token_ids) if generation.is_encoder_decoder else []
    if generation.is_encoder_decoder and not starts:
        starts = [0]
    vocab = limits.source_vocab_size if generation.is_encoder_decoder else limits.vocab_size
    prompts = [[(row + index) % vocab for index in range(length)] for row, length in enumerate(lengths)]
    rows = [GenerateRow(-1 - row, new, row, starts) for row in range(len(lengths))]
    return Generate(model.spec.name, GenerationParams(do_sample=True, top_p=0.9), prompts, rows)


def _texts(model: LoadedCheckpoint, options: EngineOptions) -> Encode:
    """A request whose texts (or silent recordings) together fill one encoder step. Each text is as long as possible."""
    tokens = model.step_tokens(options).encode
    length = max(min(tokens, model.source_tokens), 1)
    if model.samples is not None:
        samples = max(length * model.samples.samples_per_token, model.samples.min_samples)
        return Encode(-1, model.spec.name, "ctc", [silence(samples)] * max(tokens // length, 1))
    # A task of a head needs more than a text: a mask, labels, spans.
    item = EncodeItem([0] * length, mask_index=0, spans=[(0, 1)], label_indices=[min(1, length - 1)])
    targets = [0] if model.model.head_settings.answers else []
    count = max(tokens // length, 1)
    return Encode(-1, model.spec.name, model.encode_tasks[-1], [item] * count, target_ids=targets)
