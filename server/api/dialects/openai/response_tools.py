"""The fields `tools` and `tool_choice` of `/v1/responses`.

Only functions can be called. Tools that OpenAI's own server runs, or whose calls have a form of their own, are dropped
and named. A choice that forces one of them is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag

from server.api.chat_fields import TOOL_CHOICE, ChatObject, FunctionName
from server.api.dialects.openai.shared_fields import NamedFunction, OpenAIFunction
from server.api.field_kinds import Hint
from server.operations.chat import ToolChoice

DROPPED_TOOLS = frozenset(
    {
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use",
        "computer_use_preview",
        "custom",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "namespace",
        "programmatic_tool_calling",
        "shell",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)
"""Types of tools that the server does not have. Others are dropped too, and named without their type."""


class ResponseTool(OpenAIFunction):
    """A function. `strict`: refuse a schema that cannot be enforced in full."""

    type: Literal["function"]
    defer_loading: Hint = None
    allowed_callers: Hint = None
    output_schema: Hint = None
    async_: Annotated[Hint, Field(alias="async")] = None


class DroppedTool(ChatObject):
    """A tool that the server does not have. It may have any fields."""

    model_config = ConfigDict(extra="ignore")

    type: str

    @property
    def suffix(self) -> str:
        """What follows its place in the name of the dropped tool."""
        return f":{self.type}" if self.type in DROPPED_TOOLS else ""


def _member(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return "<built-in>" if isinstance(kind, str) and kind != "function" else "<function>"


Tool = Annotated[
    Annotated[ResponseTool, Tag("<function>")] | Annotated[DroppedTool, Tag("<built-in>")], Discriminator(_member)
]


class AllowedFunction(NamedFunction):
    type: Literal["function"]


AllowedTool = Annotated[
    Annotated[AllowedFunction, Tag("<function>")] | Annotated[DroppedTool, Tag("<built-in>")], Discriminator(_member)
]


class ResponseAllowedTools(ChatObject):
    """A choice that allows some of the tools. The model sees all of them."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[AllowedTool]

    def dropped(self) -> Iterator[str]:
        return dropped_tools(self.tools)


class ResponseNamedChoice(ChatObject):
    type: Literal["function"]
    name: FunctionName


def _check_choice(value: Any) -> Any:
    if value is None or (isinstance(value, str) and value in ("none", "auto", "required")):
        return value
    kind = value.get("type") if isinstance(value, dict) else None
    schemas: dict[Any, type[ChatObject]] = {"function": ResponseNamedChoice, "allowed_tools": ResponseAllowedTools}
    if isinstance(kind, str) and kind in DROPPED_TOOLS:
        raise ValueError(f"forces a tool of type {kind}, which the server does not have")
    try:
        return schemas[kind].model_validate(value)
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            'must be "none", "auto", "required", {"type": "function", "name"} '
            'or {"type": "allowed_tools", "mode", "tools"}'
        ) from None


ResponseToolChoice = Annotated[Any, AfterValidator(_check_choice), TOOL_CHOICE]


def dropped_tools(tools: list[Any]) -> Iterator[str]:
    """Names of the tools in a list that are dropped."""
    return (f"tools[{index}]{tool.suffix}" for index, tool in enumerate(tools) if isinstance(tool, DroppedTool))


def chosen_tool(choice: str | ResponseNamedChoice | ResponseAllowedTools | None) -> ToolChoice:
    """The value of `tool_choice`. None: the field is absent."""
    if isinstance(choice, ResponseNamedChoice):
        return ToolChoice("required", choice.name)
    if isinstance(choice, ResponseAllowedTools):
        names = [tool.name for tool in choice.tools if isinstance(tool, AllowedFunction)]
        return ToolChoice(choice.mode, allowed=tuple(names))
    modes: dict[str | None, ToolChoice] = {"none": ToolChoice("none"), "required": ToolChoice("required")}
    return modes.get(choice, ToolChoice())
