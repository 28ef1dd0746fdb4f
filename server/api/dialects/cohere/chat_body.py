"""The body of `POST /v2/chat`, and its conversion to chat messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator, Field

from server.api.fields.chat_fields import (
    TEXT_OR_PARTS,
    ArgumentsText,
    ChatObject,
    FunctionName,
    JsonSchema,
    as_text_parts,
    function_call,
    text_parts,
)
from server.api.fields.field_kinds import Hint, only, wish
from server.api.fields.fields import MAX_STOPS, Count, Finite, ShortText, TimedBody
from server.api.fields.tool_results import tool_output
from server.errors import InvalidRequest
from server.operations.chatting.chat import ChatSpec, FunctionTool, ToolChoice
from server.operations.generating.generation_options import GenerationOptions, SamplingDefaults
from server.operations.generating.grammar import JsonFormat, TextFormat

SAMPLING = SamplingDefaults(do_sample=True, temperature=0.3, top_p=0.75)
"""Sampling of a request without sampling fields, as Cohere documents it."""
_TOOL_CHOICES: dict[str | None, ToolChoice] = {
    None: ToolChoice("auto"),
    "REQUIRED": ToolChoice("required"),
    "NONE": ToolChoice("none"),
}


def _document_parts(value: Any) -> Any:
    """Replace each document part of a tool result by a text part with its data. Objects become JSON text."""
    if not isinstance(value, list):
        return value
    parts = []
    for part in value:
        document = part.get("document") if isinstance(part, dict) and part.get("type") == "document" else None
        if isinstance(document, dict) and isinstance(document.get("data"), (dict, str)):
            data = document["data"]
            part = {"type": "text", "text": data if isinstance(data, str) else orjson.dumps(data).decode()}
        parts.append(part)
    return parts


Content = Annotated[str, text_parts("text"), TEXT_OR_PARTS]


class CohereCalledFunction(ChatObject):
    name: FunctionName
    arguments: ArgumentsText


class CohereToolCall(ChatObject):
    id: Annotated[str, Field(min_length=1, max_length=256)]
    type: Literal["function"] | None = None
    function: CohereCalledFunction


class CohereTextPart(ChatObject):
    type: Literal["text"]
    text: str


class CohereThinkingPart(ChatObject):
    type: Literal["thinking"]
    thinking: str


class CohereUserMessage(ChatObject):
    role: Literal["user", "system"]
    content: Content


class CohereAssistantMessage(ChatObject):
    """An earlier answer. `tool_plan`: text before the tool calls. In the prompt, it stands before `content`."""

    role: Literal["assistant"]
    content: Annotated[
        list[Annotated[CohereTextPart | CohereThinkingPart, Field(discriminator="type")]] | None,
        BeforeValidator(as_text_parts),
        TEXT_OR_PARTS,
    ] = None
    tool_plan: str | None = None
    tool_calls: list[CohereToolCall] | None = None
    citations: Hint = None


class CohereToolMessage(ChatObject):
    role: Literal["tool"]
    tool_call_id: str
    content: Annotated[Any, tool_output("text"), BeforeValidator(_document_parts), TEXT_OR_PARTS]

    def dropped(self) -> Iterator[str]:
        """Paths of the parts of a tool's result that a note replaces, because they are no text."""
        yield from self.content.dropped("content")


Message = Annotated[CohereUserMessage | CohereAssistantMessage | CohereToolMessage, Field(discriminator="role")]


class CohereFunction(ChatObject):
    name: FunctionName
    description: str | None = None
    parameters: JsonSchema | None = None

    def tool(self, index: int, is_strict: bool) -> FunctionTool:
        """Convert the function to a `FunctionTool`.

        index: position of the tool in the list `tools`.
        is_strict: refuse a schema that cannot be enforced in full.
        """
        place = f"tools[{index}].function"
        return FunctionTool(self.name, self.description, self.parameters, place, is_strict=is_strict)


class CohereTool(ChatObject):
    type: Literal["function"] | None = None
    function: CohereFunction


class CohereResponseFormat(ChatObject):
    type: Literal["text", "json_object"]
    json_schema: JsonSchema | None = None

    def text_format(self) -> TextFormat | None:
        """Format of the answer, or None for free text. Raises InvalidRequest for a schema with the type `text`."""
        if self.type == "text":
            if self.json_schema is not None:
                raise InvalidRequest(
                    "`response_format`: `json_schema` requires the type json_object", "response_format"
                )
            return None
        return JsonFormat(self.json_schema or {"type": "object"}, False, "response_format.json_schema")


class CohereThinking(ChatObject):
    """Whether the model reasons before it answers, if its chat template has a setting for that.

    Without such a setting, the field is dropped and named in the header `X-Ignored-Parameters`.
    """

    type: Literal["enabled", "disabled"]
    token_budget: Annotated[Any, wish()] = None


class CohereChatBody(TimedBody):
    """Body of `POST /v2/chat`. `strict_tools`: refuse schemas of tools that cannot be enforced in full.

    `documents` are refused, so there are no citations. `citation_options` and `priority` have no effect.
    """

    messages: Annotated[list[Message], Field(min_length=1)]
    stream: bool | None = None
    max_tokens: Annotated[int | None, Field(ge=1, le=1 << 20)] = None
    stop_sequences: Annotated[list[ShortText] | None, Field(max_length=MAX_STOPS)] = None
    temperature: Annotated[Finite | None, Field(ge=0, le=100)] = None
    k: Count | None = None
    p: Annotated[Finite | None, Field(gt=0, le=1)] = None
    seed: Annotated[int | None, Field(ge=0, lt=1 << 64)] = None
    frequency_penalty: Annotated[Finite | None, Field(ge=-2, le=2)] = None
    presence_penalty: Annotated[Finite | None, Field(ge=-2, le=2)] = None
    logprobs: bool | None = None
    response_format: CohereResponseFormat | None = None
    tools: list[CohereTool] | None = None
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    thinking: CohereThinking | None = None
    documents: Annotated[list[Any] | None, only([])] = None
    safety_mode: Annotated[str | None, only("OFF", "NONE")] = None
    strict_tools: bool | None = None
    citation_options: Hint = None
    priority: Hint = None

    def spec(self) -> ChatSpec:
        """Convert the body to a `ChatSpec`.

        Raises InvalidRequest for a tool result without its call, and for a `response_format` that contradicts itself.
        """
        tools = [tool.function.tool(index, bool(self.strict_tools)) for index, tool in enumerate(self.tools or ())]
        tool_choice = _TOOL_CHOICES[self.tool_choice]
        return ChatSpec(
            list(_messages(self.messages)),
            GenerationOptions(
                stream=bool(self.stream),
                max_new_tokens=self.max_tokens,
                fill_context=self.max_tokens is None,
                temperature=self.temperature,
                top_k=self.k,
                top_p=self.p,
                seed=self.seed,
                frequency_penalty=self.frequency_penalty or 0.0,
                presence_penalty=self.presence_penalty or 0.0,
                stop=self.stop_sequences or (),
                logprobs=bool(self.logprobs),
                text_format=None if self.response_format is None else self.response_format.text_format(),
                sampling_defaults=SAMPLING,
            ),
            self.model,
            tools=tools,
            tool_choice=tool_choice,
            thinking=None if self.thinking is None else self.thinking.type == "enabled",
        )


def _messages(
    given: Sequence[CohereUserMessage | CohereAssistantMessage | CohereToolMessage],
) -> Iterator[dict[str, Any]]:
    """Convert messages to the form of chat templates. Raises InvalidRequest for a tool result without its call."""
    names: dict[str, str] = {}
    for sent in given:
        if isinstance(sent, CohereUserMessage):
            yield {"role": sent.role, "content": sent.content}
        elif isinstance(sent, CohereToolMessage):
            if sent.tool_call_id not in names:
                raise InvalidRequest("`messages` has a message of the role tool without its call before it", "messages")
            name = names[sent.tool_call_id]
            yield {"role": "tool", "tool_call_id": sent.tool_call_id, "name": name, "content": sent.content.text}
        else:
            texts = [part.text for part in sent.content or () if isinstance(part, CohereTextPart)]
            thoughts = [part.thinking for part in sent.content or () if isinstance(part, CohereThinkingPart)]
            message: dict[str, Any] = {
                "role": "assistant",
                "content": "\n".join([sent.tool_plan or "", *texts]).strip("\n"),
            }
            message |= {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
            calls = sent.tool_calls or ()
            names |= {call.id: call.function.name for call in calls}
            rendered = [function_call(call.id, call.function.name, call.function.arguments) for call in calls]
            yield message | ({"tool_calls": rendered} if rendered else {})
