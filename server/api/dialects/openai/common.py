"""Code that the routes of the OpenAI dialect share: error format, usage, ends of streams and log-probabilities."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from server.api.bodies.sse import data_frame
from server.api.fields.chat_fields import ChatObject
from server.api.fields.field_kinds import Hint
from server.api.routes.error_shape import AnswerBody, ErrorShape
from server.errors import InvalidRequest, RequestError
from server.operations.generating.generated_text import ScoredToken, SpelledToken
from server.operations.generating.generation_run import TokenUsage

STATUSES = {422: 400}
"""HTTP statuses of errors that differ from the native dialect: OpenAI sends 400 instead of 422."""
ERRORS = ErrorShape(statuses=STATUSES, fields={"max_new_tokens": "max_tokens"})
DONE = b"data: [DONE]\n\n"

FinishReason = Literal["stop", "length", "tool_calls"]
TopLogprobs = Annotated[int, Field(ge=0, le=20)]


class StreamOptions(ChatObject):
    """Options of a streamed answer. `include_usage`: end the stream with a chunk that has the usage and no choices.

    `continuous_usage_stats`: also report the usage so far in each chunk. It needs `include_usage`, as in vLLM.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Hint = None


def check_stream_options(options: StreamOptions | None, stream: bool | None) -> None:
    """Raise InvalidRequest if usage options are set in a request that does not stream. stream: field of the body."""
    if options is not None and not stream and (options.include_usage or options.continuous_usage_stats):
        raise InvalidRequest("`stream_options` requires `stream`", "stream_options")


def includes_usage(options: StreamOptions | None) -> bool:
    return options is not None and bool(options.include_usage)


def continuous_usage(options: StreamOptions | None) -> bool:
    return includes_usage(options) and options is not None and bool(options.continuous_usage_stats)


class OpenAIUsageDetails(AnswerBody):
    cached_tokens: int


class OpenAICompletionDetails(AnswerBody):
    """`reasoning_tokens`: number of reasoning tokens, which are also counted in `completion_tokens`."""

    reasoning_tokens: int


class OpenAIUsage(AnswerBody):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: OpenAIUsageDetails
    completion_tokens_details: OpenAICompletionDetails


def new_id(prefix: str) -> str:
    """Create a random id: `prefix`, a hyphen and 32 hexadecimal digits."""
    return f"{prefix}-{uuid.uuid4().hex}"


def now() -> int:
    """Seconds since 1970, as in the field `created`."""
    return int(time.time())


def usage(tokens: TokenUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": tokens.prompt_tokens,
        "completion_tokens": tokens.completion_tokens,
        "total_tokens": tokens.total_tokens,
        "prompt_tokens_details": {"cached_tokens": tokens.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": tokens.reasoning_tokens},
    }


def finish_reason(reason: str | None) -> str | None:
    """The value of the field `finish_reason` in OpenAI's API.

    None for the reason `timeout`, which the API does not have: a stream that ends at a deadline gets an error event.
    """
    return None if reason == "timeout" else reason


def usage_of_chunk(include_usage: bool, usage_so_far: Callable[[], TokenUsage] | None) -> dict[str, Any]:
    """The field `usage` of each chunk before the last one. The field may be null or absent.

    include_usage: whether the last chunk has the usage. The field is then null in the earlier chunks, as in OpenAI's
        API.
    usage_so_far: returns the usage so far, for chunks that report it; None if the client does not ask for it.
    """
    if usage_so_far is not None:
        return {"usage": usage(usage_so_far())}
    return {"usage": None} if include_usage else {}


def end_of_stream(chunk: dict[str, Any], include_usage: bool, tokens: TokenUsage) -> bytes:
    """Bytes that end a stream: a chunk with the usage, if the client asks for it, and `[DONE]`.

    chunk: the fields that all chunks have. tokens: the usage of the whole request.
    """
    if not include_usage:
        return DONE
    return data_frame(chunk | {"choices": [], "usage": usage(tokens)}) + DONE


def stream_error(error: RequestError, request_id: str) -> bytes:
    """Bytes that end a failed stream: one event with the error, without `[DONE]`."""
    return data_frame(ERRORS.render(error, request_id))


def token_text(token: SpelledToken) -> str:
    """The text of a token, with its spaces. A special token has its name, and incomplete characters become U+FFFD."""
    return token.data.decode("utf-8", "replace") if token.data else token.token


def logprobs(tokens: Sequence[ScoredToken]) -> Iterator[dict[str, Any]]:
    """Yield the log-probabilities of tokens in the format of chat answers."""
    return (_scored(token) | {"top_logprobs": [_scored(candidate) for candidate in token.top]} for token in tokens)


def _scored(token: ScoredToken) -> dict[str, Any]:
    return {"token": token_text(token), "logprob": token.logprob, "bytes": list(token.data) if token.data else None}
