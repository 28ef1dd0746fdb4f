"""`/v2/chat` renders made-up deltas and results to answers that the `cohere` package can read."""

from __future__ import annotations

from typing import Any

import pytest
from cohere.core.unchecked_base_model import construct_type
from cohere.v2.types import V2ChatResponse, V2ChatStreamResponse

from server.api.dialects.cohere.chat import CohereChatAnswer, CohereChatRenderer
from server.api.dialects.cohere.chat_body import CohereChatBody
from server.errors import DeadlineExceeded, EngineFailure, InvalidRequest
from server.operations.chatting.chat import ChatChoice, ChatDelta, ChatResult, ToolCall, ToolCallDelta, ToolChoice
from server.operations.generating.generation_run import PhaseSeconds, TokenUsage
from tests.wire.conftest import parse_events

CALLS = [ToolCall("call_1", "weather", '{"city": "Paris"}'), ToolCall("call_2", "weather", '{"city": "Rome"}')]
DELTAS = [
    [ChatDelta(0, reasoning="Two "), ChatDelta(0, reasoning="cities.")],
    [ChatDelta(0, "I "), ChatDelta(0, "look.", tool_calls=[ToolCallDelta(0, "call_1", "weather", '{"city": ')])],
    [ChatDelta(0, tool_calls=[ToolCallDelta(0, arguments='"Paris"}')])],
    [ChatDelta(0, tool_calls=[ToolCallDelta(1, "call_2", "weather"), ToolCallDelta(1, arguments='{"city": "Rome"}')])],
]
FUNCTION = {"name": "weather", "parameters": {"type": "object"}}


def result(choice: ChatChoice) -> ChatResult:
    return ChatResult("llm", [choice], TokenUsage(10, 6, 4), 0, PhaseSeconds(0, 0, 0, 0))


def body(*messages: dict[str, Any], **more: Any) -> CohereChatBody:
    return CohereChatBody.model_validate({"messages": list(messages)} | more)


def test_a_streamed_message_equals_the_whole_one() -> None:
    choice = ChatChoice("I look.", "Two cities.", CALLS, "tool_calls", None, [1] * 6, None)
    whole = CohereChatRenderer().whole(result(choice))
    CohereChatAnswer.model_validate(whole)
    read = construct_type(type_=V2ChatResponse, object_=whole)
    renderer = CohereChatRenderer()
    data = b"".join([*map(renderer.deltas, DELTAS), renderer.end(result(choice))])
    assert data.endswith(b"\n\ndata: [DONE]\n\n")
    events = parse_events(data.removesuffix(b"data: [DONE]\n\n").decode())
    assert all(name == event["type"] for name, event in events)
    streamed: list[Any] = [construct_type(type_=V2ChatStreamResponse, object_=event) for _, event in events]
    thinking = text = ""
    calls: list[list[str]] = []
    for event in streamed:
        if event.type == "content-delta":
            thinking += event.delta.message.content.thinking or ""
            text += event.delta.message.content.text or ""
        elif event.type == "tool-call-start":
            calls.append([event.delta.message.tool_calls.id, event.delta.message.tool_calls.function.name, ""])
        elif event.type == "tool-call-delta":
            calls[event.index][2] += event.delta.message.tool_calls.function.arguments
    assert [thinking, text] == [read.message.content[0].thinking, read.message.content[1].text]
    assert calls == [[call.id, call.function.name, call.function.arguments] for call in read.message.tool_calls]
    assert streamed[-1].delta.finish_reason == read.finish_reason == "TOOL_CALL"
    assert streamed[-1].delta.usage.tokens.output_tokens == read.usage.tokens.output_tokens == 6
    assert [name for name, _ in events if name.endswith(("start", "end"))] == [
        "message-start",
        *["content-start", "content-end"] * 2,
        *["tool-call-start", "tool-call-end"] * 2,
        "message-end",
    ]
    assert [event["index"] for name, event in events if name.endswith("-end") and "index" in event] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("finish_reason", "stop", "reported"),
    [
        ("stop", None, "COMPLETE"),
        ("stop", "END", "STOP_SEQUENCE"),
        ("length", None, "MAX_TOKENS"),
    ],
)
def test_the_finish_reason(finish_reason: Any, stop: str | None, reported: str) -> None:
    answer = CohereChatRenderer().whole(result(ChatChoice("text", "", [], finish_reason, stop, [1], None)))
    CohereChatAnswer.model_validate(answer)
    assert answer["finish_reason"] == reported


def test_a_fault_within_a_stream_ends_it() -> None:
    renderer = CohereChatRenderer()
    data = renderer.deltas([ChatDelta(0, "I")]) + renderer.error(EngineFailure("a fault"), "req_1")
    name, event = parse_events(data.decode())[-1]
    assert name == "message-end" and event["delta"] == {"finish_reason": "ERROR", "error": "a fault"}
    _, late = parse_events(renderer.error(DeadlineExceeded("too late"), "req_1").decode())[-1]
    assert late["delta"] == {"finish_reason": "TIMEOUT", "error": "too late"}


def test_messages_become_chat_messages() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    spec = body(
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm"}],
            "tool_plan": "I look.",
            "tool_calls": [call],
        },
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": [{"type": "document", "document": {"data": {"sky": "rain"}}}],
        },
        tools=[{"type": "function", "function": FUNCTION}],
        tool_choice="REQUIRED",
    ).spec()
    assert spec.messages == [
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": '{"sky":"rain"}'},
    ]
    assert [tool.for_template() for tool in spec.tools] == [{"type": "function", "function": FUNCTION}]
    assert spec.tool_choice == ToolChoice("required")


def test_a_result_without_its_call_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="without its call"):
        body({"role": "tool", "tool_call_id": "c1", "content": "rain"}).spec()
