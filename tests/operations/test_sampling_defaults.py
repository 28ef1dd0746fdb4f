"""Sampling parameters come from the request, else from the checkpoint, else from the defaults of the dialect."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.api.dialects.anthropic import bodies as anthropic
from server.api.dialects.anthropic.bodies import AnthropicMessagesBody
from server.api.dialects.cohere import chat_body as cohere
from server.api.dialects.cohere.chat_body import CohereChatBody
from server.api.dialects.huggingface.tgi_bodies import TgiBody
from server.api.dialects.native.bodies import GenerateBody
from server.api.dialects.ollama import bodies as ollama
from server.api.dialects.ollama.bodies import OllamaChatBody, OllamaGenerateBody
from server.api.dialects.openai import sampling_fields as openai
from server.api.dialects.openai.chat_body import ChatCompletionBody
from server.api.dialects.openai.completions import CompletionBody
from server.api.dialects.openai.responses.body import ResponsesBody
from server.ipc.wire.params import GenerationParams
from server.ipc.wire.step_messages import Failed
from server.operations.generating.generation_options import GenerationOptions, SamplingDefaults
from server.operations.generating.generation_params import resolve
from server.operations.generating.prompts import task_prompt
from tests.api.conftest import Bench

PAGE = Path(__file__).resolve().parents[2] / "docs" / "decoding.md"
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
DIALECT = SamplingDefaults(do_sample=True, temperature=0.8, top_k=40, top_p=0.9, min_p=0.1)
GREEDY = (False, 1.0, 0, 1.0, 0.0)


def sampling(bench: Bench, checkpoint: dict[str, Any], model: str = "decoder", **options: Any) -> tuple[Any, ...]:
    """(do_sample, temperature, top_k, top_p, min_p) of a request in a dialect whose defaults are `DIALECT`."""
    bench.become_ready(**checkpoint)
    (served,) = bench.runtime.candidates(model, "generate")
    given = GenerationOptions(**{"sampling_defaults": DIALECT} | options)
    params = resolve(given, served, task_prompt(given, served)).params
    return params.do_sample, params.temperature, params.top_k, params.top_p, params.min_p


@pytest.mark.parametrize(
    ("checkpoint", "options", "expected"),
    [
        ({}, {}, (True, 0.8, 40, 0.9, 0.1)),
        ({}, {"temperature": 0.3, "min_p": 0.0}, (True, 0.3, 40, 0.9, 0.0)),
        ({}, {"top_p": 0.0}, (True, 0.8, 40, 1e-9, 0.1)),
        ({"top_p": 0.0}, {}, (True, 0.8, 40, 1e-9, 0.1)),
        ({}, {"temperature": 0.0}, GREEDY),
        ({}, {"do_sample": False}, GREEDY),
        ({"temperature": 0.6, "top_k": 20}, {}, (True, 0.6, 20, 0.9, 0.1)),
        ({"temperature": 0.6, "top_k": 20}, {"top_k": 0}, (True, 0.6, 0, 0.9, 0.1)),
        ({"do_sample": True, "top_p": 0.5}, {}, (True, 0.8, 40, 0.5, 0.1)),
        ({"do_sample": False}, {}, GREEDY),
        ({"do_sample": False, "temperature": 0.6}, {}, GREEDY),
        ({"do_sample": False, "temperature": 0.6}, {"top_p": 0.7}, (True, 0.6, 40, 0.7, 0.1)),
        ({"do_sample": True, "temperature": 0.0}, {}, GREEDY),
        ({"repetition_penalty": 1.1, "max_new_tokens": 5}, {}, (True, 0.8, 40, 0.9, 0.1)),
        ({}, {"num_beams": 2}, GREEDY),
        ({"num_beams": 2}, {}, GREEDY),
        ({"num_beams": 2}, {"num_beams": 1}, (True, 0.8, 40, 0.9, 0.1)),
        ({}, {"sampling_defaults": SamplingDefaults()}, GREEDY),
        ({"do_sample": True, "top_k": 5}, {"sampling_defaults": SamplingDefaults()}, (True, 1.0, 5, 1.0, 0.0)),
    ],
)
def test_each_field_is_looked_up_by_itself(
    bench: Bench, checkpoint: dict[str, Any], options: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    assert sampling(bench, checkpoint, **options) == expected


def test_encoder_decoders_keep_their_beams_and_are_greedy_otherwise(bench: Bench) -> None:
    assert sampling(bench, {}, "translator") == GREEDY
    assert sampling(bench, {}, "translator", num_beams=1) == GREEDY
    assert sampling(bench, {}, "translator", temperature=0.5) == (True, 0.5, 0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (ChatCompletionBody(**CHAT), SamplingDefaults(do_sample=True)),
        (CompletionBody(prompt="hi"), SamplingDefaults(do_sample=True)),
        (ResponsesBody(input="hi"), SamplingDefaults(do_sample=True)),
        (AnthropicMessagesBody(**CHAT, max_tokens=5), SamplingDefaults(do_sample=True)),
        (CohereChatBody(**CHAT), SamplingDefaults(do_sample=True, temperature=0.3, top_p=0.75)),
        (OllamaChatBody(**CHAT), SamplingDefaults(do_sample=True, temperature=0.8, top_k=40, top_p=0.9)),
        (OllamaGenerateBody(prompt="hi"), SamplingDefaults(do_sample=True, temperature=0.8, top_k=40, top_p=0.9)),
        (TgiBody(inputs="hi"), SamplingDefaults()),
        (GenerateBody(prompt="hi"), SamplingDefaults()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_defaults_of_each_dialect(body: Any, expected: SamplingDefaults) -> None:
    spec = body.spec()
    spec = getattr(spec, "chat", None) or spec
    assert spec.options.sampling_defaults == expected


@pytest.mark.parametrize(
    ("route", "defaults"),
    [
        ("/v1/chat/completions", openai.SAMPLING),
        ("/v1/messages", anthropic.SAMPLING),
        ("/v2/chat", cohere.SAMPLING),
        ("/api/chat", ollama.SAMPLING),
    ],
)
def test_the_page_has_the_defaults_of_each_dialect(route: str, defaults: SamplingDefaults) -> None:
    table = PAGE.read_text().split("<!-- sampling: begin -->")[1].split("<!-- sampling: end -->")[0]
    (row,) = [line for line in table.splitlines() if f"`{route}`" in line]
    stated = {name: float(value) for name, value in re.findall(r"`(\w+)` ([0-9.]+[0-9]|[0-9])", row)}
    assert defaults == SamplingDefaults(do_sample=True, **stated)


async def test_several_answers_of_an_openai_request_are_sampled_from_different_seeds(
    bench: Bench, http: httpx.AsyncClient
) -> None:
    bench.become_ready()

    async def sent(**more: Any) -> tuple[GenerationParams, list[int]]:
        body = {"model": "decoder", "prompt": "abc", "n": 3, "seed": 5} | more
        posted = asyncio.create_task(http.post("/v1/completions", json=body))
        message = await bench.sent_generate()
        bench.output(failed=[Failed(row.sequence_id, "timeout", "enough") for row in message.rows])
        await posted
        return message.params, [row.seed for row in message.rows]

    params, seeds = await sent()
    assert (params.do_sample, params.temperature, seeds) == (True, 1.0, [5, 6, 7])
    assert not (await sent(temperature=0))[0].do_sample
    assert not (await sent(model="translator", num_beams=1))[0].do_sample
