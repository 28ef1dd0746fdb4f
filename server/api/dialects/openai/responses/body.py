"""The request body of `/v1/responses`, and its conversion to a `ChatSpec`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from server.api.dialects.openai.responses.conversation import StoredConversation
from server.api.dialects.openai.responses.input import BuiltInItem, InputItem, chat_messages
from server.api.dialects.openai.responses.tools import ResponseTool, ResponseToolChoice, Tool, dropped_tools
from server.api.dialects.openai.shared_fields import ConversationFields, MaxTokens, chosen_tool
from server.api.fields.chat_fields import ChatObject, check_dropped
from server.api.fields.field_kinds import Hint, Unsupported, only, wish
from server.api.fields.response_format import ResponseFormatJsonObject, ResponseFormatJsonSchema, ResponseFormatText
from server.errors import InvalidRequest
from server.operations.chatting.chat import ChatSpec
from server.operations.generating.grammar import JsonFormat, TextFormat

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
INCLUDABLE = frozenset(
    {
        LOGPROBS,
        ENCRYPTED_REASONING,
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
"""Accepted values of `include`. All but the first two are for items that no answer of this server contains."""


def _as_items(value: Any) -> Any:
    """Convert `input` to a list of items: a text becomes one user message, and null an empty list."""
    return [{"role": "user", "content": value}] if isinstance(value, str) else [] if value is None else value


def _text_or_items(schema: dict[str, Any]) -> None:
    """Change the JSON schema of a list of items so that it also allows a string."""
    schema["anyOf"] = [{"type": "string"}, {name: schema.pop(name) for name in ("type", "items")}]


class ResponseJsonSchema(ResponseFormatJsonSchema):
    """The answer is JSON that matches a schema. `strict`: refuse a schema that cannot be enforced in full."""

    name: Hint = None
    description: Hint = None
    strict: bool | None = None

    def text_format(self) -> TextFormat:
        return JsonFormat(self.schema_, bool(self.strict), "text.format.schema")


class ResponseText(ChatObject):
    """Format of the answer's text. `verbosity` has no effect."""

    format: Annotated[
        ResponseFormatText | ResponseFormatJsonObject | ResponseJsonSchema | None, Field(discriminator="type")
    ] = None
    verbosity: Hint = None


class ResponseReasoning(ChatObject):
    effort: Any = None
    summary: Annotated[Any, wish()] = None
    generate_summary: Annotated[Any, wish()] = None
    context: Annotated[Any, wish("auto")] = None
    mode: Annotated[Any, wish("standard")] = None


class ResponseStreamOptions(ChatObject):
    include_obfuscation: Hint = None


class ResponsesBody(ConversationFields):
    """Body of `POST /v1/responses`. `input` may be absent if `previous_response_id` names a response to continue.

    `truncation`: only disabled has an effect; a prompt that is too long is always refused.
    """

    input: Annotated[
        list[InputItem], BeforeValidator(_as_items), Field(default_factory=list, json_schema_extra=_text_or_items)
    ]
    instructions: str | None = None
    max_output_tokens: MaxTokens | None = None
    include: list[str] | None = None
    text: ResponseText | None = None
    tools: list[Tool] | None = None
    tool_choice: ResponseToolChoice = None
    reasoning: ResponseReasoning | None = None
    stream_options: ResponseStreamOptions | None = None
    truncation: Annotated[Any, wish("disabled")] = None
    store: Annotated[bool | None, Field(description="whether the answer is stored; default true")] = None
    background: Annotated[Any, only(False)] = None
    background_options: Hint = None
    previous_response_id: str | None = None
    conversation: Unsupported = None
    context_management: Annotated[Any, wish([])] = None
    max_tool_calls: Hint = None
    prompt: Unsupported = None
    client_metadata: Hint = None
    access_programs: Hint = None
    image: Hint = None

    _given: list[dict[str, Any]] = PrivateAttr(default_factory=list)
    _stored: StoredConversation = PrivateAttr(default_factory=StoredConversation)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_items(cls, value: Any, handler: ModelWrapValidatorHandler[ResponsesBody]) -> ResponsesBody:
        """Validate the body, and keep a copy of the items as they were sent, because this form is stored."""
        body = handler(value)
        body._given = _as_items(value.get("input"))
        return body

    @property
    def stored(self) -> StoredConversation:
        """The stored conversation that the request continues, in which the answer will be stored."""
        return self._stored

    def continue_stored(self, stored: StoredConversation, max_bytes: int) -> int:
        """Find the stored items that the request names, and return the size of their JSON texts in bytes.

        Must be called before `spec`.

        stored: the store's conversation for this request. max_bytes: limit of that size.
        Raises PreviousResponseNotFound, ItemNotFound, RequestTooLarge.
        """
        self._stored = stored
        return stored.find(self.previous_response_id, self.input, max_bytes)

    @property
    def stores(self) -> bool:
        """Whether the answer will be stored: the client did not turn it off, and the server stores responses."""
        return self.store is not False and self._stored.can_store

    def dropped(self) -> Iterator[str]:
        """Paths of dropped tools, items and values of `include`, and `store` if the server cannot store the answer."""
        yield from dropped_tools(self.tools or [])
        for index, item in enumerate(self.input):
            if isinstance(item, BuiltInItem) and not item.messages():
                yield f"input[{index}]:{item.type}"
        yield from (f"include[{index}]" for index, name in enumerate(self.include or ()) if name not in INCLUDABLE)
        if self.store and not self._stored.can_store:
            yield "store"

    def spec(self) -> ChatSpec:
        """Convert the body to a `ChatSpec`, and prepare its items for storing.

        Raises InvalidRequest for a request without items that the model can read, and RequestTooLarge.
        """
        if not self.input and self.previous_response_id is None:
            raise InvalidRequest("`input` needs an item in a request without `previous_response_id`", "input")
        text_format = self.text and self.text.format and self.text.format.text_format()
        options = self.options(
            max_new_tokens=self.max_output_tokens,
            fill_context=True,
            logprobs=self.with_logprobs,
            text_format=text_format,
        )
        choice = chosen_tool(self.tool_choice)
        check_dropped(choice, [tool.name for tool in self.functions], len(self.tools or ()))
        messages = [{"role": "system", "content": self.instructions}] if self.instructions else []
        messages += chat_messages(self._stored.items(self.input))
        if not messages:
            raise InvalidRequest("`input` has no item that the model can read", "input")
        if self.stores:
            self._stored.keep(self.input, self._given)
        self._given = []
        return ChatSpec(
            messages,
            options,
            self.model,
            [tool.tool(f"tools[{i}]") for i, tool in enumerate(self.tools or []) if isinstance(tool, ResponseTool)],
            choice,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            messages_field="input",
            reasoning_effort=self._effort(),
            template_variables=self.chat_template_kwargs or {},
        )

    def _effort(self) -> str | None:
        effort = self.reasoning and self.reasoning.effort
        return effort if isinstance(effort, str) else None

    @property
    def functions(self) -> list[ResponseTool]:
        """The tools that are functions, which the model can call."""
        return [tool for tool in self.tools or [] if isinstance(tool, ResponseTool)]

    @property
    def with_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)
