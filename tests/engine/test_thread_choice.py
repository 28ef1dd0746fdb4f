"""The number of threads of a worker: a small model on a large machine uses a part of its cores."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from models.families import family_of
from server.engine.process.thread_choice import MIN_CORES, RequestWork, best_threads, request_work, threads_for

DOCS = Path(__file__).parents[2] / "docs"


def config(**settings):
    described = transformers.BertConfig(**settings).to_dict() | {"architectures": ["BertModel"]}
    family, architecture = family_of(described)
    return family.config(described, architecture)


def decoder(**settings):
    described = transformers.LlamaConfig(**settings).to_dict() | {"architectures": ["LlamaForCausalLM"]}
    family, architecture = family_of(described)
    return family.config(described, architecture)


MINILM = config(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
BASE = config()


def test_a_small_embedder_does_not_use_64_cores():
    small = request_work(MINILM, 22_700_000, 90_800_000, generates=False)
    large = request_work(BASE, 109_500_000, 438_000_000, generates=False)
    assert 1 < best_threads(64, small) < best_threads(64, large) <= 64
    assert best_threads(64, small) <= 32
    assert best_threads(2, small) == 2 and best_threads(1, small) == 1
    assert threads_for([small, large], 64) == best_threads(64, large)
    assert threads_for([], 64) == 64


@pytest.mark.parametrize("cores", [1, 2, 16, 96])
def test_the_choice_has_the_shortest_expected_time(cores):
    for work in (RequestWork(0.03, 54), RequestWork(2.0, 35_000), RequestWork(24.0, 18_600), RequestWork(1e-5, 5_000)):

        def seconds(threads, work=work):
            return work.seconds / threads + work.operations * 2e-6 * threads / 2

        chosen = best_threads(cores, work, 2e-6)
        assert seconds(chosen) <= 1.02 * min(seconds(threads) for threads in range(1, cores + 1))


def test_the_figures_of_the_pages_are_those_of_the_code():
    llama = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49152}
    llama |= {"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True}
    small = request_work(MINILM, 22_713_216, 90_852_864, generates=False)
    large = request_work(BASE, 109_482_240, 437_928_960, generates=False)
    chat = request_work(decoder(**llama), 134_515_008, round(1.125 * 134_515_008), generates=True)
    small, large, chat = (best_threads(64, work) for work in (small, large, chat))
    assert (small, large, chat) == (23, 45, 8) and MIN_CORES == 8
    page = " ".join((DOCS / "scaling.md").read_text().split())
    assert (
        "On 64 cores, a MiniLM of 22 million parameters gets 23, BERT-base 45, a LLaMA of 135 million in int8 eight."
        in page
    )
    assert "Machines with fewer than eight cores use all of them." in page
    decision = " ".join((DOCS / "decisions" / "0178-threads-of-a-worker.md").read_text().split())
    assert "on 64 cores: MiniLM 23 threads, BERT-base 45, LLaMA of 135 million parameters in int8 8" in decision


def test_a_model_without_layers_uses_all_cores():
    assert best_threads(8, RequestWork(0.0, 0)) == 8
