"""The items of `input` of `/v1/responses`, and the chat messages that they become.

Clients send back the items of earlier answers, also those that came from other servers. An item that no chat template
can show, such as a web search, is dropped and named in `X-Ignored-Parameters`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema

from server.api.dialects.openai.responses.built_in_items import BUILT_IN_ITEMS, REFUSED_ITEMS
from server.api.dialects.openai.responses.items import decoded_reasoning
from server.api.fields.chat_fields import (
    TEXT_OR_PARTS,
    ArgumentsText,
    ChatObject,
    FunctionName,
    function_call,
    text_parts,
)
from server.api.fields.field_kinds import Hint
from server.api.fields.tool_results import tool_output


class ResponseItem(ChatObject, ABC):
    """Base of the items of `input`. `id` and `status` have no effect; clients copy them from an earlier answer."""

    id: Hint = None
    status: Hint = None
    created_by: Hint = None

    @abstractmethod
    def messages(self) -> list[dict[str, Any]]:
        """Convert the item to chat messages. The list is empty for an item that is dropped."""


class InputMessage(ResponseItem):
    type: Literal["message"] | None = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, text_parts("input_text", "output_text", "refusal"), TEXT_OR_PARTS]
    phase: Hint = None
    end_turn: Hint = None

    def messages(self) -> list[dict[str, Any]]:
        return [{"role": "system" if self.role == "developer" else self.role, "content": self.content}]


_BOTH_NAMES = ConfigDict(validate_by_name=True, validate_by_alias=True)
"""Configuration of items with the field `async`. The `openai` package may send it under the name `async_`."""


class InputCall(ResponseItem):
    model_config = _BOTH_NAMES

    type: Literal["function_call"]
    call_id: str
    name: FunctionName
    arguments: ArgumentsText = ""
    parsed_arguments: Hint = None
    namespace: Hint = None
    caller: Hint = None
    async_: Annotated[Hint, Field(alias="async")] = None

    def messages(self) -> list[dict[str, Any]]:
        return [_calling(function_call(self.call_id, self.name, self.arguments))]


class InputCustomCall(ResponseItem):
    """A call of a custom tool, whose argument is a text. The model reads a function call with the argument `input`."""

    model_config = _BOTH_NAMES

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str
    namespace: Hint = None
    caller: Hint = None
    async_: Annotated[Hint, Field(alias="async")] = None

    def messages(self) -> list[dict[str, Any]]:
        return [_calling(function_call(self.call_id, self.name, {"input": self.input}))]


class InputCallOutput(ResponseItem):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str | None = None
    output: Annotated[Any, tool_output("input_text", "output_text", "text"), TEXT_OR_PARTS]
    name: Hint = None
    namespace: Hint = None
    caller: Hint = None

    def messages(self) -> list[dict[str, Any]]:
        return [{"role": "tool", "tool_call_id": self.call_id or "", "content": self.output.text}]

    def dropped(self) -> Iterator[str]:
        yield from self.output.dropped("output")


class InputReasoning(ResponseItem):
    """The reasoning of an earlier answer, for templates that show it.

    Its text is read from `content`, otherwise from an `encrypted_content` of this server, otherwise from `summary`.
    """

    type: Literal["reasoning"]
    summary: Annotated[str | None, text_parts("summary_text"), TEXT_OR_PARTS] = None
    content: Annotated[str | None, text_parts("reasoning_text", "text"), TEXT_OR_PARTS] = None
    encrypted_content: str | None = None

    def messages(self) -> list[dict[str, Any]]:
        text = self.content or decoded_reasoning(self.encrypted_content) or self.summary
        return [{"role": "assistant", "reasoning_content": text}] if text else []

    def dropped(self) -> Iterator[str]:
        if self.encrypted_content and not self.content and decoded_reasoning(self.encrypted_content) is None:
            yield "encrypted_content"


class InputReference(ResponseItem):
    """A reference to an item of a stored response. `id`: id of that item."""

    type: Literal["item_reference"] | None = None
    id: str

    def messages(self) -> list[dict[str, Any]]:
        raise AssertionError("the stored item takes the place of a reference before messages are made")


class BuiltInItem(ResponseItem):
    """A call of a tool that OpenAI's server runs itself, or the result of such a call. It may have any fields."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[str, WithJsonSchema({"enum": list(BUILT_IN_ITEMS)})]
    id: str | None = None

    def messages(self) -> list[dict[str, Any]]:
        shown = BUILT_IN_ITEMS[self.type]({"id": self.id, "status": self.status, **(self.model_extra or {})})
        messages = [_calling(function_call(*shown.call))] if shown.call is not None else []
        if shown.result is not None:
            messages.append({"role": "tool", "tool_call_id": shown.result[0], "content": shown.result[1]})
        return messages


def _refuse(value: Any) -> Any:
    raise ValueError(REFUSED_ITEMS[value["type"]])


RefusedItem = Annotated[InputReference, BeforeValidator(_refuse)]
_TAGS = {
    "message": "<message>",
    "function_call": "<function_call>",
    "custom_tool_call": "<custom_tool_call>",
    "function_call_output": "<output>",
    "custom_tool_call_output": "<output>",
    "reasoning": "<reasoning>",
    "item_reference": "<item_reference>",
    **dict.fromkeys(BUILT_IN_ITEMS, "<built-in>"),
    **dict.fromkeys(REFUSED_ITEMS, "<refused>"),
}


def _member(item: Any) -> str | None:
    """Tag of the member of `InputItem` that an item belongs to, or None for an unknown type.

    Items without a type are messages, or references if they have an id and no role.
    """
    if isinstance(item, ResponseItem):
        return _TAGS[getattr(item, "type", None) or "item_reference"]
    if not isinstance(item, dict):
        return None
    if item.get("type") is None:
        return "<item_reference>" if "id" in item and "role" not in item else "<message>"
    return _TAGS.get(item["type"]) if isinstance(item["type"], str) else None


InputItem = Annotated[
    Annotated[InputMessage, Tag("<message>")]
    | Annotated[InputCall, Tag("<function_call>")]
    | Annotated[InputCustomCall, Tag("<custom_tool_call>")]
    | Annotated[InputCallOutput, Tag("<output>")]
    | Annotated[InputReasoning, Tag("<reasoning>")]
    | Annotated[InputReference, Tag("<item_reference>")]
    | Annotated[BuiltInItem, Tag("<built-in>")]
    | Annotated[RefusedItem, Tag("<refused>")],
    Discriminator(
        _member,
        custom_error_type="item_type",
        custom_error_message="has a type that is not supported; the server can read `message`, `reasoning`, "
        "`function_call`, `function_call_output`, `item_reference` and the calls of OpenAI's own tools",
    ),
]


def chat_messages(items: Iterable[ResponseItem]) -> list[dict[str, Any]]:
    """Convert items to chat messages. Consecutive items of the role assistant become one message."""
    messages: list[dict[str, Any]] = []
    for new in (message for item in items for message in item.messages()):
        if new["role"] == "assistant" and messages and messages[-1]["role"] == "assistant":
            _extend(messages[-1], new)
        else:
            messages.append(new)
    for message in messages:
        if message.keys() == {"role", "reasoning_content"}:
            message["content"] = ""  # an answer that was cut within its reasoning
    return messages


def _calling(call: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [call]}


def _extend(message: dict[str, Any], new: dict[str, Any]) -> None:
    """Append reasoning, text and calls of an assistant message `new` to an earlier assistant message."""
    for name in ("reasoning_content", "content"):
        if name in new:
            message[name] = "\n".join(filter(None, (message.get(name), new[name])))
    if "tool_calls" in new:
        message["tool_calls"] = [*message.get("tool_calls", []), *new["tool_calls"]]
