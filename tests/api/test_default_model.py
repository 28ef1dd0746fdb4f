"""The default model of requests without `model` is the same in answers, in `/info` and in the example at the start."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from server.greeting import greeting
from server.ipc.wire.generate_messages import Finished, Hypothesis
from tests.api.conftest import Bench


@pytest.fixture
def ready(bench: Bench) -> Bench:
    """An application whose first model is a translator, as in `mt=... llm=...`."""
    names = ["translator", "reranker", "decoder", *bench.runtime.texts]
    bench.runtime.texts = {name: bench.runtime.texts[name] for name in names}
    bench.become_ready()
    return bench


async def test_a_decoder_answers_before_an_encoder_decoder(ready: Bench, http: httpx.AsyncClient) -> None:
    posted = asyncio.create_task(http.post("/generate", json={"prompt": "ab"}))
    message = await ready.sent_generate()
    assert message.model == "decoder"
    ready.output(finished=[Finished(message.rows[0].sequence_id, [Hypothesis([100], "stop")], 0.0, 0.0, 0.0)])
    assert (await posted).json()["model"] == "decoder"


async def test_a_named_encoder_decoder_still_answers(ready: Bench, http: httpx.AsyncClient) -> None:
    posted = asyncio.create_task(http.post("/generate", json={"prompt": "ab", "model": "translator"}))
    assert (await ready.sent_generate()).model == "translator"
    posted.cancel()


async def test_info_names_the_default_of_each_route(ready: Bench, http: httpx.AsyncClient) -> None:
    defaults = (await http.get("/info")).json()["defaults"]
    expected = {
        "/generate": "decoder",
        "/translate": "translator",
        "/classify": "reranker",
        "/rerank": "reranker",
        "/embed": "embedder",
        "/tokenize": "translator",
    }
    assert expected.items() <= defaults.items()
    assert "/v1/audio/transcriptions" not in defaults, "no loaded model answers it"
    tokens = await http.post("/tokenize", json={"inputs": "a"})
    assert tokens.json() == (await http.post("/tokenize", json={"inputs": "a", "model": defaults["/tokenize"]})).json()


async def test_info_has_no_defaults_while_models_load(bench: Bench, http: httpx.AsyncClient) -> None:
    assert (await http.get("/info")).json()["defaults"] == {}


def test_the_printed_example_asks_the_default_model(ready: Bench) -> None:
    text = greeting("http://127.0.0.1:8000", ready.runtime, needs_key=False)
    assert "curl http://127.0.0.1:8000/generate -H" in text and '"model": "decoder"' in text
    assert "Authorization" not in text


def test_the_printed_example_of_a_translator_translates(ready: Bench) -> None:
    ready.runtime.texts = {"translator": ready.runtime.texts["translator"]}
    text = greeting("http://127.0.0.1:8000", ready.runtime, needs_key=True)
    assert '/translate -H "Authorization: Bearer $TRIPTYCH_API_KEY" -H' in text
    assert '"source_lang": "en", "target_lang": "de"' in text


def test_the_printed_example_of_an_encoder(ready: Bench) -> None:
    ready.runtime.texts = {"embedder": ready.runtime.texts["embedder"]}
    assert "/embed " in greeting("http://127.0.0.1:8000", ready.runtime, needs_key=False)
