"""Fields that the bodies of `/v1/chat/completions` and `/v1/responses` share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from server.api.dialects.openai.common import TopLogprobs
from server.api.dialects.openai.sampling_fields import OpenAISamplingFields
from server.api.fields.chat_fields import ChatObject, FunctionName, JsonSchema, TemplateVariables
from server.api.fields.field_kinds import Hint, Unsupported, wish
from server.api.fields.fields import MAX_NEW_TOKENS
from server.operations.chatting.chat import FunctionTool, ToolChoice

MaxTokens = Annotated[int, Field(ge=1), AfterValidator(lambda limit: min(limit, MAX_NEW_TOKENS))]
"""A limit on new tokens. Values above `MAX_NEW_TOKENS` are accepted and reduced to it."""


class OpenAIFunction(ChatObject):
    """A function that the model may call. `strict`: refuse a schema that cannot be enforced in full.

    `return`: schema of the function's result, a field of transformers. It is dropped and named in
    `X-Ignored-Parameters`.
    """

    name: FunctionName
    description: str | None = None
    parameters: JsonSchema | None = None
    strict: bool | None = None
    return_: Annotated[Any, wish(), Field(alias="return")] = None
    cache_control: Hint = None

    def tool(self, place: str) -> FunctionTool:
        """Convert the function to a `FunctionTool`. place: its path in the request, such as `tools[0].function`."""
        return FunctionTool(self.name, self.description, self.parameters, place, is_strict=bool(self.strict))


class NamedFunction(ChatObject):
    """The name of the function that a `tool_choice` requires."""

    name: FunctionName


class AllowedTools(ChatObject):
    """A choice that allows only some of the tools. Tools that are no functions are dropped, and named in a header."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[dict[str, Any]], Field(min_length=1)]

    def names(self) -> list[str | None]:
        """For each tool, its name if it is a function, otherwise None."""
        functions = (tool.get("function", tool) if tool.get("type") == "function" else {} for tool in self.tools)
        names = (function.get("name") if isinstance(function, dict) else None for function in functions)
        return [name if isinstance(name, str) else None for name in names]

    def dropped(self) -> Iterator[str]:
        yield from (f"tools[{index}]" for index, name in enumerate(self.names()) if name is None)


def chosen_tool(choice: Literal["none", "auto", "required"] | NamedFunction | AllowedTools | None) -> ToolChoice:
    """Convert the field `tool_choice` to a `ToolChoice`. None, an absent field, means auto."""
    if isinstance(choice, NamedFunction):
        return ToolChoice("required", choice.name)
    if isinstance(choice, AllowedTools):
        return ToolChoice(choice.mode, allowed=tuple(name for name in choice.names() if name is not None))
    return ToolChoice(choice or "auto")


class ConversationFields(OpenAISamplingFields):
    """Fields that the bodies of `/v1/chat/completions` and `/v1/responses` share."""

    top_logprobs: TopLogprobs | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    moderation: Unsupported = None
