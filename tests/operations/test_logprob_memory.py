"""Memory for log-probabilities is reserved as they arrive, so that long contexts are served within the limit."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from server.errors import Overloaded, RequestTooLarge
from server.ipc.client.call import Call
from server.ipc.wire.generate_messages import Finished, Generate, Hypothesis, Tokens
from server.ipc.wire.logprobs import TokenLogprob, pack
from server.ipc.wire.step_messages import Abort
from server.limits.key_limits import KeyLimits
from server.operations.admission import Admission
from server.operations.cost import SCORED_TOKEN_BYTES, Cost
from server.operations.generating.generate import GenerateSpec, generate
from server.operations.generating.generation_options import GenerationOptions
from server.operations.generating.logprob_memory import BLOCK_VALUES, LogprobMemory
from tests.api.conftest import Bench
from tests.operations.test_admission import Model, new_call

BLOCK_BYTES = BLOCK_VALUES * SCORED_TOKEN_BYTES
CONTEXT = 262_144
LONG = GenerationOptions(fill_context=True, logprobs=True, top_logprobs=20)


@pytest.fixture
def long(bench: Bench) -> Bench:
    """A bench whose decoder has a context of 262,144 tokens, all of which fit into its KV cache."""
    info = bench.infos["decoder"]
    bench.infos["decoder"] = msgspec.structs.replace(info, context_tokens=CONTEXT, kv_blocks={"self": 1 << 15})
    bench.become_ready()
    return bench


def admitted(admission: Admission, model: str = "m", key: KeyLimits | None = None) -> Call:
    call = new_call(key)
    admission.admit(call, Model(model), Cost(0, 0, 0))
    return call


def scored(count: int, top: int = 20) -> Any:
    return pack(TokenLogprob(65, -0.5, [(66, -1.0)] * top) for _ in range(count))


async def started(bench: Bench, spec: GenerateSpec) -> tuple[Any, Generate]:
    run = await generate(bench.runtime, Call(bench.client), spec)
    return run, await bench.sent_generate()


# ------------------------------------------------------------------------------------------------ reservations


def test_memory_grows_with_the_answer_and_ends_with_the_call() -> None:
    admission = Admission(1 << 20)
    call = admitted(admission)
    memory = LogprobMemory(admission, call, LONG)
    assert admission.total.memory_bytes == BLOCK_BYTES
    memory.add(BLOCK_VALUES)
    assert admission.total.memory_bytes == BLOCK_BYTES
    memory.add(1)
    assert admission.total.memory_bytes == 2 * BLOCK_BYTES
    memory.add(5 * BLOCK_VALUES)
    assert admission.total.memory_bytes >= memory.num_values * SCORED_TOKEN_BYTES
    call.close()
    assert admission.total.memory_bytes == admission.total.requests == 0
    memory.add(100 * BLOCK_VALUES)
    assert admission.total.memory_bytes == 0, "a closed call reserves nothing"


@pytest.mark.parametrize(
    ("options", "param"),
    [(LONG, "top_logprobs"), (GenerationOptions(logprobs=True), "logprobs"), (GenerationOptions(best_of=2), "best_of")],
    ids=["top", "own", "ranked"],
)
def test_an_answer_that_alone_needs_too_much_names_its_field(options: GenerationOptions, param: str) -> None:
    admission = Admission(8 * BLOCK_BYTES)
    memory = LogprobMemory(admission, admitted(admission), options)
    with pytest.raises(
        RequestTooLarge, match=f"`{param}` .* log-probabilities .* MiB .--max-request-memory"
    ) as refused:
        for _ in range(9):
            memory.add(BLOCK_VALUES)
    assert refused.value.param == param and admission.total.memory_bytes == 8 * BLOCK_BYTES


def test_others_that_need_the_memory_are_an_overload() -> None:
    admission = Admission(8 * BLOCK_BYTES)
    first, second = (LogprobMemory(admission, admitted(admission), LONG) for _ in range(2))
    first.add(5 * BLOCK_VALUES)
    second.add(3 * BLOCK_VALUES)
    with pytest.raises(Overloaded, match=r"`top_logprobs`: .* try again in") as refused:
        first.add(BLOCK_VALUES)
    assert refused.value.param == "top_logprobs" and refused.value.retry_after


def test_one_of_several_models_takes_the_share_of_the_others_only_for_a_single_request() -> None:
    admission = Admission(8 * BLOCK_BYTES, models=2)
    alone = LogprobMemory(admission, admitted(admission), LONG)
    alone.add(8 * BLOCK_VALUES)
    admission = Admission(8 * BLOCK_BYTES, models=2)
    first, _ = (LogprobMemory(admission, admitted(admission), LONG) for _ in range(2))
    with pytest.raises(Overloaded, match='"m"'):
        first.add(7 * BLOCK_VALUES)


def test_the_limit_of_a_key_counts() -> None:
    admission = Admission()
    key = KeyLimits("team", max_cost=3 * BLOCK_BYTES)
    first = LogprobMemory(admission, admitted(admission, key=key), LONG)
    with pytest.raises(RequestTooLarge, match="API key"):
        first.add(4 * BLOCK_VALUES)
    first = LogprobMemory(admission, admitted(admission, key=key), LONG)
    with pytest.raises(Overloaded, match="API key"):
        LogprobMemory(admission, admitted(admission, key=key), LONG).add(2 * BLOCK_VALUES)


# ---------------------------------------------------------------------------------------------------- requests


async def test_a_long_context_reserves_one_block(long: Bench) -> None:
    run, message = await started(long, GenerateSpec([[5, 6]], LONG, "decoder"))
    assert message.rows[0].max_new_tokens > CONTEXT - 10
    assert long.runtime.admission.total.memory_bytes < 2 << 20
    run.call.close()


@pytest.mark.parametrize("beams", [1, 2])
async def test_each_log_probability_is_counted_once(long: Bench, beams: int) -> None:
    options = GenerationOptions(logprobs=True, top_logprobs=3, num_beams=beams, num_return_sequences=beams, stream=True)
    run, message = await started(long, GenerateSpec([[5, 6]], options, "decoder"))
    sequence_id = message.rows[0].sequence_id
    long.output(tokens=[Tokens(sequence_id, [65] * 2, scored(2, 3))])
    best = Hypothesis([65] * 5, "length", logprobs=scored(5, 3), score=-1.0)
    long.output(finished=[Finished(sequence_id, [best] * beams, 0.0, 0.0, 0.0)])
    await run.complete()
    assert run.logprob_memory.num_values == beams * 5 * 4
    run.call.close()


async def test_no_memory_is_counted_without_log_probabilities(long: Bench) -> None:
    run, _ = await started(long, GenerateSpec([[5, 6]], GenerationOptions(prompt_logprobs=True), "decoder"))
    assert run.logprob_memory is None
    run.call.close()


async def test_prompt_log_probabilities_are_refused_by_their_name(long: Bench) -> None:
    long.runtime.admission.memory_bytes = 1 << 20
    options = GenerationOptions(prompt_logprobs=True, top_logprobs=20)
    with pytest.raises(RequestTooLarge, match=r"`prompt_logprobs` .* log-probabilities") as refused:
        await generate(long.runtime, Call(long.client), GenerateSpec([[5] * 1000], options, "decoder"))
    assert refused.value.param == "prompt_logprobs"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/generate", {"logprobs": True, "top_logprobs": 20}, "top_logprobs"),
        ("/generate", {"logprobs": True}, "logprobs"),
        ("/v1/completions", {"logprobs": 20}, "logprobs"),
    ],
    ids=["native-top", "native", "completions"],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_answer_without_memory_ends_with_an_error_and_frees_all(
    long: Bench, http: httpx.AsyncClient, path: str, fields: dict[str, Any], param: str, stream: bool
) -> None:
    """The worker ends the sequence, no answer looks complete, and no memory stays reserved."""
    long.runtime.admission.memory_bytes = 3 << 20
    limit = {"max_tokens" if path.startswith("/v1") else "max_new_tokens": CONTEXT}
    body = {"model": "decoder", "prompt": "abc", "stream": stream, **limit, **fields}
    task = asyncio.create_task(http.post(path, json=body))
    (row,) = await long.sent_rows()
    for _ in range(200):
        long.output(tokens=[Tokens(row.sequence_id, [65] * 64, scored(64, fields.get("top_logprobs", 0)))])
        assert long.runtime.admission.total.memory_bytes <= 3 << 20
        for _ in range(10):
            await asyncio.sleep(0)
        if any(isinstance(message, Abort) for message in long.sent):
            break
    answer = await task
    if stream:
        assert answer.status_code == 200 and "[DONE]" not in answer.text and "event: done" not in answer.text
        error = json.loads(answer.text.strip().rpartition("data: ")[2])["error"]
    else:
        assert answer.status_code in (400, 422)
        error = answer.json()["error"]
    assert error["code"] == "request_too_large" and error["param"] == param and f"`{param}`" in error["message"]
    assert long.runtime.admission.total.memory_bytes == long.runtime.admission.total.requests == 0


async def test_a_long_answer_within_the_limit_is_complete(long: Bench, http: httpx.AsyncClient, tmp_path: Path) -> None:
    body = {"model": "decoder", "prompt": "abc", "max_new_tokens": CONTEXT, "logprobs": True, "top_logprobs": 2}
    task = asyncio.create_task(http.post("/generate", json=body))
    (row,) = await long.sent_rows()
    for _ in range(100):
        long.output(tokens=[Tokens(row.sequence_id, [65] * 8, scored(8, 2))])
    whole = Hypothesis([65] * 800, "length", logprobs=scored(800, 2))
    long.output(finished=[Finished(row.sequence_id, [whole], 0.0, 0.0, 0.0)])
    choice = (await task).json()["choices"][0]
    assert len(choice["logprobs"]) == 800 and choice["finish_reason"] == "length"
