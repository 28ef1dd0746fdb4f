"""The request body of `/v1/responses`, and its conversion to a `ChatSpec`. The server stores no answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from server.api.chat_fields import (
    TEXT_OR_PARTS,
    TOOL_CHOICE,
    ArgumentsText,
    ChatObject,
    FunctionName,
    function_call,
    text_parts,
    tool_choice,
)
from server.api.dialects.openai.shared_fields import (
    ConversationFields,
    MaxTokens,
    NamedFunction,
    OpenAIFunction,
    chosen_tool,
)
from server.api.field_kinds import Hint, Unsupported, only
from server.api.response_format import ResponseFormatJsonObject, ResponseFormatJsonSchema, ResponseFormatText
from server.operations.chat import ChatSpec
from server.operations.grammar import JsonFormat, TextFormat

LOGPROBS = "message.output_text.logprobs"


class ResponseItem(ChatObject):
    """Base of the items of `input`. `id` and `status` are those of an earlier answer and have no effect."""

    id: Hint = None
    status: Hint = None


class InputMessage(ResponseItem):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, text_parts("input_text", "output_text", "refusal"), TEXT_OR_PARTS]
    phase: Hint = None


class InputCall(ResponseItem):
    type: Literal["function_call"]
    call_id: str
    name: FunctionName
    arguments: ArgumentsText


class InputCallOutput(ResponseItem):
    type: Literal["function_call_output"]
    call_id: str
    output: Annotated[str, text_parts("input_text", "output_text"), TEXT_OR_PARTS]


class InputReasoning(ResponseItem):
    """Reasoning before an earlier answer, for templates that show it."""

    type: Literal["reasoning"]
    summary: Annotated[Any, only([])] = None
    content: Annotated[str | None, text_parts("reasoning_text"), TEXT_OR_PARTS] = None
    encrypted_content: Unsupported = None


_ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")


def _member(item: Any) -> str | None:
    """The tag of an item, by which pydantic chooses a member of `InputItem`. Messages may leave out their type."""
    kind = item.get("type", "message") if isinstance(item, dict) else None
    return f"<{kind}>" if kind in _ITEM_TYPES else None


InputItem = Annotated[
    Annotated[InputMessage, Tag("<message>")]
    | Annotated[InputCall, Tag("<function_call>")]
    | Annotated[InputCallOutput, Tag("<function_call_output>")]
    | Annotated[InputReasoning, Tag("<reasoning>")],
    Discriminator(
        _member,
        custom_error_type="item_type",
        custom_error_message=f"has a type that is not supported; the supported ones are {', '.join(_ITEM_TYPES)}",
    ),
]


def _as_items(value: Any) -> Any:
    """A text as one message of the user."""
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


def _text_or_items(schema: dict[str, Any]) -> None:
    """Add text to the JSON schema of the list of items."""
    schema["anyOf"] = [{"type": "string"}, {name: schema.pop(name) for name in ("type", "items", "minItems")}]


def _check_include(names: list[str] | None) -> list[str] | None:
    if any(name != LOGPROBS for name in names or ()):
        raise ValueError(f"supports only {LOGPROBS}")
    return names


class ResponseTool(OpenAIFunction):
    """A function. `strict`: refuse a schema that cannot be enforced in full."""

    type: Literal["function"]


class ResponseNamedChoice(NamedFunction):
    type: Literal["function"]


class ResponseJsonSchema(ResponseFormatJsonSchema):
    """JSON that matches a schema. `strict`: refuse a schema that cannot be enforced in full."""

    name: FunctionName
    description: Hint = None
    strict: bool | None = None

    def text_format(self) -> TextFormat:
        return JsonFormat(self.schema_, bool(self.strict), "text.format.schema")


class ResponseText(ChatObject):
    """How the answer is written."""

    format: Annotated[
        ResponseFormatText | ResponseFormatJsonObject | ResponseJsonSchema | None, Field(discriminator="type")
    ] = None
    verbosity: Annotated[Any, only("medium")] = None


class ResponseReasoning(ChatObject):
    effort: Unsupported = None
    summary: Unsupported = None


class ResponseStreamOptions(ChatObject):
    include_obfuscation: Annotated[Any, only(False)] = None


ResponseToolChoice = Annotated[Any, tool_choice(ResponseNamedChoice, '{"type": "function", "name"}'), TOOL_CHOICE]


class ResponsesBody(ConversationFields):
    """`POST /v1/responses`. `truncation`: a prompt beyond the context is always refused."""

    input: Annotated[list[InputItem], BeforeValidator(_as_items), Field(min_length=1, json_schema_extra=_text_or_items)]
    instructions: str | None = None
    max_output_tokens: MaxTokens | None = None
    include: Annotated[list[str], AfterValidator(_check_include)] | None = None
    text: ResponseText | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: ResponseToolChoice = None
    reasoning: ResponseReasoning | None = None
    stream_options: ResponseStreamOptions | None = None
    truncation: Annotated[Any, only("disabled")] = None
    store: Annotated[Any, only(False), Field(description="the server stores no answer")] = None
    background: Annotated[Any, only(False)] = None
    previous_response_id: Unsupported = None
    conversation: Unsupported = None
    context_management: Unsupported = None
    max_tool_calls: Unsupported = None
    prompt: Unsupported = None

    def spec(self) -> ChatSpec:
        text_format = self.text and self.text.format and self.text.format.text_format()
        options = self.options(
            max_new_tokens=self.max_output_tokens,
            fill_context=True,
            logprobs=self.with_logprobs,
            text_format=text_format,
        )
        return ChatSpec(
            self._messages(),
            options,
            self.model,
            [tool.tool(f"tools[{i}]") for i, tool in enumerate(self.tools or [])],
            chosen_tool(self.tool_choice),
            parallel_tool_calls=self.parallel_tool_calls is not False,
            template_variables=self.chat_template_kwargs or {},
        )

    @property
    def with_logprobs(self) -> bool:
        return bool(self.include or self.top_logprobs)

    def _messages(self) -> list[dict[str, Any]]:
        """The items as chat messages. Items of one answer in a row become one message of the assistant."""
        messages: list[dict[str, Any]] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        for item in self.input:
            part = _part(item)
            if part["role"] == "assistant" and messages and messages[-1]["role"] == "assistant":
                _extend(messages[-1], part)
            else:
                messages.append(part)
        return messages


def _part(item: InputMessage | InputCall | InputCallOutput | InputReasoning) -> dict[str, Any]:
    """A message with the content of one item."""
    if isinstance(item, InputMessage):
        return {"role": "system" if item.role == "developer" else item.role, "content": item.content}
    if isinstance(item, InputCall):
        return {"role": "assistant", "tool_calls": [function_call(item.call_id, item.name, item.arguments)]}
    if isinstance(item, InputCallOutput):
        return {"role": "tool", "tool_call_id": item.call_id, "content": item.output}
    return {"role": "assistant", "reasoning_content": item.content or ""}


def _extend(message: dict[str, Any], part: dict[str, Any]) -> None:
    """Append the parts of a later item to a message of the assistant."""
    for name in ("reasoning_content", "content"):
        if name in part:
            message[name] = "\n".join(filter(None, (message.get(name), part[name])))
    if "tool_calls" in part:
        message["tool_calls"] = [*message.get("tool_calls", []), *part["tool_calls"]]
