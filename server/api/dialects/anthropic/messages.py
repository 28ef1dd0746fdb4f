"""Turns and content blocks of the Anthropic dialect, and their conversion to chat messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from server.api.fields.changing_lines import without_changing_lines
from server.api.fields.chat_fields import ChatObject, as_text_parts, function_call
from server.api.fields.field_kinds import Hint, wish
from server.api.fields.tool_results import note
from server.errors import InvalidRequest

_Media = Literal["image", "document", "container_upload", "browser_state"]
WITHOUT_TEXT = frozenset(get_args(_Media))
"""Types of content blocks that a text model cannot read. They are refused, but a note replaces them in tool results."""
_Dropped = Literal[
    "redacted_thinking",
    "server_tool_use",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "advisor_tool_result",
    "mcp_tool_use",
    "mcp_tool_result",
    "mcp_tool_listing",
    "tool_addition",
    "tool_removal",
    "fallback",
]
"""Types of blocks that are dropped: encrypted reasoning, and calls and results of tools inside Anthropic's servers."""


def readable_blocks(value: Any) -> Any:
    """Convert a string to a list of one text block. Raises ValueError for a block that a text model cannot read."""
    for block in value if isinstance(value, list) else []:
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind in WITHOUT_TEXT:
            raise ValueError(f"contains a block of type {kind}, which is not supported; send text")
    return as_text_parts(value)


class AnthropicText(ChatObject):
    """A block of text. Blocks with empty text are left out of the prompt."""

    type: Literal["text"]
    text: str
    parsed_output: Hint = None
    citations: Hint = None
    cache_control: Hint = None


TextBlocks = Annotated[
    list[AnthropicText], BeforeValidator(readable_blocks, json_schema_input_type=str | list[AnthropicText])
]


class AnthropicThinking(ChatObject):
    """Reasoning of an earlier answer, which the client sends back."""

    type: Literal["thinking"]
    thinking: str
    signature: Hint = None


class AnthropicToolUse(ChatObject):
    type: Literal["tool_use"]
    id: Annotated[str, Field(min_length=1, max_length=256)]
    name: Annotated[str, Field(min_length=1, max_length=128)]
    input: dict[str, Any]
    caller: Hint = None
    toolset_name: Hint = None
    cache_control: Hint = None


class AnthropicToolReference(ChatObject):
    """A tool that the client's search has found. The model reads only its name: all tools are in the prompt already."""

    type: Literal["tool_reference"]
    tool_name: str
    cache_control: Hint = None

    @property
    def text(self) -> str:
        return f"Tool: {self.tool_name}"


class AnthropicSearchResult(ChatObject):
    """Text that the client's search has found. The model reads title, source and text, and makes no citations."""

    type: Literal["search_result"]
    source: str
    title: str
    content: list[AnthropicText]
    citations: Annotated[Any, wish({"enabled": False})] = None
    cache_control: Hint = None

    @property
    def text(self) -> str:
        return "\n".join([self.title, self.source, *(block.text for block in self.content)])


class AnthropicMedia(BaseModel):
    """A part of a tool's result that is no text, such as a screenshot. The model reads a note in its place.

    The part is named in the header `X-Ignored-Parameters`.
    """

    model_config = ConfigDict(strict=True, extra="ignore")

    type: _Media

    @property
    def text(self) -> str:
        return note(self.type)


_Result = Annotated[
    AnthropicText | AnthropicToolReference | AnthropicSearchResult | AnthropicMedia, Field(discriminator="type")
]
_Results = Annotated[list[_Result], BeforeValidator(as_text_parts, json_schema_input_type=str | list[_Result])]


class AnthropicToolResult(ChatObject):
    """Result of a tool call. `is_error`: puts `Error: ` before the text that the model reads."""

    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Field(min_length=1, max_length=256)]
    content: _Results | None = None
    is_error: bool | None = None
    toolset_name: Hint = None
    cache_control: Hint = None

    def dropped(self) -> Iterator[str]:
        """Paths of the parts that a note replaces, such as `content[0]:image`."""
        for index, block in enumerate(self.content or ()):
            if isinstance(block, AnthropicMedia):
                yield f"content[{index}]:{block.type}"


class AnthropicCompaction(ChatObject):
    """A summary of earlier messages, which the model reads as text. Without `content`, it has no effect.

    With only `encrypted_content`, the request is refused.
    """

    type: Literal["compaction"]
    content: str | None = None
    encrypted_content: Hint = None
    signature: Hint = None
    tool_changes: Hint = None
    cache_control: Hint = None


class AnthropicDroppedBlock(BaseModel):
    """A block of an earlier answer that only Anthropic's servers can read or use.

    The server drops it, and names it in the header `X-Ignored-Parameters`.
    """

    model_config = ConfigDict(strict=True, extra="ignore")

    type: _Dropped


Block = Annotated[
    AnthropicText
    | AnthropicThinking
    | AnthropicToolUse
    | AnthropicToolResult
    | AnthropicCompaction
    | AnthropicSearchResult
    | AnthropicDroppedBlock,
    Field(discriminator="type"),
]


class AnthropicTurn(ChatObject):
    """One message of the conversation. `clear_at` and `output_config` belong to messages of the role system.

    `clear_at` next_user_message: the message is left out if a later message has the role user.
    """

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], BeforeValidator(readable_blocks, json_schema_input_type=str | list[Block])]
    clear_at: Literal["never", "next_user_message"] | None = None
    output_config: Hint = None

    def dropped(self) -> Iterator[str]:
        """Paths of the blocks that are dropped, such as `content[1]`."""
        for index, block in enumerate(self.content):
            if isinstance(block, AnthropicDroppedBlock):
                yield f"content[{index}]"


def chat_messages(system: Sequence[AnthropicText] | None, turns: Sequence[AnthropicTurn]) -> Iterator[dict[str, Any]]:
    """Convert a conversation to messages as chat templates take them.

    Consecutive turns of the same role become one message. Each tool result becomes a separate message.
    Lines of `system` that change with every request are left out.
    Raises InvalidRequest for a block in a turn of the wrong role, and for a tool result without its call.
    """
    instructions = without_changing_lines(_joined(system or ()))
    if instructions:
        yield {"role": "system", "content": instructions}
    names: dict[str, str] = {}
    for role, group in groupby(_shown(turns), key=lambda turn: turn.role):
        yield from _message(role, [block for turn in group for block in turn.content], names)


def _shown(turns: Sequence[AnthropicTurn]) -> Iterator[AnthropicTurn]:
    """Yield the turns that the model reads.

    Turns with `clear_at` "next_user_message" are left out if a later turn has the role user.
    """
    last_of_user = max((index for index, turn in enumerate(turns) if turn.role == "user"), default=-1)
    for index, turn in enumerate(turns):
        if turn.clear_at != "next_user_message" or index > last_of_user:
            yield turn


def _message(role: str, blocks: Sequence[Any], names: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Convert the blocks of consecutive turns of one role to messages.

    names: tool name by call id, of all calls so far. Calls in `blocks` are added.
    Raises InvalidRequest for a block in the wrong role, and for a tool result without its call.
    """
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    has_results = False
    for block in blocks:
        if isinstance(block, AnthropicText | AnthropicSearchResult):
            texts.append(block.text)
        elif isinstance(block, AnthropicCompaction):
            texts.append(_summary(block))
        elif isinstance(block, AnthropicToolResult):
            _check_role(block, role, "user")
            yield _result(block, names)
            has_results = True
        elif isinstance(block, AnthropicThinking):
            _check_role(block, role, "assistant")
            thoughts.append(block.thinking)
        elif isinstance(block, AnthropicToolUse):
            _check_role(block, role, "assistant")
            names[block.id] = block.name
            calls.append(function_call(block.id, block.name, block.input))
    text = "\n".join(filter(None, texts))
    if text or calls or not has_results:
        message: dict[str, Any] = {"role": role, "content": text}
        message |= {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
        yield message | ({"tool_calls": calls} if calls else {})


def _result(block: AnthropicToolResult, names: Mapping[str, str]) -> dict[str, Any]:
    """The message with the result of a tool call. Raises InvalidRequest if `names` has no call with its id."""
    if block.tool_use_id not in names:
        raise InvalidRequest("`messages` has a `tool_result` without its `tool_use` before it", "messages")
    return {
        "role": "tool",
        "tool_call_id": block.tool_use_id,
        "name": names[block.tool_use_id],
        "content": ("Error: " if block.is_error else "") + _joined(block.content or ()),
    }


def _summary(block: AnthropicCompaction) -> str:
    if block.content is None and block.encrypted_content is not None:
        raise InvalidRequest(
            "`messages` has a `compaction` block whose content is encrypted; send its text", "messages"
        )
    return block.content or ""


def _joined(blocks: Sequence[AnthropicText | AnthropicToolReference | AnthropicSearchResult | AnthropicMedia]) -> str:
    """Join the texts of blocks with line breaks, without empty texts."""
    return "\n".join(filter(None, (block.text for block in blocks)))


def _check_role(block: AnthropicThinking | AnthropicToolUse | AnthropicToolResult, role: str, allowed: str) -> None:
    if role != allowed:
        raise InvalidRequest(f"`messages`: a `{block.type}` block requires the role {allowed}", "messages")
