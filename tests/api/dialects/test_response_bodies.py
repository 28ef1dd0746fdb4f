"""Bodies of `/v1/responses`: kinds of fields, and the chat messages that are made from items of earlier answers."""

from __future__ import annotations

from typing import Any

import pytest

from server.api.dialects.openai.responses.body import INCLUDABLE, ResponsesBody
from server.api.dialects.openai.responses.built_in_items import BUILT_IN_ITEMS
from server.api.dialects.openai.responses.input import chat_messages
from server.api.dialects.openai.responses.items import encoded_reasoning
from server.api.dialects.openai.responses.tools import DROPPED_TOOLS
from server.api.fields.ignored_parameters import ignored_parameters
from server.errors import InvalidRequest
from server.operations.chatting.chat import ToolChoice
from server.operations.generating.grammar import JsonFormat
from tests.api.dialects.response_bench import TOOLS

USER = {"role": "user", "content": "Hi"}


def body(**fields: Any) -> ResponsesBody:
    return ResponsesBody.model_validate({"input": "Hi", **fields})


def named(**fields: Any) -> list[str]:
    return ignored_parameters(body(**fields))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("include", [value]) for value in sorted(INCLUDABLE)),
        *(("reasoning", {"effort": value}) for value in ("none", "minimal", "low", "xhigh", "max", "no such effort")),
        ("reasoning", {"effort": None, "summary": None, "generate_summary": None, "context": "auto"}),
        ("metadata", {"a": "b"}),
        ("client_metadata", {"a": "b"}),
        ("access_programs", {"cyber": "standard"}),
        ("seed", -5),
        ("top_p", 0),
        ("prompt_cache_key", "k"),
        ("prompt_cache_retention", "24h"),
        ("safety_identifier", "s"),
        ("user", "u"),
        *(("service_tier", value) for value in ("auto", "default", "flex", "priority", "fast")),
        *(("text", {"verbosity": value, "format": None}) for value in ("low", "medium", "high", None)),
        ("truncation", "disabled"),
        ("max_tool_calls", 3),
        ("background", False),
        ("context_management", []),
        ("stream_options", {"include_obfuscation": True}),
        ("top_logprobs", 0),
        ("store", False),
    ],
)
def test_hints_and_neutral_values_are_accepted(field: str, value: Any) -> None:
    assert named(**{field: value}) == []
    body(**{field: value}).spec()


@pytest.mark.parametrize(
    ("field", "value", "names"),
    [
        ("include", ["reasoning.encrypted_content", "something.new"], ["include[1]"]),
        ("reasoning", {"summary": "auto"}, ["reasoning.summary"]),
        ("reasoning", {"generate_summary": "detailed"}, ["reasoning.generate_summary"]),
        ("reasoning", {"context": "all_turns", "mode": "pro"}, ["reasoning.context", "reasoning.mode"]),
        ("truncation", "auto", ["truncation"]),
        ("context_management", [{"type": "compaction", "compact_threshold": 1000}], ["context_management"]),
        *(("tools", [*TOOLS, {"type": kind, "x": 1}], [f"tools[2]:{kind}"]) for kind in sorted(DROPPED_TOOLS)),
        ("tools", [{"type": "the client's own"}], ["tools[0]"]),
    ],
)
def test_wishes_are_dropped_and_named(field: str, value: Any, names: list[str]) -> None:
    assert named(**{field: value}) == names
    body(**{field: value}).spec()


def test_every_optional_field_may_be_null() -> None:
    fields = [name for name, field in ResponsesBody.model_fields.items() if not field.is_required() and name != "input"]
    assert named(**dict.fromkeys(fields)) == []
    assert body(**dict.fromkeys(fields)).spec().tool_choice == ToolChoice()


def test_dropped_tools_keep_the_places_of_the_others() -> None:
    made = body(tools=[{"type": "mcp", "server_label": "x"}, TOOLS[1]])
    assert [tool.name for tool in made.functions] == ["get_time"] and named(tools=made.tools) == ["tools[0]:mcp"]


READABLE: dict[str, tuple[dict[str, Any], list[tuple[str, Any]]]] = {
    "local_shell_call": (
        {"id": "lsh_1", "call_id": "c", "action": {"type": "exec", "command": ["ls"], "env": {}}},
        [("local_shell", {"type": "exec", "command": ["ls"], "env": {}})],
    ),
    "local_shell_call_output": ({"id": "c", "output": '{"stdout": "a"}'}, [("tool", '{"stdout": "a"}')]),
    "shell_call": ({"call_id": "c", "action": {"commands": ["ls"]}}, [("shell", {"commands": ["ls"]})]),
    "shell_call_output": (
        {"call_id": "c", "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
        [("tool", '[{"stdout":"a","stderr":"","outcome":{"type":"exit","exit_code":0}}]')],
    ),
    "apply_patch_call": (
        {"call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
        [("apply_patch", {"type": "delete_file", "path": "a"})],
    ),
    "apply_patch_call_output": ({"call_id": "c", "status": "failed", "output": None}, [("tool", "failed")]),
    "program": ({"call_id": "c", "code": "f()", "fingerprint": "x"}, [("program", {"code": "f()"})]),
    "program_output": ({"call_id": "c", "result": "4", "status": "completed"}, [("tool", "4")]),
    "mcp_call": (
        {"id": "c", "server_label": "s", "name": "ask", "arguments": '{"q": 1}', "output": "4", "error": None},
        [("ask", {"q": 1}), ("tool", "4")],
    ),
    "code_interpreter_call": (
        {"id": "c", "code": "2+2", "container_id": "x", "outputs": [{"type": "logs", "logs": "4"}]},
        [("code_interpreter", {"code": "2+2"}), ("tool", '[{"type":"logs","logs":"4"}]')],
    ),
    "file_search_call": (
        {"id": "c", "queries": ["a"], "results": [{"text": "b"}]},
        [("file_search", {"queries": ["a"]}), ("tool", '[{"text":"b"}]')],
    ),
}


@pytest.mark.parametrize("kind", READABLE)
def test_an_item_of_a_built_in_tool_is_shown(kind: str) -> None:
    fields, expected = READABLE[kind]
    made = body(input=[{"type": kind, "status": "completed", **fields}])
    shown: list[tuple[str, Any]] = []
    for message in chat_messages(made.input):
        for call in message.get("tool_calls", ()):
            assert call["id"] == "c"
            shown.append((call["function"]["name"], call["function"]["arguments"]))
        if message["role"] == "tool":
            assert message["tool_call_id"] == "c"
            shown.append(("tool", message["content"]))
    assert shown == expected and ignored_parameters(made) == []


@pytest.mark.parametrize("kind", sorted(BUILT_IN_ITEMS))
@pytest.mark.parametrize("value", [None, 7, "x", [[1]], {"a": {}}], ids=str)
def test_items_of_built_in_tools_with_any_values_are_read(kind: str, value: Any) -> None:
    fields = ("call_id", "action", "output", "result", "results", "operation", "arguments", "name", "code", "queries")
    made = body(input=[{"type": kind, **dict.fromkeys(fields, value)}, USER])
    assert chat_messages(made.input)[-1]["content"] == "Hi"


def test_a_custom_call_and_its_result_are_shown() -> None:
    made = body(
        input=[
            {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c", "name": "apply_patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "done"}]},
            {"type": "function_call_output", "call_id": None, "output": "more"},
        ]
    )
    call, result, more = chat_messages(made.input)
    assert call["tool_calls"][0]["function"] == {"name": "apply_patch", "arguments": {"input": "*** Begin"}}
    assert (result["content"], result["tool_call_id"]) == ("done", "c") and more["content"] == "more"


@pytest.mark.parametrize(
    ("fields", "text", "names"),
    [
        ({"content": [{"type": "reasoning_text", "text": "Hm."}]}, "Hm.", []),
        ({"content": [{"type": "text", "text": "Hm."}], "encrypted_content": "foreign"}, "Hm.", []),
        ({"encrypted_content": encoded_reasoning("Hm. é")}, "Hm. é", []),
        ({"summary": [{"type": "summary_text", "text": "A"}, {"type": "summary_text", "text": "B"}]}, "A\nB", []),
        (
            {"summary": [{"type": "summary_text", "text": "A"}], "encrypted_content": "gAAA"},
            "A",
            ["input[0].encrypted_content"],
        ),
        ({"encrypted_content": "gAAA", "content": None}, None, ["input[0].encrypted_content"]),
        ({"encrypted_content": "triptych-1.é"}, None, ["input[0].encrypted_content"]),
        ({"summary": [], "content": []}, None, []),
    ],
)
def test_replayed_reasoning(fields: dict[str, Any], text: str | None, names: list[str]) -> None:
    items = [{"type": "reasoning", "id": "rs_1", "summary": [], **fields}, USER]
    first, *rest = chat_messages(body(input=items).input)
    assert named(input=items) == names
    if text is None:
        assert first["role"] == "user" and not rest
    else:
        assert first == {"role": "assistant", "reasoning_content": text, "content": ""}


def test_members_that_programs_add_to_items_have_no_effect() -> None:
    made = body(
        input=[
            {
                "role": "assistant",
                "end_turn": True,
                "content": [{"type": "output_text", "text": "{}", "parsed": {"a": 1}, "annotations": []}],
            },
            {"type": "function_call", "call_id": "c", "name": "f", "parsed_arguments": {}},
        ]
    )
    (message,) = chat_messages(made.input)
    assert message["content"] == "{}" and message["tool_calls"][0]["function"] == {"name": "f", "arguments": ""}
    assert ignored_parameters(made) == []


@pytest.mark.parametrize("name", [None, "Answer[int]", "an answer", "x" * 200])
def test_the_name_of_a_schema_is_a_hint(name: str | None) -> None:
    schema = {"type": "object"}
    given = {"type": "json_schema", "name": name, "schema": schema}
    options = body(text={"format": given}).spec().options
    assert options.text_format == JsonFormat(schema, False, "text.format.schema")


def test_input_may_be_absent_where_a_response_is_continued() -> None:
    for fields in ({}, {"input": None}, {"input": []}, {"instructions": "Be brief."}):
        with pytest.raises(InvalidRequest, match="`input` needs an item") as error:
            ResponsesBody.model_validate(fields).spec()
        assert error.value.param == "input"
    made = ResponsesBody.model_validate({"previous_response_id": "resp_1"})
    assert made.input == [] and ignored_parameters(made) == []


def test_errors_about_messages_name_the_field() -> None:
    assert body().spec().messages_field == "input"
