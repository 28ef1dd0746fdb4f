"""The request body of `/v1/chat/completions`, and its conversion to a `ChatSpec`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from server.api.dialects.openai.chat_messages import OpenAIMessage, changing_messages, chat_messages
from server.api.dialects.openai.common import StreamOptions, check_stream_options, includes_usage
from server.api.dialects.openai.shared_fields import (
    AllowedTools,
    ConversationFields,
    MaxTokens,
    NamedFunction,
    OpenAIFunction,
    chosen_tool,
)
from server.api.fields.chat_fields import (
    TOOL_CHOICE,
    ChatObject,
    JsonSchema,
    check_dropped,
    tool_choice,
    tool_kind,
)
from server.api.fields.field_kinds import Hint, Unsupported, only, wish
from server.api.fields.fields import AnswerCount, absent
from server.api.fields.response_format import ResponseFormatChoice, ResponseFormatRegex, ResponseFormatText
from server.errors import InvalidRequest
from server.operations.chatting.chat import ChatSpec
from server.operations.generating.grammar import JsonFormat, TextFormat


class OpenAITool(ChatObject):
    type: Literal["function"] | None = None
    function: OpenAIFunction
    cache_control: Hint = None
    copilot_cache_control: Hint = None
    defer_loading: Hint = None
    allowed_callers: Hint = None
    input_examples: Annotated[Any, wish([])] = None


class OpenAIBuiltInTool(BaseModel):
    """A tool that is no function, such as `custom` or a web search.

    The server drops it, and names it in the header `X-Ignored-Parameters`.
    """

    model_config = ConfigDict(strict=True, extra="ignore")

    type: str


class OpenAIJsonObject(ChatObject):
    """The answer is a JSON object. `schema`, `value`: optional JSON schema, as clients of llama.cpp and
    huggingface_hub send it."""

    type: Literal["json_object"]
    schema_: Annotated[JsonSchema | None, Field(alias="schema")] = None
    value: JsonSchema | None = None

    def text_format(self) -> TextFormat:
        place = "response_format.schema" if self.schema_ else "response_format.value"
        return JsonFormat(self.schema_ or self.value or {"type": "object"}, False, place)


class OpenAINamedSchema(ChatObject):
    """A JSON schema, with a name that has no effect. `strict`: refuse a schema that cannot be enforced in full."""

    name: Hint = None
    description: Hint = None
    schema_: Annotated[JsonSchema | None, Field(alias="schema")] = None
    strict: bool | None = None


class OpenAIJsonSchema(ChatObject):
    """The answer is JSON that matches a schema; without a schema, any JSON object."""

    type: Literal["json_schema"]
    json_schema: OpenAINamedSchema

    def text_format(self) -> TextFormat:
        given = self.json_schema
        return JsonFormat(given.schema_ or {"type": "object"}, bool(given.strict), "response_format.json_schema.schema")


OpenAIResponseFormat = Annotated[
    ResponseFormatText | OpenAIJsonObject | OpenAIJsonSchema | ResponseFormatRegex | ResponseFormatChoice,
    Field(discriminator="type"),
]


class OpenAINamedChoice(ChatObject):
    type: Literal["function"] | None = None
    function: NamedFunction


class OpenAIAllowedChoice(ChatObject):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


OpenAIToolChoice = Annotated[
    Any,
    tool_choice(OpenAINamedChoice, '{"type": "function", "function": {"name"}}', OpenAIAllowedChoice),
    TOOL_CHOICE,
]


class OpenAIReasoning(ChatObject):
    """How much the model reasons, in the fields of OpenRouter's API."""

    effort: Any = None
    enabled: bool | None = None
    max_tokens: Annotated[Any, wish()] = None
    exclude: Annotated[Any, wish(False)] = None
    summary: Hint = None


class OpenAIThinking(ChatObject):
    """Whether the model reasons, in the fields of the APIs of GLM, DeepSeek and Kimi.

    `type` auto or adaptive: the chat template's default.
    """

    type: Literal["enabled", "disabled", "auto", "adaptive"]
    budget_tokens: Annotated[Any, wish()] = None
    clear_thinking: Hint = None
    keep: Hint = None


class OpenAIStreamUsage(ChatObject):
    """OpenRouter's form of `stream_options.include_usage`: whether a stream ends with the usage."""

    include: bool | None = None


class ChatCompletionBody(ConversationFields):
    """Body of `POST /v1/chat/completions`.

    `reasoning_effort`, `reasoning`, `thinking`, `enable_thinking`: for chat templates with such a setting. With other
    templates, an effort has no effect, and a switch is dropped and named in `X-Ignored-Parameters`.
    """

    messages: Annotated[list[OpenAIMessage], Field(min_length=1)]
    max_tokens: Annotated[MaxTokens | None, absent(-1)] = None
    max_completion_tokens: Annotated[MaxTokens | None, absent(-1)] = None
    n: AnswerCount | None = None
    best_of: AnswerCount | None = None
    num_return_sequences: AnswerCount | None = None
    logprobs: Annotated[bool | None, absent(0)] = None
    response_format: OpenAIResponseFormat | None = None
    stream_options: StreamOptions | None = None
    usage: OpenAIStreamUsage | None = None
    tools: (
        list[
            Annotated[
                Annotated[OpenAITool, Tag("function tool")] | Annotated[OpenAIBuiltInTool, Tag("built-in tool")],
                Discriminator(tool_kind("function")),
            ]
        ]
        | None
    ) = None
    tool_choice: OpenAIToolChoice = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: Any = None
    reasoning: OpenAIReasoning | None = None
    thinking: OpenAIThinking | None = None
    enable_thinking: bool | None = None
    thinking_budget: Annotated[Any, wish()] = None
    thinking_token_budget: Annotated[Any, wish()] = None
    include_reasoning: Annotated[Any, wish(True)] = None
    reasoning_format: Annotated[Any, only("auto", "deepseek", "parsed")] = None
    verbosity: Hint = None
    prediction: Hint = None
    web_search_options: Annotated[Any, wish()] = None
    modalities: Annotated[Any, only(["text"])] = None
    audio: Unsupported = None
    functions: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only("none", "auto")] = None
    tool_prompt: Unsupported = None
    chat_template: Unsupported = None
    echo: Annotated[Any, only(False)] = None
    add_special_tokens: Annotated[Any, only(False)] = None

    def dropped(self) -> Iterator[str]:
        """Paths of dropped tools, which are not functions, and of system messages whose first lines are dropped.

        Dropped lines are those that change with every request, because they would make the prefix cache useless.
        """
        yield from (f"messages[{index}].content" for index in changing_messages(self.messages))
        for index, tool in enumerate(self.tools or ()):
            if isinstance(tool, OpenAIBuiltInTool):
                yield f"tools[{index}]"

    @property
    def includes_usage(self) -> bool:
        """Whether the client asks for the token usage at the end of a stream."""
        return includes_usage(self.stream_options) or (self.usage is not None and bool(self.usage.include))

    def field_names(self) -> dict[str, str]:
        is_newer = self.max_tokens is None and self.max_completion_tokens is not None
        return super().field_names() | ({"max_new_tokens": "max_completion_tokens"} if is_newer else {})

    def spec(self) -> ChatSpec:
        check_stream_options(self.stream_options, self.stream)
        limits = [limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None]
        if len(set(limits)) > 1:
            raise InvalidRequest("`max_tokens` and `max_completion_tokens` differ; send one of them", "max_tokens")
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequest(
                "`continue_final_message` cannot be combined with `add_generation_prompt`", "continue_final_message"
            )
        functions = [
            tool.function.tool(f"tools[{i}].function")
            for i, tool in enumerate(self.tools or ())
            if isinstance(tool, OpenAITool)
        ]
        choice = chosen_tool(_tool_choice(self.tool_choice))
        check_dropped(choice, [function.name for function in functions], len(self.tools or ()))
        options = self.options(
            max_new_tokens=limits[0] if limits else None,
            fill_context=True,
            text_format=self.response_format and self.response_format.text_format(),
        )
        thinking, field = self._thinking()
        return ChatSpec(
            list(chat_messages(self.messages)),
            options,
            self.model,
            functions,
            choice,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            add_generation_prompt=self.add_generation_prompt is not False,
            continue_final_message=bool(self.continue_final_message),
            thinking=thinking,
            thinking_field=field,
            reasoning_effort=self._effort(),
            template_variables=self.chat_template_kwargs or {},
            documents=self.documents or [],
        )

    def _effort(self) -> str | None:
        effort = self.reasoning_effort
        if effort is None and self.reasoning is not None:
            effort = self.reasoning.effort
        return effort if isinstance(effort, str) else None

    def _thinking(self) -> tuple[bool | None, str]:
        """Whether the model should reason (None for the template's default), and the field that decides it."""
        if self.enable_thinking is not None:
            return self.enable_thinking, "enable_thinking"
        if self.thinking is not None and self.thinking.type in ("enabled", "disabled"):
            return self.thinking.type == "enabled", "thinking"
        return None if self.reasoning is None else self.reasoning.enabled, "reasoning.enabled"


def _tool_choice(choice: Any) -> Any:
    """Take the function or the list of tools out of the object around it. A string or None is returned unchanged."""
    if isinstance(choice, OpenAINamedChoice):
        return choice.function
    return choice.allowed_tools if isinstance(choice, OpenAIAllowedChoice) else choice
