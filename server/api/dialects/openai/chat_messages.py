"""Messages of `/v1/chat/completions`, and their conversion to the form that chat templates take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Annotated, Any, Literal

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from server.api.fields.changing_lines import changing_texts, without_changing_lines
from server.api.fields.chat_fields import (
    TEXT_OR_PARTS,
    ArgumentsText,
    ChatObject,
    FunctionName,
    function_call,
    text_parts,
)
from server.api.fields.field_kinds import Hint, Unsupported, only, wish
from server.api.fields.tool_results import leave_out

_THINKING = "thinking"
"""Type of content parts with reasoning, in answers of Mistral's servers."""
_OF_TOOLS = ("tool", "function")
"""Roles of messages with a call's result. `function` is from the older API that had functions but no tools."""


class OpenAICalledFunction(ChatObject):
    """A function that an earlier answer has called. `parsed_arguments`: added by the `openai` package; no effect."""

    name: FunctionName
    arguments: ArgumentsText = ""
    description: Hint = None
    parsed_arguments: Hint = None
    provider_specific_fields: Hint = None


class OpenAICalledTool(ChatObject):
    """A call of a custom tool, whose input is any text. The model reads it as a call with one argument, `input`."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    input: str


class OpenAICall(ChatObject):
    id: str
    type: Literal["function", "custom"] | None = None
    function: OpenAICalledFunction | None = None
    custom: OpenAICalledTool | None = None
    index: Hint = None
    cache_control: Hint = None
    extra_content: Hint = None
    provider_specific_fields: Hint = None

    @model_validator(mode="after")
    def _check(self) -> OpenAICall:
        if (self.function is None) is not (self.type == "custom") or (self.custom is None) is (self.type == "custom"):
            raise ValueError("needs `function`, or `custom` if its type is custom")
        return self

    def for_template(self) -> dict[str, Any]:
        if self.custom is not None:
            return function_call(self.id, self.custom.name, {"input": self.custom.input})
        assert self.function is not None
        return function_call(self.id, self.function.name, self.function.arguments)


def _text(part: Any) -> Any:
    return part.get("text") if isinstance(part, dict) else None


def _thoughts(part: Any) -> str:
    """The text of a reasoning part, whose value is a string or a list of text parts.

    Raises ValueError for any other value.
    """
    value = part.get(_THINKING)
    texts = [_text(inner) for inner in value] if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"contains a part of type {_THINKING} without text")
    return "".join(texts)


class OpenAIMessage(ChatObject):
    """A message of a chat.

    `reasoning_content`: reasoning of an earlier answer, for templates that show it. It may also be sent in `reasoning`,
    `reasoning_text` or `cot_summary`, or in content parts of the type `thinking`, as other servers return it.
    `function_call`, and the role `function`: a call and its result in older versions of the API.
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str | None, text_parts("text", "refusal", skipped=_THINKING), TEXT_OR_PARTS] = None
    name: str | None = None
    tool_calls: list[OpenAICall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_text: str | None = None
    cot_summary: str | None = None
    refusal: str | None = None
    reasoning_details: Annotated[Any, wish([])] = None
    reasoning_opaque: Annotated[Any, wish("")] = None
    thinking_blocks: Annotated[Any, wish([])] = None
    executed_tools: Annotated[Any, wish([])] = None
    images: Annotated[Any, only([])] = None
    prefix: Annotated[Any, only(False)] = None
    partial: Annotated[Any, only(False)] = None
    id: Hint = None
    cot_id: Hint = None
    annotations: Hint = None
    parsed: Hint = None
    cache_control: Hint = None
    copilot_cache_control: Hint = None
    extra_content: Hint = None
    provider_specific_fields: Hint = None
    audio: Unsupported = None
    function_call: OpenAICalledFunction | None = None

    _left_out: list[str] = PrivateAttr(default_factory=list)

    @model_validator(mode="wrap")
    @classmethod
    def _read_result(cls, value: Any, handler: ModelWrapValidatorHandler[OpenAIMessage]) -> OpenAIMessage:
        """In a message with a tool's result, put notes in place of parts that are no text."""
        if not isinstance(value, dict) or value.get("role") not in _OF_TOOLS:
            return handler(value)
        shown, left_out = leave_out(value)
        message = handler(shown)
        message._left_out = left_out
        return message

    @model_validator(mode="before")
    @classmethod
    def _read_thinking(cls, value: Any) -> Any:
        """Copy the text of reasoning parts to `reasoning_content`, unless this field has a value."""
        content = value.get("content") if isinstance(value, dict) else None
        if not isinstance(content, list):
            return value
        thoughts = [_thoughts(part) for part in content if isinstance(part, dict) and part.get("type") == _THINKING]
        if not thoughts:
            return value
        return value | {"reasoning_content": value.get("reasoning_content") or "\n".join(thoughts)}

    @model_validator(mode="after")
    def _check(self) -> OpenAIMessage:
        of_assistant = self.role == "assistant"
        if (self.tool_calls or self.function_call or self.thoughts or self.refusal) and not of_assistant:
            raise ValueError("has fields that only a message of the role assistant can have")
        if (self.tool_call_id is None) is (self.role == "tool"):
            raise ValueError("needs `tool_call_id` if its role is tool, and only then")
        if self.tool_calls and self.function_call:
            raise ValueError("has both `tool_calls` and `function_call`; send one of them")
        if self.role == "function" and not self.name:
            raise ValueError("needs `name`, because its role is function")
        if self.content is None and not (of_assistant or self.role in _OF_TOOLS):
            raise ValueError("needs `content`")
        return self

    @property
    def thoughts(self) -> str | None:
        """The reasoning of an earlier answer, from the first field that has it: clients may repeat it in several."""
        return self.reasoning_content or self.reasoning or self.reasoning_text or self.cot_summary or None

    def dropped(self) -> Iterator[str]:
        """Paths of the parts of a tool's result that a note replaces, because they are no text."""
        return iter(self._left_out)

    def for_template(self, call_id: str) -> dict[str, Any]:
        """Convert the message to the form that chat templates take. The role developer becomes system.

        call_id: id for the call in `function_call`, or of the call that a message of the role function answers. These
            older fields have no ids.
        """
        calls = [call.for_template() for call in self.tool_calls or []]
        if self.function_call is not None:
            calls = [function_call(call_id, self.function_call.name, self.function_call.arguments)]
        is_result = self.role in _OF_TOOLS
        content = self.refusal if self.content is None else self.content
        message = {
            "role": "system" if self.role == "developer" else "tool" if is_result else self.role,
            "content": content if calls else content or "",
            "name": self.name,
            "tool_calls": calls or None,
            "tool_call_id": call_id if self.role == "function" else self.tool_call_id,
            "reasoning_content": self.thoughts,
        }
        return {key: value for key, value in message.items() if value is not None}


def changing_messages(messages: Sequence[OpenAIMessage]) -> list[int]:
    """Indices of the system messages at the front whose first lines change with every request, and are dropped."""
    instructions = takewhile(lambda message: message.role in ("system", "developer"), messages)
    return changing_texts([message.content or "" for message in instructions])


def chat_messages(messages: Sequence[OpenAIMessage]) -> Iterator[dict[str, Any]]:
    """Convert messages to the form that chat templates take.

    Lines at the start of system messages that change with every request are dropped.
    """
    changing = changing_messages(messages)
    calls = 0
    for index, message in enumerate(messages):
        calls += message.function_call is not None
        made = message.for_template(f"call_{calls}")
        if index not in changing:
            yield made
        elif content := without_changing_lines(made["content"]):
            yield made | {"content": content}
