"""Captures the steps of all models as CUDA graphs, within limits of time and number, and says what was captured."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from models.backends.cuda.graphs.captures import CaptureTime
from models.backends.cuda.graphs.graph_sizes import EncoderSizes, GraphSizes
from server.engine.device.captured_parts import Part
from server.engine.drafting.head_drafter import HeadDrafter
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.scheduling.schedule import SOURCE_TOKENS_PER_TOKEN
from server.engine.stepping.engine import Engine
from server.engine.stepping.generation_engine import GenerationEngine
from server.engine.stepping.model_engine import ModelEngine
from server.ipc.wire.descriptions import EngineOptions

log = logging.getLogger("triptych.worker")

LAUNCH_BOUND_OPERATIONS = 1e12
"""Largest number of operations of one layer in a captured step. On an H200 they take at least 1.3 ms, twice as long as
Python needs to launch the kernels of a layer. Longer steps are as fast without a graph, which would take memory."""
CAPTURED = "CUDA graphs"
"""`ModelInfo.execution` of a model whose steps all run as CUDA graphs."""


def capture_models(
    engine: Engine,
    loaded: Sequence[LoadedCheckpoint],
    options: EngineOptions,
    free_bytes: Callable[[], int] | None = None,
    is_measurement: bool = False,
) -> dict[str, str]:
    """Capture the steps of all models. Steps that cannot be captured run eagerly.

    free_bytes: returns the free memory of the device, for the log; None to leave it out.
    is_measurement: whether only the memory of the graphs is of interest. The caches of the engine are then smaller than
        in normal operation, and do not limit the graphs. Nothing is logged.
    Returns how each model runs its steps (`ModelInfo.execution`), by model name.
    """
    executions = {}
    for model in loaded:
        found = engine.models[model.spec.name]
        decoder = decoder_sizes(model, found.generation, options, limited_by_caches=not is_measurement)
        encoder = encoder_sizes(model, found, options)
        part = found.generation or found.encoding
        if part is None or (decoder is None and encoder is None):
            continue
        time, before = CaptureTime(), 0 if free_bytes is None else free_bytes()
        reasons = part.runner.capture_steps(decoder, encoder, time)
        drafter = None if found.generation is None else found.generation.drafter
        if decoder is not None and drafter is not None:
            reasons |= drafter.capture(decoder, time)
        if is_measurement:
            continue
        if time.num_captured:
            taken = "" if free_bytes is None else f", which take {max(before - free_bytes(), 0) >> 20:,} MiB"
            log.info(
                "model %r: captured %d CUDA graphs in %.1f s%s", model.spec.name, time.num_captured, time.seconds, taken
            )
        if time.num_left_out:
            log.warning(
                "model %r: the time to capture CUDA graphs was over before %d of them; steps of their sizes run in "
                "larger graphs, or eagerly",
                model.spec.name,
                time.num_left_out,
            )
        executions[model.spec.name] = execution_of(reasons, decoder is not None)
        # The steps of the warm-up compiled kernels and were not captured, so their durations are of no use.
        if found.generation is not None:
            found.generation.learn_step_times_again(has_fixed_part=found.generation.runner.captured is not None)
        if found.encoding is not None:
            found.encoding.learn_step_times_again()
    return executions


def execution_of(reasons: dict[Part, str], generates: bool) -> str:
    """How a model runs its steps, for users: `CUDA graphs`, or `eager: REASON` if its main steps run eagerly.

    Parts that run eagerly beside captured ones follow after a semicolon.

    reasons: why parts of the steps run eagerly. generates: whether the main steps are decode steps.
    """
    main: Part = "decode steps" if generates else "encoder steps"
    if main in reasons:
        return f"eager: {reasons[main]}"
    return "; ".join([CAPTURED, *(f"{part} eager: {reason}" for part, reason in reasons.items())])


def decoder_sizes(
    model: LoadedCheckpoint, generation: GenerationEngine | None, options: EngineOptions, limited_by_caches: bool = True
) -> GraphSizes | None:
    """Limits of the captured decoder steps of a model; None if it does not generate.

    limited_by_caches: whether texts and sources are at most as long as the caches.
    """
    if generation is None:
        return None
    pools, limits = generation.scheduler.blocks.pools, generation.limits
    room = {name: pool.num_blocks * pool.block_size for name, pool in pools.items()}
    context, source = limits.context_tokens, limits.source_tokens if "cross" in room else 0
    if limited_by_caches:
        context, source = min(context, room["self"]), min(source, room.get("cross", 0))
    return GraphSizes(
        options.max_batch_rows,
        context,
        source,
        tokens=min(generation.scheduler.max_batch_tokens, _tokens_worth_capturing(model)),
        keeps_states=isinstance(generation.drafter, HeadDrafter),
    )


def encoder_sizes(model: LoadedCheckpoint, found: ModelEngine, options: EngineOptions) -> EncoderSizes | None:
    """Limits of the captured encoder steps of a model; None if it encodes nothing."""
    steps, longest = model.step_tokens(options), model.source_tokens
    tokens = 0
    if found.generation is not None and found.generation.is_encoder_decoder:
        tokens = SOURCE_TOKENS_PER_TOKEN * steps.batch
    if model.encodes:
        tokens = max(tokens, steps.encode)
    if not tokens:
        return None
    if model.num_mels:
        return EncoderSizes(max(tokens, longest), longest, 2 * longest)
    tokens = min(tokens, _tokens_worth_capturing(model))
    return EncoderSizes(tokens, min(longest, tokens))


def _tokens_worth_capturing(model: LoadedCheckpoint) -> int:
    """Largest number of tokens of a step that runs faster as a graph, at least 1.

    Follows from `LAUNCH_BOUND_OPERATIONS`.
    """
    config = model.model.config
    layers = sum(len(stack.layers) for stack in (config.encoder, config.decoder) if stack is not None)
    operations = 2 * model.model.parameters / max(layers, 1)
    return max(int(LAUNCH_BOUND_OPERATIONS / max(operations, 1)), 1)
