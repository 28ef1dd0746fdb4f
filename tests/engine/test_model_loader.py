"""A running worker measures, loads and unloads models when it gets messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import transformers

from server.ipc.wire.descriptions import ModelSpec
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.model_messages import (
    CacheGivenBack,
    GiveBackCache,
    LoadModel,
    MeasureModel,
    ModelFailed,
    ModelLoaded,
    ModelMeasured,
    ModelUnloaded,
    UnloadModel,
)
from server.ipc.wire.params import GenerationParams
from server.ipc.wire.step_messages import Stats, StepOutput
from server.ipc.wire.worker_messages import Ready
from tests.engine.harness import generate, reference
from tests.engine.worker_process import Worker


@pytest.fixture
def worker():
    one = Worker()
    yield one
    one.end()


def _spec(pair) -> ModelSpec:
    return ModelSpec(pair.name, pair.loaded.spec.directory, "float32")


def _answer(worker: Worker, number: int) -> list[int]:
    while True:
        output = worker.until(StepOutput)
        for failed in output.failed:
            pytest.fail(failed.message)
        for end in output.finished:
            if end.sequence_id == number:
                return end.hypotheses[0].token_ids


def test_models_come_and_go_beside_each_other_and_answer_like_transformers(pairs, worker):
    """A worker that started without models measures, loads, unloads and reloads two of them. Answers are right."""
    gpt2, marian = pairs("gpt2"), pairs("marian")
    worker.configure([], on_demand=True, stats_interval_seconds=0.05)
    assert worker.until(Ready).models == []
    for pair, number in ((gpt2, 1), (marian, 2), (gpt2, 3)):
        spec = _spec(pair)
        worker.send(MeasureModel(spec))
        need = worker.until(ModelMeasured)
        worker.send(LoadModel(spec, max(need.kv_bytes, 1 << 20)))
        loaded = worker.until(ModelLoaded)
        assert loaded.model == loaded.models[0].name == pair.name
        assert loaded.models[0].weight_bytes <= need.weight_bytes <= 1.1 * loaded.models[0].weight_bytes
        assert 0 < need.min_kv_bytes <= need.kv_bytes and need.step_bytes > 0
        prompt = [5, 6, 7]
        worker.send(generate(pair, number, prompt))
        assert _answer(worker, number) == reference(pair, prompt, max_new_tokens=12)[0][0]
        if pair is gpt2:
            worker.send(UnloadModel(pair.name))
            assert worker.until(ModelUnloaded).model == pair.name
            before: list = []
            worker.send(generate(pair, 9, prompt))
            worker.until(StepOutput, before)
            assert "no model 'gpt2'" in before[-1].failed[0].message
    assert all(message.preemptions >= 0 for message in before if isinstance(message, Stats))


def test_a_broken_checkpoint_fails_alone(pairs, worker, tmp_path):
    worker.configure([pairs("gpt2")], on_demand=True)
    worker.until(Ready)
    (tmp_path / "config.json").write_text('{"model_type": "nonsense"}')
    for message in (
        MeasureModel(ModelSpec("bad", str(tmp_path), "float32")),
        LoadModel(ModelSpec("bad", str(tmp_path), "auto"), 0),
    ):
        worker.send(message)
        failed = worker.until(ModelFailed)
        assert failed.model == "bad" and "nonsense" in failed.message
    worker.send(generate(pairs("gpt2"), 1, [5, 6, 7]))
    assert _answer(worker, 1)


def test_a_model_that_is_unloaded_while_its_weights_are_read_is_not_loaded(pairs, worker):
    worker.configure([], on_demand=True)
    worker.until(Ready)
    spec, later = _spec(pairs("gpt2")), []
    worker.send(LoadModel(spec, 1 << 20))
    worker.send(UnloadModel("gpt2"))
    assert worker.until(ModelUnloaded, later).model == "gpt2"
    worker.send(MeasureModel(spec))
    worker.until(ModelMeasured, later)
    assert not [message for message in later if isinstance(message, ModelLoaded)]
    worker.send(LoadModel(spec, 1 << 20))
    assert worker.until(ModelLoaded).model == "gpt2"


def _resident(process_id: int) -> int:
    text = Path(f"/proc/{process_id}/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+)", text, re.M)
    assert found is not None
    return int(found[1]) << 10


def test_an_idle_model_gives_its_kv_cache_back_and_answers_as_before(worker, tmp_path):
    """The memory of an idle model's KV cache is given back.

    Later requests have the same answers, without cached tokens.
    """
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=200, hidden_size=256, intermediate_size=256, num_hidden_layers=8, num_attention_heads=4
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    spec, prompt = ModelSpec("long", str(tmp_path), "float32"), [index % 190 + 3 for index in range(1500)]
    worker.configure_specs([], on_demand=True, threads=1)
    worker.until(Ready)
    worker.send(LoadModel(spec, 64 << 20))
    (info,) = worker.until(ModelLoaded).models

    def answer(number: int) -> tuple[list[int], int]:
        worker.send(Generate("long", GenerationParams(), [prompt], [GenerateRow(number, 5)]))
        while True:
            for end in worker.until(StepOutput).finished:
                if end.sequence_id == number:
                    return end.hypotheses[0].token_ids, end.cached_tokens

    first, cached = answer(1)
    again, cached_again = answer(2)
    assert first == again and cached == 0 and cached_again > 1000
    written = 1500 * info.kv_bytes // (info.kv_blocks["self"] * info.block_size)
    before = _resident(worker.process.pid)
    worker.send(GiveBackCache("long"))
    assert worker.until(CacheGivenBack).model == "long"
    assert before - _resident(worker.process.pid) > 0.9 * written > 20 << 20
    assert answer(3) == (first, 0)
    worker.send(GiveBackCache("unknown"))
    assert worker.until(CacheGivenBack).model == "unknown"


def test_requests_of_a_client_that_left_end_before_a_kv_cache_is_given_back(pairs, worker):
    worker.configure([pairs("gpt2")], on_demand=True)
    worker.until(Ready)
    worker.send(generate(pairs("gpt2"), 1, [5, 6, 7]))
    worker.send(GiveBackCache("gpt2"))
    later: list = []
    worker.until(CacheGivenBack, later)
    worker.send(generate(pairs("gpt2"), 2, [5, 6, 7]))
    assert _answer(worker, 2) == reference(pairs("gpt2"), [5, 6, 7], max_new_tokens=12)[0][0]


def test_unloading_gives_the_memory_back(worker, tmp_path):
    """Unloading a model frees its memory (100 MB here), each time that it was loaded and used."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=2000, hidden_size=512, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=8
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    spec = ModelSpec("large", str(tmp_path), "float32")
    worker.configure_specs([], on_demand=True, threads=1)
    worker.until(Ready)
    left = []
    for number in range(1, 4):
        worker.send(LoadModel(spec, 64 << 20))
        (info,) = worker.until(ModelLoaded).models
        prompt = [3 + number] * 300
        worker.send(Generate("large", GenerationParams(), [prompt], [GenerateRow(number, 5)]))
        _answer(worker, number)
        loaded = _resident(worker.process.pid)
        worker.send(UnloadModel("large"))
        worker.until(ModelUnloaded)
        left.append(_resident(worker.process.pid))
        assert loaded - left[-1] > 0.95 * info.weight_bytes
    # The first load imports modules and creates scratch memory of programs. Both stay in memory.
    assert left[2] - left[0] < 8 << 20
