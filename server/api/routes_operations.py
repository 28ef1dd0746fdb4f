"""`GET /health`, `/ready`, `/info`, `/metrics`: for probes, operators and Prometheus. API.md section 8."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api.documents import operation
from server.api.replies import json_response
from server.api.schemas import MAX_ITEMS
from server.api.state import Model, of
from server.api.telemetry import version
from server.errors import NotReady
from server.metrics import CONTENT_TYPE

router = APIRouter()


@router.get("/health", **operation("health"))
async def health(request: Request) -> Response:
    """200 while the server runs and has not given up on its worker."""
    if of(request).failed():
        raise NotReady("the worker could not be brought back; restart the server")
    return json_response({"status": "ok"})


@router.get("/ready", **operation("ready"))
async def ready(request: Request) -> Response:
    """200 when every model is loaded, the worker is alive and the server is not draining."""
    state = of(request)
    if state.draining:
        raise NotReady("the server is shutting down", retry_after=5)
    if not state.ready:
        raise NotReady("the models are loading, or the worker is being replaced", retry_after=2)
    return json_response({"status": "ready"})


@router.get("/info", **operation("info"))
async def info(request: Request) -> Response:
    """What is running: version, device, models, limits."""
    state = of(request)
    settings = state.settings
    return json_response(
        {
            "name": "triptych",
            "version": version(),
            "device": state.client.device,
            "models": [_describe(model) for model in state.loaded()],
            "limits": {
                "max_body_bytes": settings.max_body_bytes,
                "max_audio_bytes": settings.max_audio_bytes,
                "max_audio_seconds": settings.max_audio_seconds,
                "max_text_characters": settings.max_text_characters,
                "max_items": MAX_ITEMS,
                "max_queue_requests": settings.max_queue_requests,
                "max_queue_tokens": settings.max_queue_tokens,
                "max_timeout_ms": int(settings.max_timeout_seconds * 1000),
            },
        }
    )


def _describe(model: Model) -> dict[str, object]:
    about = model.info
    return {
        "name": about.name,
        "family": about.family,
        "architecture": about.architecture,
        "tasks": about.tasks,
        "routes": model.routes(),
        "dtype": about.dtype,
        "quantization": about.quantization,
        "parameters": about.parameters,
        "weight_bytes": about.weight_bytes,
        "kv_bytes": about.kv_bytes,
        "vocab_size": about.vocab_size,
        "hidden_size": about.hidden_size,
        "context_tokens": about.context_tokens,
        "source_tokens": about.source_tokens or None,
        "labels": about.labels,
        "languages": model.languages(),
    }


@router.get("/metrics", **operation("metrics"))
async def metrics(request: Request) -> Response:
    """Prometheus text."""
    return Response(of(request).metrics.render(), media_type=CONTENT_TYPE)
