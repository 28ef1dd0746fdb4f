"""Loading models on demand on a fake CUDA device: sizes, the device of the thread, captures, and freed memory."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from models.backends import choice
from server.engine.loading.load import load
from server.engine.process import model_loader
from server.engine.process.measuring import MeasuringMemory, all_weight_bytes
from server.engine.process.model_loader import ModelLoader
from server.engine.stepping.engine import Engine
from server.ipc.wire.descriptions import EngineOptions, ModelSpec
from server.ipc.wire.model_messages import (
    LoadModel,
    MeasureModel,
    ModelLoaded,
    ModelMeasured,
    ModelUnloaded,
    UnloadModel,
)
from tests.engine.harness import generate, run

CUDA = torch.device("cuda", 1)


class FakeDevice:
    """Records calls to CUDA, while all tensors stay on the CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: self.note(f"set {device}"))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: self.note("empty"))
        monkeypatch.setattr(model_loader, "capture_models", self.capture)
        cpu = torch.device("cpu")
        monkeypatch.setattr(model_loader, "load", lambda spec, device, *rest: load(spec, cpu, *rest))

    def note(self, call: str) -> None:
        self.calls.append(f"{threading.current_thread().name}: {call}")

    def capture(self, engine, loaded, options) -> dict[str, str]:
        self.note(f"capture {loaded[0].spec.name}")
        return {loaded[0].spec.name: "CUDA graphs"}


def run_loader(loader: ModelLoader, answers: list, message, kind):
    loader.add(message)
    end = time.monotonic() + 60
    while not any(isinstance(answer, kind) for answer in answers):
        assert time.monotonic() < end
        loader.poll()
    return answers.pop()


def test_a_model_comes_and_goes(pairs, monkeypatch):
    pair, device = pairs("gpt2"), FakeDevice(monkeypatch)
    answers: list = []
    engine = Engine({}, CUDA)
    options = EngineOptions(block_size=4, kv_spill_bytes=1 << 20, threads=1)
    loader = ModelLoader(engine, options, answers.append, device_bytes=1 << 22)
    spec = ModelSpec("gpt2", pair.loaded.spec.directory, "float32")
    loaded = run_loader(loader, answers, LoadModel(spec, 1 << 20), ModelLoaded)
    assert loaded.models[0].execution == "CUDA graphs"
    assert device.calls == ["load: set cuda:1", "MainThread: capture gpt2"]
    host = engine.models["gpt2"].generation.scheduler.blocks.host
    assert host.num_slots * host.slot_bytes == (1 << 20) // 4, "a quarter of the memory for models is its KV cache"
    monkeypatch.setattr(engine, "device", torch.device("cpu"))
    expected = run(pair.engine(), [generate(pair, 1, [5, 6, 7])]).texts(1)
    assert run(engine, [generate(pair, 1, [5, 6, 7])]).texts(1) == expected
    monkeypatch.setattr(engine, "device", CUDA)
    run_loader(loader, answers, UnloadModel("gpt2"), ModelUnloaded)
    assert device.calls[-1] == "MainThread: empty" and not engine.models


def test_the_size_of_the_weights_is_known_before_they_are_read(pairs, monkeypatch):
    FakeDevice(monkeypatch)
    answers: list = []
    loader = ModelLoader(Engine({}, CUDA), EngineOptions(threads=1), answers.append, device_bytes=1 << 30)
    spec = ModelSpec("llama", pairs("llama").loaded.spec.directory, "float32")
    need = run_loader(loader, answers, MeasureModel(spec), ModelMeasured)
    assert need.weight_bytes == load(spec, torch.device("cpu"), lambda done, total: None).model.weight_bytes


@pytest.mark.parametrize("quantization", [None, "int8", "int4-64"])
def test_weights_in_the_layout_of_the_device_have_their_size_on_the_meta_device(pairs, monkeypatch, quantization):
    """The size of a model is found without its weights, from the packed weights on the meta device.

    Packers for CUDA do not use `TensorMemory`, so their size must come from the tensors.
    """
    pytest.importorskip("triton")
    monkeypatch.setattr(choice, "_cuda_kernels", "always")
    spec = ModelSpec("llama", pairs("llama").loaded.spec.directory, "float32", quantization)
    cpu = torch.device("cpu")
    measured = load(spec, cpu, lambda done, total: None, MeasuringMemory())
    assert all(parameter.is_meta for parameter in measured.model.transformer.parameters())
    real = load(spec, cpu, lambda done, total: None)
    # Group scales are counted as float32, because their real dtype depends on values that are not known.
    assert all_weight_bytes(real) <= all_weight_bytes(measured) <= 1.1 * all_weight_bytes(real)
