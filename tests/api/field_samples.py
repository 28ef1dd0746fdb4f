"""Valid request bodies that together contain every object of every dialect, for `test_field_sweep.py`.

The example of a route is a sample too. If a body gets a new kind of nested object, add a sample with it here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, get_args

from pydantic import BaseModel, RootModel

from server.api.dialects.registry import ROUTES

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
USER = {"role": "user", "content": "hello"}
_FUNCTION = {"name": "weather", "description": "The weather.", "parameters": SCHEMA}
_CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
_FORMATS = (
    {"type": "text"},
    {"type": "json_object"},
    {"type": "json_schema", "schema": SCHEMA},
    {"type": "regex", "pattern": "a+"},
    {"type": "choice", "choices": ["a", "b"]},
)
_FOUND = {"type": "search_result", "source": "notes", "title": "Rome", "content": [{"type": "text", "text": "rain"}]}
_ANTHROPIC = {
    "messages": [
        {
            "role": "user",
            "content": [{"type": "compaction", "content": "A summary."}, {"type": "text", "text": "hello"}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [
                        {"type": "text", "text": "rain"},
                        {"type": "tool_reference", "tool_name": "weather"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
                        _FOUND,
                    ],
                },
                deepcopy(_FOUND),
            ],
        },
    ],
    "system": [{"type": "text", "text": "Be brief."}],
    "tools": [
        {"name": "weather", "input_schema": SCHEMA},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 2},
    ],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "adaptive"},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "thread": {"type": "create"},
}
_NAMED_GRAMMAR = {"type": "json_schema", "value": {"name": "x", "schema": SCHEMA}}
_HUB = {"options": {"use_cache": True}}
_OLLAMA_OPTIONS = {"options": {"temperature": 0.5}}

SAMPLES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "GenerateBody": [{"prompt": "a", "response_format": format_} for format_ in _FORMATS],
    "TranslateBody": [{"inputs": "a", "target_lang": "de", "response_format": format_} for format_ in _FORMATS],
    "SimilarityBody": [{"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": {"truncate": True}}],
    "TgiBody": [
        {"inputs": "a", "parameters": {"grammar": {"type": "json", "value": SCHEMA}}},
        {"inputs": "a", "parameters": {"grammar": {"type": "regex", "value": "a+"}}},
        {"inputs": "a", "parameters": {"grammar": _NAMED_GRAMMAR}},
    ],
    "HubGenerateBody": [
        {"inputs": "a", "parameters": {"grammar": {"type": "json", "value": SCHEMA}}, **_HUB},
        {"inputs": "a", "parameters": {"grammar": {"type": "regex", "value": "a+"}}},
        {"inputs": "a", "parameters": {"grammar": _NAMED_GRAMMAR}},
    ],
    "HubEmbedBody": [{"inputs": "a", **_HUB}],
    "HubSimilarityBody": [{"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": {}, **_HUB}],
    "HubClassifyBody": [{"inputs": "a", "parameters": {"top_k": 1}, **_HUB}],
    "HubZeroShotBody": [{"inputs": "a", "parameters": {"candidate_labels": ["b"]}, **_HUB}],
    "HubFillMaskBody": [{"inputs": "a", "parameters": {"top_k": 1}, **_HUB}],
    "HubTokenClassifyBody": [{"inputs": "a", "parameters": {"stride": 1}, **_HUB}],
    "HubQuestionBody": [{"inputs": {"question": "a", "context": "b"}, "parameters": {"top_k": 1}, **_HUB}],
    "HubSummarizeBody": [{"inputs": "a", "parameters": {"generate_parameters": {"max_new_tokens": 5}}, **_HUB}],
    "HubSpeechBody": [
        {"inputs": "aaaa", "parameters": {"generation_parameters": {"num_beams": 2}}, **_HUB},
    ],
    "HubTranslateBody": [
        {"inputs": "a", "parameters": {"src_lang": "en", "generate_parameters": {"num_beams": 1}}, **_HUB}
    ],
    "ChatCompletionBody": [
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [_CALL, {"id": "c2", "type": "custom", "custom": {"name": "sh", "input": "ls"}}],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "rain"},
                {"role": "assistant", "function_call": {"name": "weather", "arguments": "{}"}},
                {"role": "function", "name": "weather", "content": "rain"},
            ],
            "stream": True,
            "stream_options": {"include_usage": True},
            "usage": {"include": True},
            "tools": [{"type": "function", "function": _FUNCTION}, {"type": "custom", "custom": {"name": "sh"}}],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "reasoning": {"effort": "low"},
            "thinking": {"type": "auto"},
        },
        {
            "messages": [USER],
            "tools": [{"type": "function", "function": _FUNCTION}],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "weather"}}]},
            },
        },
        *(
            {"messages": [USER], "response_format": format_}
            for format_ in (
                *_FORMATS[:2],
                {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
                *_FORMATS[3:],
            )
        ),
    ],
    "CompletionBody": [{"prompt": "a", "stream": True, "stream_options": {"include_usage": True}}],
    "ResponsesBody": [
        {
            "input": [
                {"type": "message", "role": "user", "content": "hello"},
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
                {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "rain"},
                {"type": "custom_tool_call", "call_id": "c2", "name": "edit", "input": "text"},
                {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
                {"type": "web_search_call", "id": "w1", "status": "completed"},
            ],
            "stream": True,
            "stream_options": {},
            "text": {"format": {"type": "text"}},
            "tools": [{"type": "function", **_FUNCTION}, {"type": "web_search"}],
            "tool_choice": {"type": "function", "name": "weather"},
            "reasoning": {},
        },
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        {"input": "hello", "text": {"format": {"type": "json_object"}}},
        {"input": "hello", "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
    ],
    "TranscriptionForm": [{"response_format": "json", "chunking_strategy": {"type": "server_vad"}}],
    "TranslationForm": [{"response_format": "json", "chunking_strategy": {"type": "server_vad"}}],
    "AnthropicMessagesBody": [_ANTHROPIC | {"max_tokens": 5}],
    "AnthropicCountBody": [_ANTHROPIC],
    "OllamaChatBody": [
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": "c1", "function": {"name": "weather", "arguments": {"city": "Rome"}}}],
                },
                {"role": "tool", "tool_name": "weather", "content": "rain"},
            ],
            "tools": [{"type": "function", "function": _FUNCTION}, {"type": "web_search"}],
            **_OLLAMA_OPTIONS,
        }
    ],
    "OllamaGenerateBody": [{"prompt": "a", **_OLLAMA_OPTIONS}],
    "OllamaEmbedBody": [{"input": "a", **_OLLAMA_OPTIONS}],
    "OllamaEmbeddingsBody": [{"prompt": "a", **_OLLAMA_OPTIONS}],
    "CohereChatBody": [
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I look."}],
                    "tool_calls": [_CALL],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            ],
            "tools": [{"type": "function", "function": _FUNCTION}],
            "response_format": {"type": "json_object"},
            "thinking": {"type": "enabled"},
        }
    ],
    "CohereEmbedBody": [
        {
            "inputs": [{"content": [{"type": "text", "text": "a"}]}],
            "input_type": "search_query",
            "embedding_types": ["float"],
        }
    ],
    "JinaRerankBody": [{"query": "a", "documents": [{"text": "b"}, "c"]}],
}
"""Sample bodies, by name of their schema."""


def bodies() -> list[type[BaseModel]]:
    """The schemas of all request bodies. If a route accepts several schemas, each is listed."""
    found: dict[type[BaseModel], None] = {}
    for route in ROUTES:
        members = get_args(route.body.model_fields["root"].annotation) if issubclass(route.body, RootModel) else ()
        found |= dict.fromkeys(members or (route.body,))
    return list(found)


def samples(body: type[BaseModel]) -> list[Mapping[str, Any]]:
    """All samples of a body: the examples of its routes, and those of `SAMPLES`."""
    form = {"TranscriptionForm", "TranslationForm"}
    examples = [
        {name: value for name, value in route.example[0].items() if name != "file"}
        for route in ROUTES
        if route.body is body and body.__name__ not in form
    ]
    return [*examples, *SAMPLES.get(body.__name__, ())]


def classes(annotation: Any, found: set[type[BaseModel]]) -> None:
    """Add to `found` the classes of all objects that a field of the type `annotation` may contain, at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation not in found:
            found.add(annotation)
            for field in annotation.model_fields.values():
                classes(field.annotation, found)
    else:
        for argument in get_args(annotation):
            classes(argument, found)


def objects(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], type[BaseModel]]]:
    """Yield the path in the JSON, and the class, of each object inside a validated body.

    place: path of `value`.
    """
    if isinstance(value, BaseModel):
        yield place, type(value)
        for name, field in type(value).model_fields.items():
            yield from objects(getattr(value, name), (*place, field.alias or name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from objects(item, (*place, index))
