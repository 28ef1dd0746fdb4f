"""`cost()` of generate and translate is an upper bound of the texts that are tokenized and the work of the engine."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from server.errors import RequestError
from server.ipc.client.call import Call
from server.ipc.wire.generate_messages import Generate
from server.operations.cost import Cost, max_windows
from server.operations.generating.generate import GenerateSpec, generate
from server.operations.generating.generation_options import GenerationOptions
from server.operations.translating.translate import TranslateSpec, translate
from tests.api.conftest import Bench

ROUNDS = 40
CHARACTERS = "ab. ! ,?\n日。é\ufdfa😀{}%s"


def some_text(draw: random.Random, longest: int = 60) -> str:
    return "".join(draw.choices(CHARACTERS, k=draw.randint(1, longest)))


def some_ids(draw: random.Random) -> list[int]:
    return [draw.randint(3, 258) for _ in range(draw.randint(1, 600))]


def generate_spec(draw: random.Random) -> GenerateSpec:
    model = draw.choice(["decoder", "translator"])
    options: dict[str, Any] = {"max_new_tokens": draw.choice([None, 1, 40, 4000])}
    if draw.random() < 0.5:
        options |= {"num_beams": draw.randint(2, 4), "num_return_sequences": draw.randint(1, 2)}
    else:
        options |= {"num_beams": 1, "n": draw.randint(1, 2), "best_of": draw.randint(2, 4), "seed": 1}
    if model == "translator":
        options |= {"decoder_prefix": draw.choice([None, some_text(draw)]), "return_attention": draw.random() < 0.5}
    else:
        options |= {"prompt_logprobs": draw.random() < 0.5, "logprobs": True, "top_logprobs": draw.randint(0, 3)}
    prompts = [make(draw) for make in [draw.choice([some_text, some_ids])] for _ in range(draw.randint(1, 3))]
    return GenerateSpec(prompts, GenerationOptions(**options, truncate=draw.choice([None, 20])), model)


def translate_spec(draw: random.Random) -> TranslateSpec:
    inputs = [some_text(draw, 400) for _ in range(draw.randint(1, 3))]
    options = GenerationOptions(decoder_prefix=draw.choice([None, "b"]), max_new_tokens=draw.choice([None, 8]))
    glossary = {"b": "a" * draw.randint(1, 40)} if draw.random() < 0.5 else {}
    return TranslateSpec(inputs, options, draw.randint(0, 3), draw.choice([None, True, False]), glossary=glossary)


OPERATIONS: dict[str, tuple[Callable[..., Awaitable[Any]], Callable[[random.Random], Any]]] = {
    "generate": (generate, generate_spec),
    "translate": (translate, translate_spec),
}


class Tokenized:
    """Counts the characters that an operation tokenizes. characters: the count so far."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.characters = 0
        encode = bench.runtime.encode_with

        async def counting(tokenizer: Any, found: Any, convert: Any, *, pairs: Any = None, **more: Any) -> Any:
            self.characters += sum(map(len, (*found, *(pairs or ()))))
            return await encode(tokenizer, found, convert, pairs=pairs, **more)

        monkeypatch.setattr(bench.runtime, "encode_with", counting)


async def sent_by(bench: Bench, run: Callable[..., Awaitable[Any]], spec: Any) -> Generate | None:
    """Run an operation until it sends a message. Returns the message, or None if the specification is refused."""
    bench.sent.clear()
    call = Call(bench.client)
    task = asyncio.ensure_future(run(bench.runtime, call, spec))
    while not task.done() and not bench.sent:
        await asyncio.sleep(0)
    task.cancel()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    call.close()
    if isinstance(result, Exception) and not isinstance(result, RequestError):
        raise result
    return next((message for message in bench.sent if isinstance(message, Generate)), None)


def check(cost: Cost, message: Generate) -> None:
    answers = message.params.num_return_sequences
    beams = [message.params_of(row).num_beams for row in message.rows]
    assert cost.sequences >= sum(beams)
    assert cost.input_tokens >= sum(len(message.prompts[r.prompt]) + len(r.decoder_token_ids) for r in message.rows)
    assert cost.new_tokens >= sum(row.max_new_tokens * own for row, own in zip(message.rows, beams, strict=True))
    numbers = scored = 0
    for row in message.rows:
        prompt_tokens = len(message.prompts[row.prompt])
        # Log-probabilities of generated tokens are reserved as they arrive, see `test_logprob_memory`.
        scored += prompt_tokens * (1 + message.params.top_logprobs) * row.prompt_logprobs
        numbers += answers * row.max_new_tokens * prompt_tokens * message.params.attention
    assert cost.answer_numbers >= numbers
    assert cost.scored_tokens >= scored


@pytest.mark.parametrize("name", OPERATIONS)
async def test_no_operation_sends_more_than_its_cost(name: str, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.become_ready()
    tokenized = Tokenized(bench, monkeypatch)
    run, make = OPERATIONS[name]
    draw = random.Random(7)
    sent = 0
    for _ in range(ROUNDS):
        spec = make(draw)
        tokenized.characters = 0
        message = await sent_by(bench, run, spec)
        model = bench.runtime.candidates(spec.model, name)[0]
        cost = spec.cost(model)
        assert cost.input_characters >= tokenized.characters
        if message is not None:
            sent += 1
            check(cost, message)
    assert sent >= ROUNDS // 4, "most specifications are refused"


@pytest.mark.parametrize(("count", "is_inline"), [(2, True), (500, False)])
async def test_the_cost_of_many_texts_is_computed_beside_the_event_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, count: int, is_inline: bool
) -> None:
    threads = set()
    cost = TranslateSpec.cost

    def noted(spec: TranslateSpec, model: Any) -> Cost:
        threads.add(threading.get_ident())
        return cost(spec, model)

    bench.become_ready()
    monkeypatch.setattr(TranslateSpec, "cost", noted)
    spec = TranslateSpec(["Ab cd."] * count, GenerationOptions(source_lang="en", target_lang="de"))
    message = await sent_by(bench, translate, spec)
    assert message is not None
    assert (threads == {threading.get_ident()}) == is_inline


def test_windows_always_advance() -> None:
    assert max_windows(8, -5) == 9
