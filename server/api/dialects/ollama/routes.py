"""The routes of the Ollama dialect."""

from __future__ import annotations

from typing import Any

from server.api.bodies.sse import JSON_LINES
from server.api.dialects.ollama import answers, bodies, models
from server.api.routes.get_route import GetRoute
from server.api.routes.route import JsonRoute, Route
from server.api.routes.streaming_route import StreamingRoute

_TIMES = {
    "created_at": "2026-01-01T12:00:00.000000Z",
    "done": True,
    "done_reason": "stop",
    "total_duration": 41_000_000,
    "load_duration": 0,
    "prompt_eval_count": 12,
    "prompt_eval_duration": 9_000_000,
    "eval_count": 7,
    "eval_duration": 30_000_000,
}
_DETAILS = {
    "parent_model": "",
    "format": "",
    "family": "llama",
    "families": ["llama"],
    "parameter_size": "1.1M",
    "quantization_level": "float32",
}
_MODEL = {
    "name": "story:latest",
    "model": "story:latest",
    "size": 4352392,
    "digest": "9f64a747e1b97f131fabb6b447296c9b6f0201e79fb3c5356e6c77e89b6a806a",
    "details": _DETAILS,
}

ROUTES: tuple[Route[Any, Any, Any], ...] = (
    StreamingRoute(
        path="/api/chat",
        operation="chat",
        name="ollama_chat",
        description="Answer a conversation (Ollama). Streams JSON lines unless `stream` is false.",
        body=bodies.OllamaChatBody,
        takes_any_content_type=True,
        answer=answers.OllamaChatAnswer,
        example=(
            {"model": "story", "messages": [{"role": "user", "content": "Tell me a story."}], "stream": False},
            {"model": "story", "message": {"role": "assistant", "content": "Once there was a fox."}, **_TIMES},
        ),
        parse=bodies.OllamaChatBody.spec,
        run=answers.answer,
        renderer=lambda body, run: answers.TextRenderer(run, is_chat=True),
        format=JSON_LINES,
        errors=answers.ERRORS,
    ),
    StreamingRoute(
        path="/api/generate",
        operation="generate",
        name="ollama_generate",
        description="Answer a prompt (Ollama), with the chat template if there is one. Streams as `/api/chat`.",
        body=bodies.OllamaGenerateBody,
        takes_any_content_type=True,
        answer=answers.OllamaGenerateAnswer,
        example=(
            {"model": "story", "prompt": "Tell me a story.", "stream": False},
            {"model": "story", "response": "Once there was a fox.", **_TIMES},
        ),
        parse=bodies.OllamaGenerateBody.spec,
        run=answers.answer,
        renderer=lambda body, run: answers.TextRenderer(run, is_chat=False),
        format=JSON_LINES,
        errors=answers.ERRORS,
    ),
    JsonRoute(
        path="/api/embed",
        operation="embed",
        name="ollama_embed",
        description="One vector for each input (Ollama).",
        body=bodies.OllamaEmbedBody,
        takes_any_content_type=True,
        answer=answers.OllamaEmbedAnswer,
        example=(
            {"model": "sentence-encoder", "input": ["a first text", "a second one"]},
            {
                "model": "sentence-encoder",
                "embeddings": [[0.6, 0.8], [0.8, 0.6]],
                "total_duration": 3_000_000,
                "load_duration": 0,
                "prompt_eval_count": 10,
            },
        ),
        parse=bodies.OllamaEmbedBody.spec,
        run=answers.embed_texts,
        render=answers.embedded,
        errors=answers.EMBED_ERRORS,
    ),
    JsonRoute(
        path="/api/embeddings",
        operation="embed",
        name="ollama_embeddings",
        description="The vector of one text, not scaled to length 1 (Ollama's former route).",
        body=bodies.OllamaEmbeddingsBody,
        takes_any_content_type=True,
        answer=answers.OllamaEmbeddingsAnswer,
        example=({"model": "sentence-encoder", "prompt": "a text"}, {"embedding": [0.6, 0.8]}),
        parse=bodies.OllamaEmbeddingsBody.spec,
        run=answers.embed_texts,
        render=answers.embedded_one,
        errors=answers.EMBEDDINGS_ERRORS,
    ),
    JsonRoute(
        path="/api/show",
        operation="show",
        name="ollama_show",
        description="Family, sizes, chat template and capabilities of a model (Ollama).",
        body=models.OllamaShowBody,
        takes_any_content_type=True,
        answer=models.OllamaShowAnswer,
        example=(
            {"model": "story"},
            {
                "modelfile": "FROM story",
                "parameters": "",
                "template": "",
                "details": _DETAILS,
                "model_info": {"general.architecture": "llama", "llama.context_length": 512},
                "capabilities": ["completion"],
                "modified_at": "2026-01-01T12:00:00Z",
            },
        ),
        parse=models.parse_show,
        run=models.find_model,
        render=models.show,
        errors=answers.ERRORS,
    ),
)

GET_ROUTES: tuple[GetRoute, ...] = (
    GetRoute(
        path="/api/tags",
        name="ollama_tags",
        description="All loaded models (Ollama).",
        answer=models.OllamaTagsAnswer,
        example={"models": [_MODEL | {"modified_at": "2026-01-01T12:00:00Z"}]},
        render=models.tags,
        errors=answers.ERRORS,
    ),
    GetRoute(
        path="/api/ps",
        name="ollama_ps",
        description="All models in memory, which are the loaded ones (Ollama).",
        answer=models.OllamaPsAnswer,
        example={
            "models": [_MODEL | {"expires_at": "9999-12-31T23:59:59Z", "size_vram": 0, "context_length": 512}],
        },
        render=models.running,
        errors=answers.ERRORS,
    ),
    GetRoute(
        path="/api/version",
        name="ollama_version",
        description="The version of Ollama whose API these routes follow.",
        answer=models.OllamaVersionAnswer,
        example={"version": models.API_VERSION},
        render=models.version,
        errors=answers.ERRORS,
    ),
)
