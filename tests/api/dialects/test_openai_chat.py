"""Bodies of `/v1/chat/completions`: what other programs and servers send, and what the model then reads."""

from __future__ import annotations

from typing import Any

import pytest

from server.api.bodies.body import validate
from server.api.dialects.openai.chat_body import ChatCompletionBody
from server.api.dialects.openai.completions import CompletionBody
from server.api.fields.ignored_parameters import ignored_parameters
from server.errors import InvalidRequest
from server.operations.chatting.chat import ChatSpec, ToolChoice

USER = {"role": "user", "content": "hello"}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CUSTOM = {"type": "custom", "custom": {"name": "sh"}}


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def body(*messages: Any, **more: Any) -> ChatCompletionBody:
    return validate({"messages": [USER, *messages], **more}, ChatCompletionBody)


def spec(*messages: Any, **more: Any) -> ChatSpec:
    return body(*messages, **more).spec()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": None, "tool_calls": []}, {"content": ""}),
        ({"content": None}, {"content": ""}),
        ({"content": []}, {"content": ""}),
        ({"content": "a", "reasoning": "hm"}, {"content": "a", "reasoning_content": "hm"}),
        ({"content": "a", "reasoning": "no", "reasoning_content": "hm"}, {"content": "a", "reasoning_content": "hm"}),
        ({"content": "a", "reasoning_content": ""}, {"content": "a"}),
        ({"content": None, "refusal": "No."}, {"content": "No."}),
        ({"content": [{"type": "text", "text": "a", "index": 0, "cache_control": None}]}, {"content": "a"}),
    ],
)
def test_answers_that_are_sent_back(message: dict[str, Any], expected: dict[str, Any]) -> None:
    assert spec({"role": "assistant", **message}).messages[1] == {"role": "assistant", **expected}


def test_members_of_other_servers_in_answers_that_are_sent_back() -> None:
    call = CALL | {"index": 0, "provider_specific_fields": {"a": 1}, "extra_content": {}}
    answer = {
        "role": "assistant",
        "content": None,
        "tool_calls": [call, {"id": "d", "type": "custom", "custom": {"name": "sh", "input": "ls"}}],
        "id": "msg_1",
        "parsed": {"a": 1},
        "annotations": [],
        "audio": None,
        "function_call": None,
        "refusal": None,
        "provider_specific_fields": {"x": 1},
        "cache_control": {"type": "ephemeral"},
        "reasoning_details": [{"type": "reasoning.text"}],
        "thinking_blocks": [],
    }
    made = body(answer, {"role": "tool", "tool_call_id": "c", "content": None})
    assert ignored_parameters(made) == ["messages[1].reasoning_details"]
    messages = made.spec().messages
    assert [requested["function"] for requested in messages[1]["tool_calls"]] == [
        {"name": "look", "arguments": "{}"},
        {"name": "sh", "arguments": {"input": "ls"}},
    ]
    assert "content" not in messages[1] and messages[2] == {"role": "tool", "tool_call_id": "c", "content": ""}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice("auto")),
        ("required", ToolChoice("required")),
        (function("look"), ToolChoice("required", "look")),
        ({"function": {"name": "look"}}, ToolChoice("required", "look")),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [function("look")]}},
            ToolChoice("required", allowed=("look",)),
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function("look"), CUSTOM]}},
            ToolChoice("auto", allowed=("look",)),
        ),
    ],
)
def test_the_tool_choice(choice: Any, expected: ToolChoice) -> None:
    made = body(tools=[function("look"), function("walk"), CUSTOM, {"type": "web_search"}], tool_choice=choice)
    asked = made.spec()
    assert asked.tool_choice == expected and [tool.name for tool in asked.tools] == ["look", "walk"]
    inner = ["tool_choice.allowed_tools.tools[1]"] if CUSTOM in _allowed(choice) else []
    assert ignored_parameters(made) == [*inner, "tools[2]", "tools[3]"]


def _allowed(choice: Any) -> list[Any]:
    return choice.get("allowed_tools", {}).get("tools", []) if isinstance(choice, dict) else []


def test_a_choice_of_dropped_tools_is_an_error() -> None:
    only_custom = {"mode": "required", "tools": [CUSTOM]}
    for choice in ("required", {"type": "allowed_tools", "allowed_tools": only_custom}):
        with pytest.raises(InvalidRequest, match="`tool_choice` asks for a tool") as error:
            spec(tools=[CUSTOM], tool_choice=choice)
        assert error.value.param == "tool_choice"
    with pytest.raises(InvalidRequest, match="`tool_choice` asks for a tool"):
        spec(
            tools=[function("look"), CUSTOM],
            tool_choice={"type": "allowed_tools", "allowed_tools": only_custom},
        )


def test_values_that_mean_the_same_as_null() -> None:
    assert spec(top_k=-1, seed=-1, max_tokens=-1, logprobs=0, n=None, best_of=None) == spec()
    unlimited = validate({"prompt": "a", "max_tokens": -1}, CompletionBody).spec().options
    assert unlimited.max_new_tokens is None and unlimited.fill_context
    assert validate({"prompt": "a"}, CompletionBody).spec().options.max_new_tokens == 16
    with pytest.raises(InvalidRequest, match="`top_k`"):
        body(top_k=-2)


def test_names_of_other_servers_for_decoding_fields() -> None:
    given = {"min_tokens": 2, "include_stop_str_in_output": True, "repeat_penalty": 1.2, "stop": "x"}
    ours = {"min_new_tokens": 2, "include_stop": True, "repetition_penalty": 1.2, "stop": "x"}
    assert spec(**given) == spec(**ours)


@pytest.mark.parametrize(
    ("given", "thinking", "effort", "field"),
    [
        ({"reasoning_effort": "high"}, None, "high", "reasoning.enabled"),
        ({"reasoning_effort": 7}, None, None, "reasoning.enabled"),
        ({"reasoning": {"effort": "low"}}, None, "low", "reasoning.enabled"),
        ({"reasoning": {"enabled": True}}, True, None, "reasoning.enabled"),
        ({"thinking": {"type": "disabled"}}, False, None, "thinking"),
        ({"thinking": {"type": "auto"}}, None, None, "reasoning.enabled"),
        ({"enable_thinking": False, "reasoning_effort": "high"}, False, "high", "enable_thinking"),
    ],
)
def test_reasoning(given: dict[str, Any], thinking: bool | None, effort: str | None, field: str) -> None:
    asked = spec(**given)
    assert (asked.thinking, asked.reasoning_effort, asked.thinking_field) == (thinking, effort, field)


def test_a_changing_line_at_the_front_is_dropped() -> None:
    line = "x-anthropic-billing-header: cch=1;"
    given = [{"role": "system", "content": line}, {"role": "developer", "content": f"{line}\nBe brief."}, USER]
    made = validate({"messages": given}, ChatCompletionBody)
    assert made.spec().messages == [{"role": "system", "content": "Be brief."}, USER]
    assert ignored_parameters(made) == ["messages[0].content", "messages[1].content"]
    asked = body({"role": "user", "content": line})
    assert asked.spec().messages[1]["content"] == line and not ignored_parameters(asked)


def test_the_usage_of_a_stream_in_the_form_of_openrouter() -> None:
    assert body(stream=True, usage={"include": True}).includes_usage
    assert not body(stream=True, usage={"include": None}).includes_usage
