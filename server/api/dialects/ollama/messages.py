"""Messages, calls and tools of the Ollama dialect, and their conversion to the form of `ChatSpec`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    Tag,
    model_validator,
)

from server.api.fields.chat_fields import (
    TEXT_OR_PARTS,
    TOOL_CHOICE,
    ChatObject,
    FunctionName,
    JsonSchema,
    function_call,
    text_parts,
    tool_choice,
)
from server.api.fields.field_kinds import Hint, only, wish
from server.api.fields.tool_results import leave_out
from server.errors import InvalidRequest
from server.operations.chatting.chat import FunctionTool, ToolChoice


class OllamaFunctionCall(ChatObject):
    """The function of an earlier tool call. `arguments`: an object, or text, such as incomplete JSON of a cut call."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    arguments: Annotated[dict[str, Any] | str, BeforeValidator(lambda value: {} if value is None else value)] = Field(
        default_factory=dict
    )
    index: Hint = None


class OllamaToolCall(ChatObject):
    id: str | None = None
    type: Hint = None
    index: Hint = None
    function: OllamaFunctionCall


class OllamaChatMessage(ChatObject):
    """A message. The role `developer` is the same as `system`.

    `tool_call_id`, `tool_name` (or `name`): the call that a message of the role tool answers. Without them, it answers
    the oldest call without a result.
    `images`: only messages of the role tool may have them. The model reads a note in place of each image.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, text_parts("text"), TEXT_OR_PARTS] = None
    thinking: str | None = None
    images: Annotated[list[Any] | None, only([])] = None
    tool_calls: list[OllamaToolCall] | None = None
    tool_name: str | None = None
    name: Annotated[str | None, Field(description="of a message of the role tool: the same as `tool_name`")] = None
    tool_call_id: str | None = None

    _left_out: list[str] = PrivateAttr(default_factory=list)

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, value: Any, handler: ModelWrapValidatorHandler[OllamaChatMessage]) -> OllamaChatMessage:
        """Convert the role to lower case. In a tool message, put notes in place of parts that are no text."""
        if not isinstance(value, dict) or not isinstance(value.get("role"), str):
            return handler(value)
        value = value | {"role": value["role"].lower()}
        if value["role"] != "tool":
            return handler(value)
        shown, left_out = leave_out(value, images="images")
        message = handler(shown)
        message._left_out = left_out
        return message

    def dropped(self) -> Iterator[str]:
        """Paths of the parts of a tool's result that a note replaces, because they are no text."""
        return iter(self._left_out)


class OllamaFunction(ChatObject):
    name: FunctionName
    description: str | None = None
    parameters: JsonSchema | None = None
    strict: bool | None = None

    def tool(self, index: int) -> FunctionTool:
        """Convert the function to a `FunctionTool`. index: position of the tool in the list `tools`."""
        place = f"tools[{index}].function"
        return FunctionTool(self.name, self.description, self.parameters, place, is_strict=bool(self.strict))


class OllamaTool(ChatObject):
    type: Hint = None
    items: Annotated[Any, wish(), Field(description="dropped, and named")] = None
    function: OllamaFunction


class OllamaBuiltInTool(ChatObject):
    """A tool that is no function, such as a web search, and that this server does not have.

    The server drops it, and names it in the header `X-Ignored-Parameters`.
    """

    model_config = ConfigDict(extra="ignore")

    type: str


def _kind(tool: Any) -> str:
    """Tag of the schema that a tool has: "function tool" or "built-in tool"."""
    if isinstance(tool, dict):
        return "function tool" if "function" in tool or not isinstance(tool.get("type"), str) else "built-in tool"
    return "function tool" if isinstance(tool, OllamaTool) else "built-in tool"


AnyTool = Annotated[
    Annotated[OllamaTool, Tag("function tool")] | Annotated[OllamaBuiltInTool, Tag("built-in tool")],
    Discriminator(_kind),
]


class OllamaToolName(ChatObject):
    name: Annotated[str, Field(min_length=1, max_length=128)]


class OllamaNamedTool(ChatObject):
    """The choice of one function. Clients send its name either in the object `function`, or beside `type`."""

    type: Literal["function"] = "function"
    function: OllamaToolName | None = None
    name: Annotated[str | None, Field(min_length=1, max_length=128)] = None

    @model_validator(mode="after")
    def _one_name(self) -> OllamaNamedTool:
        if (self.function is None) == (self.name is None):
            raise ValueError("needs one name")
        return self

    @property
    def chosen(self) -> str | None:
        return self.name if self.function is None else self.function.name


OllamaToolChoice = Annotated[
    Any,
    BeforeValidator(lambda value: "auto" if value is None else value),
    tool_choice(OllamaNamedTool, '{"type": "function", "function": {"name": ...}}'),
    TOOL_CHOICE,
]


def chosen_tool(choice: OllamaNamedTool | Literal["none", "auto", "required"]) -> ToolChoice:
    """Convert the field `tool_choice` to a `ToolChoice`."""
    return ToolChoice("required", choice.chosen) if isinstance(choice, OllamaNamedTool) else ToolChoice(choice)


def function_tools(tools: Sequence[OllamaTool | OllamaBuiltInTool]) -> list[FunctionTool]:
    """The tools that are functions, converted for a `ChatSpec`."""
    return [tool.function.tool(index) for index, tool in enumerate(tools) if isinstance(tool, OllamaTool)]


def dropped_tools(tools: Sequence[OllamaTool | OllamaBuiltInTool]) -> Iterator[str]:
    """Paths of the tools that are dropped because the server does not have them, such as `tools[1]`."""
    yield from (f"tools[{index}]" for index, tool in enumerate(tools) if isinstance(tool, OllamaBuiltInTool))


def chat_messages(given: Sequence[OllamaChatMessage]) -> list[dict[str, Any]]:
    """Convert messages to the form of chat templates.

    Calls without an id get one, and each tool message gets the id and function of its call. Raises InvalidRequest for a
    tool message without a call.
    """
    messages: list[dict[str, Any]] = []
    waiting: list[tuple[str, str]] = []
    for sent in given:
        role = "system" if sent.role == "developer" else sent.role
        message: dict[str, Any] = {"role": role, "content": sent.content or ""}
        if sent.thinking:
            message["reasoning_content"] = sent.thinking
        if sent.role == "tool":
            call_id, name = _answered(sent, waiting)
            message |= {"tool_call_id": call_id, "name": name}
        if sent.tool_calls:
            calls = [(call.id or f"call_{len(messages)}_{i}", call.function) for i, call in enumerate(sent.tool_calls)]
            waiting += [(call_id, function.name) for call_id, function in calls]
            message["tool_calls"] = [function_call(call_id, call.name, call.arguments) for call_id, call in calls]
        messages.append(message)
    return messages


def _answered(message: OllamaChatMessage, waiting: list[tuple[str, str]]) -> tuple[str, str]:
    """Id and function name of the call that a tool message answers. The call is removed from `waiting`.

    waiting: id and function name of each call without a result, in order.
    The call with the message's id is chosen; otherwise the first call with its function name, or the oldest call if it
    has no name. If no call fits, the message's id and name are returned. Raises InvalidRequest if it has neither.
    """
    call_id, name = message.tool_call_id or "", message.tool_name or message.name or ""
    for call in waiting:
        if call_id == call[0]:
            waiting.remove(call)
            return call
    for call in waiting:
        if name in ("", call[1]):
            waiting.remove(call)
            return call
    if call_id or name:
        return call_id or "call_of_another_request", name
    raise InvalidRequest("`messages` has a message of the role tool without a call before it", "messages")
