"""Parts of a tool result that are no text become a note for the model, and a header names them, in every dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from server.api.bodies.body import validate
from server.api.dialects.anthropic.bodies import AnthropicCountBody, AnthropicMessagesBody
from server.api.dialects.cohere.chat_body import CohereChatBody
from server.api.dialects.ollama.bodies import OllamaChatBody
from server.api.dialects.openai.chat_body import ChatCompletionBody
from server.api.dialects.openai.responses.body import ResponsesBody
from server.api.dialects.openai.responses.conversation import StoredConversation
from server.api.fields.chat_fields import OTHER_PARTS
from server.api.fields.ignored_parameters import ignored_parameters
from server.errors import RequestError

USER = {"role": "user", "content": "a"}
NOTE = "[image left out: this model reads text only]"
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
DATA = {"url": "data:image/png;base64,AA=="}
SOURCE = {"type": "base64", "media_type": "image/png", "data": "AA=="}


def _chat(parts: list[Any], role: str = "tool") -> tuple[Any, str]:
    own = {"tool_call_id": "c"} if role == "tool" else {"name": "look"} if role == "function" else {}
    messages = [USER, {"role": "assistant", "tool_calls": [CALL]}, {"role": role, "content": parts, **own}]
    return validate({"messages": messages}, ChatCompletionBody), "messages[2].content"


def _responses(parts: list[Any], kind: str = "function_call_output") -> tuple[Any, str]:
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    renamed = [part | {"type": "input_text"} if part.get("type") == "text" else part for part in parts]
    body = validate({"input": [USER, call, {"type": kind, "call_id": "c", "output": renamed}]}, ResponsesBody)
    body.continue_stored(StoredConversation(), 1 << 20)
    return body, "input[2].output"


def _anthropic(parts: list[Any], schema: Any = AnthropicMessagesBody) -> tuple[Any, str]:
    use = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": parts}
    messages = [USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    more = {"max_tokens": 5} if schema is AnthropicMessagesBody else {}
    return validate({"messages": messages, **more}, schema), "messages[2].content[0].content"


def _ollama(parts: list[Any]) -> tuple[Any, str]:
    call = {"function": {"name": "look", "arguments": {}}}
    messages = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "TOOL", "content": parts}]
    return validate({"messages": messages}, OllamaChatBody), "messages[2].content"


def _cohere(parts: list[Any]) -> tuple[Any, str]:
    messages = [
        USER,
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": parts},
    ]
    return validate({"model": "m", "messages": messages}, CohereChatBody), "messages[2].content"


BUILDERS: Mapping[str, Callable[[list[Any]], tuple[Any, str]]] = {
    "chat": _chat,
    "chat, role function": lambda parts: _chat(parts, "function"),
    "responses": _responses,
    "responses, custom": lambda parts: _responses(parts, "custom_tool_call_output"),
    "anthropic": _anthropic,
    "anthropic, count": lambda parts: _anthropic(parts, AnthropicCountBody),
    "ollama": _ollama,
    "cohere": _cohere,
}
PARTS: Mapping[str, Any] = {
    "image_url": {"type": "image_url", "image_url": DATA},
    "input_image": {"type": "input_image", "image_url": "data:x", "detail": "auto"},
    "image": {"type": "image", "source": SOURCE, "cache_control": None},
    "input_audio": {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
    "file": {"type": "file", "file": {"file_data": "AA=="}},
    "input_file": {"type": "input_file", "file_id": "f"},
    "document": {"type": "document", "source": SOURCE},
}
OF_ANTHROPIC = ("image", "document")


def messages_of(body: Any) -> list[dict[str, Any]]:
    spec = body.spec()
    found: list[dict[str, Any]] = (getattr(spec, "chat", None) or spec).messages
    return found


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("dialect", BUILDERS)
def test_a_note_takes_the_place_of_a_part_without_text(dialect: str, kind: str) -> None:
    if dialect.startswith("anthropic") and kind not in OF_ANTHROPIC:
        pytest.skip("not a block of this API")
    before, after = {"type": "text", "text": "before"}, {"type": "text", "text": "after"}
    body, place = BUILDERS[dialect]([before, PARTS[kind], after])
    noun = OTHER_PARTS[kind]
    assert messages_of(body)[-1]["content"] == f"before\n[{noun} left out: this model reads text only]\nafter"
    assert messages_of(body)[-1]["role"] == "tool"
    assert ignored_parameters(body) == [f"{place}[1]:{kind}"]


@pytest.mark.parametrize("dialect", BUILDERS)
def test_a_result_of_nothing_but_a_screenshot(dialect: str) -> None:
    body, place = BUILDERS[dialect]([PARTS["image"]])
    assert messages_of(body)[-1]["content"] == NOTE and ignored_parameters(body) == [f"{place}[0]:image"]


@pytest.mark.parametrize("dialect", BUILDERS)
def test_parts_of_an_unknown_type_and_damaged_texts_are_refused(dialect: str) -> None:
    for part in ({"type": "no_such_part"}, {"type": "text", "text": 7}, {"text": "a"}):
        with pytest.raises(RequestError):
            messages_of(BUILDERS[dialect]([PARTS["image"], part])[0])


@pytest.mark.parametrize("role", ["user", "system", "assistant"])
@pytest.mark.parametrize("schema", [ChatCompletionBody, OllamaChatBody, AnthropicMessagesBody, ResponsesBody])
def test_other_messages_with_pictures_are_refused(schema: Any, role: str) -> None:
    field = "input" if schema is ResponsesBody else "messages"
    part = PARTS["input_image" if schema is ResponsesBody else "image"]
    more = {"max_tokens": 5} if schema is AnthropicMessagesBody else {}
    with pytest.raises(RequestError) as caught:
        validate({field: [USER, {"role": role, "content": [part]}], **more}, schema)
    assert part["type"] in caught.value.message and caught.value.param == field


def test_pictures_beside_the_content_of_a_result_of_ollama() -> None:
    """Pictures of a tool result in the field `images` become notes. `langchain-ollama` puts pictures there."""
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": {}}}]}
    for content, expected in (("seen", f"seen\n{NOTE}\n{NOTE}"), (None, f"{NOTE}\n{NOTE}"), ("", f"{NOTE}\n{NOTE}")):
        result = {"role": "tool", "content": content, "images": ["AA==", "AA=="]}
        body = validate({"messages": [USER, call, result]}, OllamaChatBody)
        assert messages_of(body)[-1]["content"] == expected
        assert ignored_parameters(body) == ["messages[2].images[0]", "messages[2].images[1]"]
    for role in ("user", "assistant"):
        with pytest.raises(RequestError, match="images"):
            validate({"messages": [USER, {"role": role, "content": "a", "images": ["AA=="]}]}, OllamaChatBody)


def test_a_search_result_is_text() -> None:
    found = {"type": "search_result", "source": "notes", "title": "Rome", "content": [{"type": "text", "text": "rain"}]}
    body, place = _anthropic([found, found | {"citations": {"enabled": True}}])
    assert messages_of(body)[-1]["content"] == "Rome\nnotes\nrain\nRome\nnotes\nrain"
    assert ignored_parameters(body) == [f"{place}[1].citations"]
    asked = {"messages": [{"role": "user", "content": [found, {"type": "text", "text": "Rain?"}]}], "max_tokens": 5}
    assert messages_of(validate(asked, AnthropicMessagesBody))[0]["content"] == "Rome\nnotes\nrain\nRain?"


def test_pictures_that_a_program_of_openai_has_drawn() -> None:
    outputs = [{"type": "logs", "logs": "done"}, {"type": "image", "url": "data:image/png;base64,AAAA"}]
    item = {"type": "code_interpreter_call", "id": "c", "code": "plot()", "outputs": outputs, "status": "completed"}
    body = validate({"input": [USER, item]}, ResponsesBody)
    body.continue_stored(StoredConversation(), 1 << 20)
    content = messages_of(body)[-1]["content"]
    assert NOTE in content and "done" in content and "base64" not in content


def test_calls_of_the_api_before_it_had_tools() -> None:
    call = {"name": "look", "arguments": '{"at": "it"}'}
    body = validate(
        {
            "messages": [
                USER,
                {"role": "assistant", "content": None, "function_call": call},
                {"role": "function", "name": "look", "content": "a cat"},
                {"role": "assistant", "content": "Again.", "function_call": call, "tool_calls": None},
                {"role": "function", "name": "look", "content": None},
            ]
        },
        ChatCompletionBody,
    )
    made = [{"id": f"call_{n}", "type": "function", "function": call} for n in (1, 2)]
    assert messages_of(body) == [
        USER,
        {"role": "assistant", "tool_calls": [made[0]]},
        {"role": "tool", "tool_call_id": "call_1", "name": "look", "content": "a cat"},
        {"role": "assistant", "content": "Again.", "tool_calls": [made[1]]},
        {"role": "tool", "tool_call_id": "call_2", "name": "look", "content": ""},
    ]
    for wrong in (
        {"role": "function", "content": "no name"},
        {"role": "user", "content": "a", "function_call": call},
        {"role": "assistant", "function_call": call, "tool_calls": [CALL]},
        {"role": "function", "name": "look", "content": "a", "tool_call_id": "c"},
    ):
        with pytest.raises(RequestError):
            validate({"messages": [USER, wrong]}, ChatCompletionBody)
