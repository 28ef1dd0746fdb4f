"""A glossary on `/translate`: which rows get terms, the settings of terms, and which glossaries are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from server.ipc.wire.generate_messages import Finished, Generate, Hypothesis, Vocabulary
from server.text.tokens.token_bytes import NoTokenBytes
from tests.api.conftest import Bench

BODY = {"model": "translator", "max_new_tokens": 20}
TEXT = "The garden is small. The house, however, is big!\nHouses. House"


async def sent(bench: Bench, http: httpx.AsyncClient, **body: Any) -> tuple[Generate, dict[str, Any]]:
    """The message that the engine gets for a request, and the body of the response when every translation is empty."""
    posted = asyncio.create_task(http.post("/translate", json={**BODY, "inputs": TEXT, **body}))
    message = await bench.sent_generate()
    ended = []
    for row in message.rows:
        own = message.params_of(row)
        hypothesis = Hypothesis([1], "stop", 1, -1.0 if own.num_beams > 1 else None)
        ended.append(Finished(row.sequence_id, [hypothesis] * own.num_return_sequences, 0.0, 0.0, 0.0))
    bench.output(finished=ended)
    response = await posted
    assert response.status_code == 200, response.text
    return message, response.json()


async def test_only_sentences_with_a_term_change(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready(num_beams=None, length_penalty=0.6)
    message, answer = await sent(bench, http, glossary={"house": "Haus", "boat": "Boot"})
    plain, _ = await sent(bench, http)
    assert [bool(row.terms) for row in message.rows] == [False, True, False, True]
    assert message.params == plain.params and message.params.num_beams == 1
    assert message.prompts == plain.prompts
    with_terms = message.term_params
    assert with_terms is not None and (with_terms.num_beams, with_terms.length_penalty) == (10, 0.6)
    assert message.rows[1].terms == message.rows[3].terms == [0]
    (term,) = message.terms
    assert [(text, bytes(token - 3 for token in ids)) for text, ids in term.spellings] == [
        ("Haus", b"Haus"),
        ("Haus", b" Haus"),
    ]
    assert len(answer["translations"]) == 1
    assert plain.term_params is None


async def test_the_vocabulary_is_sent_if_a_sentence_has_a_term(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    posted = asyncio.create_task(http.post("/translate", json={**BODY, "inputs": TEXT, "glossary": {"house": "Haus"}}))
    while not any(isinstance(message, Generate) for message in bench.sent):
        await asyncio.sleep(0)
    posted.cancel()
    kinds = [type(message) for message in bench.sent]
    assert kinds.index(Vocabulary) < kinds.index(Generate)
    bench.sent.clear()
    message, _ = await sent(bench, http, glossary={"boat": "Boot"})
    assert message.term_params is None and not any(row.terms for row in message.rows)


async def test_beams_of_the_request_and_of_the_checkpoint(bench: Bench, http: httpx.AsyncClient) -> None:
    glossary = {"house": "Haus"}
    bench.become_ready(num_beams=12)
    message, _ = await sent(bench, http, glossary=glossary)
    assert message.term_params is not None and message.term_params.num_beams == 12
    message, _ = await sent(bench, http, glossary=glossary, num_beams=3, num_alternatives=2)
    found = message.term_params
    assert found is not None and (found.num_beams, found.num_return_sequences, message.params.num_beams) == (3, 3, 3)
    bench.become_ready()
    message, _ = await sent(bench, http, glossary=glossary, num_alternatives=11)
    assert message.term_params is not None and message.term_params.num_beams == 12


async def test_a_prefix_and_stop_strings(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready(num_beams=None)
    message, _ = await sent(bench, http, glossary={"house": "Haus"}, stop=["x"], inputs="house", decoder_prefix="Das")
    assert message.params.stop_texts == []
    assert message.term_params is not None and message.term_params.stop_texts == [b"x"]


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"glossary": {f"t{i}": "x" for i in range(129)}}, "129 terms; the limit is 128"),
        ({"glossary": {"a" * 65: "x"}}, "65 characters in entry 1; the limit is 64"),
        ({"glossary": {"a": "x", "b": "y" * 65}}, "65 characters in entry 2; the limit is 64"),
        ({"glossary": {"a": " "}}, "empty translation in entry 1"),
        ({"glossary": {"": "a"}}, "empty term in entry 1"),
        ({"glossary": {"a b": "x", "a  b": "y"}}, "white space"),
        ({"glossary": {w: w for w in "abcdefghijklmnopq"}, "inputs": " ".join("abcdefghijklmnopq")}, "17 terms"),
        ({"glossary": {"Haus": 1}}, "object whose values are strings"),
        ({"glossary": [["a", "b"]]}, "object whose values are strings"),
        ({"glossary": {"house": "Haus"}, "num_beams": 1}, "leave `num_beams` out"),
        ({"glossary": {"house": "Haus"}, "do_sample": True}, "`do_sample`"),
        ({"glossary": {"house": "Haus"}, "temperature": 0.5}, "`temperature`"),
        ({"glossary": {"house": "Haus"}, "num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1}, "groups"),
        ({"glossary": {"house": "Haus"}, "response_format": {"type": "choice", "choices": ["a"]}}, "response_format"),
    ],
)
async def test_refused(bench: Bench, http: httpx.AsyncClient, body: dict, part: str) -> None:
    bench.become_ready()
    response = await http.post("/translate", json={**BODY, "inputs": TEXT, **body})
    assert response.status_code == 422
    error = response.json()["error"]
    assert error["param"] == "glossary" and part in error["message"]
    assert "Haus" not in error["message"]


async def test_temperature_zero_is_greedy_and_allowed(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    message, _ = await sent(bench, http, glossary={"house": "Haus"}, temperature=0)
    assert message.term_params is not None


async def test_tokens_that_depend_on_their_neighbours(
    bench: Bench, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.become_ready()
    tokenizer = type(bench.runtime.candidates("translator", "translate")[0].tokenizer)
    monkeypatch.setattr(tokenizer, "token_bytes", property(_no_bytes))
    body = {**BODY, "inputs": TEXT, "glossary": {"house": "Haus"}}
    response = await http.post("/translate", json=body)
    assert response.status_code == 422
    assert "`glossary` is not supported for `translator`" in response.json()["error"]["message"]


def _no_bytes(self: object) -> None:
    raise NoTokenBytes("its tokens look at several tokens")


async def test_a_translation_that_cannot_be_spelled_is_named_by_its_entry(
    bench: Bench, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.operations.translating.glossary.spell", lambda tokenizer, token_bytes, term: [])
    bench.become_ready()
    body = {**BODY, "inputs": TEXT, "glossary": {"boat": "Boot", "house": "Haus"}}
    response = await http.post("/translate", json=body)
    assert response.status_code == 422
    message = response.json()["error"]["message"]
    assert "entry 2" in message and "Haus" not in message
