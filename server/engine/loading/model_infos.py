"""Describes a loaded checkpoint and its adapters for the HTTP process."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from msgspec import convert
from msgspec.structs import replace

from models.checkpoint.loader import LoadedModel
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.ipc.wire.descriptions import (
    AnswerInfo,
    DType,
    EngineOptions,
    GenerationInfo,
    LabelledSpansInfo,
    LateInteractionInfo,
    ModelInfo,
)


def model_info(
    loaded: LoadedCheckpoint, options: EngineOptions, blocks: dict[str, int], uses_drafts: bool
) -> ModelInfo:
    """The description of a model.

    options: engine options of the worker.
    blocks: number of blocks of each pool; empty for a model that does not generate.
    uses_drafts: whether the engine of the model proposes draft tokens.
    """
    model = loaded.model
    sentence = model.sentence.config
    needs = loaded.pool_needs(options)
    step_tokens = loaded.step_tokens(options)
    defaults = asdict(model.generation)
    defaults |= {name: _plain(value) for name, value in defaults.items() if isinstance(value, tuple)}
    dtypes: dict[torch.dtype, DType] = {
        torch.float32: "float32",
        torch.bfloat16: "bfloat16",
        torch.float16: "float16",
    }
    return ModelInfo(
        name=loaded.spec.name,
        family=model.family,
        architecture=model.architecture,
        tasks=list(model.tasks),
        dtype=dtypes[loaded.dtype],
        parameters=model.parameters,
        weight_bytes=model.weight_bytes,
        vocab_size=model.config.vocab_size,
        hidden_size=model.config.hidden_size,
        context_tokens=loaded.context_tokens,
        source_tokens=loaded.source_tokens if model.config.is_encoder_decoder else 0,
        max_step_tokens=step_tokens.batch if blocks else step_tokens.encode,
        block_size=options.block_size if blocks else 0,
        kv_blocks=blocks,
        kv_bytes=sum(count * needs[name].block_bytes for name, count in blocks.items()),
        kv_context_bytes=sum(need.bytes for need in needs.values()),
        kv_cache_dtype=loaded.kv_cache_dtype(options) if blocks else "auto",
        is_encoder_decoder=model.config.is_encoder_decoder,
        generation=GenerationInfo(**defaults),
        labels=list(model.labels),
        problem_type=model.problem_type,
        normalize=sentence.normalize,
        pooling=list(sentence.pooling),
        include_prompt=sentence.include_prompt,
        embedding_size=sentence.width(model.config.output_size),
        load_seconds=loaded.seconds,
        is_from_packed_cache=loaded.is_from_cache,
        quantization=loaded.spec.quantization,
        num_mels=loaded.num_mels,
        samples_per_token=0 if loaded.samples is None else loaded.samples.samples_per_token,
        min_samples=0 if loaded.samples is None else loaded.samples.min_samples,
        checkpoint_format=model.checkpoint_format,
        notes=[*model.notes, *_unused_head(model)],
        drafts=_drafts(loaded) if uses_drafts else "",
        **_head_infos(model),
    )


def adapter_infos(loaded: LoadedCheckpoint, base: ModelInfo) -> list[ModelInfo]:
    """Descriptions of a model's adapters, which share the tasks and KV blocks of the model.

    base: description of the model.
    """
    return [
        replace(
            base,
            name=name,
            adapter_of=base.name,
            parameters=adapter.parameters,
            weight_bytes=adapter.weight_bytes,
            kv_bytes=0,
            execution="eager: steps with adapters",
        )
        for name, adapter in loaded.model.adapters.items()
    ]


def _drafts(loaded: LoadedCheckpoint) -> str:
    """The source of draft tokens of a model, for users; empty without such a setting, as in a benchmark."""
    way = loaded.spec.speculation
    if way is None:
        return ""
    if way.prediction_head:
        return "prediction head of the checkpoint"
    if way.eagle_directory:
        return f"EAGLE-3 head {Path(way.eagle_directory).name}"
    draft = way.draft_model or Path(way.draft_directory).name
    return f"draft model {draft}" if draft else "n-grams of the text"


def _unused_head(model: LoadedModel) -> list[str]:
    """A note for users about a prediction head that is not loaded."""
    if not model.has_prediction_head or model.draft_head is not None:
        return []
    return ["the prediction head of the checkpoint is not used: --speculative mtp drafts tokens with it"]


def _head_infos(model: LoadedModel) -> dict[str, Any]:
    """The fields of `ModelInfo` about the extra heads of a checkpoint, such as those for late interaction."""
    settings = model.head_settings
    found: dict[str, Any] = {}
    if settings.late_interaction is not None:
        described = {
            **asdict(settings.late_interaction),
            "width": settings.late_interaction.width(model.config.output_size),
        }
        found["late_interaction"] = convert(described, LateInteractionInfo)
    found["token_weights"] = settings.weights_width is not None
    if settings.spans is not None:
        found["labelled_spans"] = convert(asdict(settings.spans), LabelledSpansInfo)
    if settings.answer is not None:
        found["answer"] = convert(asdict(settings.answer), AnswerInfo)
    return found


def _plain(value: object) -> object:
    """Convert nested tuples to lists."""
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
