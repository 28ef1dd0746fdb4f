"""Generation parameters that the engine gets: from the request, else the checkpoint, else as docs/decoding.md says."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from server.ipc.wire.generate_messages import Generate
from server.ipc.wire.params import GenerationParams
from server.ipc.wire.step_messages import Failed
from server.text.tokens.tokenizer import Encoding
from server.text.tokens.truncation import truncate
from tests.api.conftest import Bench


async def sent_request(bench: Bench, http: httpx.AsyncClient, **body: Any) -> Generate:
    """The message that the engine gets for a request to `/generate`. Afterwards, the request is cancelled."""
    posted = asyncio.create_task(http.post("/generate", json={"model": "decoder", "prompt": "abc", **body}))
    message = await bench.sent_generate()
    bench.output(failed=[Failed(row.sequence_id, "timeout", "enough") for row in message.rows])
    assert (await posted).status_code == 504
    return message


async def sent_params(bench: Bench, http: httpx.AsyncClient, **body: Any) -> GenerationParams:
    return (await sent_request(bench, http, **body)).params


async def test_without_fields_and_checkpoint_defaults_the_table_applies(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    sent = await sent_request(bench, http, seed=5)
    assert sent.params == GenerationParams(end_token_ids=[1])
    assert [(row.max_new_tokens, row.seed) for row in sent.rows] == [(256, 5)]


async def test_checkpoint_defaults_override_the_table(bench: Bench, http: httpx.AsyncClient) -> None:
    defaults = {
        "min_new_tokens": 2,
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 50,
        "top_p": 0.9,
        "min_p": 0.01,
        "typical_p": 0.95,
        "repetition_penalty": 1.1,
        "no_repeat_ngram_size": 3,
        "encoder_no_repeat_ngram_size": 4,
    }
    more = {"renormalize_logits": True, "forced_eos_token_id": 1, "suppress_token_ids": [9], "bad_words_ids": [[2]]}
    more |= {"begin_suppress_token_ids": [4]}
    bench.become_ready(max_new_tokens=33, **defaults, **more)
    expected = GenerationParams(
        **defaults,
        end_token_ids=[1],
        renormalize_logits=True,
        forced_eos_token_id=1,
        suppress_token_ids=[9],
        begin_suppress_token_ids=[4],
        bad_words_ids=[[2]],
    )
    sent = await sent_request(bench, http, seed=5)
    assert sent.params == expected
    assert [(row.max_new_tokens, row.seed) for row in sent.rows] == [(33, 5)]


async def test_fields_of_the_request_override_the_checkpoint(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready(do_sample=True, temperature=0.6, top_k=50, max_new_tokens=33, repetition_penalty=1.1)
    message = await sent_request(bench, http, temperature=0.2, top_k=0, max_new_tokens=8, repetition_penalty=1.0)
    sent = message.params
    assert (sent.do_sample, sent.temperature, sent.top_k, message.rows[0].max_new_tokens) == (True, 0.2, 0, 8)
    assert sent.repetition_penalty == 1.0
    greedy = await sent_params(bench, http, temperature=0)
    assert (greedy.do_sample, greedy.temperature, greedy.top_k) == (False, 1.0, 0)
    assert (await sent_params(bench, http, do_sample=False)).do_sample is False


@pytest.mark.parametrize(
    ("body", "samples"),
    [
        ({}, False),
        ({"seed": 1}, False),
        ({"temperature": 1.0}, True),
        ({"top_k": 5}, True),
        ({"top_p": 0.5}, True),
        ({"min_p": 0.1}, True),
        ({"typical_p": 0.9}, True),
        ({"presence_penalty": 1.0, "frequency_penalty": 1.0, "logit_bias": {"5": 1}}, False),
        ({"best_of": 2}, False),
        ({"do_sample": True}, True),
        ({"temperature": 0}, False),
        ({"temperature": 0, "top_k": 5}, False),
        ({"repetition_penalty": 1.2}, False),
        ({"num_beams": 4, "temperature": 1.0}, False),
    ],
)
async def test_which_fields_enable_sampling(bench: Bench, http: httpx.AsyncClient, body: dict, samples: bool) -> None:
    bench.become_ready()
    assert (await sent_params(bench, http, max_new_tokens=8, **body)).do_sample is samples


async def test_sampling_disables_the_beams_of_the_checkpoint(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready(num_beams=4, length_penalty=2.0, early_stopping=True)
    beams = await sent_params(bench, http, max_new_tokens=8)
    assert (beams.num_beams, beams.length_penalty, beams.early_stopping) == (4, 2.0, True)
    sampled = await sent_params(bench, http, temperature=0.7)
    assert (sampled.num_beams, sampled.do_sample, sampled.length_penalty) == (1, True, 1.0)
    two = await sent_params(bench, http, num_beams=2, early_stopping="never", length_penalty=0.5, max_new_tokens=8)
    assert (two.num_beams, two.early_stopping, two.length_penalty) == (2, "never", 0.5)
    groups = await sent_params(bench, http, num_beam_groups=2, diversity_penalty=0.5, max_new_tokens=8)
    assert (groups.num_beams, groups.num_beam_groups, groups.diversity_penalty) == (4, 2, 0.5)
    assert (await sent_params(bench, http, stop=["x", "ä"], max_new_tokens=8)).stop_texts == [b"x", "ä".encode()]
    assert (await sent_params(bench, http, stop="x", num_beams=1, max_new_tokens=8)).stop_texts == []


@pytest.mark.parametrize(
    ("body", "beams", "answers", "rows"),
    [
        ({"n": 3}, 4, 3, 1),
        ({"n": 6}, 6, 6, 1),
        ({"n": 2, "best_of": 8}, 8, 2, 1),
        ({"best_of": 2}, 4, 1, 1),
        ({"n": 2, "num_beams": 2}, 2, 2, 1),
        ({"num_return_sequences": 3, "best_of": 5}, 5, 3, 1),
        ({"n": 3, "num_beams": 1}, 1, 1, 3),
        ({"n": 3, "best_of": 5, "temperature": 0.5}, 1, 1, 5),
    ],
)
async def test_answers_of_a_beam_search(
    bench: Bench, http: httpx.AsyncClient, body: dict, beams: int, answers: int, rows: int
) -> None:
    """The checkpoint's default is 4 beams.

    A request for more answers gets more beams, unless it sets the number of beams or asks for sampling.
    """
    bench.become_ready(num_beams=4)
    sent = await sent_request(bench, http, max_new_tokens=8, **body)
    assert (sent.params.num_beams, sent.params.num_return_sequences, len(sent.rows)) == (beams, answers, rows)
    assert sent.params.logprobs is (rows == 5)


async def test_bad_words_and_token_id_lists(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    sent = await sent_params(
        bench, http, bad_words=["b", " c"], suppress_tokens=[7], stop_token_ids=[8], ignore_eos=True
    )
    assert sent.bad_words_ids == [[101], [35, 101], [35, 102]]
    assert (sent.suppress_token_ids, sent.stop_token_ids, sent.end_token_ids) == ([7], [8], [])


async def test_penalties_biases_and_allowed_tokens(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready(typical_p=0.3, encoder_no_repeat_ngram_size=2)
    sent = await sent_params(
        bench,
        http,
        presence_penalty=2,
        frequency_penalty=-0.5,
        typical_p=0.7,
        encoder_no_repeat_ngram_size=0,
        logit_bias={"0": -100, "258": 0.5, "7": 0},
        allowed_token_ids=[258, 5],
    )
    assert (sent.presence_penalty, sent.frequency_penalty, sent.typical_p) == (2.0, -0.5, 0.7)
    assert (sent.logit_bias, sent.allowed_token_ids) == ({0: -100.0, 258: 0.5}, [258, 5])
    assert sent.encoder_no_repeat_ngram_size == 0
    greedy = await sent_params(bench, http, temperature=0)
    assert (greedy.typical_p, greedy.encoder_no_repeat_ngram_size) == (1.0, 2)


async def test_best_of_makes_rows_with_logprobs(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    ranked = await sent_request(bench, http, n=2, best_of=3, temperature=1.0, seed=4)
    assert [row.seed for row in ranked.rows] == [4, 5, 6] and ranked.params.logprobs
    plain = await sent_request(bench, http, n=2, best_of=2, temperature=1.0, seed=4)
    assert [row.seed for row in plain.rows] == [4, 5] and not plain.params.logprobs


async def test_rows_have_their_own_seed_and_token_limit(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    message = await sent_request(
        bench, http, prompt=["a" * 500, "b"], n=2, seed=2**64 - 1, max_new_tokens=20, min_new_tokens=15
    )
    assert [(row.prompt, row.seed, row.max_new_tokens) for row in message.rows] == [
        (0, 2**64 - 1, 12),
        (0, 0, 12),
        (1, 2**64 - 1, 20),
        (1, 0, 20),
    ]
    assert message.params.min_new_tokens == 15
    assert [len(prompt) for prompt in message.prompts] == [500, 1], "each prompt is sent once"
    assert len({row.sequence_id for row in message.rows}) == 4


async def test_decoder_start_tokens_of_encoder_decoders(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    plain = await sent_request(bench, http, model="translator", num_beams=1)
    assert (plain.prompts[0], plain.rows[0].decoder_token_ids) == ([100, 101, 102, 1], [2])
    led = await sent_request(bench, http, model="translator", num_beams=1, decoder_prefix="bb", forced_bos_token="<s>")
    assert (led.rows[0].decoder_token_ids, led.params.forced_bos_token_id) == ([2, 101, 101], 0)
    by_id = await sent_request(bench, http, model="translator", num_beams=1, forced_bos_token=7)
    assert by_id.params.forced_bos_token_id == 7


async def test_logprobs_and_stream_reach_the_engine(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    sent = await sent_params(bench, http, logprobs=True, top_logprobs=3, stream=True)
    assert (sent.logprobs, sent.top_logprobs, sent.stream) == (True, 3, True)
    plain = await sent_request(bench, http, logprobs=True)
    assert not plain.rows[0].prompt_logprobs
    message = await sent_request(bench, http, prompt=["ab", "cd"], n=2, prompt_logprobs=True, top_logprobs=3)
    assert [row.prompt_logprobs for row in message.rows] == [True, False] * 2 and message.params.top_logprobs == 3


def encoding(text: str) -> Encoding:
    """One token per character; `<` and `>` are special tokens."""
    special = [character in "<>" for character in text]
    return Encoding(list(map(ord, text)), [0] * len(text), special, [])


@pytest.mark.parametrize(
    ("text", "limit", "side", "kept"),
    [
        ("<abcdef>", 8, "right", "<abcdef>"),
        ("<abcdef>", 5, "right", "<abc>"),
        ("<abcdef>", 5, "left", "<def>"),
        ("<abcdef>ghij>", 7, "right", "<ab>gh>"),
        ("<ab>cdefgh>", 8, "right", "<ab>cde>"),
        ("<abcdefgh>ij>", 8, "left", "<fgh>ij>"),
        ("<abc>", 2, "right", "<>"),
        ("<abc>", 1, "right", "<"),
        ("abc", 2, "left", "bc"),
    ],
)
def test_truncation_keeps_special_tokens(text: str, limit: int, side: str, kept: str) -> None:
    assert "".join(map(chr, truncate(encoding(text), limit, side).ids)) == kept
