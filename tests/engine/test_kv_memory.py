"""Memory for keys and values is divided by need, and a pool too small for the context is reported."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.kv_memory import PoolNeed, divide_by_need, pool_blocks
from server.engine.loading import build
from server.engine.speculation import kv_shares
from server.ipc.descriptions import EngineOptions, ModelInfo
from server.ipc.fit import shortage
from tests.ipc.test_client import DECODER, SEQ2SEQ


@given(
    st.integers(0, 10_000),
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 5000)), min_size=1, max_size=5),
)
def test_division_satisfies_needs_before_it_gives_more(total: int, pools: list[tuple[int, int]]) -> None:
    needs = [need for need, _ in pools]
    maxima = [need + more for need, more in pools]
    shares = divide_by_need(total, needs, maxima)
    assert sum(shares) <= total
    assert all(share <= most for share, most in zip(shares, maxima, strict=True))
    if sum(needs) <= total:
        assert all(share >= need for share, need in zip(shares, needs, strict=True))
    else:
        assert all(share <= need for share, need in zip(shares, needs, strict=True)), "nobody has more than its need"
        smallest = min(need for need in needs)
        if smallest * len(needs) <= total:
            assert min(shares) >= smallest, "the smallest need is satisfied first"
    assert divide_by_need(10**9, needs, maxima) == maxima


def test_a_large_context_leaves_a_small_model_its_whole_context() -> None:
    assert divide_by_need(1000, [4000, 25], [40_000, 250]) == [975, 25]
    assert divide_by_need(1000, [300, 100], [30_000, 10_000]) == [750, 250], "equally many long sequences"
    assert divide_by_need(1000, [300, 100], [30_000, 120]) == [880, 120]


def test_pools_of_one_model_are_divided_by_need_too() -> None:
    needs = {"self": PoolNeed(10, 40, 400), "cross": PoolNeed(10, 10, 100)}
    assert pool_blocks(needs, 5000) == {"self": 400, "cross": 100}
    assert pool_blocks(needs, 1000) == {"self": 80, "cross": 20}
    assert pool_blocks(needs, 300) == {"self": 20, "cross": 10}


def loaded(pairs, names: list[str], kv_cache_bytes: int) -> dict[str, ModelInfo]:
    options = EngineOptions(block_size=4, max_batch_rows=16, kv_cache_bytes=kv_cache_bytes)
    checkpoints = [pairs(name).loaded for name in names]
    shares = kv_shares(checkpoints, {}, options)
    return {name: build(one, options, share)[1] for name, one, share in zip(names, checkpoints, shares, strict=True)}


def test_two_models_run_equally_many_long_sequences(pairs) -> None:
    infos = loaded(pairs, ["gpt2", "marian"], 1 << 20)
    sequences = [info.kv_bytes / info.kv_context_bytes for info in infos.values()]
    assert min(sequences) > 1 and max(sequences) / min(sequences) == pytest.approx(1, rel=0.1)
    assert [shortage(info) for info in infos.values()] == [None, None]


def test_a_pool_too_small_for_the_context_is_told(pairs) -> None:
    whole = loaded(pairs, ["gpt2"], 1 << 20)["gpt2"]
    half = loaded(pairs, ["gpt2"], whole.kv_context_bytes // 2)["gpt2"]
    assert whole.usable_tokens == whole.context_tokens
    assert half.usable_tokens == half.kv_blocks["self"] * half.block_size < half.context_tokens
    text = shortage(half)
    assert text is not None and "--kv-cache-memory" in text
    assert f"{half.usable_tokens} of {half.context_tokens} tokens" in text


def test_the_usable_length_counts_the_default_beams_and_the_source() -> None:
    generation = msgspec.structs.replace(SEQ2SEQ.generation, num_beams=4)
    beams = msgspec.structs.replace(SEQ2SEQ, generation=generation)
    assert (SEQ2SEQ.usable_tokens, beams.usable_tokens, beams.usable_source_tokens) == (128, 32, 32)
    text = shortage(beams)
    assert text is not None and "32 of 512 tokens with 4 beams and 32 of 256 source tokens" in text
    assert shortage(msgspec.structs.replace(DECODER, adapter_of="base")) is None
