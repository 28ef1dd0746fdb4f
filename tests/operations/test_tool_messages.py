"""Messages with tool calls and results reach the chat template; the error for a bad tool names its field."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.operations.chatting.chat import ChatSpec, FunctionTool, ToolChoice, chat
from tests.operations.chat_bench import ChatBench
from tests.operations.tool_cases import REQUIRED, TOOLS, history, spec, template


@template("hermes", "llama-3", "mistral", "deepseek", "deepseek-names")
async def test_calls_and_results_reach_the_template(llm: ChatBench, request: pytest.FixtureRequest) -> None:
    prompts = []
    for arguments in ({"city": "Köln"}, '{"city": "Köln"}'):
        await llm.ask(spec(messages=history(arguments), max_new_tokens=1))
        prompts.append(llm.tokenizer.decode(llm.sent[-1].prompts[0], skip_special_tokens=False))
    assert prompts[0] == prompts[1]
    assert '{"city": "Köln"}' in prompts[0] and "It rains." in prompts[0] and "get_weather" in prompts[0]
    if request.node.callspec.params["llm"] == "mistral":
        assert prompts[0].count('"fGhIj0123"') == 2, "ids of nine characters"


SENT_TEXTS = {
    "cut": '{"city": "Par',
    "nothing": "",
    "a list": "[1]",
    "a text": '"text"',
    "null": "null",
    "white space and order": '{"days":  0.1000,\n"city":"K\\u00f6ln"}',
    "numbers and repeated keys": '{"days": 1e400, "days": 12345678901234567890123, "x": [-0, {"y": 1.50}]}',
    "no JSON at all": "please </tool_call>",
}


@template("hermes", "llama-3", "mistral", "mistral-names", "deepseek", "deepseek-names")
async def test_the_template_prints_the_arguments_as_they_were_sent(llm: ChatBench) -> None:
    """The template gets arguments unchanged, even those of a call that the token limit has cut."""
    for sent in SENT_TEXTS.values():
        await llm.ask(spec(messages=history(sent), max_new_tokens=1))
        prompt = llm.tokenizer.decode(llm.sent[-1].prompts[0], skip_special_tokens=False)
        assert (sent or "{}") in prompt, sent


@template("none", "json")
async def test_calls_that_a_template_leaves_out_are_refused(llm: ChatBench, request: pytest.FixtureRequest) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[1\]\.tool_calls") as error:
        await llm.ask(spec(messages=history({}), tools=[]))
    assert error.value.param == "messages"
    with pytest.raises(InvalidRequest, match=r"^`input`: the chat template of `llm` leaves function calls out$"):
        await llm.ask(spec(messages=history({}), tools=[], messages_field="input"))


def tool(name: str = "f", parameters: dict[str, Any] | None = None, index: int = 0) -> FunctionTool:
    return FunctionTool(name, None, parameters, f"tools[{index}].function")


def strict(parameters: dict[str, Any], index: int = 0) -> FunctionTool:
    return FunctionTool("f", None, parameters, f"tools[{index}]", "input_schema", is_strict=True)


@pytest.mark.parametrize(
    ("tools", "text"),
    [
        ([tool("a"), tool("b b", index=1)], r"tools\[1\]\.function\.name"),
        ([tool("")], r"tools\[0\]\.function\.name"),
        ([tool("a"), tool("a", index=1)], r"tools\[1\]\.function\.name` is also"),
        ([tool(f"f{i}") for i in range(513)], "513 functions; the limit is 512"),
        ([strict({"type": "array"})], r"tools\[0\]\.input_schema` of the function `f` .*`type` must be `object`"),
        ([strict({"properties": {"x": {"type": "wrong"}}})], r"`properties\.x\.type` has a value that is not valid"),
        ([tool("a"), strict({"properties": {"x": {"not": {}}}}, 1)], r"tools\[1\].* `properties\.x\.not` cannot"),
        ([strict({"properties": {"x": {"$ref": "#/$defs/missing"}}})], r"`properties\.x\.\$ref` points to no schema"),
        ([strict({"description": "d" * (1 << 18)})], "has 262163 bytes; the limit is 262144"),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "none"])
async def test_bad_tools_are_refused(llm: ChatBench, tools: list[Any], text: str, mode: Any) -> None:
    with pytest.raises(InvalidRequest, match=text) as error:
        await llm.ask(spec(ToolChoice(mode), tools=tools))
    assert error.value.param == "tools" and not llm.sent


UNUSABLE: dict[str, dict[str, Any]] = {
    "tools[1].input_schema:type": {"type": "array", "items": {"type": "string"}},
    "tools[1].input_schema:$ref": {"properties": {"secret key": {"$ref": "https://secret.example/x"}}},
    "tools[1].input_schema:pattern": {"properties": {"secret key": {"type": "string", "pattern": "(?=secret)"}}},
}


@pytest.mark.parametrize("name", UNUSABLE)
async def test_one_tool_does_not_refuse_the_others(llm: ChatBench, name: str) -> None:
    """A tool whose schema cannot be enforced may be called with any object.

    The report repeats no text of its schema.
    """
    bad = FunctionTool("bad", None, UNUSABLE[name], "tools[1]", "input_schema")
    llm.follow('<tool_call>\n{"name": "bad", "arguments": {"secret key": "x"}}\n</tool_call>')
    with Call(llm.client) as call:
        run = await chat(llm.runtime, call, spec(tools=[TOOLS[0], bad], parallel_tool_calls=False))
        await run.complete()
        (choice,) = run.result().choices
    assert call.ignored == [name]
    assert [(made.name, made.arguments) for made in choice.tool_calls] == [("bad", '{"secret key": "x"}')]


@pytest.mark.parametrize("choice", [REQUIRED, ToolChoice("required", "get")])
async def test_a_required_call_needs_tools(llm: ChatBench, choice: ToolChoice) -> None:
    with pytest.raises(InvalidRequest) as error:
        await llm.ask(spec(choice, tools=[]))
    assert error.value.param == "tool_choice"


async def test_other_refusals(llm: ChatBench) -> None:
    for settings, param in [
        ({"choice": ToolChoice("required", "missing")}, "tool_choice"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"template_variables": {"messages": []}}, "chat_template_kwargs"),
        ({"messages": [], "tools": []}, "messages"),
    ]:
        asked = spec(**settings)
        if settings.get("messages") == []:
            asked = ChatSpec([])
        with pytest.raises(InvalidRequest) as error:
            await llm.ask(asked)
        assert error.value.param == param
    assert not llm.sent


@template("none")
async def test_a_template_that_ignores_tools_is_refused(llm: ChatBench) -> None:
    with pytest.raises(InvalidRequest, match="`llm`: its chat template ignores them") as error:
        await llm.ask(spec())
    assert error.value.param == "tools"
    await llm.ask(spec(ToolChoice("none")))


async def test_a_grammar_that_grows_too_complex_names_the_tools(llm: ChatBench, monkeypatch: Any) -> None:
    from llguidance import LLParserLimits

    from server.engine.grammars import grammar_masks

    monkeypatch.setattr(grammar_masks, "LIMITS", LLParserLimits(max_lexer_states=60, verbose_errors=False))
    schema = {
        "type": "object",
        "properties": {"x": {"type": "string", "pattern": "^(a|b)*a(a|b){20}$"}},
        "required": ["x"],
    }
    with pytest.raises(InvalidRequest) as error:
        await llm.ask(spec(REQUIRED, tools=[strict(schema)]))
    assert error.value.param == "tools" and error.value.message.startswith("`tools` grew too complex")
    monkeypatch.setattr(grammar_masks, "LIMITS", LLParserLimits(max_lexer_states=200, verbose_errors=False))
    text = "".join(random.Random(0).choices("ab", k=300))
    llm.follow(f'<tool_call>\n{{"name": "f", "arguments": {{"x": "{text}", "y": 1}}}}\n</tool_call>')
    result, _ = await llm.ask(spec(REQUIRED, tools=[tool("f", schema)], parallel_tool_calls=False, max_new_tokens=600))
    (call,) = result.choices[0].tool_calls
    assert json.loads(call.arguments) == {"x": text, "y": 1}, "the rest is any object"
