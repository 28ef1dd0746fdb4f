"""Bodies of `/v1/chat/completions` as other programs send them, and the messages that the model gets."""

from __future__ import annotations

from typing import Any

import pytest

from server.api.bodies.body import validate
from server.api.dialects.openai.chat_body import ChatCompletionBody
from server.api.dialects.openai.completions import CompletionBody
from server.api.fields.ignored_parameters import ignored_parameters
from server.errors import InvalidRequest
from server.operations.chatting.chat import ChatSpec, ToolChoice
from server.operations.generating.grammar import JsonFormat

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
        ({"content": [{"type": "text", "text": "a", "copilot_cache_control": {}}]}, {"content": "a"}),
        ({"content": "a", "reasoning_text": "hm"}, {"content": "a", "reasoning_content": "hm"}),
        ({"content": "a", "cot_id": "x", "cot_summary": "hm"}, {"content": "a", "reasoning_content": "hm"}),
        (
            {"content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "a"}]},
            {"content": "a", "reasoning_content": "hm"},
        ),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"type": "text", "text": "m"}]},
                    {"type": "text", "text": "a"},
                    {"type": "text", "text": "b"},
                ]
            },
            {"content": "a\nb", "reasoning_content": "hm"},
        ),
        (
            {"content": [{"type": "thinking", "thinking": "no"}], "reasoning_content": "hm", "prefix": False},
            {"content": "", "reasoning_content": "hm"},
        ),
    ],
)
def test_answers_that_are_sent_back(message: dict[str, Any], expected: dict[str, Any]) -> None:
    assert spec({"role": "assistant", **message}).messages[1] == {"role": "assistant", **expected}


def test_members_of_other_servers_in_answers_that_are_sent_back() -> None:
    function = CALL["function"] | {"description": None, "parsed_arguments": {"a": 1}, "provider_specific_fields": {}}
    call = CALL | {"function": function, "index": 0, "provider_specific_fields": {"a": 1}, "extra_content": {}}
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
        "copilot_cache_control": {"type": "ephemeral"},
        "reasoning_details": [{"type": "reasoning.text"}],
        "thinking_blocks": [],
        "reasoning_opaque": "gAAA",
        "executed_tools": [{"index": 0, "type": "search"}],
    }
    made = body(answer, {"role": "tool", "tool_call_id": "c", "content": None})
    named = ("reasoning_details", "reasoning_opaque", "executed_tools")
    assert ignored_parameters(made) == [f"messages[1].{name}" for name in named]
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
    assert spec(include_stop_str_in_output=True) == spec()
    assert spec(stop="").options.stop == spec(stop=[""]).options.stop == []
    assert spec(stop=["a", ""]).options.stop == ["a"]
    unlimited = validate({"prompt": "a", "max_tokens": -1}, CompletionBody).spec().options
    assert unlimited.max_new_tokens is None and unlimited.fill_context
    assert validate({"prompt": "a"}, CompletionBody).spec().options.max_new_tokens == 16
    with pytest.raises(InvalidRequest, match="`top_k`"):
        body(top_k=-2)


def test_names_of_other_servers_for_decoding_fields() -> None:
    given = {"min_tokens": 2, "include_stop_str_in_output": True, "repeat_penalty": 1.2, "stop": "x"}
    ours = {"min_new_tokens": 2, "include_stop": True, "repetition_penalty": 1.2, "stop": "x"}
    assert spec(**given) == spec(**ours)
    assert spec(min_tokens=2, min_new_tokens=2) == spec(min_tokens=2)
    for other, name in (("min_tokens", "min_new_tokens"), ("repeat_penalty", "repetition_penalty")):
        with pytest.raises(InvalidRequest, match=f"`{other}` and `{name}` differ"):
            spec(**{other: 2, name: 1})


@pytest.mark.parametrize(
    ("given", "thinking", "effort", "field"),
    [
        ({"reasoning_effort": "high"}, None, "high", "reasoning.enabled"),
        ({"reasoning_effort": 7}, None, None, "reasoning.enabled"),
        ({"reasoning": {"effort": "low"}}, None, "low", "reasoning.enabled"),
        ({"reasoning": {"enabled": True}}, True, None, "reasoning.enabled"),
        ({"thinking": {"type": "disabled"}}, False, None, "thinking"),
        ({"thinking": {"type": "auto", "keep": "all"}}, None, None, "reasoning.enabled"),
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


def test_reasoning_is_of_answers_only() -> None:
    for message in ({"content": [{"type": "thinking", "thinking": "hm"}]}, {"content": "a", "cot_summary": "hm"}):
        with pytest.raises(InvalidRequest, match="only a message of the role assistant"):
            body({"role": "user", **message})
    with pytest.raises(InvalidRequest, match="contains a part of type thinking without text"):
        body({"role": "assistant", "content": [{"type": "thinking", "thinking": [{"type": "reference"}]}]})


def test_a_message_that_is_continued_on_other_servers_is_refused() -> None:
    for name in ("prefix", "partial"):
        with pytest.raises(InvalidRequest, match=f"`messages\\[1\\].{name}` is not supported, except as false"):
            body({"role": "assistant", "content": "a", name: True})


def test_members_of_other_servers_in_tools() -> None:
    tool = {
        "type": "function",
        "function": {"name": "look", "cache_control": {"type": "ephemeral"}, "return": {"type": "string"}},
        "copilot_cache_control": {"type": "ephemeral"},
        "defer_loading": True,
        "allowed_callers": ["direct"],
        "input_examples": [{"city": "Rome"}],
    }
    made = body(tools=[tool])
    assert ignored_parameters(made) == ["tools[0].function.return", "tools[0].input_examples"]
    assert made.spec().tools == spec(tools=[function("look")]).tools


@pytest.mark.parametrize("name", ["schema", "value"])
def test_a_schema_of_a_json_object(name: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    asked = spec(response_format={"type": "json_object", name: schema}).options.text_format
    assert asked == JsonFormat(schema, False, f"response_format.{name}")


@pytest.mark.parametrize(("seed", "expected"), [(-2, 2**64 - 2), (-(2**63), 2**63), (7, 7), (2**64 - 1, 2**64 - 1)])
def test_seeds_with_a_sign(seed: int, expected: int) -> None:
    assert spec(seed=seed).options.seed == expected
    assert validate({"prompt": "a", "seed": seed}, CompletionBody).spec().options.seed == expected


def test_a_share_of_nothing_keeps_the_likeliest_token() -> None:
    for options in (spec(top_p=0).options, validate({"prompt": "a", "top_p": 0.0}, CompletionBody).spec().options):
        assert options.top_p == 0
    with pytest.raises(InvalidRequest, match="`top_p` must be at least 0"):
        body(top_p=-0.1)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"max_tokens": 5}, {}),
        ({"max_completion_tokens": 5}, {"max_new_tokens": "max_completion_tokens"}),
        ({"max_completion_tokens": 5, "max_tokens": 5}, {}),
        ({"min_tokens": 5}, {"min_new_tokens": "min_tokens"}),
        ({"min_new_tokens": 5}, {}),
    ],
)
def test_errors_name_the_field_that_was_sent(given: dict[str, int], names: dict[str, str]) -> None:
    assert body(**given).field_names() == names


def test_the_name_of_a_schema_is_a_hint() -> None:
    for named in ({}, {"name": None}, {"name": "Answer[int]"}, {"name": "x" * 200}):
        asked = spec(response_format={"type": "json_schema", "json_schema": {**named, "schema": {"type": "object"}}})
        assert asked == spec(response_format={"type": "json_schema", "json_schema": {"name": "x"}})


def test_options_of_a_stream_that_are_off() -> None:
    off: dict[str, Any] = {"include_usage": False, "continuous_usage_stats": None, "include_obfuscation": True}
    for options in ({}, off):
        assert spec(stream_options=options) == spec()
        validate({"prompt": "a", "stream_options": options}, CompletionBody).spec()
    for name in ("include_usage", "continuous_usage_stats"):
        with pytest.raises(InvalidRequest, match="`stream_options` requires `stream`"):
            spec(stream=False, stream_options={name: True})
