"""`GET /models/{model}/info`: one model, in the fields of two servers of Hugging Face.

These are the fields of `GET /info` in text-generation-inference and text-embeddings-inference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.api.fields.fields import MAX_ITEMS, MAX_STOPS
from server.api.routes.error_shape import AnswerBody
from server.api.routes.get_route import GetRoute
from server.api.state import State
from server.api.telemetry.telemetry import version
from server.operations.pools import TOKENIZER_THREADS
from server.operations.served_model import ServedModel

MAX_BEST_OF = 16
_PIPELINE_TAGS = {
    "translate": "translation",
    "generate": "text-generation",
    "token_classify": "token-classification",
    "question_answer": "question-answering",
    "classify": "text-classification",
    "fill_mask": "fill-mask",
    "embed": "feature-extraction",
    "transcribe": "automatic-speech-recognition",
}
"""Operation to the hub's tag for a model. The first operation in this order that the model supports gives the tag."""


class HubInfo(AnswerBody):
    """Description of one model.

    `model_type`: an object with one key, `embedding`, `classifier` or `reranker`; null for a model that only generates
    text. Its value is an object: with the key `pooling` for `embedding`, otherwise with the keys `id2label` and
    `label2id`.
    `max_input_length` and `max_input_tokens`: longest input text, in tokens. `auto_truncate`: longer texts are
    shortened unless the request has `truncate` false. `max_client_batch_size`: maximum number of inputs in one request.
    `max_concurrent_requests`: maximum number of requests in the queue. `max_batch_requests` and `max_batch_tokens`:
    maximum number of rows, and of tokens, in one step of the engine.
    """

    model_id: str | None = None
    model_sha: str | None = None
    model_dtype: str | None = None
    model_device_type: str | None = None
    model_pipeline_tag: str | None = None
    model_type: dict[str, dict[str, Any]] | None = None
    max_concurrent_requests: int | None = None
    max_best_of: int | None = None
    max_stop_sequences: int | None = None
    max_input_length: int | None = None
    max_input_tokens: int | None = None
    max_total_tokens: int | None = None
    max_batch_tokens: int | None = None
    max_batch_requests: int | None = None
    max_client_batch_size: int | None = None
    auto_truncate: bool | None = None
    tokenization_workers: int | None = None
    validation_workers: int | None = None
    router: str | None = None
    version: str | None = None
    sha: str | None = None
    docker_label: str | None = None


def hub_info(state: State, model: ServedModel) -> dict[str, Any]:
    """Describe a model in the fields of `HubInfo`."""
    about, settings = model.info, state.settings
    return {
        "model_id": model.name,
        "model_sha": None,
        "model_dtype": about.dtype,
        "model_device_type": state.runtime.client.device,
        "model_pipeline_tag": next((tag for task, tag in _PIPELINE_TAGS.items() if task in about.tasks), None),
        "model_type": _model_type(model),
        "max_concurrent_requests": settings.max_queue_requests,
        "max_best_of": MAX_BEST_OF,
        "max_stop_sequences": MAX_STOPS,
        "max_input_length": model.max_input_tokens,
        "max_input_tokens": model.max_input_tokens,
        "max_total_tokens": about.context_tokens,
        "max_batch_tokens": about.max_step_tokens,
        "max_batch_requests": settings.max_batch_rows,
        "max_client_batch_size": MAX_ITEMS,
        "auto_truncate": True,
        "tokenization_workers": TOKENIZER_THREADS,
        "validation_workers": TOKENIZER_THREADS,
        "router": "triptych",
        "version": version(),
        "sha": None,
        "docker_label": None,
    }


def _model_type(model: ServedModel) -> dict[str, dict[str, Any]] | None:
    about = model.info
    if "classify" in about.tasks:
        ids = {label: index for index, label in enumerate(about.labels)}
        kind = "reranker" if "rerank" in about.tasks else "classifier"
        return {kind: {"id2label": {str(index): label for label, index in ids.items()}, "label2id": ids}}
    if "embed" in about.tasks:
        return {"embedding": {"pooling": ",".join(about.pooling)}}
    return {"embedding": {"pooling": "splade"}} if "fill_mask" in about.tasks else None


def _info(state: State, parameters: Mapping[str, str]) -> dict[str, Any]:
    return hub_info(state, state.runtime.model(parameters["model"]))


_EXAMPLE = {
    "model_id": "all-minilm",
    "model_dtype": "float32",
    "model_type": {"embedding": {"pooling": "mean"}},
    "max_input_length": 256,
}
GET_ROUTES = (
    GetRoute(
        path="/models/{model}/info",
        name="model_info",
        description="One model, as text-generation-inference and text-embeddings-inference describe themselves.",
        answer=HubInfo,
        example=_EXAMPLE,
        render=_info,
    ),
)
