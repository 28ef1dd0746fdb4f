"""Fields that the bodies of `/v1/chat/completions` and `/v1/responses` share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from server.api.chat_fields import ChatObject, FunctionName, JsonSchema, TemplateVariables
from server.api.dialects.openai.common import ServiceTier, TopLogprobs
from server.api.field_kinds import Hint, Unsupported
from server.api.fields import SamplingFields
from server.operations.chat import FunctionTool, ToolChoice

MaxTokens = Annotated[int, Field(ge=1, le=1 << 20)]


class OpenAIFunction(ChatObject):
    """`strict`: refuse a schema that cannot be enforced in full."""

    name: FunctionName
    description: str | None = None
    parameters: JsonSchema | None = None
    strict: bool | None = None

    def tool(self, place: str) -> FunctionTool:
        """place: path of the function in the request."""
        return FunctionTool(self.name, self.description, self.parameters, place, is_strict=bool(self.strict))


class NamedFunction(ChatObject):
    """The function of a `tool_choice`."""

    name: FunctionName


def chosen_tool(choice: Literal["none", "auto", "required"] | NamedFunction | None) -> ToolChoice:
    """The value of `tool_choice`. None: the field is absent."""
    if isinstance(choice, NamedFunction):
        return ToolChoice("required", choice.name)
    return ToolChoice(choice or "auto")


class ConversationFields(SamplingFields):
    """Fields that the bodies of `/v1/chat/completions` and `/v1/responses` share."""

    top_logprobs: TopLogprobs | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    service_tier: ServiceTier = None
    safety_identifier: Hint = None
    prompt_cache_key: Hint = None
    prompt_cache_retention: Hint = None
    prompt_cache_options: Hint = None
    moderation: Unsupported = None
