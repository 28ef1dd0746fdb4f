"""`cost()` is an upper bound: no operation sends more to the engine than its specification's cost says."""

from __future__ import annotations

import asyncio
import random
import sys
import unicodedata
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from server.errors import RequestError
from server.ipc.call import Call
from server.ipc.messages import Encode, Generate
from server.operations.classify import ClassifySpec, classify
from server.operations.cost import MAX_TOKENS_PER_CHARACTER, Cost, max_tokens, max_windows
from server.operations.embed import EmbedAllSpec, EmbedSpec, embed, embed_all
from server.operations.fill_mask import FillMaskSpec, fill_mask
from server.operations.generate import GenerateSpec, generate
from server.operations.generation_options import GenerationOptions
from server.operations.question_answer import QuestionAnswerSpec, question_answer
from server.operations.rerank import RerankSpec, rerank
from server.operations.runtime import ServedModel
from server.operations.similarity import SimilaritySpec, similarity
from server.operations.token_classify import TokenClassifySpec, token_classify
from server.operations.translate import TranslateSpec, translate
from server.operations.zero_shot_classify import ZeroShotClassifySpec, zero_shot_classify
from tests.api.conftest import Bench

ROUNDS = 40
CHARACTERS = "ab. ! ,?\n日。é\ufdfa😀"


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
    return TranslateSpec(inputs, options, draw.randint(0, 3), draw.choice([None, True, False]))


def embed_inputs(draw: random.Random) -> list[str | list[int]]:
    return [draw.choice([some_text, some_ids])(draw) for _ in range(draw.randint(1, 4))]


def texts(draw: random.Random, longest: int = 300) -> list[str]:
    return [some_text(draw, longest) for _ in range(draw.randint(1, 4))]


def pairs(draw: random.Random) -> list[tuple[str, ...]]:
    return [tuple(texts(draw)[:2]) for _ in range(draw.randint(1, 4))]


OPERATIONS: dict[str, tuple[Callable[..., Awaitable[Any]], Callable[[random.Random], Any]]] = {
    "generate": (generate, generate_spec),
    "translate": (translate, translate_spec),
    "embed": (embed, lambda draw: EmbedSpec(embed_inputs(draw), pooling=draw.choice([None, "mean"]))),
    "embed_all": (embed_all, lambda draw: EmbedAllSpec(embed_inputs(draw), truncation=draw.choice([None, "left"]))),
    "classify": (classify, lambda draw: ClassifySpec(pairs(draw))),
    "similarity": (similarity, lambda draw: SimilaritySpec(some_text(draw), texts(draw))),
    "rerank": (rerank, lambda draw: RerankSpec(some_text(draw), texts(draw))),
    "fill_mask": (fill_mask, lambda draw: FillMaskSpec([f"{text}<mask>" for text in texts(draw, 30)])),
    "token_classify": (
        token_classify,
        lambda draw: TokenClassifySpec(texts(draw, 800), stride_tokens=draw.choice([None, 0, 64, 500])),
    ),
    "question_answer": (
        question_answer,
        lambda draw: QuestionAnswerSpec(some_text(draw, draw.choice([5, 90])), some_text(draw, 800)),
    ),
    "zero_shot_classify": (
        zero_shot_classify,
        lambda draw: ZeroShotClassifySpec(texts(draw), [str(label) for label in range(draw.randint(1, 4))]),
    ),
}


class Tokenized:
    """Counts the characters that an operation tokenizes."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.characters = 0
        encode = bench.runtime.encode

        async def counting(tokenizer: Any, found: Any, *, pairs: Any = None, **more: Any) -> Any:
            self.characters += sum(map(len, (*found, *(pairs or ()))))
            return await encode(tokenizer, found, pairs=pairs, **more)

        monkeypatch.setattr(bench.runtime, "encode", counting)


async def sent_by(bench: Bench, run: Callable[..., Awaitable[Any]], spec: Any) -> Generate | Encode | None:
    """The message that an operation sends, or None if it refuses the specification."""
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
    return next((message for message in bench.sent if isinstance(message, Generate | Encode)), None)


def check(cost: Cost, message: Generate | Encode, model: ServedModel, spec: Any) -> None:
    if isinstance(message, Generate):
        beams, answers = message.params.num_beams, message.params.num_return_sequences
        assert cost.sequences >= len(message.rows) * beams
        tokens = [len(message.prompts[row.prompt]) + len(row.decoder_token_ids) for row in message.rows]
        assert cost.input_tokens >= sum(tokens)
        assert cost.new_tokens >= sum(row.max_new_tokens for row in message.rows) * beams
        numbers = 0
        for row in message.rows:
            per_token = 1 + message.params.top_logprobs
            numbers += answers * row.max_new_tokens * per_token * message.params.logprobs
            numbers += len(message.prompts[row.prompt]) * per_token * row.prompt_logprobs
            numbers += answers * row.max_new_tokens * len(message.prompts[row.prompt]) * message.params.attention
        assert cost.answer_numbers >= numbers
        return
    assert cost.sequences >= len(message.items)
    tokens = [len(item.token_ids) for item in message.items]
    assert cost.input_tokens >= sum(tokens)
    width = {"embed": model.info.hidden_size, "embed_tokens": model.info.hidden_size, "fill_mask": message.top_k}
    rows = sum(tokens) if message.task in ("embed_tokens", "classify_tokens") else len(tokens)
    if not isinstance(spec, SimilaritySpec | ZeroShotClassifySpec):
        assert cost.answer_numbers >= rows * width.get(message.task, len(model.info.labels))


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
            check(cost, message, model, spec)
    assert sent >= ROUNDS // 4, "most specifications are refused"


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_no_character_becomes_more_bytes_than_the_bound(form: str) -> None:
    longest = max(
        len(unicodedata.normalize(form, chr(code)).encode())
        for code in range(sys.maxunicode + 1)
        if not 0xD800 <= code <= 0xDFFF
    )
    assert longest <= MAX_TOKENS_PER_CHARACTER


def test_limits_of_a_model_bound_the_tokens_of_a_text() -> None:
    assert max_tokens(1000, 512) == 512
    assert max_tokens(1) == MAX_TOKENS_PER_CHARACTER + 8
    assert max_windows(0, -5) == 9
