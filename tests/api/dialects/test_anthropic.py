"""`/v1/messages` renders made-up deltas and results to answers that the `anthropic` package can read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from server.api.dialects.anthropic.bodies import AnthropicMessagesBody
from server.api.dialects.anthropic.routes import AnthropicMessage, MessageRenderer
from server.api.fields.ignored_parameters import ignored_parameters
from server.errors import EngineFailure, InvalidRequest
from server.operations.chatting.chat import (
    ChatChoice,
    ChatDelta,
    ChatResult,
    ChatSpec,
    ToolCall,
    ToolCallDelta,
    ToolChoice,
)
from server.operations.generating.generation_run import PhaseSeconds, TokenUsage
from tests.api.conftest import Bench
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


def test_a_share_of_nothing_keeps_the_likeliest_token() -> None:
    assert body(top_p=0).spec().options.top_p == 0


def test_errors_about_messages_name_no_place() -> None:
    """An error names the field `messages` without an index.

    The model's messages have other indices than the request's, because the system prompt and each tool result become
    messages of their own.
    """
    assert body().spec().messages_field == "messages"


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


def test_blocks_that_only_anthropic_can_read_are_dropped_and_named() -> None:
    searched = [
        {"type": "redacted_thinking", "data": "x"},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "web_search_result", "url": "x"}]},
        {"type": "text", "text": "I found it.", "citations": [{"type": "char_location", "cited_text": "x"}]},
    ]
    made = body(messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": searched}])
    assert ignored_parameters(made) == [f"messages[1].content[{index}]" for index in range(3)]
    assert made.spec().messages == [{"role": "user", "content": "a"}, {"role": "assistant", "content": "I found it."}]


def test_results_of_all_forms() -> None:
    use = [{"type": "tool_use", "id": f"t{i}", "name": "find", "input": {}} for i in range(5)]
    contents: list[Any] = [None, "", [], "x", [{"type": "tool_reference", "tool_name": "weather"}]]
    results = [
        {"type": "tool_result", "tool_use_id": f"t{i}", "content": content} for i, content in enumerate(contents)
    ]
    made = spec(("user", "a"), ("assistant", use), ("user", results))
    assert [message["content"] for message in made.messages[2:]] == ["", "", "", "x", "Tool: weather"]


def test_empty_texts_and_summaries() -> None:
    content = [
        {"type": "compaction", "content": "So far."},
        {"type": "text", "text": ""},
        {"type": "text", "text": "b"},
    ]
    assert spec(("user", content)).messages == [{"role": "user", "content": "So far.\nb"}]
    assert spec(("user", [{"type": "compaction", "content": None}])).messages == [{"role": "user", "content": ""}]
    with pytest.raises(InvalidRequest, match="`compaction` block whose content is encrypted"):
        spec(("user", [{"type": "compaction", "encrypted_content": "x"}]))


def test_system_messages_within_the_conversation() -> None:
    late = {"role": "system", "content": [{"type": "text", "text": "Be kind."}]}
    passing = late | {"clear_at": "next_user_message"}
    user, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    kept = [{"role": "user", "content": "a"}, {"role": "system", "content": "Be kind."}]
    assert body(messages=[user, late]).spec().messages == kept == body(messages=[user, passing]).spec().messages
    later = body(messages=[user, passing, answer, user]).spec().messages
    assert [message["role"] for message in later] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    ("system", "expected", "names"),
    [
        ("x-anthropic-billing-header: cch=1;", [], ["system[0]"]),
        ("x-anthropic-billing-header: cch=1;\n\nBe brief.", ["Be brief."], ["system[0]"]),
        ("Be brief.\nx-anthropic-billing-header: cch=1;", None, []),
        (["x-anthropic-billing-header: cch=1;", "Be brief."], ["Be brief."], ["system[0]"]),
        (["", "x-anthropic-billing-header: a\nx-anthropic-billing-header: b", "B"], ["B"], ["system[1]"]),
        (["Be brief.", "x-anthropic-billing-header: cch=1;"], None, []),
    ],
)
def test_a_line_that_changes_with_every_request_is_dropped_at_the_front(
    system: Any, expected: list[str] | None, names: list[str]
) -> None:
    given = system if isinstance(system, str) else [{"type": "text", "text": text} for text in system]
    made = body(system=given)
    texts = [message["content"] for message in made.spec().messages if message["role"] == "system"]
    assert texts == ([system if isinstance(system, str) else "\n".join(system)] if expected is None else expected)
    assert ignored_parameters(made) == names


@pytest.mark.parametrize(
    ("config", "thinking", "names"),
    [
        ({"type": "enabled", "budget_tokens": 1}, True, ["thinking.budget_tokens"]),
        ({"type": "disabled"}, False, []),
        ({"type": "adaptive", "display": "omitted"}, None, []),
        ({"type": "between_tools"}, None, []),
    ],
)
def test_thinking_and_effort(config: dict[str, Any], thinking: bool | None, names: list[str]) -> None:
    made = body(thinking=config, output_config={"effort": "xhigh"})
    asked = made.spec()
    assert (asked.thinking, asked.thinking_field, asked.reasoning_effort) == (thinking, "thinking", "xhigh")
    assert ignored_parameters(made) == names


def test_limits_beyond_any_context_are_accepted() -> None:
    assert body(max_tokens=10**9).spec().options.max_new_tokens == 1 << 20
    assert body(max_tokens=0).spec().options.max_new_tokens == 0


def test_bounds_are_those_of_the_api() -> None:
    asked = body(top_p=0, stop_sequences=[f"\n{index}" for index in range(64)]).spec().options
    assert asked.top_p == 0 and len(asked.stop) == 64


async def test_errors_of_all_paths_have_the_shape_of_the_dialect(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    for method, path, status in (
        ("POST", "/v1/messages/batches", 404),
        ("GET", "/v1/messages/batches/msgbatch_1/results", 404),
        ("GET", "/v1/messages", 405),
        ("POST", "/v1/messages", 400),
    ):
        answer = await http.request(method, path, json={})
        assert answer.status_code == status and answer.json()["type"] == "error", path


def test_two_formats_are_refused() -> None:
    format = {"type": "json_schema", "schema": {"type": "object"}}
    assert body(output_format=format).spec().options.text_format is not None
    with pytest.raises(InvalidRequest, match="send one of them"):
        body(output_format=format, output_config={"format": format}).spec()


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
