"""The lines that `triptych serve` prints when it is ready: address, models with their capacity, an example request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from server.errors import ModelNotFound
from server.ipc.wire.fit import room
from server.operations.runtime import OperationNotSupported, Runtime
from server.operations.served_model import ServedModel

_BODIES: dict[str, dict[str, Any]] = {
    "embed": {"inputs": "a first text"},
    "classify": {"inputs": "I liked this film."},
    "token_classify": {"inputs": "Ada Lovelace lived in London."},
    "rerank": {"query": "Where did Ada live?", "texts": ["Ada lived in London.", "The sea is blue."]},
    "embed_sparse": {"inputs": "a first text"},
    "question_answer": {"question": "Where did Ada live?", "context": "Ada Lovelace lived in London."},
    "tokenize": {"inputs": "a text"},
}


def greeting(url: str, runtime: Runtime, needs_key: bool, metrics_url: str = "") -> str:
    """Return the whole greeting, several lines.

    url: URL of the server. needs_key: whether clients must send an API key.
    metrics_url: URL of the second port, with metrics and probes; empty if there is none.
    """
    lines = ready_lines(url, runtime)
    lines += [f"A page to try the models: {url}/", f"All routes, with examples: {url}/docs"]
    lines += [f"Metrics and probes are on {metrics_url}"] * bool(metrics_url)
    if runtime.loaded():
        lines += ["", "Try it:", f"  {_example(url, runtime, needs_key)}"]
    return "\n".join([*lines, ""])


def ready_lines(url: str, runtime: Runtime) -> list[str]:
    """Return a line with the address and the device, and a line for each model.

    A loaded model is shown with its tasks and the tokens that its KV cache holds, if it has one. The line of another
    model says that it is loaded when a request asks for it.
    """
    models = {model.name: _about(model) for model in runtime.loaded()}
    if runtime.registry is not None:
        models = dict.fromkeys(runtime.registry.models, "loaded when a request asks for it") | models
    width = max(map(len, models), default=0)
    return [
        f"Triptych is ready on {url} ({runtime.client.device})",
        *(f"  {name:<{width}}  {about}" for name, about in models.items()),
    ]


def _about(model: ServedModel) -> str:
    return "; ".join(filter(None, [", ".join(model.tasks), room(model.info)]))


def _example(url: str, runtime: Runtime, needs_key: bool) -> str:
    """Return a `curl` command that a user can try, for the first operation that a loaded model supports."""
    key = ' -H "Authorization: Bearer $TRIPTYCH_API_KEY"' if needs_key else ""
    operation, model, body = next(_requests(runtime))
    if operation == "transcribe":
        return f"curl {url}/v1/audio/transcriptions{key} -F model={model.name} -F file=@recording.wav"
    data = json.dumps({"model": model.name} | body)
    return f"curl {url}/{operation}{key} -H 'Content-Type: application/json' -d '{data}'"


def _requests(runtime: Runtime) -> Iterator[tuple[str, ServedModel, dict[str, Any]]]:
    """Yield (operation, default model, JSON body) of example requests that the loaded models can answer.

    Text generation with a decoder comes first, then translation, then the other operations.
    """
    generating = _default(runtime, "generate")
    prompt = {"prompt": "The old man", "max_new_tokens": 24}
    if generating is not None and not generating.info.is_encoder_decoder:
        yield "generate", generating, prompt
    translator = _default(runtime, "translate")
    pair = None if translator is None else translator.text.languages.example()
    if translator is not None and pair is not None:
        source, target = pair
        yield "translate", translator, {"inputs": "I am a student", "source_lang": source, "target_lang": target}
    if generating is not None:
        yield "generate", generating, prompt
    for operation, body in {"transcribe": {}, **_BODIES}.items():
        model = _default(runtime, operation)
        if model is not None:
            labels = {"labels": ["person", "city"]} if operation == "token_classify" else {}
            yield operation, model, body | (labels if model.info.labelled_spans is not None else {})


def _default(runtime: Runtime, operation: str) -> ServedModel | None:
    try:
        return runtime.candidates(None, operation)[0]
    except (OperationNotSupported, ModelNotFound):  # a default model may be declared and not loaded
        return None
