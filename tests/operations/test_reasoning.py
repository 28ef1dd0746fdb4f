"""Reasoning before content and tool calls, and formats that apply to the content after it, with a real engine."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from server.errors import InvalidRequest
from server.operations.generating.grammar import JsonFormat
from tests.operations.chat_bench import ChatBench, write_checkpoint
from tests.operations.tool_cases import REQUIRED, SCHEMAS, check_calls, spec, template
from tests.text.tool_templates import QWEN_3


@template("opens-thinking")
async def test_reasoning_that_the_prompt_opens_comes_before_a_forced_call(llm: ChatBench) -> None:
    llm.follow("I need <tool_call> the city.\n</think>\n\n")
    result, deltas = await llm.ask(spec(REQUIRED, n=3, parallel_tool_calls=False))
    assert check_calls(result, deltas) >= 1
    for choice in result.choices:
        assert choice.reasoning == "I need <tool_call> the city." and choice.content == "" and choice.tool_calls


@template("qwen")
async def test_a_forced_call_begins_with_the_first_token(llm: ChatBench) -> None:
    llm.follow("<think>")
    result, deltas = await llm.ask(spec(REQUIRED, n=8, parallel_tool_calls=False))
    assert check_calls(result, deltas) >= 1
    for choice in result.choices:
        assert choice.tool_calls and not choice.reasoning
        assert llm.tokenizer.decode(choice.token_ids).lstrip().startswith("<tool_call>")


@template("opens-thinking")
async def test_reasoning_that_the_prompt_opens(llm: ChatBench) -> None:
    llm.follow(["Let me", "\n", "</", "think>\n\n", "\n", "The rest"[:3].encode()[0] + 3])
    (choice,) = (await llm.ask(spec(tools=[], max_new_tokens=6)))[0].choices
    assert (choice.reasoning, choice.content) == ("Let me", "T")
    assert not llm.sent[0].params.sections, "reasoning alone needs no grammar"


@template("qwen", "opens-thinking")
async def test_a_format_applies_to_the_answer_after_reasoning(llm: ChatBench, request: pytest.FixtureRequest) -> None:
    """The format applies even if one token contains the end of the closing marker and line breaks.

    No answer ends within its reasoning.
    """
    opened = request.node.callspec.params["llm"] == "opens-thinking"
    llm.follow([*([] if opened else ["<", "think>"]), "Let me", 1, "</", "think>\n\n"])
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    asked = spec(tools=[], n=3, text_format=JsonFormat(schema))
    for choice in (await llm.ask(asked))[0].choices:
        assert choice.reasoning.startswith("Let me")
        assert choice.finish_reason == "length" or json.loads(choice.content)["a"] in (1, 2)
    llm.follow([*([] if opened else ["<", "think>"]), "Let me", "</", "think>\n\n"])
    for choice in (await llm.ask(asked))[0].choices:
        assert choice.reasoning == "Let me" and json.loads(choice.content)["a"] in (1, 2)


@template("qwen", "opens-thinking")
@pytest.mark.parametrize(("more", "counted"), [(1, 1), (3, 3), (4, 4), (5, 3), (7, 3)])
async def test_the_tokens_of_the_reasoning_are_counted(
    llm: ChatBench, request: pytest.FixtureRequest, more: int, counted: int
) -> None:
    """Tokens of the reasoning's text count, those of its markers do not.

    If the token limit cuts an answer within its reasoning, all its tokens count.
    """
    opening = [] if request.node.callspec.params["llm"] == "opens-thinking" else ["<", "think>"]
    llm.follow([*opening, "Let me", " the", "\n", "</", "think>\n\n", "city", "Paris"])
    result, _ = await llm.ask(spec(tools=[], n=2, max_new_tokens=len(opening) + more))
    assert result.usage.reasoning_tokens == 2 * counted
    cut = ["reasoning" if more < 5 else "content" if more > 5 else None] * 2
    assert [choice.unfinished for choice in result.choices] == cut


async def test_special_markers_are_not_counted(tmp_path: Path) -> None:
    """Markers that are special tokens do not count as reasoning, even after a token with half a character."""
    llm = ChatBench(write_checkpoint(tmp_path / "llm", QWEN_3, ["<think>", "</think>"]))
    half = llm.tokenizer.token_bytes.by_id.index("日".encode()[:1])
    llm.follow(["<think>", "Let me", half, "</think>", "\n\n", "Paris"])
    result, _ = await llm.ask(spec(tools=[], max_new_tokens=6))
    assert result.usage.reasoning_tokens == 2 and result.choices[0].content == "Paris"
    llm.close()


@template("hermes")
async def test_an_answer_without_reasoning_has_no_reasoning_tokens(llm: ChatBench) -> None:
    llm.follow("Paris")
    assert (await llm.ask(spec(tools=[], max_new_tokens=2)))[0].usage.reasoning_tokens == 0


@template("qwen")
async def test_a_template_can_switch_reasoning_off(llm: ChatBench) -> None:
    llm.follow("<think>no</think>")
    asked = spec(tools=[], max_new_tokens=len(llm.runner.script), template_variables={"enable_thinking": False})
    (choice,) = (await llm.ask(asked))[0].choices
    assert (choice.reasoning, choice.content) == ("", "<think>no</think>")


@template("hermes", "mistral")
async def test_a_format_and_tools_together(llm: ChatBench) -> None:
    """Each answer is either a tool call or content in the format."""
    schema = {"type": "object", "properties": {"b": {"enum": [3]}}, "required": ["b"], "additionalProperties": False}
    result, _ = await llm.ask(spec(n=12, text_format=JsonFormat(schema)))
    calls = [choice for choice in result.choices if choice.tool_calls]
    contents = [choice for choice in result.choices if choice.content]
    assert calls and contents and len(calls) + len(contents) == 12
    assert all(json.loads(choice.content) == {"b": 3} for choice in contents)
    for choice in calls:
        for call in choice.tool_calls[: None if choice.finish_reason == "tool_calls" else -1]:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


@template("llama-3")
async def test_a_format_is_refused_where_calls_look_like_it(llm: ChatBench) -> None:
    with pytest.raises(InvalidRequest, match="tool_choice") as error:
        await llm.ask(spec(text_format=JsonFormat({"type": "object"})))
    assert error.value.param == "response_format"
    await llm.ask(spec(REQUIRED, text_format=JsonFormat({"type": "object"})))
