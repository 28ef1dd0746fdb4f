"""Captures the decode steps of loaded models as CUDA graphs, after their warm-up."""

from __future__ import annotations

import logging

from models.backends.cuda.graphs.graph_sizes import GraphSizes
from server.engine.process.loading import LoadedCheckpoint
from server.engine.stepping.engine import Engine
from server.ipc.wire.descriptions import EngineOptions

log = logging.getLogger("triptych.worker")


def capture_models(engine: Engine, loaded: list[LoadedCheckpoint], options: EngineOptions) -> dict[str, str]:
    """Capture the decode steps of all models as CUDA graphs. A model whose steps cannot be captured runs eagerly.

    Returns how each model that generates runs its steps (`ModelInfo.execution`), by model name.
    """
    executions = {}
    for model in loaded:
        generation = engine.models[model.spec.name].generation
        if generation is None:
            continue
        pools = generation.scheduler.blocks.pools
        room = {name: pool.num_blocks * pool.block_size for name, pool in pools.items()}
        context = min(generation.limits.context_tokens, room["self"])
        source = min(generation.limits.source_tokens, room.get("cross", 0))
        cache = generation.runner.self_cache
        assert cache is not None
        reason = model.model.transformer.why_not_captured(cache)
        try:
            generation.runner.capture_steps(GraphSizes(options.max_batch_rows, context, source))
        except RuntimeError:
            reason = "CUDA refuses to capture its decode steps, see the log"
            log.exception(
                "the decode steps of %s cannot be captured as CUDA graphs and run one by one", model.spec.name
            )
        # The steps of the warm-up compiled kernels and were not captured, so their durations are of no use.
        is_captured = generation.runner.captured is not None
        executions[model.spec.name] = "CUDA graphs" if is_captured else f"eager: {reason}"
        generation.learn_step_times_again(has_fixed_part=is_captured)
    return executions
