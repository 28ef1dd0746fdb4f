"""Answers of the Ollama dialect: run the operations, render results and errors, and stream JSON lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from server.api.bodies.sse import json_line
from server.api.dialects.ollama.bodies import (
    NUM_CTX,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaEmbedSpec,
    OllamaSpec,
)
from server.api.fields.chat_fields import complete_calls
from server.api.routes.error_shape import AnswerBody, ErrorMembers, ErrorShape
from server.errors import ModelNotFound, RequestError
from server.ipc.client.call import Call
from server.operations.chatting.chat import ChatDelta, ChatResult, ChatRun, chat
from server.operations.generating.generate import GenerateResult, GenerateRun, generate
from server.operations.generating.generated_text import ScoredToken, TextDelta
from server.operations.on_demand.needed import needed_models
from server.operations.ranking.embed import EmbedResult, embed
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel

NANOSECONDS = 1_000_000_000
_NO_VECTORS = np.zeros((0, 0), np.float32)


class OllamaErrorAnswer(ErrorMembers):
    error: str


class OllamaAnswerFunction(AnswerBody):
    name: str
    arguments: dict[str, Any]
    index: int


class OllamaAnswerCall(AnswerBody):
    id: str
    function: OllamaAnswerFunction


class OllamaAnswerMessage(AnswerBody):
    role: str
    content: str
    thinking: str | None = None
    tool_calls: list[OllamaAnswerCall] | None = None


class OllamaTokenLogprob(AnswerBody):
    """A token and its log-probability. `bytes`: the token's text in UTF-8."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[OllamaTokenLogprob] | None = None


class OllamaTextAnswer(AnswerBody):
    """Fields that the answers of chat and generation share. Durations are in nanoseconds.

    The durations of prefill and decode are left out if stop strings ended the answer early. `load_duration`: always 0.
    """

    model: str
    created_at: str
    done: bool
    logprobs: list[OllamaTokenLogprob] | None = None
    done_reason: str | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


class OllamaChatAnswer(OllamaTextAnswer):
    message: OllamaAnswerMessage


class OllamaGenerateAnswer(OllamaTextAnswer):
    """The answer of `/api/generate`. `context`: always empty; some clients require the field.

    In Ollama, it has tokens that a later request can continue.
    """

    response: str
    thinking: str | None = None
    context: list[int] | None = None


class OllamaEmbedAnswer(AnswerBody):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbeddingsAnswer(AnswerBody):
    embedding: list[float]


ERRORS = ErrorShape(
    statuses={422: 400},
    body=lambda error, request_id: {"error": error.message},
    answer=OllamaErrorAnswer,
    fields={
        "max_new_tokens": "num_predict",
        "repetition_penalty": "repeat_penalty",
        "response_format": "format",
    },
)
EMBED_ERRORS = replace(ERRORS, fields={"inputs": "input"})
EMBEDDINGS_ERRORS = replace(ERRORS, fields={"inputs": "prompt"})


@dataclass
class LoadedRun:
    """Run of a request without messages or prompt, by which clients load or unload a model. Its text is empty.

    reason: value of `done_reason` in the answer, `load` or `unload`.
    """

    model_name: str
    reason: Literal["load", "unload"] = "load"
    answer_size = 0

    async def begin(self) -> list[TextDelta]:
        return []

    async def forward(self, sink: Callable[[list[TextDelta]], bool]) -> bool:
        return False

    async def complete(self) -> None:
        return

    @property
    def timed_out(self) -> bool:
        return False

    def result(self) -> None:
        return


async def answer(runtime: Runtime, call: Call, spec: OllamaSpec) -> ChatRun | GenerateRun | LoadedRun:
    """Run a request: load or unload the model, chat, or continue a prompt if the model has no chat template.

    Adds `options.num_ctx` to the ignored parameters if it exceeds the model's context.
    Raises ModelNotFound for a model to unload that is not declared, and the errors of `chat` and `generate`.
    """
    if spec.unloads and runtime.registry is not None:
        return LoadedRun(await _unload(runtime, "generate", spec), "unload")
    model = runtime.candidates(spec.model, "generate")[0]
    _limit_context(call, spec.num_ctx, model)
    if spec.chat is None and spec.plain is None:
        return LoadedRun(model.name)
    if spec.chat is None or (spec.plain is not None and not model.text.chat_templates.by_name):
        assert spec.plain is not None
        return await generate(runtime, call, spec.plain)
    return await chat(runtime, call, spec.chat)


async def _unload(runtime: Runtime, operation: str, spec: OllamaSpec | OllamaEmbedSpec) -> str:
    """Unload the model that `spec` names as soon as no request uses it, and return its name.

    operation: finds the default model if `spec` names none. Raises ModelNotFound.
    """
    assert runtime.registry is not None
    found = await needed_models(runtime.registry, runtime.names, runtime.pivot, operation, spec)
    if not found:
        raise ModelNotFound("no such model is declared", "model")
    await runtime.registry.unload_unused(found[0])
    return found[0].name


def _limit_context(call: Call, num_ctx: int, model: ServedModel) -> None:
    """Name `options.num_ctx` among the ignored parameters if it exceeds the model's input limit. num_ctx: in tokens."""
    if num_ctx > model.max_input_tokens:
        call.ignore([NUM_CTX])


class TextRenderer:
    """Renders one answer of `/api/chat` or `/api/generate`: whole, or as JSON lines with statistics in the last line.

    In a stream, tool calls are in a separate line before the last one.

    is_chat: the text is in the field `message`; otherwise in `response`.
    """

    def __init__(self, run: ChatRun | GenerateRun | LoadedRun, is_chat: bool) -> None:
        self.run = run
        self.is_chat = is_chat
        self._reason = run.reason if isinstance(run, LoadedRun) else ""

    def whole(self, result: ChatResult | GenerateResult | None) -> dict[str, Any]:
        if result is None:
            return self._line(self._text(""), done=True) | {"done_reason": self._reason}
        (choice,) = result.choices
        if isinstance(result, ChatResult):
            text = self._text(result.choices[0].content, result.choices[0].reasoning, _calls(result))
        else:
            text = self._text(result.choices[0].text)
        logprobs = [] if choice.logprobs is None else choice.logprobs
        return self._line(text, logprobs, done=True) | self._statistics(result)

    def deltas(self, deltas: Sequence[ChatDelta | TextDelta]) -> bytes:
        lines = []
        for delta in deltas:
            if isinstance(delta, ChatDelta):
                text, thinking, logprobs = delta.content, delta.reasoning, delta.logprobs
            else:
                text, thinking, logprobs = delta.text, "", [delta.answer.scored(entry) for entry in delta.logprobs]
            if text or thinking or logprobs:
                lines.append(json_line(self._line(self._text(text, thinking), logprobs)))
        return b"".join(lines)

    def end(self, result: ChatResult | GenerateResult | None) -> bytes:
        if result is None:
            return json_line(self.whole(result))
        calls = _calls(result) if isinstance(result, ChatResult) else []
        called = json_line(self._line(self._text("", calls=calls))) if calls else b""
        return called + json_line(self._line(self._text(""), done=True) | self._statistics(result))

    def error(self, error: RequestError, request_id: str) -> bytes:
        return json_line(ERRORS.render(error, request_id))

    def _text(self, content: str, thinking: str = "", calls: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        extra: dict[str, Any] = {"thinking": thinking} if thinking else {}
        if not self.is_chat:
            return {"response": content, **extra}
        return {
            "message": {"role": "assistant", "content": content, **extra, **({"tool_calls": calls} if calls else {})}
        }

    def _line(self, text: dict[str, Any], logprobs: Sequence[ScoredToken] = (), done: bool = False) -> dict[str, Any]:
        created_at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        line = {"model": self.run.model_name, "created_at": created_at, **text, "done": done}
        if logprobs:
            line["logprobs"] = [
                _logprob(token) | {"top_logprobs": [_logprob(candidate) for candidate in token.top]}
                for token in logprobs
            ]
        return line

    def _statistics(self, result: ChatResult | GenerateResult) -> dict[str, Any]:
        timings, reason = result.timings, result.choices[0].finish_reason
        found = {
            "done_reason": "stop" if reason == "tool_calls" else reason,
            "total_duration": _nanoseconds(timings.total_seconds),
            "load_duration": 0,
            "prompt_eval_count": result.usage.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(timings.prefill_seconds),
            "eval_count": result.usage.completion_tokens,
            "eval_duration": _nanoseconds(timings.decode_seconds),
        }
        context: dict[str, Any] = {} if self.is_chat else {"context": []}
        return context | {name: value for name, value in found.items() if value is not None}


def _calls(result: ChatResult) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "function": {"name": call.name, "arguments": arguments, "index": index}}
        for index, (call, arguments) in enumerate(complete_calls(result.choices[0].tool_calls))
    ]


def _logprob(token: ScoredToken) -> dict[str, Any]:
    return {"token": token.token, "logprob": token.logprob, "bytes": list(token.data)}


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * NANOSECONDS)


async def embed_texts(runtime: Runtime, call: Call, spec: OllamaEmbedSpec) -> tuple[EmbedResult, float]:
    """Run a request for vectors. Returns the result, and the seconds since the arrival of the request.

    The result is empty for a request without inputs, which only loads or unloads the model. Raises ModelNotFound for
    a model to unload that is not declared.
    """
    if spec.unloads and runtime.registry is not None:
        result = EmbedResult(await _unload(runtime, "embed", spec), _NO_VECTORS, 0)
        return result, time.monotonic() - call.arrival
    model = runtime.candidates(spec.model, "embed")[0]
    _limit_context(call, spec.num_ctx, model)
    result = await embed(runtime, call, spec) if spec.inputs else EmbedResult(model.name, _NO_VECTORS, 0)
    return result, time.monotonic() - call.arrival


def embedded(body: OllamaEmbedBody, found: tuple[EmbedResult, float]) -> dict[str, Any]:
    result, seconds = found
    return {
        "model": result.model,
        "embeddings": result.vectors,
        "total_duration": _nanoseconds(seconds),
        "load_duration": 0,
        "prompt_eval_count": result.prompt_tokens,
    }


def embedded_one(body: OllamaEmbeddingsBody, found: tuple[EmbedResult, float]) -> dict[str, Any]:
    vectors = found[0].vectors
    return {"embedding": vectors[0] if len(vectors) else []}
