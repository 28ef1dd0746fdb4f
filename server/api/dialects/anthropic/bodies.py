"""Bodies of the Anthropic dialect, and their conversion to a `ChatSpec`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from server.api.dialects.anthropic.messages import AnthropicTurn, TextBlocks, chat_messages
from server.api.fields.changing_lines import changing_texts
from server.api.fields.chat_fields import ChatObject, FunctionName, JsonSchema, check_dropped, tool_kind
from server.api.fields.field_kinds import Hint, Unsupported, wish
from server.api.fields.fields import (
    MAX_FOREIGN_STOPS,
    MAX_NEW_TOKENS,
    Count,
    Finite,
    ShortText,
    TimedBody,
    TopPOrZero,
    absent,
)
from server.api.fields.response_format import ResponseFormatJsonSchema
from server.errors import InvalidRequest
from server.operations.chatting.chat import ChatSpec, FunctionTool, ToolChoice
from server.operations.generating.generation_options import GenerationOptions, SamplingDefaults
from server.operations.generating.grammar import JsonFormat, TextFormat

SAMPLING = SamplingDefaults(do_sample=True)
"""Sampling of a request without sampling fields, as Anthropic documents it: temperature 1."""
_MODES: dict[str, Literal["none", "auto", "required"]] = {
    "auto": "auto",
    "any": "required",
    "tool": "required",
    "none": "none",
}


class AnthropicTool(ChatObject):
    """A function of the client that the model may call. `strict`: refuse a schema that cannot be enforced in full.

    `defer_loading`: has no effect, because all tools are in the prompt from the beginning.
    """

    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: JsonSchema
    strict: bool | None = None
    input_examples: Annotated[Any, wish([])] = None
    allowed_callers: Annotated[Any, wish([], ["direct"])] = None
    defer_loading: Hint = None
    eager_input_streaming: Hint = None
    cache_control: Hint = None

    def tool(self, index: int) -> FunctionTool:
        """Convert the tool to a `FunctionTool`. index: position of the tool in the list `tools` of the request."""
        place, is_strict = f"tools[{index}]", bool(self.strict)
        return FunctionTool(self.name, self.description, self.input_schema, place, "input_schema", is_strict)


class AnthropicBuiltInTool(BaseModel):
    """A tool that Anthropic defines, such as `web_search_20250305` or `bash_20250124`.

    The server drops it, and names it in the header `X-Ignored-Parameters` of the answer.
    """

    model_config = ConfigDict(strict=True, extra="ignore")

    type: str


class AnthropicToolChoice(ChatObject):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class AnthropicThinkingConfig(ChatObject):
    """Whether the model reasons before it answers, if its chat template has a setting for that.

    Without such a setting, the field is dropped and named in the header `X-Ignored-Parameters`.
    `type` adaptive or between_tools: the chat template's default.
    """

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[Any, wish()] = None
    display: Hint = None
    block_binding: Hint = None


class AnthropicOutputConfig(ChatObject):
    """Format of the answer, and effort of the reasoning, which has no effect without a setting in the chat template."""

    format: ResponseFormatJsonSchema | None = None
    effort: str | None = None
    task_budget: Annotated[Any, wish()] = None


class AnthropicEdit(BaseModel):
    """A change that Anthropic's servers make to a conversation before they answer it.

    This server makes no such changes.
    """

    model_config = ConfigDict(strict=True, extra="ignore")

    type: str
    keep: Any = None

    @property
    def is_neutral(self) -> bool:
        """Whether the edit changes nothing because it keeps all reasoning. Other edits are named as dropped."""
        return self.type.startswith("clear_thinking_") and self.keep in ("all", {"type": "all"})


class AnthropicContextManagement(ChatObject):
    """Edits of the conversation that the request asks for.

    Edits that would remove text are dropped, and named in `X-Ignored-Parameters`.
    """

    edits: list[AnthropicEdit] | None = None

    def dropped(self) -> Iterator[str]:
        yield from (f"edits[{index}]" for index, edit in enumerate(self.edits or ()) if not edit.is_neutral)


class AnthropicThread(ChatObject):
    """A conversation that Anthropic's servers would store. This server stores none: each request has all messages."""

    type: Literal["create"]


class AnthropicCountBody(TimedBody):
    """Body of `POST /v1/messages/count_tokens`. `POST /v1/messages` has all of these fields too."""

    messages: Annotated[list[AnthropicTurn], Field(min_length=1)]
    system: TextBlocks | None = None
    tools: (
        list[
            Annotated[
                Annotated[AnthropicTool, Tag("function tool")] | Annotated[AnthropicBuiltInTool, Tag("built-in tool")],
                Discriminator(tool_kind("custom")),
            ]
        ]
        | None
    ) = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: AnthropicThinkingConfig | None = None
    output_config: AnthropicOutputConfig | None = None
    output_format: ResponseFormatJsonSchema | None = None
    context_management: AnthropicContextManagement | None = None
    compaction: Hint = None
    thread: Annotated[AnthropicThread | None, wish()] = None
    container: Annotated[Any, wish()] = None
    mcp_servers: Annotated[Any, wish([])] = None
    fallbacks: Annotated[Any, wish([], "default")] = None
    inference_geo: Annotated[Any, wish("global")] = None
    speed: Hint = None
    service_tier: Hint = None
    metadata: Hint = None
    cache_control: Hint = None
    diagnostics: Hint = None
    billing_policy: Hint = None
    fallback_credit_token: Hint = None
    user_profile_id: Hint = None
    anthropic_version: Hint = None
    anthropic_beta: Hint = None
    betas: Hint = None

    def dropped(self) -> Iterator[str]:
        """Paths of the parts of the body that the server drops, such as `tools[1]`.

        These are tools that Anthropic defines, and blocks of `system` whose text changes with every request.
        """
        yield from (f"system[{index}]" for index in changing_texts([block.text for block in self.system or ()]))
        for index, tool in enumerate(self.tools or ()):
            if isinstance(tool, AnthropicBuiltInTool):
                yield f"tools[{index}]"

    def spec(self) -> ChatSpec:
        """Convert the body to a `ChatSpec`.

        Raises InvalidRequest for blocks, tools or a tool choice that do not fit together, and for two output formats.
        """
        choice = self.tool_choice or AnthropicToolChoice(type="auto")
        if (choice.type == "tool") != (choice.name is not None):
            raise InvalidRequest("`tool_choice` needs a `name` if its `type` is tool, and only then", "tool_choice")
        functions = [tool.tool(i) for i, tool in enumerate(self.tools or ()) if isinstance(tool, AnthropicTool)]
        tool_choice = ToolChoice(_MODES[choice.type], choice.name)
        check_dropped(tool_choice, [tool.name for tool in functions], len(self.tools or ()))
        messages = list(chat_messages(self.system, self.messages))
        continues = self.messages[-1].role == "assistant"
        if continues and "tool_calls" in messages[-1]:
            raise InvalidRequest("`messages` ends with a `tool_use` block; its `tool_result` is missing", "messages")
        return ChatSpec(
            messages,
            self.options(),
            self.model,
            tools=functions,
            tool_choice=tool_choice,
            parallel_tool_calls=not choice.disable_parallel_tool_use,
            continue_final_message=continues,
            thinking=self._thinking(),
            messages_field="messages",
            reasoning_effort=None if self.output_config is None else self.output_config.effort,
        )

    def options(self) -> GenerationOptions:
        return GenerationOptions(text_format=self._text_format())

    def _text_format(self) -> TextFormat | None:
        """Format of the answer; None for free text. Raises InvalidRequest if two fields of the body set a format."""
        output = self.output_config and self.output_config.format
        if output and self.output_format:
            raise InvalidRequest(
                "`output_format` is the older name of `output_config.format`; send one of them", "output_format"
            )
        if self.output_format:
            return JsonFormat(self.output_format.schema_, False, "output_format.schema")
        return JsonFormat(output.schema_, False, "output_config.format.schema") if output else None

    def _thinking(self) -> bool | None:
        if self.thinking is None or self.thinking.type not in ("enabled", "disabled"):
            return None
        return self.thinking.type == "enabled"


class AnthropicMessagesBody(AnthropicCountBody):
    """Body of `POST /v1/messages`. If the last message has the role assistant, the answer continues it.

    `max_tokens` 0: only store the prompt in the prefix cache; the answer is empty.
    """

    max_tokens: Annotated[int, Field(ge=0)]
    stream: bool | None = None
    stop_sequences: Annotated[list[ShortText] | None, Field(max_length=MAX_FOREIGN_STOPS)] = None
    temperature: Annotated[Finite | None, Field(ge=0, le=1)] = None
    top_k: Annotated[Count | None, absent(-1)] = None
    top_p: TopPOrZero | None = None
    compaction: Unsupported = None

    def options(self) -> GenerationOptions:
        return GenerationOptions(
            stream=bool(self.stream),
            max_new_tokens=min(self.max_tokens, MAX_NEW_TOKENS),
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            stop=self.stop_sequences or (),
            text_format=self._text_format(),
            sampling_defaults=SAMPLING,
        )
