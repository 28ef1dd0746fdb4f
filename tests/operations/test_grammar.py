"""`response_format` in the HTTP process: the grammar, the vocabulary message, and the reasons for a refusal."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import httpx
import pytest

from server.ipc.messages import (
    Abort,
    Failed,
    Generate,
    Message,
    Vocabulary,
)
from server.ipc.params import GenerationParams
from server.operations import grammar
from server.operations.grammar import ChoiceFormat, JsonFormat, RegexFormat
from tests.api.conftest import Bench
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
    sources = {"text": grammar.source_of(JsonFormat({"type": "object"}))}
    assert rules(grammar.assemble(grammar.answer_rule(True), sources))[0].endswith('start: " " @text')
    assert rules(grammar.assemble(grammar.answer_rule(False), sources))[0].endswith("start: @text")


def test_a_schema_cannot_set_options_of_the_library() -> None:
    loose = {"x-guidance": {"lenient": True, "whitespace_flexible": False}, "type": "object"}
    options = json.loads(grammar.source_of(JsonFormat(loose)))["json_schema"]["x-guidance"]
    assert options["lenient"] is False and options["whitespace_flexible"] is True


def test_members_stay_in_the_order_of_the_schema() -> None:
    schema = {"properties": {name: {} for name in "zyxabc"}}
    source = grammar.source_of(JsonFormat(schema))
    assert list(json.loads(source)["json_schema"]["properties"]) == list("zyxabc")


def test_choices_are_matched_literally() -> None:
    """Characters with a meaning in regular expressions have none in a choice."""
    source = grammar.source_of(ChoiceFormat(["a.*(b)|/\\[^$", "\n\"'", "é😀"]))
    assert json.loads(source)["lark_grammar"].startswith("start: /a\\x{2e}\\x{2a}\\x{28}b")


@pytest.mark.parametrize("pattern", ["a/b", "a\nb", "#", "//", "a\\/b", '"', "(?x) a b # c"])
def test_patterns_do_not_break_the_surrounding_grammar(pattern: str) -> None:
    assert grammar.source_of(RegexFormat(pattern))


async def test_a_format_failure_during_generation_names_the_field(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    posted = asyncio.create_task(http.post("/generate", json={"prompt": "a", "response_format": DIGITS}))
    (row,) = await bench.sent_rows()
    bench.output(failed=[Failed(row.request_id, "invalid_format", "`response_format` grew too complex")])
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


def test_checking_a_grammar_imports_neither_torch_nor_the_engine() -> None:
    code = (
        "import sys; from server.operations import grammar; from server.operations.grammar import JsonFormat; "
        "print('llguidance' in sys.modules); grammar.source_of(JsonFormat({'type': 'object'})); "
        "print(sorted({'torch', 'server.engine', 'transformers', 'llguidance'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["False", "['llguidance']"]
