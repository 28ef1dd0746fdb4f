"""Check tools and tool choices, and create the grammars of function calls."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from server.errors import InvalidRequest
from server.operations.chatting.function_tool import FunctionTool
from server.operations.generating.grammar import assemble
from server.operations.grammar_compiler import CompileBudget, GrammarCompiler
from server.operations.schemas.enforced_schema import enforce
from server.text.chats.tool_formats import GENERIC, ToolFormat
from server.text.tokens.tokenizer import Tokenizer

MAX_TOOLS = 512
MAX_TOOLS_BYTES = 1 << 21
NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


@dataclass(frozen=True)
class ToolChoice:
    """Whether and which functions the answer may call.

    mode: `none` forbids calls, `auto` allows them, `required` demands at least one.
    name: the only function that may be called, exactly once; None if there is no such restriction. Only with the mode
        `required`.
    allowed: the functions that may be called; None for all. The prompt contains the other functions too.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    name: str | None = None
    allowed: tuple[str, ...] | None = None

    def allows(self, function: str) -> bool:
        """Whether an answer may call a function."""
        return self.name in (None, function) and (self.allowed is None or function in self.allowed)


@dataclass(frozen=True)
class Function:
    """A function that the answer may call.

    source: grammar of its arguments, in llguidance's JSON form.
    fallback: the grammar that is followed if `source` fails; empty if there is no such grammar.
    ignored: paths of the schema's keywords that the grammar does not enforce, for `X-Ignored-Parameters`.
    """

    name: str
    source: str
    fallback: str = ""
    ignored: Sequence[str] = ()


def callable_functions(tools: Sequence[FunctionTool], choice: ToolChoice, compiler: GrammarCompiler) -> list[Function]:
    """Compile the argument schemas of all tools, and return the functions that the answer may call.

    Raises InvalidRequest for a bad tool, a schema that cannot be used, and a choice that names a missing function.
    """
    if not tools and (choice.mode == "required" or choice.name is not None):
        raise InvalidRequest("`tool_choice` requires a call, but `tools` is empty", "tool_choice")
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"`tools` has {len(tools)} functions; the limit is {MAX_TOOLS}", "tools")
    size = len(json.dumps([tool.for_template() for tool in tools]))
    if size > MAX_TOOLS_BYTES:
        raise InvalidRequest(f"`tools` has {size} bytes; the limit is {MAX_TOOLS_BYTES}", "tools")
    names = [_name(tool) for tool in tools]
    repeated = next((index for index, name in enumerate(names) if name in names[:index]), None)
    if repeated is not None:
        raise InvalidRequest(f"`{tools[repeated].place}.name` is also the name of an earlier function", "tools")
    if any(name not in names for name in (*(choice.allowed or ()), *filter(None, [choice.name]))):
        raise InvalidRequest("`tool_choice` names a function that is not in `tools`", "tool_choice")
    if choice.mode == "required" and choice.allowed == ():
        raise InvalidRequest("`tool_choice` requires a call, but allows no function", "tool_choice")
    budget = CompileBudget()
    functions = [_function(tool, compiler, budget) for tool in tools]
    if len(tools) > 1:
        functions = _together(functions, tools, compiler, budget)
    if choice.mode == "none":
        return []
    return [function for function in functions if choice.allows(function.name)]


def _name(tool: FunctionTool) -> str:
    if NAME.fullmatch(tool.name) is None:
        raise InvalidRequest(
            f"`{tool.place}.name` must have 1 to 128 characters out of letters, digits and `_.:/-`", "tools"
        )
    return tool.name


def _function(tool: FunctionTool, compiler: GrammarCompiler, budget: CompileBudget) -> Function:
    """Compile the schema of a function's arguments.

    Raises InvalidRequest for a schema that cannot be used, or for a strict one that cannot be enforced in full.
    """
    schema = tool.parameters or {"properties": {}}
    enforced = enforce(schema, compiler, budget, is_strict=tool.is_strict, is_arguments=True)
    if not enforced.source:
        raise InvalidRequest(f"`{tool.schema_place}` of the function `{tool.name}` {enforced.losses[0]}", "tools")
    return Function(tool.name, enforced.source, enforced.fallback, enforced.lost_names(tool.schema_place))


def _together(
    functions: Sequence[Function], tools: Sequence[FunctionTool], compiler: GrammarCompiler, budget: CompileBudget
) -> list[Function]:
    """Replace the largest schemas by a schema for any object, until the library can compile all functions together.

    Raises InvalidRequest if the remaining schemas, which are strict, are still too large.
    """
    any_object = enforce({"type": "object"}, compiler, CompileBudget(), is_strict=True).source
    found, size = list(functions), sum(len(function.source) for function in functions)
    while True:
        refused = _refusal_together(found, compiler, budget)
        if not refused:
            return found
        size = size // 2 if budget.seconds_left > 0 else 0
        loose = [i for i, tool in enumerate(tools) if not tool.is_strict and found[i].source != any_object]
        if not loose:
            raise InvalidRequest(f"`tools` {refused}", "tools")
        for index in sorted(loose, key=lambda index: len(found[index].source), reverse=True):
            if sum(len(function.source) for function in found) > size:
                found[index] = Function(found[index].name, any_object, any_object, [tools[index].schema_place])


def _refusal_together(functions: Sequence[Function], compiler: GrammarCompiler, budget: CompileBudget) -> str:
    """The reason why the functions cannot be compiled together, for an error; empty if they can."""
    calls = CallGrammar(GENERIC, functions, {}, several=False)
    grammar = assemble(f"start: calls\n{calls.rules('')}", calls.sources)
    key = f"together {hashlib.sha256(grammar.encode()).hexdigest()}"
    return compiler.remember(key, lambda: compiler.check_grammar(grammar, budget)).refused


# ---------------------------------------------------------------------------------------------------------- grammars


@dataclass(frozen=True)
class CallGrammar:
    """The grammar of the calls in one answer, in the format of one checkpoint.

    row: the texts around names and arguments in this format.
    special: special tokens in these texts, to their ids.
    several: whether the answer may contain more than one call.
    """

    row: ToolFormat
    functions: Sequence[Function]
    special: Mapping[str, int]
    several: bool

    @property
    def sources(self) -> dict[str, str]:
        """Name to grammar of a function's arguments. The rules refer to these names."""
        return {name: source for (source, _), name in self._names.items()}

    @property
    def fallbacks(self) -> dict[str, str]:
        """Name to fallback grammar, for the names in `sources`. It is followed if the grammar in `sources` fails."""
        return {name: fallback or source for (source, fallback), name in self._names.items()}

    @cached_property
    def _names(self) -> dict[tuple[str, str], str]:
        """(argument grammar, fallback) to name. Functions with the same grammar and fallback share a name."""
        pairs = dict.fromkeys((function.source, function.fallback) for function in self.functions)
        return {pair: f"args_{index}" for index, pair in enumerate(pairs)}

    def rules(self, text_before: str) -> str:
        """Lark rules for the calls, of which the first is named `calls`.

        text_before: beginning of the calls' text that the marker before them contains already.
        """
        first = _rest(self.row.begin + self.row.before_name, text_before)
        more = f" ({self._lark(self.row.separator + self.row.before_name)} call)*" if self.several else ""
        before, after = self._lark(self.row.before_arguments), self._lark(self.row.after_arguments)
        calls = (
            f"{json.dumps(function.name)} {before} @{self._names[function.source, function.fallback]} {after}"
            for function in self.functions
        )
        return (
            f"calls: SPACE? {self._lark(first)} call{more} {self._lark(self.row.end)}\n"
            f"call: {' | '.join(calls)}\n"
            f"{SPACE_RULE}"
        )

    def _lark(self, text: str) -> str:
        return lark(text, self.special)


SPACE_RULE = r"SPACE: / |\n{1,2} {0,20}/"
"""Lark rule for white space: one space, or one or two line breaks with indentation."""


def special_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, int]:
    """The special tokens that occur in one of the texts, to their ids."""
    named = ((tokenizer.id_to_token(token_id), token_id) for token_id in tokenizer.special_ids)
    return {token: token_id for token, token_id in named if token and any(token in text for text in texts)}


def symbols(text: str, special: Mapping[str, int]) -> list[str | int]:
    """Split a text into characters and ids of special tokens, without white space. special: special tokens to ids."""
    found: list[str | int] = []
    for part in _parts(text, special):
        found += [special[part]] if part in special else [character for character in part if not character.isspace()]
    return found


def lark(text: str, special: Mapping[str, int]) -> str:
    """Write a text in Lark syntax. White space becomes optional. special: special tokens to ids."""
    spelled = []
    for part in _parts(text, special):
        if part in special:
            spelled.append(f"<[{special[part]}]>")
        else:
            spelled.append("SPACE?" if part.isspace() else json.dumps(part, ensure_ascii=False))
    return " ".join(spelled)


def _parts(text: str, special: Mapping[str, int]) -> list[str]:
    longest_first = sorted(special, key=len, reverse=True)
    separator = "|".join([*map(re.escape, longest_first), r"\s+"])
    return [part for part in re.split(f"({separator})", text) if part]


def _rest(text: str, beginning: str) -> str:
    """The part of a text after `beginning`, compared without white space. The text must begin with `beginning`."""
    for character in beginning:
        text = text.lstrip()
        assert text.startswith(character), "a marker begins the calls"
        text = text[1:]
    return text
