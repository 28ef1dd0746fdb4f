"""Workers share the memory of their weights: results are the same, weights are read-only, and workers may die."""

from __future__ import annotations

import faulthandler
import fcntl
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from msgspec.structs import replace

from models.backends import choice
from models.checkpoint import loader
from server.engine.loading import shared_weights
from server.engine.loading.load import LoadError, load
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.loading.model_building import build
from server.engine.loading.shared_weights import MappedMemory, fingerprint, map_weights
from server.engine.process.service import start
from server.engine.stepping.engine import Engine
from server.ipc.wire.descriptions import EngineOptions, ModelSpec, Speculation
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams
from server.ipc.wire.worker_messages import Configure, Ready
from server.ipc.workers.weight_memory import WeightMemory
from tests.engine.harness import generate, run
from tests.engine.tiny_checkpoints import ENCODERS, GENERATING
from tests.engine.worker_process import Worker
from tests.parity import speech
from tests.parity.adapters import save_adapter
from tests.parity.checkpoints import save, write_model

CPU = torch.device("cpu")
OPTIONS = EngineOptions(block_size=4, kv_cache_bytes=1 << 22, threads=1)
PRECISIONS = {"float32": ("float32", None), "bfloat16": ("bfloat16", None), "int8": ("float32", "int8")}
CASES = [(name, precision) for name in ("llama-tied", "t5") for precision in PRECISIONS] + [
    ("gptj", "float32"), ("mixtral", "int8"), ("classifier", "bfloat16"), ("masked", "float32")
]  # fmt: skip


@pytest.fixture(autouse=True)
def _cpu_only(device):
    if device.type != "cpu":
        pytest.skip("only workers on a CPU share weights")


@pytest.fixture
def memory():
    made = WeightMemory([])
    assert made.current() is not None
    yield made
    made.close()


def no_progress(done_bytes: int, total_bytes: int) -> None:
    pass


def fail() -> None:
    raise AssertionError("called although the memory is complete or free")


def mapped(memory: WeightMemory, spec: ModelSpec) -> LoadedCheckpoint:
    """Load a model whose weights are in shared memory. If the memory is empty, it is filled first."""
    shared = map_weights(memory.current(), fingerprint([spec]), lambda writing: load(spec, CPU, no_progress, writing))
    return load(spec, CPU, no_progress, shared)


def results(loaded: LoadedCheckpoint):
    """Run requests with a loaded checkpoint. Returns token events, encoder results, and the model's description."""
    requests: list[Generate | Encode] = []
    if loaded.generates:
        starts = [5] if loaded.model.config.is_encoder_decoder else []
        params = GenerationParams(logprobs=True)
        requests.append(Generate("m", params, [[5, 6, 7, 8, 9]], [GenerateRow(1, 6, 0, starts)]))
    if loaded.encodes:
        item = EncodeItem([5, 6, 7, 8], mask_index=1)
        requests.append(Encode(2, "m", loaded.encode_tasks[-1], [item]))
    model, info = build(loaded, OPTIONS, OPTIONS.kv_cache_bytes)
    found = run(Engine({"m": model}, CPU), requests)
    assert not found.failed and (found.token_events or found.encoded)
    return found.token_events, found.encoded, replace(info, load_seconds=0.0)


@pytest.mark.parametrize("name, precision", CASES, ids=map("-".join, CASES))
def test_shared_weights_have_the_bits_of_private_ones(saved, memory, name, precision):
    architecture, config = (GENERATING | ENCODERS)[name]
    spec = ModelSpec("m", str(saved(config, architecture)), *PRECISIONS[precision])
    expected = results(load(spec, CPU, no_progress))
    assert results(mapped(memory, spec)) == expected
    assert results(mapped(memory, spec)) == expected


def test_models_without_kernels(saved, memory):
    architecture, config = GENERATING["t5"]
    spec = ModelSpec("m", str(saved(config, architecture)), "float32")
    with choice.using("torch"):
        assert results(mapped(memory, spec)) == results(load(spec, CPU, no_progress))


@pytest.fixture
def configure(tmp_path, memory) -> Configure:
    """Configuration of a worker with two models: a decoder with two adapters and a draft model, and a speech model."""
    architecture, config = GENERATING["llama"]
    oracle = save(tmp_path / "base", config, architecture)
    adapters = {name: str(tmp_path / name) for name in ("warm", "cold")}
    for seed, name in enumerate(adapters):
        save_adapter(oracle, tmp_path / name, seed)
    write_model(tmp_path / "draft", config, architecture, seed=9)
    speech.write(tmp_path / "speech", "whisper")
    draft = Speculation(draft_directory=str(tmp_path / "draft"))
    specs = [
        ModelSpec("base", str(tmp_path / "base"), "float32", None, draft, adapters),
        ModelSpec("speech", str(tmp_path / "speech"), "float32"),
    ]
    return Configure(1, "cpu", specs, OPTIONS, memory.current())


def outputs(configure: Configure):
    """Start an engine and send a request to the decoder, each adapter and the speech model.

    Returns the log-probabilities of all tokens, and the descriptions of the models.
    """
    engine, infos = start(configure, lambda progress: None)
    params = GenerationParams(logprobs=True)
    frames = torch.linspace(-1, 1, infos[1].source_tokens * 2 * infos[1].num_mels).numpy().tobytes()
    names = ["base", "warm", "cold"]
    requests = [Generate(name, params, [[5, 6, 7]], [GenerateRow(row, 9)]) for row, name in enumerate(names)]
    prefix = [speech.START, speech.TRANSCRIBE]
    requests.append(Generate("speech", params, [], [GenerateRow(3, 5, 0, prefix)], frames=[frames]))
    found = run(engine, requests)
    assert len(found.tokens) == 4, found.failed
    texts = {row: [event.logprobs for event in events] for row, events in found.token_events.items()}
    return texts, [replace(info, load_seconds=0.0) for info in infos]


def test_adapters_drafts_and_speech_models(configure, monkeypatch):
    expected = outputs(replace(configure, weights_descriptor=None))
    assert outputs(configure) == expected
    # A worker that starts later reads only the shapes of the tensors from the checkpoint.
    load_weights = loader.load_weights
    monkeypatch.setattr(
        loader,
        "load_weights",
        lambda *arguments, shapes_only, **options: (
            load_weights(*arguments, shapes_only=True, **options) if shapes_only else fail()
        ),
    )
    assert outputs(configure) == expected


def test_changed_checkpoints_are_not_mixed(configure, caplog):
    start(configure, lambda progress: None)
    directory = Path(configure.models[1].directory)
    speech.write(directory, "whisper", seed=5)
    expected = outputs(replace(configure, weights_descriptor=None))
    assert outputs(configure) == expected
    assert "has changed on disk" in caplog.text


@pytest.fixture
def spec(pairs) -> ModelSpec:
    return replace(pairs("gpt2").loaded.spec, name="m")


def test_complete_memory_cannot_be_changed(memory, spec):
    mapped(memory, spec)
    for change in (
        lambda: os.pwrite(memory.current(), b"x", 0),
        lambda: os.ftruncate(memory.current(), 0),
        lambda: fcntl.fcntl(memory.current(), fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK),
    ):
        with pytest.raises(PermissionError):
            change()


def test_writing_to_shared_weights_kills_the_worker_that_does(memory, spec):
    expected = results(mapped(memory, spec))
    model = mapped(memory, spec).model.transformer
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        faulthandler.disable()
        next(parameter.data for parameter in model.parameters() if parameter.numel()).zero_()
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV
    assert results(mapped(memory, spec)) == expected


def test_a_worker_that_dies_while_it_writes_blocks_no_other(memory, spec, monkeypatch):
    ready, started = os.pipe()
    child = os.fork()
    if child == 0:
        fcntl.lockf(memory.current(), fcntl.LOCK_EX)
        os.write(memory.current(), b"half a tensor")
        os.write(started, b"x")
        signal.pause()
    os.read(ready, 1)
    waited = []

    def kill_while_waiting(seconds: float) -> None:
        if not waited:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        waited.append(seconds)

    # Only the `time` of this module is replaced, because other threads of the tests may sleep meanwhile.
    monkeypatch.setattr(shared_weights, "time", SimpleNamespace(sleep=kill_while_waiting))

    def write(writing) -> None:
        assert waited, "two workers write at the same time"
        load(spec, CPU, no_progress, writing)

    shared = map_weights(memory.current(), fingerprint([spec]), write)
    assert shared is not None
    assert results(load(spec, CPU, no_progress, shared)) == results(load(spec, CPU, no_progress))
    os.close(ready), os.close(started)


def test_a_model_that_cannot_be_loaded_leaves_empty_memory(memory, spec, tmp_path):
    with pytest.raises(LoadError, match="no config"):
        mapped(memory, ModelSpec("broken", str(tmp_path), "float32"))
    assert os.fstat(memory.current()).st_size == 0
    assert results(mapped(memory, spec)) == results(load(spec, CPU, no_progress))


def test_other_tensors_than_the_model_has_are_refused(memory, pairs, spec):
    mapped(memory, spec)
    with pytest.raises(LoadError) as caught:
        load(pairs("llama").loaded.spec, CPU, no_progress, MappedMemory(memory.current()))
    assert "the shared weights have" in str(caught.value.__cause__)


def test_changed_files_get_memory_of_their_own(tmp_path, spec):
    shutil.copytree(spec.directory, tmp_path / "m")
    spec = replace(spec, directory=str(tmp_path / "m"))
    memory = WeightMemory([spec])
    first = memory.current()
    mapped(memory, spec)
    assert memory.current() == first and os.fstat(first).st_size > 0
    (tmp_path / "m" / "config.json").touch()
    assert os.fstat(memory.current()).st_size == 0
    mapped(memory, spec)
    last = memory.current()
    memory.close()
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(last)


def test_worker_processes_share_the_mapping(pairs, memory):
    gpt2, bert = pairs("gpt2"), pairs("bert")
    cores = sorted(os.sched_getaffinity(0))[:1]
    workers = [Worker(memory, ["--processors", str(cores[0])]) for _ in range(2)]
    try:
        for worker in workers:
            worker.configure([gpt2, bert])
        models = []
        for worker in workers:
            models.append([replace(info, load_seconds=0.0) for info in worker.until(Ready).models])
            worker.send(generate(gpt2, 1, [5, 6, 7], top_logprobs=2))
        assert models[0] == models[1]
        tokens = []
        for worker in workers:
            assert os.sched_getaffinity(worker.process.pid) == set(cores)
            lines = Path(f"/proc/{worker.process.pid}/maps").read_text().splitlines()
            assert [line.split()[1] for line in lines if "triptych-weights" in line] == ["r--s"]
            found: list = []
            while not any(event.sequence_id == 1 for event in found):
                message = worker.receive()
                found += getattr(message, "finished", [])
            tokens.append([hypothesis for event in found for hypothesis in event.hypotheses])
        assert tokens[0] == tokens[1]
    finally:
        for worker in workers:
            worker.end()
