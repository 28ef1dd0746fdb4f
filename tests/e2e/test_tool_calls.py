"""Tool calls over HTTP in every format, with a real worker and a small random LLaMA."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import psutil
import pytest
import transformers
from pydantic_core import from_json

from server.text.chats.tool_formats import TOOL_FORMATS
from tests.e2e.conftest import RunningServer, serving
from tests.operations.chat_bench import write_checkpoint
from tests.operations.tool_cases import SCHEMAS, TOOLS
from tests.parity.checkpoints import write_model
from tests.text.tool_templates import BY_FORMAT, SPECIAL_TOKENS

NAMES = [row.name for row in TOOL_FORMATS]
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("tools")
    for name in NAMES:
        directory = write_checkpoint(root / name, BY_FORMAT[name], SPECIAL_TOKENS[name])
        size = max(json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"].values()) + 16
        config = transformers.LlamaConfig(
            vocab_size=size,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            bos_token_id=0,
            eos_token_id=1,
        )
        write_model(directory, config, "LlamaForCausalLM", std=0.3)
    with serving(root / "log", *(f"{name}={root / name}" for name in NAMES)) as running:
        yield running


def body(name: str, seed: int, **more: Any) -> dict[str, Any]:
    own = {"temperature": 0.0} if seed == 0 else {"temperature": 1.5, "seed": seed}
    tools = [tool.for_template() for tool in TOOLS]
    settings = {"model": name, "messages": QUESTION, "tools": tools, "max_tokens": 400, "logit_bias": {"37": 3}}
    return {**settings, "tool_choice": "required", "parallel_tool_calls": False, **own, **more}


def streamed(server: RunningServer, request: dict[str, Any]) -> dict[str, Any]:
    """Send a request with streaming, and combine the events to a message and its finish reason."""
    text = server.post("/v1/chat/completions", json={**request, "stream": True}).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line.startswith("data: {")]
    message: dict[str, Any] = {"content": "", "tool_calls": []}
    reason = None
    for choice in (choice for event in events for choice in event["choices"]):
        message["content"] += choice["delta"].get("content") or ""
        for call in choice["delta"].get("tool_calls") or []:
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
            message["tool_calls"][call["index"]]["arguments"] += call["function"].get("arguments") or ""
        reason = choice["finish_reason"] or reason
    return {**message, "finish_reason": reason}


@pytest.mark.parametrize("name", NAMES)
def test_forced_calls_match_their_schemas_and_streams_add_up(server: RunningServer, name: str) -> None:
    finished = 0
    for seed in range(4):
        request = body(name, seed)
        answer = server.post("/v1/chat/completions", json=request)
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        calls = [call["function"] for call in choice["message"]["tool_calls"] or []]
        assert not choice["message"]["content"]
        if choice["finish_reason"] == "tool_calls":
            finished += 1
            for call in calls:
                jsonschema.validate(json.loads(call["arguments"]), SCHEMAS[call["name"]])
        whole = streamed(server, request)
        assert whole["tool_calls"] == [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
        assert (whole["content"], whole["finish_reason"]) == ("", choice["finish_reason"])
    assert finished >= 1


def test_a_named_function_and_bad_tools(server: RunningServer) -> None:
    named = {"tool_choice": {"type": "function", "function": {"name": "get"}}}
    answer = server.post("/v1/chat/completions", json=body("hermes", 1, **named)).json()
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "get", "arguments": "{}"} and call["id"].startswith("call_")
    function = {"name": "f", "parameters": {"type": "object", "properties": {"secret": {"type": "y"}}}}
    bad = {"type": "function", "function": function}
    kept = server.post("/v1/chat/completions", json=body("hermes", 1, tools=[bad]))
    assert kept.status_code == 200 and kept.headers["x-ignored-parameters"] == "tools[0].function.parameters:type"
    bad["function"] = {**function, "strict": True}
    refused = server.post("/v1/chat/completions", json=body("hermes", 1, tools=[bad]))
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "tools"
    assert "`f`" in refused.json()["error"]["message"]


BAD_SCHEMA = {"type": "object", "properties": {"secret": {"type": "array", "uniqueItems": True}}}
CHAT = {"model": "hermes", "messages": QUESTION, "max_tokens": 2}
LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "tools[1].function.parameters": ("/v1/chat/completions", CHAT),
    "response_format.json_schema.schema": ("/v1/chat/completions", CHAT),
    "tools[1].parameters": ("/v1/responses", {"model": "hermes", "input": "a", "max_output_tokens": 2}),
    "text.format.schema": ("/v1/responses", {"model": "hermes", "input": "a", "max_output_tokens": 2}),
    "tools[1].input_schema": ("/v1/messages", CHAT),
    "output_config.format.schema": ("/v1/messages", CHAT),
    "tools[1].function.parameters of Cohere": ("/v2/chat", CHAT),
    "response_format.json_schema": ("/v2/chat", CHAT),
    "tools[1].function.parameters of Ollama": ("/api/chat", {**CHAT, "options": {"num_predict": 2}, "stream": False}),
    "format": ("/api/chat", {**CHAT, "options": {"num_predict": 2}, "stream": False}),
}
"""All places of a schema in a request: its path in the dialect → the route, and the other fields of the body."""


def with_schema(name: str, route: str, rest: dict[str, Any], strict: bool) -> dict[str, Any]:
    """A request body with a schema that cannot be fully enforced. name: key of `LOSSES`. strict: value of `strict`."""
    own = {"strict": True} if strict else {}
    if name.startswith("tools"):
        field = name.split()[0].rpartition(".")[2]
        functions = [
            {"name": letter, field: BAD_SCHEMA if letter == "f" else {"type": "object"}, **own} for letter in "gf"
        ]
        nested = ".function." in name
        tools = [{"type": "function", "function": function} if nested else function for function in functions]
        return {**rest, "tools": [{"type": "function", **tool} if route == "/v1/responses" else tool for tool in tools]}
    named = {"name": "answer", "schema": BAD_SCHEMA, **own}
    formats: dict[str, dict[str, Any]] = {
        "response_format.json_schema.schema": {"response_format": {"type": "json_schema", "json_schema": named}},
        "text.format.schema": {"text": {"format": {"type": "json_schema", **named}}},
        "output_config.format.schema": {"output_config": {"format": {"type": "json_schema", "schema": BAD_SCHEMA}}},
        "response_format.json_schema": {"response_format": {"type": "json_object", "json_schema": BAD_SCHEMA}},
        "format": {"format": BAD_SCHEMA},
    }
    return {**rest, **formats[name]}


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_not_enforced_is_named_in_the_words_of_the_dialect(server: RunningServer, name: str) -> None:
    route, rest = LOSSES[name]
    rest = {key: value for key, value in rest.items() if not (route == "/api/chat" and key == "max_tokens")}
    answer = server.post(route, json=with_schema(name, route, rest, strict=False))
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ignored-parameters"] == f"{name.split()[0]}:uniqueItems"
    if name.startswith("tools") and route != "/v2/chat":
        refused = server.post(route, json=with_schema(name, route, rest, strict=True))
        assert refused.status_code in (400, 422)
        message = "`{}` of the function `f` cannot be enforced: `properties.secret.uniqueItems`"
        assert message.format(name.split()[0]) in refused.text


def test_a_call_that_was_cut_can_come_back(server: RunningServer) -> None:
    """A tool call that was cut at the token limit can be sent back, in every dialect.

    With Anthropic's dialect, the cut call of a whole answer equals that of a stream.
    """
    named = {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
    whole = server.post("/v1/chat/completions", json=body("hermes", 0, **named)).json()
    max_tokens = whole["usage"]["completion_tokens"] - 20
    request = body("hermes", 0, **named, max_tokens=max_tokens)
    (choice,) = server.post("/v1/chat/completions", json=request).json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    cut = call["function"]["arguments"]
    assert choice["finish_reason"] == "length" and cut.startswith("{") and not cut.endswith("}")
    result = {"role": "tool", "tool_call_id": call["id"], "content": "x"}
    again = server.post("/v1/chat/completions", json={**CHAT, "messages": [*QUESTION, choice["message"], result]})
    assert again.status_code == 200, again.text
    items = [
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": cut},
        {"type": "function_call_output", "call_id": "c1", "output": "x"},
    ]
    response = server.post("/v1/responses", json={"model": "hermes", "input": items, "max_output_tokens": 2})
    assert response.status_code == 200, response.text

    tool = {"name": "get_weather", "input_schema": SCHEMAS["get_weather"]}
    asked = {"model": "hermes", "messages": QUESTION, "tools": [tool], "max_tokens": max_tokens, "temperature": 0}
    asked |= {"tool_choice": {"type": "tool", "name": "get_weather"}}
    whole = server.post("/v1/messages", json=asked).json()
    (block,) = whole["content"]
    assert whole["stop_reason"] == "max_tokens" and block["name"] == "get_weather"
    events = server.post("/v1/messages", json={**asked, "stream": True}).text.split("\n\n")
    deltas = [json.loads(event.partition("data: ")[2]) for event in events if "input_json_delta" in event]
    written = "".join(delta["delta"]["partial_json"] for delta in deltas)
    assert block["input"] == from_json(written, allow_partial=True)
    results = [{"type": "tool_result", "tool_use_id": block["id"], "content": "x"}]
    messages = [*QUESTION, {"role": "assistant", "content": [block]}, {"role": "user", "content": results}]
    assert server.post("/v1/messages", json={**CHAT, "messages": messages}).status_code == 200


def test_the_process_of_templates_ends_with_the_server(server: RunningServer) -> None:
    """When the server ends, so does its process that renders chat templates.

    This test is the last one in the file, because it stops the shared server.
    """
    server.post("/v1/chat/completions", json=body("hermes", 0, max_tokens=1))
    children = psutil.Process(server.process.pid).children(recursive=True)
    assert any("chat_process.py" in " ".join(child.cmdline()) for child in children)
    server.stop()
    assert not any(child.is_running() for child in children)
