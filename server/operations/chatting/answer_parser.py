"""Split the text of a chat answer into reasoning, content and function calls while it arrives.

The result depends only on the whole text, not on the pieces in which it arrives. No characters of a marker are ever
reported as content.
"""

from __future__ import annotations

import math
import secrets
import string
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from server.ipc.wire.sections import WHITE_SPACE, Marker, MarkerScanner
from server.operations.chatting.answer_plan import AnswerPlan, SectionKind
from server.operations.chatting.tool_grammar import NAME

_ID_CHARACTERS = string.ascii_letters + string.digits


@dataclass(frozen=True)
class ToolCall:
    """A function call in an answer. arguments: JSON text of an object, incomplete if the answer was cut off."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class ToolCallDelta:
    """New text of a function call. index: index of the call in the answer. id, name: set only in its first delta."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(slots=True)
class AnswerParts:
    """Text and calls of an answer: either the new text and calls of one delta, or all text and calls."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallDelta] = field(default_factory=list)

    def extend(self, later: AnswerParts) -> None:
        """Append later parts of the same answer."""
        self.content += later.content
        self.reasoning += later.reasoning
        self.tool_calls += later.tool_calls


class AnswerParser:
    """Parses one answer.

    parts: everything that `push` and `finish` have returned, with one entry per call.
    spans: kind of each section so far to its (start, end) in the text, in characters and without the markers. The end
        of the current section is infinite.
    """

    def __init__(self, plan: AnswerPlan) -> None:
        self.parts = AnswerParts()
        self._plan = plan
        self._new = AnswerParts()
        self._calls = _CallReader(plan, self._new)
        self._space = ""
        self._had_reasoning = False
        self._index = 0
        self._place = 0
        self._is_finished = False
        self._scanner = MarkerScanner(plan.sections[0].markers)
        self.spans: dict[SectionKind, tuple[int, float]] = {self._kind: (0, math.inf)}

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls whose names are complete. The arguments of the last one may be incomplete."""
        return [ToolCall(call.id or "", call.name or "", call.arguments) for call in self.parts.tool_calls]

    @property
    def has_complete_calls(self) -> bool:
        """Whether there are calls, and the last one is complete."""
        return bool(self.parts.tool_calls) and self._calls.is_complete

    @property
    def unfinished(self) -> SectionKind | None:
        """The section in which the text ends: reasoning, content, or calls if the last call is incomplete.

        None if the text ends between two sections or after a complete call.
        """
        if self._kind == "calls":
            return None if self.has_complete_calls else "calls"
        has_begun = self._kind == "reasoning" or not self._had_reasoning or bool(self.parts.content)
        return self._kind if has_begun else None

    @property
    def settled_place(self) -> int:
        """Number of leading characters whose section is known. The characters after them may belong to a marker."""
        return self._place if self._is_finished else self._place - len(self._scanner.held)

    def push(self, text: str, marks: Sequence[tuple[int, int]] = ()) -> AnswerParts:
        """Read the next piece of the text, and return the new parts of the answer.

        marks: (index, token id) of each special token. The token is before the character of the piece at the index.
        """
        start = 0
        for place, token_id in marks:
            self._read(text[start:place])
            self._read_token(token_id)
            start = place
        self._read(text[start:])
        return self._take()

    def finish(self) -> AnswerParts:
        """Read the end of the text, and return the last parts of the answer. `push` may not be called afterwards."""
        self._is_finished = True
        self._write(self._scanner.held)
        if self._kind == "content":
            self._new.content += self._space
        elif self._kind == "reasoning":
            self._new.reasoning += self._space
        return self._take()

    @property
    def _kind(self) -> SectionKind:
        return self._plan.kinds[self._index]

    def _read(self, text: str) -> None:
        while text:
            if not self._plan.sections[self._index].markers:
                self._place += len(text)
                self._write(text)
                return
            seen = self._scanner.held + text
            found = self._scanner.push(text)
            if found is None:
                self._place += len(text)
                self._write(seen[: len(seen) - len(self._scanner.held)])
                return
            marker, end = found
            before = "" if marker.at_start else seen[: len(seen) - len(text) + end - len(marker.text)]
            self._place += end
            self._write(before)
            self._enter(marker)
            text = text[end:]

    def _read_token(self, token_id: int) -> None:
        marker = self._scanner.of_token(token_id)
        if marker is not None:
            self._write(self._scanner.held)
            self._enter(marker)
        elif self._kind == "calls":
            self._calls.read([token_id])

    def _enter(self, marker: Marker) -> None:
        """Switch to the section that follows a marker. The marker's text has just been read."""
        self._had_reasoning |= self._kind == "reasoning"
        self.spans[self._kind] = self.spans[self._kind][0], self._place - len(marker.text)
        self._space = ""
        self._index = marker.section
        self.spans[self._kind] = self._place, math.inf
        self._scanner = MarkerScanner(self._plan.sections[self._index].markers)
        if self._kind == "calls":
            self._calls.read(marker.text if marker.token_id is None else [marker.token_id])

    def _write(self, text: str) -> None:
        """Add text to the reasoning, content or calls, depending on the current section.

        White space at the end of reasoning and before calls is left out, and so are line breaks around reasoning.
        """
        if not text:
            return
        if self._kind == "calls":
            self._calls.read(text)
        elif self._kind == "reasoning":
            is_first = not (self._new.reasoning or self.parts.reasoning)
            self._new.reasoning += self._trimmed(text, is_first, holds_space=True)
        else:
            is_first = self._had_reasoning and not (self._new.content or self.parts.content)
            self._new.content += self._trimmed(text, is_first, holds_space=self._leads_to_calls)

    def _trimmed(self, text: str, drops_line_breaks: bool, holds_space: bool) -> str:
        """Prepend the white space that was held back to a text, and return the part that can be reported now.

        drops_line_breaks: leave out line breaks at the beginning.
        holds_space: hold back white space at the end, because it is dropped if the section ends.
        """
        text = self._space + text
        if drops_line_breaks:
            text = text.lstrip("\n")
        kept = text.rstrip(WHITE_SPACE) if holds_space else text
        self._space = text[len(kept) :]
        return kept

    @property
    def _leads_to_calls(self) -> bool:
        markers = self._plan.sections[self._index].markers
        return any(self._plan.kinds[marker.section] == "calls" for marker in markers)

    def _take(self) -> AnswerParts:
        new = AnswerParts(self._new.content, self._new.reasoning, list(self._new.tool_calls))
        self.parts.content += new.content
        self.parts.reasoning += new.reasoning
        for delta in new.tool_calls:
            if delta.index == len(self.parts.tool_calls):
                self.parts.tool_calls.append(ToolCallDelta(delta.index, delta.id, delta.name))
            self.parts.tool_calls[delta.index].arguments += delta.arguments
        self._new.content = self._new.reasoning = ""
        self._new.tool_calls.clear()
        return new


class _CallReader:
    """Reads function calls. Their text follows the plan's grammar, so only names and arguments have to be found.

    new: gets the new deltas of calls.
    is_complete: whether the last call is complete.
    """

    def __init__(self, plan: AnswerPlan, new: AnswerParts) -> None:
        self.is_complete = False
        self._before_name = list(plan.before_name)
        self._num_between = len(plan.before_arguments)
        self._new = new
        self._num_calls = 0
        self._recent: deque[str | int] = deque(maxlen=max(len(self._before_name), 1))
        self._name: str | None = None
        self._left = 0
        self._arguments: _JsonObject | None = None

    def read(self, symbols: Sequence[str | int]) -> None:
        """Read characters and ids of special tokens, in order."""
        for symbol in symbols:
            if self._arguments is not None:
                self._read_argument(str(symbol))
            elif isinstance(symbol, str) and symbol in WHITE_SPACE and not self._name:
                continue
            elif self._name is not None:
                self._read_name(symbol)
            elif self._left:
                self._skip(symbol)
            else:
                self._recent.append(symbol)
                if list(self._recent) == self._before_name:
                    self._name = ""

    def _read_name(self, symbol: str | int) -> None:
        assert self._name is not None
        if isinstance(symbol, str) and NAME.fullmatch(symbol):
            self._name += symbol
            return
        call_id = "call_" + "".join(secrets.choice(_ID_CHARACTERS) for _ in range(24))
        self._new.tool_calls.append(ToolCallDelta(self._num_calls, call_id, self._name))
        self.is_complete, self._name, self._left = False, None, self._num_between
        self._skip(symbol)

    def _skip(self, symbol: str | int) -> None:
        """Skip one character or special token between the name and the arguments of a call."""
        if not (isinstance(symbol, str) and symbol in WHITE_SPACE):
            self._left -= 1
        if self._left == 0:
            self._arguments = _JsonObject()

    def _read_argument(self, character: str) -> None:
        assert self._arguments is not None
        if not self._arguments.read(character):
            return
        if not self._new.tool_calls or self._new.tool_calls[-1].index != self._num_calls:
            self._new.tool_calls.append(ToolCallDelta(self._num_calls))
        self._new.tool_calls[-1].arguments += character
        if self._arguments.is_complete:
            self._num_calls += 1
            self.is_complete, self._arguments = True, None
            self._recent.clear()


class _JsonObject:
    """Finds the end of a JSON object."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self.is_complete = False

    def read(self, character: str) -> bool:
        """Read one character. Returns whether it belongs to the object; False for white space before the object."""
        if self._in_string:
            self._in_string = self._is_escaped or character != '"'
            self._is_escaped = character == "\\" and not self._is_escaped
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.is_complete = self._depth == 0
        return self._depth > 0 or self.is_complete
