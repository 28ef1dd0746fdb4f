"""Messages of `/v1/chat/completions`, and their conversion to messages as chat templates take them."""

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
"""Type of the parts with reasoning in the content of an answer of Mistral's servers."""
_OF_TOOLS = ("tool", "function")
"""Roles of results. The second one is that of the API before it had tools."""


class OpenAICalledFunction(ChatObject):
    """`parsed_arguments`: what the `openai` package has read from the arguments."""

    name: FunctionName
    arguments: ArgumentsText = ""
    description: Hint = None
    parsed_arguments: Hint = None
    provider_specific_fields: Hint = None


class OpenAICalledTool(ChatObject):
    """A call of a tool whose input is any text. The model reads it as a call with one argument, `input`."""

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
    """The text of a part with reasoning, which is text or a list of text parts. Raises ValueError."""
    value = part.get(_THINKING)
    texts = [_text(inner) for inner in value] if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"contains a part of type {_THINKING} without text")
    return "".join(texts)


class OpenAIMessage(ChatObject):
    """A message. `reasoning_content` or `reasoning`: reasoning before an earlier answer, for templates that show it.

    Other servers have it in parts of the type `thinking`, in `reasoning_text` or in `cot_summary`.
    `function_call`, and the role `function`: a call and its result as older versions of the API have them.
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
        """Put notes into a tool's result, in place of parts that are no text."""
        if not isinstance(value, dict) or value.get("role") not in _OF_TOOLS:
            return handler(value)
        shown, left_out = leave_out(value)
        message = handler(shown)
        message._left_out = left_out
        return message

    @model_validator(mode="before")
    @classmethod
    def _read_thinking(cls, value: Any) -> Any:
        """Take the reasoning from the content, unless a field has it."""
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
        """The reasoning before an earlier answer. Some clients send it in several fields."""
        return self.reasoning_content or self.reasoning or self.reasoning_text or self.cot_summary or None

    def dropped(self) -> Iterator[str]:
        """Names of the parts of a tool's result that a note replaces."""
        return iter(self._left_out)

    def for_template(self, call_id: str) -> dict[str, Any]:
        """The message as chat templates take it. OpenAI's newer name of the role system is developer.

        call_id: id of the call in `function_call`, or of the call that a message of the role function answers.
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
    """Indices of the messages at the front whose first lines are dropped."""
    instructions = takewhile(lambda message: message.role in ("system", "developer"), messages)
    return changing_texts([message.content or "" for message in instructions])


def chat_messages(messages: Sequence[OpenAIMessage]) -> Iterator[dict[str, Any]]:
    """Messages as chat templates take them, without lines that change with every request."""
    changing = changing_messages(messages)
    calls = 0
    for index, message in enumerate(messages):
        calls += message.function_call is not None
        made = message.for_template(f"call_{calls}")
        if index not in changing:
            yield made
        elif content := without_changing_lines(made["content"]):
            yield made | {"content": content}
