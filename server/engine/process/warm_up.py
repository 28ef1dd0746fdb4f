"""Runs a few steps of each model, so that its memory and its kernels are ready for the first request."""

from __future__ import annotations

from server.engine.encoding.audio_encoder import warm_up_messages
from server.engine.encoding.ctc_engine import silence
from server.engine.encoding.samples import silent_generate
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.stepping.engine import Engine
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams


def warm_up(engine: Engine, models: list[LoadedCheckpoint]) -> None:
    """Run the first steps of models and their adapters, and return when they are done."""
    add_warm_up(engine, models)
    while engine.has_work:
        engine.step()
    engine.stats()


def add_warm_up(engine: Engine, models: list[LoadedCheckpoint], num_tokens: int = 3) -> None:
    """Add the warm-up requests of models and their adapters to the engine, without running them.

    num_tokens: number of tokens that each model generates. Each token is one step, for which the streams of other
        models wait. The first step makes the programs of a model.
    """
    names = [(model, name) for model in models for name in (model.spec.name, *model.model.adapters)]
    for index, (model, name) in enumerate(names):
        if model.num_mels:
            audio = engine.models[model.spec.name].encoding
            assert audio is not None
            for message in warm_up_messages(name, -2 * index - 1, audio.limits, [0]):
                engine.add(message)
            continue
        if model.samples is not None:
            generation = engine.models[model.spec.name].generation
            if generation is None:
                engine.add(Encode(-2 * index - 2, name, "ctc", [silence(model.samples.min_samples)]))
            else:
                engine.add(silent_generate(name, -2 * index - 1, generation.limits, [0]))
            continue
        if model.generates:
            starts = [0] if model.model.config.is_encoder_decoder else []
            params = GenerationParams(do_sample=True, top_k=5)
            engine.add(Generate(name, params, [[0, 0]], [GenerateRow(-2 * index - 1, num_tokens, 0, starts)]))
        if model.encodes:
            item = EncodeItem([0, 0], mask_index=0, spans=[(0, 1)], label_indices=[1])
            targets = [0] if model.model.head_settings.answers else []
            engine.add(Encode(-2 * index - 2, name, model.encode_tasks[-1], [item], target_ids=targets))
