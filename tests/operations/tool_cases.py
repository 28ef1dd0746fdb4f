"""Tools, requests and checks that the tests of function calls share."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from server.operations.chatting.chat import ChatDelta, ChatResult, ChatSpec, FunctionTool, ToolChoice
from server.operations.generating.generation_options import GenerationOptions
from server.text.chats.tool_formats import TOOL_FORMATS

SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 0}},
        "required": ["city"],
    },
    "set_mode": {
        "type": "object",
        "$defs": {"mode": {"enum": ["on", "off", 'a "b"', None]}},
        "properties": {"modes": {"type": "array", "items": {"$ref": "#/$defs/mode"}, "maxItems": 3}},
        "required": ["modes"],
    },
    "get": {"type": "object", "properties": {}},
}
TOOLS = [
    FunctionTool(name, "A function.", schema, f"tools[{index}].function")
    for index, (name, schema) in enumerate(SCHEMAS.items())
]
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
REQUIRED = ToolChoice("required")
ROWS = {row.name: row for row in TOOL_FORMATS}


def template(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("llm", names, indirect=True)


def spec(
    choice: ToolChoice | None = None, *, tools: list[FunctionTool] = TOOLS, messages: Any = None, **settings: Any
) -> ChatSpec:
    own = {name: settings.pop(name) for name in list(settings) if name in ChatSpec.__dataclass_fields__}
    options = GenerationOptions(**{"stream": True, "max_new_tokens": 300, "seed": 1, "temperature": 1.0, **settings})
    return ChatSpec(messages or [QUESTION], options, tools=tools, tool_choice=choice or ToolChoice(), **own)


def check_calls(result: ChatResult, deltas: list[ChatDelta]) -> int:
    """Check calls against their schemas, and that the deltas add up to the result.

    Returns the number of finished answers.
    """
    finished = 0
    for index, choice in enumerate(result.choices):
        own = [delta for delta in deltas if delta.index == index]
        assert "".join(delta.content for delta in own) == choice.content
        assert "".join(delta.reasoning for delta in own) == choice.reasoning
        assert [token for delta in own for token in delta.token_ids] == choice.token_ids
        parts = [part for delta in own for part in delta.tool_calls]
        for place, call in enumerate(choice.tool_calls):
            (first,) = [part for part in parts if part.index == place and part.id is not None]
            assert (first.id, first.name) == (call.id, call.name)
            assert "".join(part.arguments for part in parts if part.index == place) == call.arguments
        complete = choice.tool_calls[: None if choice.finish_reason == "tool_calls" else -1]
        for call in complete:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
        assert choice.finish_reason in ("tool_calls", "length")
        finished += choice.finish_reason == "tool_calls" and bool(choice.tool_calls)
    return finished


CALL = {"id": "call_AbCdEfGhIj0123", "type": "function", "function": {"name": "get_weather"}}


def history(arguments: object) -> list[dict[str, Any]]:
    call = {**CALL, "function": {"name": "get_weather", "arguments": arguments}}
    return [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": CALL["id"], "content": "It rains."},
    ]
