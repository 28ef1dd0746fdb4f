"""`response_format` in the HTTP process: the grammar, the message with the vocabulary, and the reasons of refusals."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from typing import Any

import httpx
import pytest

from server.errors import InvalidRequest
from server.ipc.wire.generate_messages import Generate, Vocabulary
from server.ipc.wire.message_base import Message
from server.ipc.wire.params import GenerationParams
from server.ipc.wire.step_messages import Abort, Failed
from server.operations import grammar_compiler, grammar_process
from server.operations.chatting.function_tool import FunctionTool
from server.operations.chatting.tool_grammar import ToolChoice, callable_functions
from server.operations.generating import grammar
from server.operations.generating.grammar import ChoiceFormat, JsonFormat, RegexFormat
from server.operations.grammar_compiler import CompiledFormat, GrammarCompiler
from server.system.line_process import LineProcess
from tests.api.conftest import Bench
from tests.grammar_compiler import COMPILER
from tests.operations.test_generation_params import sent_params, sent_request

DIGITS = {"type": "regex", "pattern": "[0-9]+"}


def rules(format_grammar: str) -> tuple[str, dict[str, Any]]:
    start, text = json.loads(format_grammar)["grammars"]
    return start["lark_grammar"], text


def only_grammar(params: GenerationParams) -> str:
    (section,) = params.sections
    assert not section.markers
    return section.grammar


async def test_without_a_format_there_is_no_grammar_and_no_vocabulary(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    for neutral in ({}, {"response_format": None}, {"response_format": {"type": "text"}}):
        assert (await sent_params(bench, http, **neutral)).sections == []
    assert not any(isinstance(message, Vocabulary) for message in bench.sent)


async def test_the_vocabulary_is_sent_once_to_each_worker_process(bench: Bench, http: httpx.AsyncClient) -> None:
    sent: list[Message] = []

    def send(message: Message) -> None:
        sent.append(message)
        bench.sent.append(message)

    async def sent_types() -> list[type]:
        sent.clear()
        await sent_request(bench, http, response_format=DIGITS)
        return [type(message) for message in sent if not isinstance(message, Abort)]

    bench.become_ready()
    infos = list(bench.infos.values())
    bench.client.on_ready(infos, "cpu", send)
    assert await sent_types() == [Vocabulary, Generate]
    assert await sent_types() == [Generate]
    bench.client.on_lost()
    sent.clear()
    bench.client.on_ready(infos, "cpu", send)
    (vocabulary,) = sent
    assert isinstance(vocabulary, Vocabulary) and vocabulary.model == "decoder"
    assert vocabulary.tokens[:3] == [b""] * 3
    assert sorted(vocabulary.tokens[3:]) == [bytes([byte]) for byte in range(256)]


async def test_the_grammar_allows_every_tokenization_of_the_text(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    start, text = rules(only_grammar(await sent_params(bench, http, response_format=DIGITS)))
    assert '"no_forcing": true' in start and start.endswith("start: @text")
    assert text == {"name": "text", "lark_grammar": "start: /[0-9]+/"}


def test_a_leading_space_comes_before_the_text() -> None:
    sources = {"text": grammar.text_grammar(JsonFormat({"type": "object"}), COMPILER).source}
    assert rules(grammar.assemble(grammar.answer_rule(True), sources))[0].endswith('start: " " @text')
    assert rules(grammar.assemble(grammar.answer_rule(False), sources))[0].endswith("start: @text")


def test_a_schema_cannot_set_options_of_the_library() -> None:
    loose = {"x-guidance": {"lenient": True, "whitespace_flexible": False}, "type": "object"}
    options = json.loads(grammar.text_grammar(JsonFormat(loose), COMPILER).source)["json_schema"]["x-guidance"]
    assert options["lenient"] is False and options["whitespace_flexible"] is True


def test_members_stay_in_the_order_of_the_schema() -> None:
    schema = {"properties": {name: {} for name in "zyxabc"}}
    source = grammar.text_grammar(JsonFormat(schema), COMPILER).source
    assert list(json.loads(source)["json_schema"]["properties"]) == list("zyxabc")


def test_choices_are_matched_literally() -> None:
    """Characters with a meaning in regular expressions have none in a choice."""
    source = grammar.text_grammar(ChoiceFormat(["a.*(b)|/\\[^$", "\n\"'", "é😀"]), COMPILER).source
    assert json.loads(source)["lark_grammar"].startswith("start: /a\\x{2e}\\x{2a}\\x{28}b")


@pytest.mark.parametrize("pattern", ["a/b", "a\nb", "#", "//", "a\\/b", '"', "(?x) a b # c"])
def test_patterns_do_not_break_the_surrounding_grammar(pattern: str) -> None:
    assert grammar.text_grammar(RegexFormat(pattern), COMPILER)


async def test_a_format_failure_during_generation_names_the_field(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    posted = asyncio.create_task(http.post("/generate", json={"prompt": "a", "response_format": DIGITS}))
    (row,) = await bench.sent_rows()
    bench.output(failed=[Failed(row.sequence_id, "invalid_format", "`response_format` grew too complex")])
    answer = await posted
    error = answer.json()["error"]
    assert answer.status_code == 422
    assert (error["param"], error["code"]) == ("response_format", "invalid_request")


async def test_beam_search_with_a_format_requires_an_end_token(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready(end_token_ids=[])
    body = {"model": "decoder", "prompt": "a", "num_beams": 2, "response_format": DIGITS}
    answer = await http.post("/generate", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "response_format")
    assert (await sent_params(bench, http, response_format=DIGITS)).sections, (
        "without beams, the format itself ends the text"
    )


def test_compiling_a_grammar_imports_nothing_heavy() -> None:
    code = (
        "import sys; from server.operations.generating import grammar; "
        "from server.operations.generating.grammar import JsonFormat; "
        "from server.operations.grammar_compiler import GrammarCompiler; compiler = GrammarCompiler(); "
        "grammar.text_grammar(JsonFormat({'type': 'object'}), compiler); compiler.close(); "
        "print(sorted({'torch', 'server.engine', 'transformers', 'llguidance'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


ENDLESS = {"type": "string", "allOf": [{"pattern": f"a{{{count},}}"} for count in range(1, 300)]}
"""A schema of 7,000 bytes that the library compiles for more than five minutes."""


def test_a_format_that_takes_too_long_is_refused_and_the_next_one_is_compiled() -> None:
    hurried = GrammarCompiler(cpu_seconds=0.1)
    try:
        for _ in range(2):
            with pytest.raises(InvalidRequest, match=r"`response_format\.schema` .*takes more than 0\.1 s") as refused:
                grammar.text_grammar(JsonFormat(ENDLESS), hurried)
            assert refused.value.param == "response_format"
        assert grammar.text_grammar(JsonFormat({"type": "object"}), hurried)
        strict = FunctionTool("f", None, {"properties": {"a": ENDLESS}}, "tools[0].function", is_strict=True)
        with pytest.raises(InvalidRequest, match=r"of the function `f` .*takes more than") as refused:
            callable_functions([strict], ToolChoice(), hurried)
        assert refused.value.param == "tools"
    finally:
        hurried.close()


def test_tools_have_a_limit_of_bytes_together() -> None:
    """Tools of this length exceed the prompts of the models in the chat tests, so the limit is tested here."""
    tools = [FunctionTool(f"f{i}", None, {"title": "d" * (1 << 18)}, f"tools[{i}]") for i in range(8)]
    compiler = GrammarCompiler()
    try:
        with pytest.raises(InvalidRequest, match="the limit is 2097152") as refused:
            callable_functions(tools, ToolChoice(), compiler)
        assert refused.value.param == "tools"
    finally:
        compiler.close()


def test_schemas_that_cannot_be_compiled_together_lose_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library limits the size of a whole grammar. Here, the tools exceed the limit unless the large schemas go."""
    large = {"properties": {f"member {i}": {"enum": [f"value {i}"]} for i in range(60)}}
    schemas = [{"properties": {"a": {}}}, large, {"title": "b", **large, "required": ["member 0"]}, {}]
    tools = [FunctionTool(f"f{i}", None, schema, f"tools[{i}]") for i, schema in enumerate(schemas)]
    check = GrammarCompiler.check_grammar

    def check_small(compiler: GrammarCompiler, text: str, budget: Any) -> CompiledFormat:
        return check(compiler, text, budget) if len(text) < 4000 else CompiledFormat(refused="is too big")

    monkeypatch.setattr(GrammarCompiler, "check_grammar", check_small)
    compiler = GrammarCompiler()
    try:
        functions = callable_functions(tools, ToolChoice(), compiler)
        assert [list(function.ignored) for function in functions] == [
            [],
            ["tools[1].parameters"],
            ["tools[2].parameters"],
            [],
        ]
        strict = [dataclasses.replace(tool, is_strict=True) for tool in tools]
        with pytest.raises(InvalidRequest, match="`tools` is too big"):
            callable_functions(strict, ToolChoice(), compiler)
    finally:
        compiler.close()


def test_a_refused_format_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = []
    exchange = LineProcess.exchange
    monkeypatch.setattr(LineProcess, "exchange", lambda *given: lines.append(given[1]) or exchange(*given))
    compiler = GrammarCompiler(cpu_seconds=0.1)
    try:
        formats = [JsonFormat(ENDLESS), JsonFormat({"type": "object"}), JsonFormat({"enum": []}), RegexFormat("(")]
        for text_format in formats:
            with contextlib.suppress(InvalidRequest):
                grammar.text_grammar(text_format, compiler)
        num_compiled = len(lines)
        assert num_compiled >= len(formats) - 1
        for text_format in formats:
            with contextlib.suppress(InvalidRequest):
                grammar.text_grammar(text_format, compiler)
        assert len(lines) == num_compiled
        monkeypatch.setattr(grammar_compiler, "MAX_CACHED_BYTES", 0)
        for _ in range(2):
            grammar.text_grammar(JsonFormat({"type": "array"}), compiler)
        assert len(lines) == num_compiled + 2
        niceness = [os.getpriority(os.PRIO_PROCESS, pid) for pid in (compiler._processes[-1].pid, 0)]
        assert niceness[0] > niceness[1], "compiling does not give way to the streams"
    finally:
        compiler.close()
    with pytest.raises(InvalidRequest, match="the server is stopping"):
        grammar.text_grammar(JsonFormat({"type": "array"}), compiler)


def test_a_format_that_needs_too_much_memory_is_refused() -> None:
    compiler = GrammarCompiler(cpu_seconds=100, memory_bytes=40 << 20)
    try:
        with pytest.raises(InvalidRequest, match="more than 40 MiB of memory"):
            members: dict[str, Any] = {f"member {number}": {"type": "integer"} for number in range(1000)}
            grammar.text_grammar(JsonFormat({"type": "object", "properties": members}), compiler)
        assert grammar.text_grammar(JsonFormat({"type": "object"}), compiler)
    finally:
        compiler.close()


def test_a_value_nested_too_deeply_for_the_library_is_refused() -> None:
    value: list[Any] = []
    for _ in range(150):
        value = [value]
    with pytest.raises(InvalidRequest, match=r"`items\.const` .*recursion limit"):
        grammar.text_grammar(JsonFormat({"type": "array", "items": {"const": value}}), COMPILER)


async def test_a_format_that_takes_too_long_delays_no_other_request(
    bench: Bench, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop answers other requests while the format compiles. The error names the field of the format."""
    bench.become_ready()
    hurried = GrammarCompiler(cpu_seconds=0.15)
    monkeypatch.setattr(bench.runtime, "grammar_compiler", hurried)
    body = {"prompt": "a", "stream": True, "response_format": {"type": "json_schema", "schema": ENDLESS}}
    posted = asyncio.create_task(http.post("/generate", json=body))
    answered = 0
    while not posted.done():
        answered += (await http.get("/health")).status_code == 200
        await asyncio.sleep(0.005)
    answer = await posted
    hurried.close()
    assert answer.status_code == 422 and answer.json()["error"]["param"] == "response_format"
    assert answered > 5


@pytest.mark.parametrize(
    "asked",
    [
        *({"pattern": pattern} for pattern in ("(canaryx", "a{2,canary", "(?<canary>a)\\kcanary", "[\\p{canary}]")),
        *(
            {"schema": json.dumps(schema), "options": "{}"}
            for schema in (
                {"type": "canary"},
                {"type": "string", "pattern": "(canary"},
                {"$ref": "#/canary"},
                {"$ref": "http://canary/x"},
                {"type": "integer", "minimum": "canary"},
                {"properties": {"canary": {"type": "Canary"}}},
            )
        ),
    ],
    ids=str,
)
def test_reasons_of_the_library_quote_no_word_of_the_request(asked: dict[str, Any]) -> None:
    reason = grammar_process.compile(asked)["refused"]
    assert "canary" not in reason.lower()
    assert len(reason.removeprefix("cannot be used: ")) > 10, "it says what is wrong"
