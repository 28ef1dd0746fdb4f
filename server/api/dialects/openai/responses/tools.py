"""The fields `tools` and `tool_choice` of `/v1/responses`.

Only functions can be called. All other tools, such as those that OpenAI's server runs itself, are dropped and named in
`X-Ignored-Parameters`. A choice that forces a call of a dropped tool is refused.
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
"""Known types of dropped tools. Tools of other types are dropped too, but the header does not repeat their type."""


class ResponseTool(OpenAIFunction):
    """A function that the model may call. `strict`: refuse a schema that cannot be enforced in full."""

    type: Literal["function"]
    defer_loading: Hint = None
    allowed_callers: Hint = None
    output_schema: Hint = None
    async_: Annotated[Hint, Field(alias="async")] = None


class DroppedTool(ChatObject):
    """A tool that the server does not have and drops. It may have any fields."""

    model_config = ConfigDict(extra="ignore")

    type: str

    @property
    def suffix(self) -> str:
        """Text after the tool's path in `X-Ignored-Parameters`: `:` and its type, or empty for an unknown type."""
        return f":{self.type}" if self.type in DROPPED_TOOLS else ""


Tool = Annotated[
    Annotated[ResponseTool, Tag("function tool")] | Annotated[DroppedTool, Tag("built-in tool")],
    Discriminator(tool_kind("function")),
]


class ResponseNamedChoice(NamedFunction):
    type: Literal["function"]


class ResponseAllowedTools(AllowedTools):
    """A choice that allows the model to call only some of the tools. The prompt still contains all of them."""

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
    """Names of the dropped tools for `X-Ignored-Parameters`, such as `tools[1]:web_search`."""
    return (f"tools[{index}]{tool.suffix}" for index, tool in enumerate(tools) if isinstance(tool, DroppedTool))
