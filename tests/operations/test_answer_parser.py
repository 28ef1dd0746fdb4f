"""The parser finds reasoning, content and calls in every format, however the text is cut into pieces."""

from __future__ import annotations

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.operations.chatting.answer_parser import AnswerParser, AnswerParts
from server.operations.chatting.answer_plan import AnswerPlan, AnswerPlanner, Reasoning
from server.operations.chatting.tool_grammar import CallGrammar
from server.text.chats.tool_formats import TOOL_FORMATS, ToolFormat

ROWS = {row.name: row for row in TOOL_FORMATS}
SPECIAL = {"[TOOL_CALLS]": 900, "[ARGS]": 901, "<｜tool▁sep｜>": 902, "<|python_tag|>": 903, "[THINK]": 904}
THINK = Reasoning("<think>", "</think>", is_open=False)
WORDS = st.lists(
    st.sampled_from(["Let", " me", " see", "<", "<tool", ">", "\n", " ", "é", "{", '{"', "日本", "</thin", "[TOOL"]),
    max_size=8,
).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(["get", "a.b-c:d/e"]), st.dictionaries(st.text(max_size=6), VALUES, max_size=4)),
    min_size=1,
    max_size=3,
)
CUTS = st.lists(st.integers(0, 400), max_size=8)


def planner(row: ToolFormat | None, **settings: object) -> AnswerPlan:
    special = {
        text: token for text, token in SPECIAL.items() if row is None or any(text in shown for shown in row.texts)
    }
    calls = CallGrammar(row, [], special, True) if row is not None else None
    return AnswerPlanner(calls=calls, special=special, **settings).plan()


def parse(plan: AnswerPlan, text: str, cuts: list[int], special: dict[str, int]) -> AnswerParser:
    """Parse a text in pieces, and check that the deltas, joined, equal the parts of the answer.

    cuts: places where the text is cut, in characters. special: text → id of special tokens, which are passed as marks.
    """
    pattern = "|".join(map(re.escape, special))
    symbols: list[str | int] = []
    for part in re.split(f"({pattern})", text) if special else [text]:
        symbols += [special[part]] if part in special else list(part)
    parser, start, deltas = AnswerParser(plan), 0, []
    for end in [*sorted(min(cut, len(symbols)) for cut in cuts), len(symbols)]:
        piece, marks = "", []
        for symbol in symbols[start:end]:
            if isinstance(symbol, int):
                marks.append((len(piece), symbol))
            else:
                piece += symbol
        deltas.append(parser.push(piece, marks))
        start = end
    deltas.append(parser.finish())
    check_deltas(parser, deltas)
    return parser


def check_deltas(parser: AnswerParser, deltas: list[AnswerParts]) -> None:
    assert "".join(delta.content for delta in deltas) == parser.parts.content
    assert "".join(delta.reasoning for delta in deltas) == parser.parts.reasoning
    calls: list[list[str]] = []
    for call in (call for delta in deltas for call in delta.tool_calls):
        if call.id is not None:
            assert call.index == len(calls) and call.name and re.fullmatch(r"call_[A-Za-z0-9]{24}", call.id)
            calls.append([call.id, call.name, ""])
        assert call.index == len(calls) - 1
        calls[call.index][2] += call.arguments
    assert calls == [[call.id, call.name, call.arguments] for call in parser.tool_calls]


def special_of(plan: AnswerPlan) -> dict[str, int]:
    return {text: token for text, token in SPECIAL.items() if token in plan.special_ids}


@pytest.mark.parametrize("name", ROWS)
@given(content=WORDS, calls=CALLS, cuts=CUTS, spaces=st.booleans(), required=st.booleans())
def test_content_and_calls_are_told_apart(name, content, calls, cuts, spaces, required):
    row = ROWS[name]
    plan = planner(row, is_required=required)
    if required or row.at_start:
        content = ""
    if any(row.marker.startswith(content[start:]) for start in range(len(content))):
        content += "."
    written = row.write(calls if row.parallel else calls[:1])
    if not spaces:
        outside = re.compile(r'("(?:[^"\\]|\\.)*")|\s+') if row.name not in ("deepseek",) else re.compile("(?!)")
        written = outside.sub(lambda match: match[1] or "", written)
    parser = parse(plan, content + written, cuts, special_of(plan))
    assert parser.parts.content == content.rstrip(" \n") and not parser.parts.reasoning
    assert [(call.name, json.loads(call.arguments)) for call in parser.tool_calls] == (
        calls if row.parallel else calls[:1]
    )
    assert parser.has_complete_calls


@pytest.mark.parametrize("name", ROWS)
@given(content=WORDS.filter(lambda text: "[TOOL_CALLS]" not in text), cuts=CUTS)
def test_a_plain_answer_is_unchanged(name, content, cuts):
    plan = planner(ROWS[name])
    parser = parse(plan, content, cuts, {})
    assert parser.parts == AnswerParts(content) and not parser.has_complete_calls


@pytest.mark.parametrize("name", ROWS)
@given(calls=CALLS, size=st.integers(0, 200), cuts=CUTS)
def test_a_cut_answer_keeps_what_was_complete(name, calls, size, cuts):
    """If an answer is cut, the parser returns a prefix of the calls of the whole answer."""
    row = ROWS[name]
    plan = planner(row)
    calls = calls if row.parallel else calls[:1]
    special = special_of(plan)
    whole, cut = (parse(plan, text, cuts, special) for text in (row.write(calls), row.write(calls)[:size]))
    found = [(call.name, call.arguments) for call in cut.tool_calls]
    for index, (call_name, arguments) in enumerate(found):
        assert call_name == whole.tool_calls[index].name and whole.tool_calls[index].arguments.startswith(arguments)
    assert all(arguments == whole.tool_calls[index].arguments for index, (_, arguments) in enumerate(found[:-1]))
    assert not found or not cut.parts.content


@given(thought=WORDS, content=WORDS, calls=CALLS, cuts=CUTS, is_open=st.booleans(), has_calls=st.booleans())
def test_reasoning_is_told_apart(thought, content, calls, cuts, is_open, has_calls):
    row = ROWS["hermes"]
    plan = planner(row, reasoning=Reasoning("<think>", "</think>", is_open))
    if any(row.marker.startswith(content[start:]) for start in range(len(content))):
        content += "."
    written = row.write(calls) if has_calls else ""
    text = f"{'' if is_open else ' <think>'}\n{thought}<tool_call>\n</think>\n\n{content}{written}"
    parser = parse(plan, text, cuts, {})
    assert parser.parts.reasoning == (thought + "<tool_call>").lstrip("\n"), "no call begins in reasoning"
    kept = content.lstrip("\n")
    assert parser.parts.content == (kept.rstrip(" \n") if has_calls else kept)
    assert [call.name for call in parser.tool_calls] == [name for name, _ in calls if has_calls]
    begin, end = parser.spans["reasoning"]
    assert text[begin:end] == f"\n{thought}<tool_call>\n", "the span leaves the markers out"
    begin, end = parser.spans["content"]
    assert text[begin : len(text) if end == math.inf else end].strip() == content.strip()


@pytest.mark.parametrize(
    ("text", "unfinished"),
    [
        ("<think>Let", "reasoning"),
        ("<think>Let</thi", "reasoning"),
        ("<think>Let</think>\n\n", None),
        ("<think>Let</think>\n\nYes", "content"),
        ("", "content"),
        ("Yes", "content"),
        ('Yes<tool_call>{"name": "get", "argum', "calls"),
        ('<tool_call>{"name": "get", "arguments": {"a": 1', "calls"),
        ('<tool_call>{"name": "get", "arguments": {"a": 1}}', None),
        ('<tool_call>{"name": "get", "arguments": {"a": 1}}</tool_call>', None),
    ],
)
def test_the_part_that_a_cut_answer_ends_in(text, unfinished):
    plan = planner(ROWS["hermes"], reasoning=THINK)
    assert parse(plan, text, [len(text) // 2], {}).unfinished == unfinished


@given(thought=WORDS, cuts=CUTS)
def test_reasoning_that_does_not_end_is_all_of_the_answer(thought, cuts):
    plan = planner(None, reasoning=THINK)
    parser = parse(plan, "<think>" + thought, cuts, {})
    assert (parser.parts.reasoning, parser.parts.content) == (thought.lstrip("\n"), "")


@given(content=WORDS, cuts=CUTS)
def test_reasoning_begins_only_at_the_start(content, cuts):
    parser = parse(planner(None, reasoning=THINK), f"x{content}<think>no</think>", cuts, {})
    assert (parser.parts.content, parser.parts.reasoning) == (f"x{content}<think>no</think>", "")


def test_special_tokens_around_reasoning() -> None:
    plan = planner(None, reasoning=Reasoning("[THINK]", "</think>", is_open=False))
    parser = parse(plan, "[THINK]why</think>\nbecause [THINK]", [3, 7], {"[THINK]": 904})
    assert (parser.parts.reasoning, parser.parts.content) == ("why", "because ")


def test_an_introduction_may_come_before_calls() -> None:
    plan = planner(ROWS["llama-3"])
    parser = parse(plan, '<|python_tag|>{"name": "a", "parameters": {}}', [5], special_of(plan))
    assert [call.name for call in parser.tool_calls] == ["a"]


def test_a_text_marker_spelled_in_letters_is_no_special_token() -> None:
    """If a model writes the name of a special token in letters, it counts as text, not as the token."""
    plan = planner(ROWS["mistral"])
    parser = parse(plan, '[TOOL_CALLS] [{"name": "a", "arguments": {}}]', [4], {})
    assert parser.tool_calls == [] and parser.parts.content.startswith("[TOOL_CALLS]")
