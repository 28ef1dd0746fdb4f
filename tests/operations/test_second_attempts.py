"""A translation that loops gets a second attempt: which answer is used, and the tokens that `usage` counts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from server.ipc.wire.descriptions import ModelSpec
from server.ipc.wire.generate_messages import Finished, Generate, Hypothesis
from server.settings.settings import Settings
from server.text import checkpoint_text
from tests.api.conftest import Bench
from tests.wire.checkpoints import write_translator
from tests.wire.fake_worker import describe

LOOP = [9] * 12
TEXT = [5, 6, 7, 1]
SOURCE_TOKENS = len("Ab cd.") + 1
BODY = {"inputs": "Ab cd.", "source_lang": "de", "target_lang": "fr", "num_beams": 1}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Two translators, from German to English and from there to French."""
    made = Bench(tmp_path, Settings())
    made.runtime.texts, made.infos = {}, {}
    for name, *pair in (("translator-first", "de", "en"), ("translator-last", "en", "fr")):
        directory = write_translator(tmp_path / name, *pair)
        made.runtime.texts[name] = checkpoint_text.load(name, directory)
        made.infos[name] = describe(ModelSpec(name, str(directory), "auto"))
    made.become_ready()
    yield made
    made.runtime.pools.close()


async def translated(bench: Bench, http: httpx.AsyncClient, *answers: list[int], **body: object) -> dict:
    """Send a request to `/translate`, answer its messages to the worker with `answers`, and return the response's body.

    answers: the token ids for one message each; an empty list stands for a failure.
    """
    asking = asyncio.create_task(http.post("/translate", json=BODY | body))
    for token_ids in answers:
        (row,) = (await bench.sent_generate()).rows
        bench.output(finished=[Finished(row.sequence_id, [Hypothesis(token_ids, "stop", None)], 0.0, 0.0, 0.0)])
    response = await asking
    assert response.status_code == 200, response.text
    assert not [message for message in bench.sent if isinstance(message, Generate)]
    return response.json()


async def test_both_attempts_of_both_models_are_counted(bench, http):
    plain = (await translated(bench, http, TEXT, TEXT))["usage"]
    pivot_tokens = plain["prompt_tokens"] - SOURCE_TOKENS
    assert plain["completion_tokens"] == 2 * len(TEXT)
    first = (await translated(bench, http, LOOP, TEXT, TEXT))["usage"]
    assert first["prompt_tokens"] == plain["prompt_tokens"] + SOURCE_TOKENS
    assert first["completion_tokens"] == 2 * len(TEXT) + len(LOOP)
    last = (await translated(bench, http, TEXT, LOOP, TEXT))["usage"]
    assert last["prompt_tokens"] == plain["prompt_tokens"] + pivot_tokens
    assert last["completion_tokens"] == 2 * len(TEXT) + len(LOOP)
    both = (await translated(bench, http, LOOP, TEXT, LOOP, TEXT))["usage"]
    assert both["prompt_tokens"] == 2 * plain["prompt_tokens"]
    assert both["completion_tokens"] == 2 * (len(TEXT) + len(LOOP))


async def test_a_second_attempt_that_is_a_loop_too_is_counted(bench, http):
    again = [*LOOP, 9, 9]
    answer = await translated(bench, http, TEXT, LOOP, again, quality=True)
    (sentence,) = answer["translations"][0]["sentences"]
    assert "loop" in sentence["flags"] and "second_attempt" not in sentence
    assert answer["usage"]["completion_tokens"] == len(TEXT) + len(LOOP) + len(again)


async def test_a_request_that_allows_repetitions_has_no_second_attempt(bench, http):
    answer = await translated(bench, http, LOOP, LOOP, no_repeat_ngram_size=0)
    assert answer["translations"][0]["flags"] == ["loop"]
    assert answer["usage"]["completion_tokens"] == 2 * len(LOOP)


async def test_usage_is_what_the_key_and_the_log_count(bench, http):
    """`usage` equals the tokens that the call counts for the limits of an API key, those of all its messages."""
    calls = []
    submit = bench.client.submit

    def kept(call, message):
        calls.append(call)
        return submit(call, message)

    bench.client.submit = kept
    usage = (await translated(bench, http, LOOP, TEXT, LOOP, LOOP))["usage"]
    (call,) = set(calls)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (call.prompt_tokens, call.completion_tokens)
