"""A checkpoint with a draft head: how the head is asked for and described, and how its memory is counted."""

from __future__ import annotations

import pytest
import torch

from server.engine.loading.load import LoadError, load
from server.engine.loading.model_building import build
from server.engine.loading.packed_cache import packed_key
from server.engine.loading.speculation import find_drafts, make_drafter
from server.engine.process.measuring import MeasuringMemory
from server.ipc.wire.descriptions import EngineOptions, ModelSpec, Speculation
from tests.engine.drafted_models import drafter_of, spec_of
from tests.models.draft_heads import LLAMA, predicting_checkpoint
from tests.parity.checkpoints import save


def test_a_model_without_a_head_cannot_be_asked_for_it(tmp_path, device):
    save(tmp_path, LLAMA[1], LLAMA[0])
    demanded = load(spec_of("llama", tmp_path, Speculation(prediction_head=True)), device, lambda done, total: None)
    with pytest.raises(LoadError, match="its checkpoint has no prediction head"):
        find_drafts([demanded], lambda spec: demanded)
    way = Speculation(prediction_head=True, is_optional=True)
    optional = load(spec_of("llama", tmp_path, way), device, lambda done, total: None)
    assert find_drafts([optional], lambda spec: optional) == {}
    options = EngineOptions(kv_cache_bytes=1 << 20)
    share, drafter = make_drafter(optional, None, options, 1 << 20)
    assert (share, drafter) == (1 << 20, None)
    assert build(optional, options, share, drafter)[1].drafts == ""


def test_the_description_names_the_head(head_models, tmp_path, device):
    for kind, text in (("glm4_moe", "prediction head of the checkpoint"), ("eagle3", "EAGLE-3 head head")):
        model, options = head_models(kind), EngineOptions(kv_cache_bytes=1 << 20)
        share, drafter = make_drafter(model.loaded, None, options, 1 << 20)
        info = build(model.loaded, options, share, drafter)[1]
        assert info.drafts == text and not info.notes
    predicting_checkpoint("glm4_moe", tmp_path)
    unused = load(ModelSpec("glm", str(tmp_path), "float32"), device, lambda done, total: None)
    info = build(unused, options, 1 << 20)[1]
    assert info.drafts == "" and "--speculative mtp" in info.notes[0]


@pytest.mark.parametrize("kind", ["glm4_moe", "eagle3"])
def test_memory_of_the_head_is_counted(head_models, kind):
    """The KV cache of the head has as many blocks as that of the model. Its bytes count as memory of the model."""
    model, options = head_models(kind), EngineOptions(block_size=4, kv_cache_bytes=1 << 20)
    one = model.engine(kv_cache_bytes=1 << 20)
    generation, cache = one.models[kind].generation, drafter_of(one).cache
    own = generation.runner.self_cache
    assert cache.num_blocks == own.num_blocks == generation.scheduler.blocks.self_pool.num_blocks
    used = sum(tensor.nbytes for tensor in (*cache.tensors, *own.tensors))
    need = model.loaded.pool_needs(options)["self"]
    assert used == need.block_bytes * own.num_blocks <= 1 << 20
    assert used + need.block_bytes > 1 << 20 or own.num_blocks == need.max_blocks


def test_memory_is_measured_without_reading(head_models, device):
    loaded, memory = head_models("eagle3").loaded, MeasuringMemory()
    measured = load(loaded.spec, device, lambda done, total: None, memory)
    assert measured.model.draft_head.num_logits == 40
    assert memory.kept_bytes == measured.model.weight_bytes == loaded.model.weight_bytes
    assert packed_key(loaded.spec, torch.float32, device) != packed_key(
        ModelSpec(loaded.spec.name, loaded.spec.directory, "float32"), torch.float32, device
    )
