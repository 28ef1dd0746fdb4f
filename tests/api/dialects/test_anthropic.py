"""Rendering of `/v1/messages` from made-up deltas and results, read by the `anthropic` package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from server.api.dialects.anthropic.bodies import AnthropicMessagesBody
from server.api.dialects.anthropic.routes import AnthropicMessage, MessageRenderer
from server.errors import EngineFailure, InvalidRequest
from server.operations.chat import ChatChoice, ChatDelta, ChatResult, ChatSpec, ToolCall, ToolCallDelta, ToolChoice
from server.operations.generation_run import PhaseSeconds, TokenUsage
from tests.wire.conftest import parse_events

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
TOOL = {"name": "weather", "input_schema": {"type": "object"}}
CALLS = [ToolCall("call_1", "weather", '{"city": "Paris"}'), ToolCall("call_2", "weather", '{"city": "Rome"}')]
DELTAS = [
    [ChatDelta(0, reasoning="Two "), ChatDelta(0, reasoning="cities.")],
    [ChatDelta(0, "I "), ChatDelta(0, "look.", tool_calls=[ToolCallDelta(0, "call_1", "weather", '{"city": ')])],
    [ChatDelta(0, tool_calls=[ToolCallDelta(0, arguments='"Paris"}')])],
    [ChatDelta(0, tool_calls=[ToolCallDelta(1, "call_2", "weather"), ToolCallDelta(1, arguments='{"city": "Rome"}')])],
]


@dataclass
class MadeUpRun:
    model_name: str = "llm"

    def usage(self) -> TokenUsage:
        return TokenUsage(10, 0, 4)


def result(choice: ChatChoice) -> ChatResult:
    return ChatResult("llm", [choice], TokenUsage(10, 6, 4), 0, PhaseSeconds(0, 0, 0, 0))


def body(**more: Any) -> AnthropicMessagesBody:
    given = {"max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]} | more
    return AnthropicMessagesBody.model_validate(given)


def spec(*messages: tuple[str, Any], **more: Any) -> ChatSpec:
    return body(messages=[{"role": role, "content": content} for role, content in messages], **more).spec()


def test_a_streamed_message_equals_the_whole_one() -> None:
    choice = ChatChoice("I look.", "Two cities.", CALLS, "tool_calls", None, [1] * 6, None)
    whole = MessageRenderer(body(), MadeUpRun()).whole(result(choice))
    AnthropicMessage.model_validate(whole)
    renderer = MessageRenderer(body(), MadeUpRun())
    text = b"".join([*map(renderer.deltas, DELTAS), renderer.end(result(choice))]).decode()
    events = parse_events(text)
    assert all(name == event["type"] for name, event in events)
    snapshot, buffers = None, {}
    for _, event in events:
        snapshot = accumulate_event(event=EVENT.validate_python(event), current_snapshot=snapshot, json_bufs=buffers)
    assert snapshot is not None
    assert [block.type for block in snapshot.content] == ["thinking", "text", "tool_use", "tool_use"]
    streamed = snapshot.model_dump(mode="json")
    for block, expected in zip(streamed["content"], whole["content"], strict=True):
        assert {key: block[key] for key in expected} == expected
    assert streamed["stop_reason"] == whole["stop_reason"] == "tool_use"
    assert {key: streamed["usage"][key] for key in whole["usage"]} == whole["usage"]
    indices = [event["index"] for name, event in events if name == "content_block_start"]
    assert indices == [0, 1, 2, 3] == [event["index"] for name, event in events if name == "content_block_stop"]


@pytest.mark.parametrize(
    ("finish_reason", "stop", "tokens", "reported"),
    [
        ("stop", None, 3, "end_turn"),
        ("stop", "END", 3, "stop_sequence"),
        ("length", None, 8, "max_tokens"),
        ("length", None, 5, "model_context_window_exceeded"),
    ],
)
def test_the_stop_reason(finish_reason: Any, stop: str | None, tokens: int, reported: str) -> None:
    choice = ChatChoice("text", "", [], finish_reason, stop, [1] * tokens, None)
    answer = MessageRenderer(body(), MadeUpRun()).whole(result(choice))
    AnthropicMessage.model_validate(answer)
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reported, stop)


def test_a_fault_within_a_stream_is_an_error_event() -> None:
    renderer = MessageRenderer(body(), MadeUpRun())
    text = renderer.deltas([ChatDelta(0, "I")]) + renderer.error(EngineFailure("a fault"), "req_1")
    name, event = parse_events(text.decode())[-1]
    assert name == "error"
    assert event == {"type": "error", "error": {"type": "api_error", "message": "a fault"}, "request_id": "req_1"}


def test_turns_become_chat_messages() -> None:
    use = [{"type": "tool_use", "id": f"t{i}", "name": "weather", "input": {"city": i}} for i in range(2)]
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    results = [
        {"type": "tool_result", "tool_use_id": "t0", "content": "rain"},
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "none"}], "is_error": True},
        {"type": "text", "text": "So?"},
    ]
    made = spec(
        ("user", "a"), ("user", "b"), ("assistant", [thinking, {"type": "text", "text": "c"}, *use]), ("user", results)
    )
    functions = [
        {"id": f"t{i}", "type": "function", "function": {"name": "weather", "arguments": {"city": i}}} for i in range(2)
    ]
    assert made.messages == [
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c", "reasoning_content": "hm", "tool_calls": functions},
        {"role": "tool", "tool_call_id": "t0", "name": "weather", "content": "rain"},
        {"role": "tool", "tool_call_id": "t1", "name": "weather", "content": "Error: none"},
        {"role": "user", "content": "So?"},
    ]
    assert not made.continue_final_message
    assert spec(("user", "a"), ("assistant", "b")).continue_final_message


def test_a_prefilled_call_is_refused() -> None:
    use = [{"type": "tool_use", "id": "t", "name": "weather", "input": {}}]
    with pytest.raises(InvalidRequest, match="`tool_result` is missing"):
        spec(("user", "a"), ("assistant", use))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice("auto")),
        ({"type": "auto"}, ToolChoice("auto")),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "tool", "name": "weather"}, ToolChoice("required", "weather")),
        ({"type": "none"}, ToolChoice("none")),
    ],
)
def test_the_tool_choice(choice: Any, expected: ToolChoice) -> None:
    made = spec(("user", "a"), tools=[TOOL], tool_choice=choice)
    assert made.tool_choice == expected and made.parallel_tool_calls
    assert [tool.for_template() for tool in made.tools] == [
        {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}},
    ]
    if choice is not None:
        choice = choice | {"disable_parallel_tool_use": True}
        assert not spec(("user", "a"), tools=[TOOL], tool_choice=choice).parallel_tool_calls
