"""The request body of `/v1/chat/completions`, and its conversion to a `ChatSpec`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from server.api.chat_fields import (
    TEXT_OR_PARTS,
    TOOL_CHOICE,
    ArgumentsText,
    ChatObject,
    FunctionName,
    JsonSchema,
    function_call,
    text_parts,
    tool_choice,
)
from server.api.dialects.openai.common import StreamOptions, check_stream_options
from server.api.dialects.openai.shared_fields import (
    ConversationFields,
    MaxTokens,
    NamedFunction,
    OpenAIFunction,
    chosen_tool,
)
from server.api.field_kinds import Hint, Unsupported, only
from server.api.fields import AnswerCount
from server.api.response_format import ResponseFormatChoice, ResponseFormatRegex, ResponseFormatText
from server.errors import InvalidRequest
from server.operations.chat import ChatSpec
from server.operations.grammar import JsonFormat, TextFormat


class OpenAITool(ChatObject):
    type: Literal["function"]
    function: OpenAIFunction


class OpenAICalledFunction(ChatObject):
    name: FunctionName
    arguments: ArgumentsText


class OpenAICall(ChatObject):
    id: str
    type: Literal["function"] = "function"
    function: OpenAICalledFunction


class OpenAIMessage(ChatObject):
    """A message. `reasoning_content`: reasoning before an earlier answer, for templates that show it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, text_parts("text", "refusal"), TEXT_OR_PARTS] = None
    name: str | None = None
    tool_calls: list[OpenAICall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: Hint = None
    audio: Unsupported = None
    function_call: Unsupported = None

    @model_validator(mode="after")
    def _check(self) -> OpenAIMessage:
        of_assistant = self.role == "assistant"
        if (self.tool_calls or self.reasoning_content or self.refusal) and not of_assistant:
            raise ValueError("has fields that only a message of the role assistant can have")
        if (self.tool_call_id is None) is (self.role == "tool"):
            raise ValueError("needs `tool_call_id` if its role is tool, and only then")
        if self.content is None and not (of_assistant and (self.tool_calls or self.refusal)):
            raise ValueError("needs `content`")
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates take it. OpenAI's newer name of the role system is developer."""
        calls = [function_call(call.id, call.function.name, call.function.arguments) for call in self.tool_calls or []]
        message = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.refusal if self.content is None else self.content,
            "name": self.name,
            "tool_calls": calls or None,
            "tool_call_id": self.tool_call_id,
            "reasoning_content": self.reasoning_content,
        }
        return {key: value for key, value in message.items() if value is not None}


class OpenAIJsonObject(ChatObject):
    """A JSON object. `value`: its schema, as huggingface_hub sends it."""

    type: Literal["json_object"]
    value: JsonSchema | None = None

    def text_format(self) -> TextFormat:
        return JsonFormat(self.value or {"type": "object"}, False, "response_format.value")


class OpenAINamedSchema(ChatObject):
    """`strict`: refuse a schema that cannot be enforced in full."""

    name: FunctionName
    description: Hint = None
    schema_: Annotated[JsonSchema | None, Field(alias="schema")] = None
    strict: bool | None = None


class OpenAIJsonSchema(ChatObject):
    """JSON that matches a schema; without a schema, any JSON object."""

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
    type: Literal["function"]
    function: NamedFunction


OpenAIToolChoice = Annotated[
    Any, tool_choice(OpenAINamedChoice, '{"type": "function", "function": {"name"}}'), TOOL_CHOICE
]


class ChatCompletionBody(ConversationFields):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[OpenAIMessage], Field(min_length=1)]
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    n: AnswerCount | None = None
    num_return_sequences: AnswerCount | None = None
    logprobs: bool | None = None
    response_format: OpenAIResponseFormat | None = None
    stream_options: StreamOptions | None = None
    tools: list[OpenAITool] | None = None
    tool_choice: OpenAIToolChoice = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    documents: list[dict[str, Any]] | None = None
    store: Hint = None
    modalities: Annotated[Any, only(["text"])] = None
    verbosity: Annotated[Any, only("medium")] = None
    functions: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only("none")] = None
    audio: Unsupported = None
    prediction: Unsupported = None
    reasoning_effort: Unsupported = None
    web_search_options: Unsupported = None

    def spec(self) -> ChatSpec:
        check_stream_options(self.stream_options, self.stream)
        limits = [limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None]
        if len(set(limits)) > 1:
            raise InvalidRequest("`max_tokens` and `max_completion_tokens` differ; send one of them", "max_tokens")
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequest(
                "`continue_final_message` cannot be combined with `add_generation_prompt`", "continue_final_message"
            )
        choice = self.tool_choice
        options = self.options(
            max_new_tokens=limits[0] if limits else None,
            fill_context=True,
            text_format=self.response_format and self.response_format.text_format(),
        )
        return ChatSpec(
            [message.for_template() for message in self.messages],
            options,
            self.model,
            [tool.function.tool(f"tools[{i}].function") for i, tool in enumerate(self.tools or [])],
            chosen_tool(choice.function if isinstance(choice, OpenAINamedChoice) else choice),
            parallel_tool_calls=self.parallel_tool_calls is not False,
            add_generation_prompt=self.add_generation_prompt is not False,
            continue_final_message=bool(self.continue_final_message),
            template_variables=self.chat_template_kwargs or {},
            documents=self.documents or [],
        )
