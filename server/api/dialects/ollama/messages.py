"""Messages, calls and tools of the Ollama dialect, and their conversion to those of `ChatSpec`."""

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
    """`arguments`: an object, or any text, such as the JSON text of a call that was cut."""

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

    `tool_call_id`, `tool_name` (or `name`): the call that a message of the role tool answers; without them, the oldest
    call that has no result. `images`: only such a message may have them; the model reads a note for each.
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
        """Take the role in capital letters too, and put notes into a result, in place of parts that are no text."""
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
        """Names of the parts of a tool's result that a note replaces."""
        return iter(self._left_out)


class OllamaFunction(ChatObject):
    name: FunctionName
    description: str | None = None
    parameters: JsonSchema | None = None
    strict: bool | None = None

    def tool(self, index: int) -> FunctionTool:
        """index: place of the tool in the request."""
        place = f"tools[{index}].function"
        return FunctionTool(self.name, self.description, self.parameters, place, is_strict=bool(self.strict))


class OllamaTool(ChatObject):
    type: Hint = None
    items: Annotated[Any, wish(), Field(description="dropped, and named")] = None
    function: OllamaFunction


class OllamaBuiltInTool(ChatObject):
    """A tool without a function, such as a web search: the server does not have it. It is dropped, and named."""

    model_config = ConfigDict(extra="ignore")

    type: str


def _kind(tool: Any) -> str:
    """Which of the two schemas of tools an item has."""
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
    """The choice of one function, in both forms that clients send: `name` in `function`, or beside `type`."""

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
    """The value of `tool_choice`."""
    return ToolChoice("required", choice.chosen) if isinstance(choice, OllamaNamedTool) else ToolChoice(choice)


def function_tools(tools: Sequence[OllamaTool | OllamaBuiltInTool]) -> list[FunctionTool]:
    """The functions among the tools, as `ChatSpec` takes them."""
    return [tool.function.tool(index) for index, tool in enumerate(tools) if isinstance(tool, OllamaTool)]


def dropped_tools(tools: Sequence[OllamaTool | OllamaBuiltInTool]) -> Iterator[str]:
    """Paths of the tools that the server does not have."""
    yield from (f"tools[{index}]" for index, tool in enumerate(tools) if isinstance(tool, OllamaBuiltInTool))


def chat_messages(given: Sequence[OllamaChatMessage]) -> list[dict[str, Any]]:
    """Messages as chat templates take them. Calls get ids, and each tool message names the call that it answers."""
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
    """Id and function of the call that a tool message answers. The call is removed from `waiting`.

    An id decides, if a call has it. Otherwise it is the client's own, and the name decides, then the order. A result
    whose call is not among the messages keeps its own id and name.
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
