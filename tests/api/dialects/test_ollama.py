"""Bodies of the Ollama dialect are converted correctly, and the `ollama` package can read the answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import ollama
import pytest
from pydantic import BaseModel

from server.api.bodies.body import validate
from server.api.dialects.ollama.answers import OllamaChatAnswer, OllamaGenerateAnswer, TextRenderer
from server.api.dialects.ollama.bodies import (
    OllamaBody,
    OllamaChatBody,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaGenerateBody,
)
from server.api.dialects.ollama.messages import OllamaChatMessage, OllamaFunction, OllamaTool, OllamaToolCall
from server.api.dialects.ollama.models import OllamaShowBody, parse_show
from server.api.dialects.ollama.options import OllamaOptions
from server.api.fields.ignored_parameters import ignored_parameters
from server.errors import EngineFailure, InvalidRequest
from server.operations.chatting.chat import ChatChoice, ChatDelta, ChatResult, ToolCall, ToolCallDelta, ToolChoice
from server.operations.generating.generation_run import PhaseSeconds, TokenUsage

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
    choice = ChatChoice("I", "", [], "length", None, [1], None)
    answer = TextRenderer(MadeUpRun(), is_chat=True).whole(result(choice, decode_seconds=None))
    OllamaChatAnswer.model_validate(answer)
    assert "eval_duration" not in answer and answer["done_reason"] == "length"


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
    assert [(shown["name"], shown["tool_call_id"]) for shown in results] == [
        (shown["content"], ids[shown["content"]]) for shown in results
    ]


ASKED = {"role": "user", "content": "go"}
FUNCTION = {"name": "mcp.io/weather:now", "description": None, "parameters": None}
TOOL = {"type": "function", "function": FUNCTION}
REQUIRED: dict[type[BaseModel], dict[str, Any]] = {
    OllamaChatBody: {},
    OllamaGenerateBody: {},
    OllamaEmbedBody: {},
    OllamaEmbeddingsBody: {},
    OllamaShowBody: {},
    OllamaOptions: {},
    OllamaChatMessage: {"role": "user"},
    OllamaToolCall: {"function": {"name": "f", "arguments": None, "index": None}},
    OllamaTool: {"function": FUNCTION | {"strict": None}},
    OllamaFunction: {"name": "f"},
}
"""Required fields of each body, with valid values."""


@pytest.mark.parametrize("schema", REQUIRED)
def test_every_optional_field_may_be_null(schema: type[BaseModel]) -> None:
    names = [field.alias or name for name, field in schema.model_fields.items()]
    nulls = schema.model_validate(dict.fromkeys(names) | REQUIRED[schema])
    assert ignored_parameters(nulls) == []
    if isinstance(nulls, OllamaBody):
        assert nulls.spec() == schema().spec()  # type: ignore[attr-defined]


WISHES: dict[str, dict[str, Any]] = {
    "truncate": {"truncate": True},
    "shift": {"shift": True},
    "options.repeat_last_n": {"options": {"repeat_last_n": 64}},
    "options:unknown": {"options": {"the-users-own-key": 1, "another": {"deep": [1]}, "nothing": None}},
    "temperature": {"temperature": 0.5},
    "max_output_tokens": {"max_output_tokens": 100},
    "stop": {"stop": ["x"]},
    "tools[1]": {"tools": [TOOL, {"type": "web_search_preview", "search_context_size": "low", "user_location": {}}]},
    "tools[0].items": {"tools": [TOOL | {"items": {"a": 1}}]},
}


@pytest.mark.parametrize("named", WISHES)
def test_wishes_are_dropped_and_named(named: str) -> None:
    plain, wished = body(ASKED), body(ASKED, **WISHES[named])
    assert ignored_parameters(wished) == [named]
    if "tools" not in WISHES[named]:
        assert wished.spec() == plain.spec()


WITHOUT_EFFECT: list[dict[str, Any]] = [
    {"truncate": False, "shift": False, "_debug_render_only": False, "user": "me", "metadata": {"a": 1}},
    *({"keep_alive": form} for form in ("5m", "-1", 300, -1, 0, 1.5, "")),
    {"options": {}},
    {"options": {"num_ctx": 64, "repeat_last_n": -1, "unknown": None}},
    {"options": {"num_ctx": -1, "num_gpu": "all", "use_mmap": None, "mirostat": 0, "mirostat_tau": 5, "tfs_z": 1}},
    {"options": {"num_ctx": 0, "stop": [], "num_predict": 0, "seed": -1}},
    {"format": "", "tools": [], "images": [], "tool_choice": "auto", "logprobs": False},
]


@pytest.mark.parametrize("fields", WITHOUT_EFFECT)
def test_hints_and_neutral_values_are_accepted(fields: dict[str, Any]) -> None:
    if "images" in fields:
        fields = fields | {"messages": [ASKED | {"images": fields["images"]}]}
        fields.pop("images")
    given = OllamaChatBody.model_validate({"messages": [ASKED]} | fields)
    assert ignored_parameters(given) == []
    sent, plain = given.spec(), body(ASKED).spec()
    assert sent.chat == plain.chat


def test_options_reach_the_generation() -> None:
    options = {"num_predict": 16.0, "top_k": -1, "seed": 3.0, "stop": "x", "repeat_penalty": 2.0, "repeat_last_n": 0}
    chat = body(ASKED, options=options).spec().chat
    assert chat is not None
    assert (chat.options.max_new_tokens, chat.options.top_k, chat.options.seed) == (16, 0, 3)
    assert (chat.options.stop, chat.options.repetition_penalty, chat.options.fill_context) == (["x"], 1.0, False)


def test_ollamas_own_client_sends_empty_texts() -> None:
    """Ollama's command line sends unset fields as empty texts and nulls. They count as absent."""
    shown = {"model": "", "system": "", "template": "", "verbose": False, "options": None, "name": "llm:latest"}
    for names in ({"model": "", "name": "llm:latest"}, {"model": "llm:latest", "name": ""}):
        given = OllamaShowBody.model_validate(shown | names)
        assert parse_show(given).name == "llm" and ignored_parameters(given) == []
    with pytest.raises(InvalidRequest, match="`model` is required"):
        parse_show(OllamaShowBody.model_validate(shown | {"name": ""}))
    empty = {"model": "llm", "prompt": "hi", "suffix": "", "system": "", "template": "", "options": None}
    given_prompt = OllamaGenerateBody.model_validate(empty)
    assert given_prompt.spec() == OllamaGenerateBody.model_validate({"model": "llm", "prompt": "hi"}).spec()
    assert ignored_parameters(given_prompt) == []


@pytest.mark.parametrize("fields", [{}, {"system": "Be brief."}, {"system": "Be brief.", "raw": True}, {"think": True}])
def test_without_a_prompt_the_model_is_only_loaded(fields: dict[str, Any]) -> None:
    spec = OllamaGenerateBody.model_validate({"prompt": ""} | fields).spec()
    assert spec.chat is None and spec.plain is None


def test_editors_send_many_stop_strings() -> None:
    stops = [f"\n{index}" for index in range(64)]
    chat = body(ASKED, options={"stop": stops, "top_p": 0}).spec().chat
    assert chat is not None and (chat.options.stop, chat.options.top_p) == (stops, 0.0)


@pytest.mark.parametrize(
    ("format_", "schema"),
    [("json", {"type": "object"}), ({}, {"type": "object"}), ({"type": "array"}, {"type": "array"}), ("", None)],
)
def test_an_empty_format_is_any_object(format_: Any, schema: dict[str, Any] | None) -> None:
    chat = body(ASKED, format=format_).spec().chat
    assert chat is not None
    assert (None if chat.options.text_format is None else chat.options.text_format.schema) == schema


REFUSED: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "`options.mirostat` is not supported, except as 0": (OllamaChatBody, {"options": {"mirostat": 1}}),
    "`options.stop` must have at most 64 items": (OllamaChatBody, {"options": {"stop": ["x"] * 65}}),
    "`options.top_p` must be at least 0": (OllamaChatBody, {"options": {"top_p": -0.1}}),
    "`options.top_k` must be an integer": (OllamaChatBody, {"options": {"top_k": 1.5}}),
    "`options.penalize_newline` is not supported": (OllamaChatBody, {"options": {"penalize_newline": False}}),
    "`_debug_render_only` is not supported": (OllamaChatBody, {"_debug_render_only": True}),
    "`tool_choice` must be": (OllamaChatBody, {"tool_choice": {"type": "function"}}),
    "`messages[0].content` contains a part of type image": (
        OllamaChatBody,
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
    ),
    "`messages[0].tool_calls[0].function.arguments` must be": (
        OllamaChatBody,
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}]},
    ),
    "unknown field `colour`": (OllamaChatBody, {"colour": 1}),
    "`width` is not supported, except as 0": (OllamaGenerateBody, {"width": 512}),
    "`context` is not supported, except as []": (OllamaGenerateBody, {"context": [1]}),
    "`suffix` is not supported": (OllamaGenerateBody, {"suffix": "x"}),
    "`template` is not supported": (OllamaGenerateBody, {"template": "x"}),
    "`images` is not supported, except as []": (OllamaGenerateBody, {"images": ["aGk="]}),
    "`dimensions` must be at least 0": (OllamaEmbedBody, {"dimensions": -1}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_would_change_the_answer_is_refused(message: str) -> None:
    schema, fields = REFUSED[message]
    with pytest.raises(InvalidRequest) as error:
        validate(fields, schema)
    assert message in error.value.message


def test_wishes_of_show_are_named() -> None:
    shown = OllamaShowBody.model_validate(
        {"model": "llm", "verbose": True, "system": "x", "template": "", "options": {"a": 1}}
    )
    assert ignored_parameters(shown) == ["verbose", "system", "options"]


@pytest.mark.parametrize("content", [None, "", [], [{"type": "text", "text": ""}]])
def test_a_message_may_have_no_text(content: Any) -> None:
    calls = [{"function": {"name": "f", "arguments": {}}}]
    spec = body(ASKED, {"role": "assistant", "content": content, "tool_calls": calls}).spec()
    assert spec.chat is not None and spec.chat.messages[1]["content"] == ""


def test_texts_of_parts_and_roles_in_capitals() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat = body({"role": "Developer", "content": "be brief"}, {"role": "USER", "content": parts}).spec().chat
    assert chat is not None
    assert [(message["role"], message["content"]) for message in chat.messages] == [
        ("system", "be brief"),
        ("user", "a\nb"),
    ]


@pytest.mark.parametrize("arguments", [{"city": "Paris"}, '{ "city":"Paris" }', '{"city": "Par', "[1]"])
def test_arguments_may_be_text(arguments: Any) -> None:
    """Arguments of a call that are a text, even incomplete JSON, reach the chat template unchanged."""
    call = {"id": "a", "type": "function", "index": 0, "function": {"name": "weather", "arguments": arguments}}
    chat = body(ASKED, {"role": "assistant", "tool_calls": [call]}).spec().chat
    assert chat is not None
    assert chat.messages[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": arguments}


@pytest.mark.parametrize("arguments", [None, "{}", {}])
def test_a_call_may_have_no_arguments(arguments: Any) -> None:
    call = {"function": {"name": "weather", "arguments": arguments}}
    chat = body(ASKED, {"role": "assistant", "tool_calls": [call]}).spec().chat
    assert chat is not None and chat.messages[1]["tool_calls"][0]["function"]["arguments"] == (arguments or {})


def answered(calls: list[dict[str, Any]], *results: dict[str, Any]) -> list[tuple[str, str]]:
    """Convert a conversation with these calls and results. Returns name and id of the call assigned to each result."""
    asked = [{"role": "assistant", "tool_calls": calls}] if calls else []
    chat = body(ASKED, *asked, *({"role": "tool", "content": "x"} | result for result in results)).spec().chat
    assert chat is not None
    return [(message["name"], message["tool_call_id"]) for message in chat.messages if message["role"] == "tool"]


def call(name: str, call_id: str | None = None) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": {}}} | ({} if call_id is None else {"id": call_id})


def test_results_name_their_calls() -> None:
    calls = [call("f", "a"), call("g", "b"), call("f", "c")]
    by_id = [{"tool_call_id": "c"}, {"tool_call_id": "a"}, {"tool_call_id": "b", "tool_name": "renamed"}]
    assert answered(calls, *by_id) == [("f", "c"), ("f", "a"), ("g", "b")]
    by_name = [{"name": "g"}, {"tool_name": "f"}, {"name": "f"}]
    assert answered(calls, *by_name) == [("g", "b"), ("f", "a"), ("f", "c")]
    own_ids = [{"tool_call_id": "one", "name": "g"}, {"tool_call_id": "two"}, {"tool_call_id": "three"}]
    assert answered(calls, *own_ids) == [("g", "b"), ("f", "a"), ("f", "c")]
    without_ids = answered([call("f"), call("g")], {"tool_call_id": "one"}, {"tool_call_id": "two"})
    assert [name for name, _ in without_ids] == ["f", "g"] and len({call_id for _, call_id in without_ids}) == 2


def test_a_result_may_outlive_its_call() -> None:
    """A tool result whose call is missing is accepted, because clients drop old messages to shorten a conversation."""
    assert answered([], {"tool_call_id": "own", "tool_name": "f"}) == [("f", "own")]
    assert answered([call("g", "a")], {"tool_name": "f", "tool_call_id": "own"}, {"tool_call_id": "a"}) == [
        ("f", "own"),
        ("g", "a"),
    ]
    with pytest.raises(InvalidRequest, match="without a call before it"):
        answered([], {})


@pytest.mark.parametrize(
    ("sent", "choice"),
    [
        (None, ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "function": {"name": "f"}}, ToolChoice("required", "f")),
        ({"type": "function", "name": "f"}, ToolChoice("required", "f")),
    ],
)
def test_a_tool_can_be_chosen(sent: Any, choice: ToolChoice) -> None:
    chat = body(ASKED, tools=[TOOL], tool_choice=sent).spec().chat
    assert chat is not None and chat.tool_choice == choice


def test_built_in_tools_are_not_shown_to_the_model() -> None:
    chat = body(ASKED, tools=[{"type": "web_search"}, TOOL]).spec().chat
    assert chat is not None and [(tool.name, tool.place) for tool in chat.tools] == [
        (FUNCTION["name"], "tools[1].function")
    ]


@pytest.mark.parametrize("text", [None, "", []])
def test_an_embedding_of_nothing_asks_for_no_vector(text: Any) -> None:
    assert not OllamaEmbedBody.model_validate({"input": text}).spec().inputs
    if not isinstance(text, list):
        assert not OllamaEmbeddingsBody.model_validate({"prompt": text}).spec().inputs


def test_an_answer_to_a_prompt_has_an_empty_context() -> None:
    choice = ChatChoice("I", "", [], "stop", None, [1], None)
    answer = TextRenderer(MadeUpRun(), is_chat=False).whole(result(choice))
    OllamaGenerateAnswer.model_validate(answer)
    assert answer["context"] == [] and ollama.GenerateResponse(**answer).context == []
    assert "context" not in TextRenderer(MadeUpRun(), is_chat=True).whole(result(choice))
