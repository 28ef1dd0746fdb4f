"""Bodies of the Anthropic dialect, and their conversion to chat messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from server.api.chat_fields import ChatObject, JsonSchema, function_call
from server.api.fields import MAX_STOPS, Count, Finite, ShortText, TimedBody
from server.api.response_format import ResponseFormatJsonSchema
from server.errors import InvalidRequest
from server.operations.chat import ChatSpec, FunctionTool, ToolChoice
from server.operations.generation_options import GenerationOptions
from server.operations.grammar import JsonFormat

_BLOCKS_WITHOUT_TEXT = frozenset({"image", "document", "search_result", "redacted_thinking"})
_MODES: dict[str, Literal["none", "auto", "required"]] = {
    "auto": "auto",
    "any": "required",
    "tool": "required",
    "none": "none",
}


def _as_blocks(value: Any) -> Any:
    """A string as a list of one text block. Raises ValueError for a block whose content a text model cannot read."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    for block in value if isinstance(value, list) else []:
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind in _BLOCKS_WITHOUT_TEXT:
            raise ValueError(f"contains a block of type {kind}, which is not supported; send text")
    return value


class AnthropicCacheControl(ChatObject):
    """A hint without effect: the server caches every prompt."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class AnthropicText(ChatObject):
    type: Literal["text"]
    text: str
    citations: None = None
    cache_control: AnthropicCacheControl | None = None


Texts = Annotated[list[AnthropicText], BeforeValidator(_as_blocks, json_schema_input_type=str | list[AnthropicText])]


class AnthropicThinking(ChatObject):
    """Reasoning of an earlier answer. `signature`: accepted and not checked."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class AnthropicToolUse(ChatObject):
    type: Literal["tool_use"]
    id: Annotated[str, Field(min_length=1, max_length=256)]
    name: Annotated[str, Field(min_length=1, max_length=128)]
    input: dict[str, Any]
    cache_control: AnthropicCacheControl | None = None


class AnthropicToolResult(ChatObject):
    """`is_error`: the text that the model reads then begins with `Error: `."""

    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Field(min_length=1, max_length=256)]
    content: Texts = Field(default_factory=list)
    is_error: bool | None = None
    cache_control: AnthropicCacheControl | None = None


Block = Annotated[
    AnthropicText | AnthropicThinking | AnthropicToolUse | AnthropicToolResult, Field(discriminator="type")
]


class AnthropicTurn(ChatObject):
    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], BeforeValidator(_as_blocks, json_schema_input_type=str | list[Block])]


class AnthropicTool(ChatObject):
    """`strict`: refuse a schema that cannot be enforced in full. `eager_input_streaming`: without effect."""

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    description: str | None = None
    input_schema: JsonSchema
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    cache_control: AnthropicCacheControl | None = None

    def tool(self, index: int) -> FunctionTool:
        """index: place of the tool in the request."""
        place, is_strict = f"tools[{index}]", bool(self.strict)
        return FunctionTool(self.name, self.description, self.input_schema, place, "input_schema", is_strict)


class AnthropicToolChoice(ChatObject):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class AnthropicThinkingConfig(ChatObject):
    """`adaptive`: the chat template's default. `budget_tokens`: a target of the caller; `max_tokens` is the limit."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int | None, Field(ge=1024)] = None
    display: Literal["summarized"] | None = None


class AnthropicOutputConfig(ChatObject):
    format: ResponseFormatJsonSchema | None = None


class AnthropicMetadata(ChatObject):
    user_id: str | None = None


class AnthropicCountBody(TimedBody):
    """`POST /v1/messages/count_tokens`. `cache_control` is a hint without effect everywhere."""

    messages: Annotated[list[AnthropicTurn], Field(min_length=1)]
    system: Texts | None = None
    tools: Annotated[list[AnthropicTool] | None, Field(max_length=128)] = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: AnthropicThinkingConfig | None = None
    output_config: AnthropicOutputConfig | None = None
    cache_control: AnthropicCacheControl | None = None
    speed: Literal["standard"] | None = None

    def spec(self) -> ChatSpec:
        """Convert the body. Raises InvalidRequest for blocks, tools or a tool choice that do not fit together."""
        choice = self.tool_choice or AnthropicToolChoice(type="auto")
        if (choice.type == "tool") != (choice.name is not None):
            raise InvalidRequest("`tool_choice` needs a `name` if its `type` is tool, and only then", "tool_choice")
        tools = [tool.tool(index) for index, tool in enumerate(self.tools or ())]
        tool_choice = ToolChoice(_MODES[choice.type], choice.name)
        messages = [{"role": "system", "content": _joined(self.system)}] if self.system else []
        messages += _messages(self.messages)
        continues = self.messages[-1].role == "assistant"
        if continues and "tool_calls" in messages[-1]:
            raise InvalidRequest("`messages` ends with a `tool_use` block; its `tool_result` is missing", "messages")
        return ChatSpec(
            messages,
            self.options(),
            self.model,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=not choice.disable_parallel_tool_use,
            continue_final_message=continues,
            thinking=self._thinking(),
        )

    def options(self) -> GenerationOptions:
        output = self.output_config and self.output_config.format
        place = "output_config.format.schema"
        return GenerationOptions(text_format=JsonFormat(output.schema_, False, place) if output else None)

    def _thinking(self) -> bool | None:
        if self.thinking is None or self.thinking.type == "adaptive":
            return None
        return self.thinking.type == "enabled"


class AnthropicMessagesBody(AnthropicCountBody):
    """`POST /v1/messages`. A last message of the role assistant is continued."""

    max_tokens: Annotated[int, Field(ge=1, le=1 << 20)]
    stream: bool | None = None
    stop_sequences: Annotated[list[ShortText] | None, Field(max_length=MAX_STOPS)] = None
    temperature: Annotated[Finite | None, Field(ge=0, le=1)] = None
    top_k: Count | None = None
    top_p: Annotated[Finite | None, Field(gt=0, le=1)] = None
    metadata: AnthropicMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    def options(self) -> GenerationOptions:
        return GenerationOptions(
            stream=bool(self.stream),
            max_new_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            stop=self.stop_sequences or (),
            text_format=super().options().text_format,
        )


def _messages(turns: Sequence[AnthropicTurn]) -> Iterator[dict[str, Any]]:
    """Chat messages of a conversation.

    Consecutive turns of one role are one message; each tool result is a message of its own.
    """
    names: dict[str, str] = {}
    for role, group in groupby(turns, key=lambda turn: turn.role):
        texts: list[AnthropicText] = []
        calls: list[dict[str, Any]] = []
        thoughts: list[str] = []
        has_results = False
        for block in (block for turn in group for block in turn.content):
            if isinstance(block, AnthropicText):
                texts.append(block)
            elif isinstance(block, AnthropicToolResult):
                _check_role(block, role, "user")
                if block.tool_use_id not in names:
                    raise InvalidRequest("`messages` has a `tool_result` without its `tool_use` before it", "messages")
                content = ("Error: " if block.is_error else "") + _joined(block.content)
                yield {
                    "role": "tool",
                    "tool_call_id": block.tool_use_id,
                    "name": names[block.tool_use_id],
                    "content": content,
                }
                has_results = True
            else:
                _check_role(block, role, "assistant")
                if isinstance(block, AnthropicThinking):
                    thoughts.append(block.thinking)
                else:
                    names[block.id] = block.name
                    calls.append(function_call(block.id, block.name, block.input))
        if texts or not has_results:
            message: dict[str, Any] = {"role": role, "content": _joined(texts)}
            message |= {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
            yield message | ({"tool_calls": calls} if calls else {})


def _joined(texts: Sequence[AnthropicText]) -> str:
    return "\n".join(block.text for block in texts)


def _check_role(block: AnthropicThinking | AnthropicToolUse | AnthropicToolResult, role: str, allowed: str) -> None:
    if role != allowed:
        raise InvalidRequest(f"`messages`: a `{block.type}` block requires the role {allowed}", "messages")
