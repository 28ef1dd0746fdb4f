"""Requests with LoRA adapters get the tokens of weights merged by peft, alone and in a batch with other adapters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from models.checkpoint.loader import load_model
from models.lora.adapters import AdapterRows
from server.engine.loading.load import LoadError, load
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.loading.model_building import build
from server.engine.loading.model_infos import adapter_infos
from server.engine.process.service import start
from server.engine.sequences import prefix_keys, sequence
from server.ipc.wire.descriptions import EngineOptions, ModelSpec
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.ipc.wire.worker_messages import Configure
from tests.engine.harness import Pair, generate, reference, run
from tests.engine.speculative import counts, speculating
from tests.engine.tiny_checkpoints import ENCODERS, GENERATING
from tests.ipc.one_row import id_of
from tests.parity.adapters import save_adapter
from tests.parity.checkpoints import random_ids, save
from tests.parity.paged import Rows, one_shot

BASE = "base"
ADAPTERS = {
    "warm": {},
    "cold": {"r": 1, "lora_alpha": 2},
    "dry": {"r": 8, "lora_alpha": 4, "use_rslora": True},
}
NAMES = [BASE, *ADAPTERS]
FAMILIES = ["llama", "gpt2", "gpt-neox", "t5", "bart"]
PROMPTS = random_ids(97, [3, 17, 1, 9, 30, 5, 2, 12, 7, 21, 4, 11], seed=8)


class Family:
    """A checkpoint with three adapters in the engine, and its oracles: the base model and three merged models."""

    def __init__(self, name: str, home: Path, device, quantization=None) -> None:
        architecture, config = (GENERATING | ENCODERS)[name]
        oracle = save(home / BASE, config, architecture)
        oracles = {BASE: oracle}
        for seed, (adapter, settings) in enumerate(ADAPTERS.items()):
            oracles[adapter] = save_adapter(oracle, home / adapter, seed, **settings)
        directories = {adapter: str(home / adapter) for adapter in ADAPTERS}
        spec = ModelSpec(BASE, str(home / BASE), "float32", quantization, adapters=directories)
        paths = {adapter: home / adapter for adapter in ADAPTERS}
        model = load_model(home / BASE, torch.float32, device, None, quantization, paths)
        self.spec = spec
        self.loaded = LoadedCheckpoint(spec, model, torch.float32, device, 0.0)
        self.pairs = {which: Pair(which, oracles[which].to(device), self.loaded) for which in NAMES}

    def engine(self, **options):
        return Pair(BASE, self.pairs[BASE].oracle, self.loaded).engine(**options)

    def mixed_requests(self, **settings) -> list:
        """Greedy and beam requests that alternate between the base model and the adapters."""
        kinds = [{}, {"num_beams": 3, "num_return_sequences": 2}, {"min_new_tokens": 9}]
        return [
            generate(self.pairs[NAMES[i % 4]], i, prompt, max_new_tokens=8 + i, **(kinds[i % 3] | settings))
            for i, prompt in enumerate(PROMPTS)
        ]


@pytest.fixture(scope="module")
def families(tmp_path_factory, device):
    made = {}

    def get(name: str) -> Family:
        if name not in made:
            made[name] = Family(name, tmp_path_factory.mktemp(name), device)
        return made[name]

    return get


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, families):
    return families(request.param)


def answers(results) -> dict:
    assert not results.failed
    return {sequence_id: results.texts(sequence_id) for sequence_id in results.finished}


@pytest.fixture(scope="module")
def alone(family):
    return {
        id_of(request): run(family.engine(), [request]).texts(id_of(request)) for request in family.mixed_requests()
    }


def test_an_adapter_alone_equals_merged_weights(family, alone):
    for request in family.mixed_requests():
        params = request.params
        settings = {
            "num_beams": params.num_beams,
            "num_return_sequences": params.num_return_sequences,
            "min_new_tokens": params.min_new_tokens,
            "max_new_tokens": request.rows[0].max_new_tokens,
        }
        texts, _ = reference(family.pairs[request.model], request.prompts[0], **settings)
        assert alone[id_of(request)] == texts


def test_rows_of_three_adapters_and_the_base_in_one_batch(family, alone):
    assert answers(run(family.engine(), family.mixed_requests())) == alone


@pytest.mark.parametrize("max_batch_tokens, block_size", [(5, 4), (16, 1)])
def test_in_chunks(family, alone, max_batch_tokens, block_size):
    engine = family.engine(max_batch_tokens=max_batch_tokens, block_size=block_size)
    assert answers(run(engine, family.mixed_requests(), every=1)) == alone


def test_preempted_and_computed_again(family, alone):
    engine = family.engine()
    scheduler = engine.models[BASE].generation.scheduler
    needed = max(
        request.params.num_beams
        * scheduler.blocks.self_pool.blocks_for(
            len(request.rows[0].decoder_token_ids or request.prompts[0]) + request.rows[0].max_new_tokens
        )
        for request in family.mixed_requests()
    )
    scheduler.blocks.self_pool = type(scheduler.blocks.self_pool)(needed, scheduler.blocks.self_pool.block_size)
    assert answers(run(engine, family.mixed_requests())) == alone
    assert scheduler.num_preemptions > 0, "the pool is too large to cause a preemption"


def test_swapped_adapters_are_noticed(family, alone, monkeypatch):
    """Negative control: if every row gets another row's adapter, the tokens differ."""
    plain = AdapterRows.__init__

    def swapped(self, names, counts, device):
        plain(self, (*names[1:], names[0]), counts, device)

    monkeypatch.setattr(AdapterRows, "__init__", swapped)
    found = answers(run(family.engine(), family.mixed_requests()))
    assert sum(found[sequence_id] != alone[sequence_id] for sequence_id in alone) >= 6


def test_the_adapters_give_different_tokens(family, alone):
    prompt = random_ids(97, [9], seed=4)[0]
    requests = [generate(family.pairs[name], i, prompt, end_token_ids=[]) for i, name in enumerate(NAMES)]
    assert len({str(text) for text in answers(run(family.engine(), requests)).values()}) == 4


def run_one_after_the_other(family, names) -> tuple[list, list[int]]:
    """Run the same long prompt with each of `names`, one after the other, in one engine.

    Returns the new tokens and the numbers of cached tokens.
    """
    prompt, engine = random_ids(97, [41], seed=2)[0], family.engine()
    texts, cached = [], []
    for i, name in enumerate(names):
        finished = run(engine, [generate(family.pairs[name], i, prompt, end_token_ids=[])]).finished[i]
        texts.append(finished.hypotheses[0].token_ids)
        cached.append(finished.cached_tokens)
    return texts, cached


def test_no_blocks_are_shared_between_adapters(families, monkeypatch):
    """Adapters do not share prefix cache blocks. Negative control: if they do, the texts are wrong."""
    family = families("llama")
    texts, cached = run_one_after_the_other(family, [*NAMES, *NAMES])
    assert cached == [0] * 4 + [40] * 4
    assert texts[:4] == texts[4:]
    monkeypatch.setattr(sequence, "root_key", lambda salt: prefix_keys.root_key(salt.rpartition(" ")[2]))
    mixed, found = run_one_after_the_other(family, NAMES)
    assert found == [0, 40, 40, 40]
    assert mixed[0] == texts[0] and mixed[1:] != texts[1:4]


def test_drafts_change_no_text(families):
    family = families("llama")
    engine = speculating(family.pairs[BASE])
    prompts = [text * 3 for text in PROMPTS]
    requests = [generate(family.pairs[NAMES[i % 4]], i, text, max_new_tokens=30) for i, text in enumerate(prompts)]
    plain = answers(run(family.engine(), requests))
    assert answers(run(engine, requests)) == plain
    assert counts(engine)[0] > 0


@torch.inference_mode()
def test_attention_of_an_answer_equals_merged_weights(families):
    family, source = families("bart"), PROMPTS[4]
    requests = [generate(family.pairs[name], i, source, attention=True) for i, name in enumerate(NAMES)]
    results = run(family.engine(), requests)
    for i, name in enumerate(NAMES):
        (hypothesis,) = results.finished[i].hypotheses
        ours = np.frombuffer(hypothesis.attention, "<f4").reshape(-1, len(source))
        pair = family.pairs[name]
        said = pair.oracle(
            input_ids=torch.tensor([source]),
            decoder_input_ids=torch.tensor([pair.starts + hypothesis.token_ids[:-1]]),
            output_attentions=True,
        )
        np.testing.assert_allclose(ours, said.cross_attentions[-1][0].mean(0).numpy(), atol=1e-4)


def test_an_unknown_adapter_is_refused(families):
    family = families("llama")
    request = replace(generate(family.pairs[BASE], 0, [5, 6]), model="nobody")
    results = run(family.engine(), [request])
    assert results.failed[0].code == "engine_error"


@pytest.mark.parametrize("name", ["bert", "classifier"])
def test_encoder_vectors_with_adapters(families, name):
    family = families(name)
    task = "embed" if name == "bert" else "classify"
    requests = [
        Encode(i, NAMES[i % 4], task, [EncodeItem(text), EncodeItem(text[::-1])], pooling="cls", normalize=False)
        for i, text in enumerate(PROMPTS)
    ]
    together = run(family.engine(), requests)
    assert not together.failed and len(together.encoded) == 2 * len(PROMPTS)
    for request in requests:
        alone = run(family.engine(), [request])
        for index, item in enumerate(request.items):
            found = np.frombuffer(together.encoded[request.sequence_id, index], dtype="<f4")
            by_itself = np.frombuffer(alone.encoded[request.sequence_id, index], dtype="<f4")
            np.testing.assert_allclose(found, by_itself, rtol=1e-5, atol=1e-6)
            with torch.inference_mode():
                said = family.pairs[request.model].oracle(torch.tensor([item.token_ids], device=family.loaded.device))
            expected = said.last_hidden_state[0, 0] if name == "bert" else said.logits[0]
            np.testing.assert_allclose(found, expected.cpu().numpy(), rtol=1e-4, atol=1e-4)


def test_token_logits_and_masked_tokens_with_adapters(families):
    texts = PROMPTS[:8]
    for name, task in (("tagger", "classify_tokens"), ("masked", "fill_mask")):
        family = families(name)
        requests = [
            Encode(i, NAMES[i % 4], task, [EncodeItem(text, mask_index=len(text) - 1)], top_k=97)
            for i, text in enumerate(texts)
        ]
        together = run(family.engine(), requests)
        for request, text in zip(requests, texts, strict=True):
            found = np.frombuffer(together.encoded[request.sequence_id, 0], dtype="<f4")
            with torch.inference_mode():
                said = family.pairs[request.model].oracle(torch.tensor([text], device=family.loaded.device))
            if name == "tagger":
                expected = said.logits[0].flatten()
            else:
                expected = said.logits[0, -1].softmax(-1)[together.words[request.sequence_id, 0]]
            np.testing.assert_allclose(found, expected.cpu().numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5", "bart"])
def test_an_adapter_is_as_exact_as_its_int8_base(name, tmp_path, device):
    exact = Family(name, tmp_path, device)
    paths = {adapter: tmp_path / adapter for adapter in ADAPTERS}
    rounded = load_model(tmp_path / BASE, torch.float32, device, quantization="int8", adapters=paths).transformer
    text = PROMPTS[4]
    sources = [text[::-1]] if exact.loaded.model.config.is_encoder_decoder else None

    @torch.inference_mode()
    def logits(model, adapter=""):
        (hidden,) = one_shot(Rows(model, sources, adapters=(adapter,)), [text])
        return model.logits(hidden)

    def spread(difference) -> float:
        return float(difference.square().mean().sqrt())

    unrounded = exact.loaded.model.transformer
    for adapter in ADAPTERS:
        error = spread(logits(rounded, adapter) - logits(unrounded, adapter))
        assert error < 2 * spread(logits(rounded) - logits(unrounded))
        assert spread(logits(rounded, adapter) - logits(rounded)) > 10 * error


def test_an_int8_base_alone_and_in_a_batch(tmp_path, device):
    family = Family("llama", tmp_path, device, quantization="int8")
    alone = {
        id_of(request): run(family.engine(), [request]).texts(id_of(request)) for request in family.mixed_requests()
    }
    assert answers(run(family.engine(), family.mixed_requests())) == alone


def test_model_info_of_adapters(families):
    family = families("llama")
    engine, base = build(family.loaded, EngineOptions(kv_cache_bytes=1 << 22), 1 << 22)
    infos = {info.name: info for info in adapter_infos(family.loaded, base)}
    assert list(infos) == list(engine.adapters) == list(ADAPTERS)
    for info in infos.values():
        assert (info.adapter_of, info.kv_bytes, info.tasks, info.kv_blocks) == (BASE, 0, base.tasks, base.kv_blocks)
        assert info.weight_bytes >= 4 * info.parameters
    # One adapter has rank 4 and the other rank 8, for the same linear layers.
    assert 2 * infos["warm"].parameters == infos["dry"].parameters
    assert base.adapter_of == ""


def test_a_worker_warms_up_its_adapters(families):
    spec = families("llama").spec
    options = EngineOptions(kv_cache_bytes=1 << 22, threads=1)
    engine, infos = start(Configure(0, "cpu", [spec], options), lambda progress: None)
    assert [info.name for info in infos] == NAMES
    assert engine.stats().running == 0


def test_an_adapter_that_cannot_be_loaded_gives_a_one_line_error(families, tmp_path):
    spec = replace(families("llama").spec, adapters={"tone": str(tmp_path)})
    with pytest.raises(LoadError, match=r"^model 'base': adapter 'tone': the directory has no adapter_config.json$"):
        load(spec, torch.device("cpu"), lambda done, total: None)
