"""Messages about models on demand: measuring, loading and unloading a model, and the answers of a worker."""

from __future__ import annotations

from server.ipc.wire.descriptions import ModelInfo, ModelSpec
from server.ipc.wire.message_base import Message


class MeasureModel(Message, frozen=True):
    """Find the memory that a model needs, without reading its weights. Answered by `ModelMeasured` or `ModelFailed`."""

    model: ModelSpec


class LoadModel(Message, frozen=True):
    """Load a model while other models run. Answered by `ModelLoaded` or `ModelFailed`.

    kv_cache_bytes: bytes for the KV pools of the model and its draft model.
    """

    model: ModelSpec
    kv_cache_bytes: int


class GiveBackCache(Message, frozen=True):
    """Empty the KV caches of a loaded model, and drop its requests. Answered by `CacheGivenBack`, for any name.

    The model can be used at once. Its caches take memory again as they fill up.
    """

    model: str


class UnloadModel(Message, frozen=True):
    """Drop a model and its requests. Answered by `ModelUnloaded`, also for an unknown name."""

    model: str


ModelMessage = MeasureModel | LoadModel | GiveBackCache | UnloadModel
"""Messages about a model that is loaded on demand. A worker answers each one with a `ModelAnswer`."""


class ModelMeasured(Message, frozen=True):
    """The memory that a model needs, in bytes.

    weight_bytes: weights of the model, its adapters and its draft model.
    min_kv_bytes: smallest useful KV pools, with room for a short sequence; 0 without generation.
    kv_bytes: KV pools with room for one sequence of `AGENT_TOKENS` tokens, or of full length if that is shorter; at
        least 64 MiB if the model can use as much.
    step_bytes: memory of the largest step besides weights and KV pools.
    """

    epoch: int
    model: str
    weight_bytes: int
    min_kv_bytes: int
    kv_bytes: int
    step_bytes: int


class ModelLoaded(Message, frozen=True):
    """A model is loaded and warmed up. models: descriptions of the model and of its adapters."""

    epoch: int
    model: str
    models: list[ModelInfo]


class ModelFailed(Message, frozen=True):
    """A model could not be measured or loaded. Other models go on. message: one line with the model and the reason."""

    epoch: int
    model: str
    message: str


class CacheGivenBack(Message, frozen=True):
    """The KV caches of a model are empty, and their memory is given back to the system."""

    epoch: int
    model: str


class ModelUnloaded(Message, frozen=True):
    """Answer to `UnloadModel`: the model is dropped, and its memory is returned to the system."""

    epoch: int
    model: str


ModelAnswer = ModelMeasured | ModelLoaded | ModelFailed | CacheGivenBack | ModelUnloaded
"""Answers to a `ModelMessage`."""
