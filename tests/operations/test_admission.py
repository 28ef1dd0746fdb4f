"""Admission by cost: no limit is ever exceeded, and nothing stays reserved after the last call has ended."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import ClientGone, Overloaded, RequestError, RequestTooLarge, StartError
from server.ipc.client.call import Call
from server.limits.key_limits import KeyLimits
from server.operations.admission import PROCESS_BYTES, Admission, default_memory_bytes, memory_within
from server.operations.cost import CHARACTER_BYTES, Cost
from server.operations.labelling.token_classify import TokenClassifySpec, token_classify
from server.operations.ranking.rerank import RerankSpec, rerank
from tests.api.conftest import Bench
from tests.operations.test_pools import NoClient

MIB = 1 << 20


@dataclass(frozen=True)
class Model:
    """A fake model with the only attribute that admission uses, its name."""

    name: str = "m"


def new_call(key: KeyLimits | None = None) -> Call:
    return Call(NoClient(), key=key)  # type: ignore[arg-type]


def of_bytes(memory: int, tokens: int = 0) -> Cost:
    return Cost(memory // CHARACTER_BYTES, 0, 0, new_tokens=0) if not tokens else Cost(0, tokens, 0)


def test_a_reservation_ends_with_its_call() -> None:
    admission = Admission(10 * MIB)
    first, second = new_call(), new_call()
    admission.admit(first, Model(), of_bytes(8 * MIB))
    with pytest.raises(Overloaded) as refused:
        admission.admit(second, Model(), of_bytes(4 * MIB))
    assert refused.value.retry_after is not None and refused.value.retry_after >= 1
    first.close()
    first.close()
    assert admission.total.memory_bytes == 0
    admission.admit(second, Model(), of_bytes(4 * MIB))


def test_a_request_that_never_fits_names_field_size_and_limit() -> None:
    with pytest.raises(RequestTooLarge) as refused:
        Admission(MIB).admit(new_call(), Model(), of_bytes(4 * MIB), "texts")
    assert refused.value.param == "texts"
    for part in ("`texts`", "1,048,576 characters", "262,144 characters", "4 MiB", "1 MiB", "--max-request-memory"):
        assert part in refused.value.message


def test_the_largest_cost_of_a_call_counts() -> None:
    admission, call = Admission(10 * MIB), new_call()
    for memory in (2 * MIB, 6 * MIB, MIB):
        admission.admit(call, Model(), of_bytes(memory))
    assert admission.total.memory_bytes == 6 * MIB and admission.total.requests == 1


def test_one_of_several_models_leaves_room_for_the_others() -> None:
    admission = Admission(8 * MIB, max_requests=8, models=2)
    admission.admit(new_call(), Model("a"), of_bytes(4 * MIB))
    with pytest.raises(Overloaded, match='"a"'):
        admission.admit(new_call(), Model("a"), of_bytes(3 * MIB))
    admission.admit(new_call(), Model("b"), of_bytes(3 * MIB))
    for _ in range(5):
        admission.admit(new_call(), Model("a"), of_bytes(0))
    with pytest.raises(Overloaded, match='6 requests for "a"'):
        admission.admit(new_call(), Model("a"), of_bytes(0))


@pytest.mark.parametrize("limits", [{"max_requests": 1}, {"max_tokens": 10}, {"max_cost": 1000.0}], ids=str)
def test_limits_of_a_key(limits: dict[str, int]) -> None:
    key, admission = KeyLimits("team", **limits), Admission()
    first = new_call(key)
    admission.admit(first, Model(), of_bytes(0, 8))
    with pytest.raises(Overloaded, match="API key"):
        admission.admit(new_call(key), Model(), of_bytes(0, 8))
    admission.admit(new_call(KeyLimits("other")), Model(), of_bytes(0, 8))
    first.close()
    admission.admit(new_call(key), Model(), of_bytes(0, 8))
    if "max_requests" not in limits:
        with pytest.raises(RequestTooLarge, match="API key"):
            admission.admit(new_call(key), Model(), of_bytes(0, 80))


def test_nothing_is_reserved_for_a_client_that_has_left() -> None:
    admission, call = Admission(), new_call()
    call.leave()
    with pytest.raises(ClientGone):
        admission.admit(call, Model(), of_bytes(MIB))
    assert admission.total.memory_bytes == 0


@given(
    st.lists(
        st.tuples(st.sampled_from(["admit", "close", "leave"]), st.integers(0, 5), st.integers(0, 12 * MIB)),
        max_size=40,
    )
)
def test_reserved_is_zero_after_any_interleaving(steps: list[tuple[str, int, int]]) -> None:
    keys = [None, KeyLimits("a", 2, 100, 6.0 * MIB), KeyLimits("b")]
    admission = Admission(10 * MIB, max_requests=6, models=2)
    calls = [new_call(keys[place % 3]) for place in range(6)]
    for action, place, memory in steps:
        if action == "admit":
            with contextlib.suppress(RequestError):
                admission.admit(calls[place], Model("xy"[place % 2]), of_bytes(memory))
        elif action == "close":
            calls[place].close()
        else:
            calls[place].leave()
        assert 0 <= admission.total.memory_bytes <= 10 * MIB and 0 <= admission.total.requests <= 6
    for call in calls:
        call.close()
    assert admission.total.memory_bytes == admission.total.requests == admission.total.tokens == 0
    assert not admission._by_model and not admission._by_key and not admission._calls


def test_the_default_follows_the_memory_of_the_machine() -> None:
    assert default_memory_bytes(1 << 30) == 64 * MIB
    assert default_memory_bytes(4 << 30) == 256 * MIB
    assert default_memory_bytes(1 << 40) == 384 * MIB


def test_requests_get_what_a_limit_of_the_process_leaves() -> None:
    """The memory for requests is limited to what the process may use. If that is too little, the server does not start.

    Some libraries end the process when they get no memory.
    """
    assert memory_within(PROCESS_BYTES + 100 * MIB, None, 384 * MIB) == 100 * MIB
    assert memory_within(PROCESS_BYTES + 900 * MIB, None, 384 * MIB) == 384 * MIB
    assert memory_within(PROCESS_BYTES + 20 * MIB, 20 * MIB, 384 * MIB) == 20 * MIB
    with pytest.raises(StartError, match=r"leave 700 MiB, and the server needs 704 MiB .* raise the limits$"):
        memory_within(PROCESS_BYTES + 60 * MIB, None, 384 * MIB)
    with pytest.raises(StartError, match="or lower --max-request-memory"):
        memory_within(PROCESS_BYTES + 99 * MIB, 100 * MIB, 384 * MIB)


async def test_a_long_query_is_not_repeated(bench: Bench) -> None:
    """A long query with many texts costs little memory, because the query is not repeated for each text.

    This request (60,000 words, 1,000 texts) once took 24 GB.
    """
    bench.become_ready()
    model = bench.runtime.candidates(None, "rerank")[0]
    cost = RerankSpec("word " * 60_000, ["a text"] * 1000).cost(model)
    assert cost.input_characters == 306_000 and cost.memory_bytes < 100 * MIB


async def test_a_stride_that_multiplies_the_text_is_refused_before_it_is_tokenized(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.become_ready()
    monkeypatch.setattr(bench.runtime, "encode_with", None)
    model = bench.runtime.candidates(None, "token_classify")[0]
    spec = TokenClassifySpec(["word " * 40_000], stride_tokens=model.max_input_tokens - 3)
    with Call(bench.client) as call, pytest.raises(RequestTooLarge, match="`inputs`"):
        await token_classify(bench.runtime, call, spec)


async def test_an_operation_is_refused_before_it_tokenizes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.become_ready()
    monkeypatch.setattr(bench.runtime, "encode_with", None)
    bench.runtime.admission.memory_bytes = 100
    with Call(bench.client) as call, pytest.raises(RequestTooLarge):
        await rerank(bench.runtime, call, RerankSpec("a", ["b"]))
