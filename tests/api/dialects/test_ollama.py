"""Rendering of `/api/chat` from made-up deltas and results, read by the `ollama` package."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import ollama
import pytest

from server.api.dialects.ollama.answers import OllamaChatAnswer, TextRenderer
from server.api.dialects.ollama.bodies import OllamaChatBody
from server.errors import EngineFailure
from server.operations.chat import ChatChoice, ChatDelta, ChatResult, ToolCall, ToolCallDelta
from server.operations.generation_run import PhaseSeconds, TokenUsage

CALLS = [ToolCall("call_1", "weather", '{"city": "Paris"}'), ToolCall("call_2", "weather", '{"city": "Rome"}')]
DELTAS = [
    [ChatDelta(0, reasoning="Two "), ChatDelta(0, reasoning="cities.")],
    [ChatDelta(0, "I look.", tool_calls=[ToolCallDelta(0, "call_1", "weather", '{"city": "Paris"}')])],
    [ChatDelta(0, tool_calls=[ToolCallDelta(1, "call_2", "weather", '{"city": "Rome"}')])],
]


@dataclass
class MadeUpRun:
    model_name: str = "llm"


def result(choice: ChatChoice, decode_seconds: float | None = 0.25) -> ChatResult:
    return ChatResult("llm", [choice], TokenUsage(10, 6, 4), 0, PhaseSeconds(0.1, 0.2, decode_seconds, 0.5))


def body(*messages: dict[str, Any], **more: Any) -> OllamaChatBody:
    return OllamaChatBody.model_validate({"messages": list(messages)} | more)


def lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


def test_the_lines_of_a_stream_add_up_to_the_whole_answer() -> None:
    choice = ChatChoice("I look.", "Two cities.", CALLS, "tool_calls", None, [1] * 6, None)
    renderer = TextRenderer(MadeUpRun(), is_chat=True)
    whole = renderer.whole(result(choice))
    OllamaChatAnswer.model_validate(whole)
    sent = lines(b"".join([*map(renderer.deltas, DELTAS), renderer.end(result(choice))]))
    for line in sent:
        OllamaChatAnswer.model_validate(line)
    parts = [ollama.ChatResponse(**line) for line in sent]
    assert "".join(part.message.content for part in parts) == whole["message"]["content"] == "I look."
    assert "".join(part.message.thinking or "" for part in parts) == whole["message"]["thinking"] == "Two cities."
    (calls,) = (part.message.tool_calls for part in parts if part.message.tool_calls)
    assert [call.function.arguments for call in calls] == [{"city": "Paris"}, {"city": "Rome"}]
    assert [line["message"]["tool_calls"] for line in sent if "tool_calls" in line["message"]] == [
        whole["message"]["tool_calls"]
    ]
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].done_reason == whole["done_reason"] == "stop"
    assert (parts[-1].total_duration, parts[-1].prompt_eval_duration, parts[-1].eval_duration) == (
        500_000_000,
        200_000_000,
        250_000_000,
    )


def test_unknown_durations_are_left_out() -> None:
    choice = ChatChoice("I", "", [], "timeout", None, [1], None)
    answer = TextRenderer(MadeUpRun(), is_chat=True).whole(result(choice, decode_seconds=None))
    OllamaChatAnswer.model_validate(answer)
    assert "eval_duration" not in answer and answer["done_reason"] == "timeout"


def test_a_call_that_the_limit_cut_is_left_out() -> None:
    calls = [CALLS[0], ToolCall("call_2", "weather", '{"city": "Ro')]
    answer = TextRenderer(MadeUpRun(), is_chat=True).whole(result(ChatChoice("", "", calls, "length", None, [1], None)))
    assert [call["id"] for call in answer["message"]["tool_calls"]] == ["call_1"]


def test_a_fault_within_a_stream_is_a_line() -> None:
    renderer = TextRenderer(MadeUpRun(), is_chat=True)
    data = renderer.deltas([ChatDelta(0, "I")]) + renderer.error(EngineFailure("a fault"), "req_1")
    assert lines(data)[-1] == {"error": "a fault"}


@pytest.mark.parametrize("named", [True, False])
def test_tool_messages_name_the_call_that_they_answer(named: bool) -> None:
    calls = [{"function": {"name": name, "arguments": {}}} for name in ("first", "second")]
    answers = [
        {"role": "tool", "content": name} | ({"tool_name": name} if named else {}) for name in ("first", "second")
    ]
    spec = body(
        {"role": "user", "content": "go"},
        {"role": "assistant", "thinking": "hm", "tool_calls": calls},
        *(reversed(answers) if named else answers),
        model="llm:latest",
    ).spec()
    assert spec.model == "llm" and spec.stream and spec.chat is not None
    _, assistant, *results = spec.chat.messages
    assert assistant["reasoning_content"] == "hm"
    ids = {call["function"]["name"]: call["id"] for call in assistant["tool_calls"]}
    assert [(one["name"], one["tool_call_id"]) for one in results] == [
        (one["content"], ids[one["content"]]) for one in results
    ]
