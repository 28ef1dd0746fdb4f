"""The fields `tools` and `tool_choice` of `/v1/responses`.

Only functions can be called. Tools that OpenAI's own server runs, or whose calls have a form of their own, are dropped
and named. A choice that forces one of them is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from server.api.dialects.openai.shared_fields import AllowedTools, NamedFunction, OpenAIFunction
from server.api.fields.chat_fields import TOOL_CHOICE, ChatObject, tool_choice, tool_kind
from server.api.fields.field_kinds import Hint

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
        """End of the name under which the dropped tool is reported, after its path: `:` and its type, or empty."""
        return f":{self.type}" if self.type in DROPPED_TOOLS else ""


Tool = Annotated[
    Annotated[ResponseTool, Tag("function tool")] | Annotated[DroppedTool, Tag("built-in tool")],
    Discriminator(tool_kind("function")),
]


class ResponseNamedChoice(NamedFunction):
    type: Literal["function"]


class ResponseAllowedTools(AllowedTools):
    """A choice that allows some of the tools. The model sees all of them."""

    type: Literal["allowed_tools"]


ResponseToolChoice = Annotated[
    Any,
    tool_choice(
        ResponseNamedChoice,
        '{"type": "function", "name"} or {"type": "allowed_tools", "mode", "tools"}',
        ResponseAllowedTools,
    ),
    TOOL_CHOICE,
]


def dropped_tools(tools: list[Any]) -> Iterator[str]:
    """Names of the tools in a list that are dropped."""
    return (f"tools[{index}]{tool.suffix}" for index, tool in enumerate(tools) if isinstance(tool, DroppedTool))
