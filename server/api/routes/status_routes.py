"""`GET /health`, `/ready`, `/info`, `/metrics`: for probes, operators and Prometheus."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api.bodies.json_answer import json_response
from server.api.dialects.huggingface.info import HubInfo, hub_info
from server.api.dialects.registry import default_models, paths_of
from server.api.fields.fields import MAX_ITEMS
from server.api.routes.documents import describe_status
from server.api.routes.error_shape import AnswerBody
from server.api.state import of
from server.api.telemetry.telemetry import version
from server.errors import NotReady, ServerFailed
from server.metrics import CONTENT_TYPE
from server.operations.generating.generate import MAX_SEQUENCES
from server.operations.ranking.rerank_answers import takes_instruction
from server.operations.served_model import ServedModel
from server.text.languages.pivots import pivoted_pairs

probes = APIRouter()
"""Routes `/health` and `/ready`."""
router = APIRouter()
metrics_router = APIRouter()
"""Route `/metrics`."""


class Status(AnswerBody):
    status: str


class TokenVectorSizes(AnswerBody):
    """Sizes of a late-interaction model, which has one vector per token. `dimensions`: components of a vector.

    `query_tokens`, `document_tokens`: longest query and document, in tokens, special tokens included.
    """

    dimensions: int
    query_tokens: int
    document_tokens: int


class ModelDescription(AnswerBody):
    """A loaded model. `max_input_tokens`: longest input text. A longer text is refused, or shortened and named in a
    header.

    `context_tokens`: longest sequence of the decoder; for a model without decoder, of the encoder.
    `source_tokens`: longest source text of an encoder-decoder; null for other models.
    `kv_tokens`: number of tokens that a worker's KV cache can hold; null without a KV cache.
    `agent_sequences`: number of sequences with `agent_tokens` tokens that the KV cache can hold at the same time.
    `execution`: how steps run: `program` (one call of the compiled kernels), `CUDA graphs`, or `eager: REASON`. Kinds
    of steps that run eagerly beside CUDA graphs follow: `CUDA graphs; encoder steps eager: REASON`.
    `drafts`: source of draft tokens for speculative decoding; null without drafts.
    `takes_labels`: `/token_classify` needs `labels`. `takes_instruction`: `/rerank` accepts `instruction`.
    """

    name: str
    family: str
    architecture: str
    tasks: list[str]
    routes: list[str]
    dtype: str
    quantization: str | None
    execution: str
    drafts: str | None
    adapter_of: str | None
    parameters: int
    weight_bytes: int
    kv_bytes: int
    vocab_size: int
    hidden_size: int
    max_input_tokens: int
    context_tokens: int
    usable_tokens: int
    kv_tokens: int | None
    agent_tokens: int | None
    agent_sequences: int | None
    source_tokens: int | None
    usable_source_tokens: int | None
    labels: list[str]
    languages: list[str]
    mask_token: str | None
    late_interaction: TokenVectorSizes | None
    takes_labels: bool
    takes_instruction: bool


class ServerLimits(AnswerBody):
    max_body_bytes: int
    max_chat_body_bytes: int
    max_audio_bytes: int
    max_audio_seconds: float
    max_text_characters: int
    max_items: int
    max_sequences: int
    max_queue_requests: int
    max_queue_tokens: int
    queue_timeout_ms: int
    default_timeout_ms: int | None
    max_timeout_ms: int


class Workers(AnswerBody):
    """Numbers of worker processes. `ready`: processes that can answer. `total`: processes that should be running."""

    ready: int
    total: int


class DeclaredModelInfo(AnswerBody):
    """A model that is loaded when a request asks for it.

    `state`: declared (not loaded), loading, loaded, unloading or failed. `reason`: why the last load failed.
    `memory_bytes`: memory that is counted for the model. `kv_cache_bytes`: the part of its KV caches; 0 after it has
    given them back to make room. `disk_bytes`: size of its files.
    `running`, `waiting`: numbers of requests that use the model, and that wait for it.
    `expires_in_seconds`: time until the model is unloaded if no request comes; null for never.
    `retry_in_seconds`: time until loading may be tried again after a failure.
    """

    name: str
    state: str
    reason: str | None
    memory_bytes: int
    kv_cache_bytes: int
    disk_bytes: int
    running: int
    waiting: int
    expires_in_seconds: float | None
    retry_in_seconds: float | None
    load_seconds: float | None


class OnDemandInfo(AnswerBody):
    """Models that are loaded when a request asks for them. `memory_bytes`: limit of their memory; null for no limit."""

    memory_bytes: int | None
    used_bytes: int
    models: list[DeclaredModelInfo]


class InfoAnswer(HubInfo):
    """The server and its models. The fields of `HubInfo` describe the first model, and are absent if none is loaded.

    `defaults`: path of each route to the model that answers requests without `model`.
    `pivoted`: translations through a third language, as source-pivot-target. `languages` of a model has only direct
        translations.
    `on_demand`: models that are loaded when a request asks for them; absent if all are loaded at the start.
    """

    name: str
    version: str
    device: str
    workers: Workers
    models: list[ModelDescription]
    defaults: dict[str, str]
    pivoted: list[str]
    limits: ServerLimits
    on_demand: OnDemandInfo | None = None


@probes.get("/health", **describe_status("health", Status, {"status": "ok"}))
async def health(request: Request) -> Response:
    """200 while the server runs and has not given up on its workers."""
    if of(request).failed():
        raise ServerFailed("the models could not be loaded, or no worker could be brought back; restart the server")
    return json_response({"status": "ok"})


@probes.get("/ready", **describe_status("ready", Status, {"status": "ready"}))
async def ready(request: Request) -> Response:
    """200 when every model is loaded, a worker is alive and the server is not draining."""
    state = of(request)
    if state.draining:
        raise NotReady("the server is shutting down", retry_after=5)
    if not state.ready:
        raise NotReady("the models are loading, or no worker is ready", retry_after=2)
    return json_response({"status": "ready"})


@router.get("/info", **describe_status("info", InfoAnswer))
async def info(request: Request) -> Response:
    """What is running: version, device, workers, models, limits."""
    state = of(request)
    settings = state.settings
    default_timeout = settings.default_timeout_seconds
    registry = state.runtime.registry
    if registry is not None:
        await registry.discover()
    models = state.runtime.loaded()
    return json_response(
        (hub_info(state, models[0]) if models else {})
        | ({} if registry is None else {"on_demand": registry.about()})
        | {
            "name": "triptych",
            "version": version(),
            "device": state.runtime.client.device,
            "workers": dict(zip(("ready", "total"), state.workers(), strict=True)),
            "models": [_describe(model) for model in models],
            "defaults": default_models(state.runtime),
            "pivoted": _pivoted(models, state.runtime.pivot),
            "limits": {
                "max_body_bytes": settings.max_body_bytes,
                "max_chat_body_bytes": settings.max_chat_body_bytes,
                "max_audio_bytes": settings.max_audio_bytes,
                "max_audio_seconds": settings.max_audio_seconds,
                "max_text_characters": settings.max_text_characters,
                "max_items": MAX_ITEMS,
                "max_sequences": MAX_SEQUENCES,
                "max_queue_requests": state.runtime.client.queue.max_requests,
                "max_queue_tokens": state.runtime.client.queue.max_tokens,
                "queue_timeout_ms": int(settings.queue_timeout_seconds * 1000),
                "default_timeout_ms": default_timeout and int(default_timeout * 1000),
                "max_timeout_ms": int(settings.max_timeout_seconds * 1000),
            },
        }
    )


def _pivoted(models: Sequence[ServedModel], pivot: str) -> list[str]:
    checkpoints = [model.text.languages for model in models if "translate" in model.tasks]
    return [f"{source}-{through}-{target}" for (source, target), through in pivoted_pairs(checkpoints, pivot).items()]


def _describe(model: ServedModel) -> dict[str, object]:
    about = model.info
    has_cache = bool(about.kv_tokens)
    return {
        "name": about.name,
        "family": about.family,
        "architecture": about.architecture,
        "tasks": about.tasks,
        "routes": paths_of(model),
        "dtype": about.dtype,
        "quantization": about.quantization,
        "execution": about.execution,
        "drafts": about.drafts or None,
        "adapter_of": about.adapter_of or None,
        "parameters": about.parameters,
        "weight_bytes": about.weight_bytes,
        "kv_bytes": about.kv_bytes,
        "vocab_size": about.vocab_size,
        "hidden_size": about.hidden_size,
        "max_input_tokens": model.max_input_tokens,
        "context_tokens": about.context_tokens,
        "usable_tokens": about.usable_tokens,
        "kv_tokens": about.kv_tokens if has_cache else None,
        "agent_tokens": about.agent_tokens if has_cache else None,
        "agent_sequences": about.agent_sequences if has_cache else None,
        "source_tokens": about.source_tokens or None,
        "usable_source_tokens": about.usable_source_tokens or None,
        "labels": about.labels,
        "languages": model.languages(),
        "mask_token": model.mask_token,
        "late_interaction": _token_vector_sizes(model),
        "takes_labels": about.labelled_spans is not None,
        "takes_instruction": takes_instruction(model),
    }


def _token_vector_sizes(model: ServedModel) -> dict[str, int] | None:
    about = model.info.late_interaction
    if about is None:
        return None
    longest = model.max_input_tokens
    sides = (("query_tokens", about.query), ("document_tokens", about.document))
    return {"dimensions": about.width} | {name: min(side.max_tokens or longest, longest) for name, side in sides}


@metrics_router.get("/metrics", **describe_status("metrics"))
async def metrics(request: Request) -> Response:
    """The answer of `/metrics`: all metrics in Prometheus' text format."""
    return Response(of(request).runtime.metrics.render(), media_type=CONTENT_TYPE)
