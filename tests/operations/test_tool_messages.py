"""Messages with calls and results reach the template, and bad tools are refused with the name of the field."""

from __future__ import annotations

from typing import Any

import pytest

from server.errors import InvalidRequest
from server.operations.chat import ChatSpec, FunctionTool, ToolChoice
from tests.operations.chat_bench import ChatBench
from tests.operations.tool_cases import REQUIRED, history, spec, template


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


@pytest.mark.parametrize("arguments", ["{", "[1]", 3, '"text"', None])
async def test_arguments_must_be_an_object(llm: ChatBench, arguments: object) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[1\]\.tool_calls\[0\]\.function\.arguments") as error:
        await llm.ask(spec(messages=history(arguments)))
    assert error.value.param == "messages"


@template("none", "json")
async def test_calls_that_a_template_leaves_out_are_refused(llm: ChatBench, request: pytest.FixtureRequest) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[1\]\.tool_calls") as error:
        await llm.ask(spec(messages=history({}), tools=[]))
    assert error.value.param == "messages"


def tool(name: str = "f", parameters: dict[str, Any] | None = None, index: int = 0) -> FunctionTool:
    return FunctionTool(name, None, parameters, f"tools[{index}].function")


@pytest.mark.parametrize(
    ("tools", "text"),
    [
        ([tool("a"), tool("b b", index=1)], r"tools\[1\]\.function\.name"),
        ([tool("")], r"tools\[0\]\.function\.name"),
        ([tool("a"), tool("a", index=1)], r"tools\[1\]\.function\.name` is also"),
        ([tool("a", {"type": "array"})], r"tools\[0\]\.function\.parameters` must be a JSON schema of type `object`"),
        ([tool("a", {"type": "object", "properties": {"x": {"type": "wrong"}}})], r"tools\[0\]\.function\.parameters"),
        ([tool("a"), tool("b", {"properties": {"x": {"minContains": 3}}}, 1)], r"tools\[1\].*minContains"),
        ([tool("a", {"properties": {"x": {"$ref": "#/$defs/missing"}}})], r"tools\[0\]"),
        ([tool("a", {"type": "object", "description": "d" * (1 << 16)})], "the limit is 65536"),
        ([tool(f"f{i}") for i in range(129)], "129 functions; the limit is 128"),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "none"])
async def test_bad_tools_are_refused(llm: ChatBench, tools: list[Any], text: str, mode: Any) -> None:
    with pytest.raises(InvalidRequest, match=text) as error:
        await llm.ask(spec(ToolChoice(mode), tools=tools))
    assert error.value.param == "tools" and not llm.sent


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

    from server.engine import grammar_masks

    monkeypatch.setattr(grammar_masks, "LIMITS", LLParserLimits(max_lexer_states=60, verbose_errors=False))
    schema = {
        "type": "object",
        "properties": {"x": {"type": "string", "pattern": "^(a|b)*a(a|b){20}$"}},
        "required": ["x"],
    }
    with pytest.raises(InvalidRequest) as error:
        await llm.ask(spec(REQUIRED, tools=[tool("f", schema)]))
    assert error.value.param == "tools" and error.value.message.startswith("`tools` grew too complex")
