"""Settings for CUDA devices, tested with fake devices: the dtype `auto`, old devices, and the size of the KV cache."""

from __future__ import annotations

import copy
import dataclasses
import gc
import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from models.backends import choice
from models.config import ConfigError
from models.steps import kv_cache
from server.engine.device import devices
from server.engine.loading.load import LoadError
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.loading.model_building import build
from server.engine.loading.speculation import kv_shares
from server.engine.process import memory_profile, service
from server.engine.process.memory_profile import PROFILE_TOKENS, SPARE_SHARE, kv_cache_bytes, room_for_models
from server.engine.stepping import generation_engine
from server.engine.stepping.engine import Engine
from server.ipc.wire.descriptions import EngineOptions, ModelSpec
from tests.engine.accounted_memory import AccountedMemory
from tests.engine.tiny_checkpoints import GENERATING
from tests.parity import moonshine
from tests.parity.checkpoints import load, write_model

CUDA = torch.device("cuda", 0)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, tuple[int, int], int], None]:
    """A function that makes torch report fake devices: `cuda(name, capability, count)`."""

    def pretend(name: str, capability: tuple[int, int], count: int = 1) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "sm_90a", "compute_90"])

    return pretend


def test_auto_is_bfloat16_where_the_device_has_it(cuda, pairs) -> None:
    spec = ModelSpec("m", pairs("gpt2").loaded.spec.directory, "auto")
    assert devices.dtype_of(spec, torch.device("cpu")) == torch.float32
    cuda("NVIDIA H100", (9, 0))
    assert devices.dtype_of(spec, CUDA) == torch.bfloat16
    cuda("Tesla T4", (7, 5))
    assert devices.dtype_of(spec, CUDA) == torch.float16
    assert devices.dtype_of(spec, torch.device("cpu")) == torch.float32


def test_auto_is_float32_for_a_family_that_refuses_float16(cuda, pairs) -> None:
    cuda("Tesla T4", (7, 5))
    t5 = ModelSpec("m", pairs("t5").loaded.spec.directory, "auto")
    assert devices.dtype_of(t5, CUDA) == torch.float32


def test_bfloat16_is_refused_where_the_device_has_none(cuda) -> None:
    spec = ModelSpec("m", "/nowhere", "bfloat16")
    assert devices.dtype_of(spec, torch.device("cpu")) == torch.bfloat16
    cuda("Tesla T4", (7, 5))
    with pytest.raises(ConfigError, match=r"Tesla T4 \(compute capability 7.5\) has no bfloat16; use --dtype float16"):
        devices.dtype_of(spec, CUDA)
    with pytest.raises(LoadError, match=r"model 'm': Tesla T4 .* has no bfloat16"):
        service.load(spec, CUDA, lambda done, total: None)


def test_a_device_without_code_in_torch_is_refused_or_left_alone(cuda, caplog: pytest.LogCaptureFixture) -> None:
    cuda("Tesla P100", (6, 0))
    message = r"Tesla P100 \(compute capability 6.0\) is too old .* needs compute capability 7.5 or more"
    with pytest.raises(LoadError, match=message):
        service._device("cuda", 0)
    with caplog.at_level(logging.WARNING):
        assert service._device("auto", 0) == torch.device("cpu")
    assert "run on the CPU: Tesla P100" in caplog.text


def test_workers_take_turns_on_devices(cuda) -> None:
    cuda("NVIDIA H100", (9, 0), 2)
    assert [service._device("auto", index) for index in range(3)] == [
        torch.device("cuda", device) for device in (0, 1, 0)
    ]
    assert service._device("cpu", 0) == torch.device("cpu")


def test_two_workers_of_one_device_need_a_size_for_their_caches(cuda, pairs) -> None:
    cuda("NVIDIA H100", (9, 0))
    options = EngineOptions(worker_index=1, kv_cache_bytes=0)
    with pytest.raises(LoadError, match=r"worker 2 shares its CUDA device .* set --kv-cache-memory, or"):
        service._kv_cache_bytes([pairs("gpt2").loaded], {}, options, CUDA)


def test_a_cpu_has_a_fixed_default(pairs) -> None:
    assert service._kv_cache_bytes([pairs("gpt2").loaded], {}, EngineOptions(), torch.device("cpu")) == 1 << 30


@pytest.mark.parametrize(
    ("device_type", "given", "expected"),
    [
        ("cpu", {}, (512, 1536)),
        ("cuda", {}, (2048, 16384)),
        ("cuda", {"max_batch_tokens": 512}, (512, 16384)),
        ("cuda", {"max_encode_tokens": 1536}, (2048, 1536)),
        ("cpu", {"max_batch_tokens": 4096, "max_encode_tokens": 9}, (4096, 9)),
    ],
)
def test_the_sizes_of_a_step_are_those_of_the_device_where_none_are_set(pairs, device_type, given, expected) -> None:
    options = EngineOptions(**given)
    assert options.step_tokens(device_type) == expected
    loaded = dataclasses.replace(pairs("gpt2").loaded, device=torch.device(device_type))
    assert loaded.step_tokens(options) == expected


def test_engines_and_descriptions_have_the_sizes_of_their_device(pairs) -> None:
    engine, info = build(pairs("gpt2").loaded, EngineOptions(), 1 << 20)
    assert engine.generation is not None and engine.generation.scheduler.max_batch_tokens == info.max_step_tokens == 512
    engine, info = build(pairs("bert").loaded, EngineOptions(), 1 << 20)
    assert engine.encoding is not None and engine.encoding.max_tokens == info.max_step_tokens == 1536
    assert engine.encoding.max_shared_tokens == 512 // 8


def no_capture(engine: Engine) -> None:
    """Capture no steps, as on a device without CUDA graphs."""


class FakeMemory:
    """The memory of a fake device. A step needs `fixed` bytes, and `growth` bytes for each byte of the KV cache.

    free: free memory in bytes. graphs: bytes that captured graphs keep.
    """

    total_bytes = 1 << 40

    def __init__(self, free: int, fixed: int, growth: float, graphs: int = 0) -> None:
        self._free, self._fixed, self._growth, self._graphs = free, fixed, growth, graphs
        self.cache_bytes = 0
        self.captured: list[Engine] = []

    def capture(self, engine: Engine) -> None:
        self.captured.append(engine)

    def free_bytes(self) -> int:
        return self._free

    def peak_bytes(self, run: Callable[[], None]) -> int:
        run()
        return self._fixed + int(self._growth * self.cache_bytes)

    def kept_bytes(self, make: Callable[[], object]) -> int:
        before = len(self.captured)
        made = make()
        assert self.captured[before:] == [made]
        return self.cache_bytes + self._graphs


@pytest.mark.parametrize("names", [["gpt2"], ["marian", "gpt2"], ["gpt2", "bert"]])
def test_the_cache_gets_what_the_largest_steps_leave(pairs, names: list[str]) -> None:
    loaded = [pairs(name).loaded for name in names]
    options = EngineOptions(block_size=4, max_batch_rows=3, max_batch_tokens=32, max_encode_tokens=64)
    spare = int(SPARE_SHARE * FakeMemory.total_bytes)
    memory = FakeMemory(spare + (100 << 20), 10 << 20, 1.5, graphs=6 << 20)
    rows_of_steps: list[int] = []
    filled: list[float] = []

    def make_engine(size: int) -> Engine:
        memory.cache_bytes = size
        sized = EngineOptions(**{**_fields(options), "kv_cache_bytes": size})
        built = [
            build(checkpoint, sized, share)[0]
            for checkpoint, share in zip(loaded, kv_shares(loaded, {}, sized), strict=True)
        ]
        engine = Engine({model.name: model for model in built}, torch.device("cpu"))
        step = engine.step

        def watched():
            output = step()
            for model in built:
                if model.generation is not None:
                    scheduler = model.generation.scheduler
                    rows_of_steps.append(len(scheduler.running))
                    filled.append(scheduler.blocks.self_pool.used_blocks / scheduler.blocks.self_pool.num_blocks)
            return output

        engine.step = watched
        return engine

    found = kv_cache_bytes(memory, loaded, options, make_engine, memory.capture)
    assert found == pytest.approx((84 << 20) / 1.5, rel=0.01)
    assert len(memory.captured) == 1
    assert max(rows_of_steps) == 3, "the step with the most rows is measured"
    if names == ["gpt2"]:
        assert max(filled) > 0.9, "the rows fill the cache"


def test_too_little_memory_is_said_with_its_size(pairs) -> None:
    loaded, options = [pairs("gpt2").loaded], EngineOptions(block_size=4, max_batch_rows=3)
    memory = FakeMemory(int(SPARE_SHARE * FakeMemory.total_bytes) + (5 << 20), 10 << 20, 1.0)

    def make_engine(size: int) -> Engine:
        memory.cache_bytes = size
        return Engine({"gpt2": build(loaded[0], options, size)[0]}, torch.device("cpu"))

    with pytest.raises(LoadError, match="the weights leave 5 MiB of the device, too little"):
        kv_cache_bytes(memory, loaded, options, make_engine, memory.capture)


def test_models_on_demand_get_the_budget_or_the_whole_device():
    spare = int(SPARE_SHARE * FakeMemory.total_bytes)
    memory = FakeMemory(spare + (100 << 20), 0, 1.0)
    assert room_for_models(memory, EngineOptions(on_demand=True)) == 100 << 20
    assert room_for_models(memory, EngineOptions(on_demand=True, memory_bytes=60 << 20)) == 60 << 20
    with pytest.raises(
        LoadError, match=r"--memory is 120 MiB, but models can have 100 MiB of the CUDA device \(6% of it"
    ):
        room_for_models(memory, EngineOptions(on_demand=True, memory_bytes=120 << 20))
    with pytest.raises(LoadError, match="but models can have 0 MiB"):
        room_for_models(FakeMemory(spare // 2, 0, 1.0), EngineOptions(on_demand=True, memory_bytes=1 << 20))


def test_models_on_demand_do_not_share_a_device(cuda, monkeypatch):
    cuda("NVIDIA H100", (9, 0), 2)
    monkeypatch.setattr(service, "CudaMemory", lambda device: FakeMemory(1 << 40, 0, 1.0))
    room = (1 << 40) - int(SPARE_SHARE * FakeMemory.total_bytes)
    assert [service._room(CUDA, EngineOptions(on_demand=True, worker_index=index)) for index in (0, 1)] == [room, room]
    with pytest.raises(LoadError, match="need a CUDA device for each worker: start at most 2 workers"):
        service._room(CUDA, EngineOptions(on_demand=True, worker_index=2))
    assert (
        service._room(CUDA, EngineOptions()) == service._room(torch.device("cpu"), EngineOptions(on_demand=True)) == 0
    )


def test_an_out_of_memory_error_of_the_measurement_is_the_same_refusal(pairs) -> None:
    def make_engine(size: int) -> Engine:
        raise torch.OutOfMemoryError("CUDA out of memory")

    memory = FakeMemory(1 << 50, 0, 1.0)
    with pytest.raises(LoadError, match="too little for steps and a KV cache"):
        kv_cache_bytes(memory, [pairs("gpt2").loaded], EngineOptions(max_batch_rows=3), make_engine, memory.capture)


def test_the_measurement_fills_a_known_number_of_tokens(pairs) -> None:
    loaded, options = [pairs("gpt2").loaded], EngineOptions(block_size=4, max_batch_rows=3)
    sizes: list[int] = []
    memory = FakeMemory(1 << 50, 0, 1.0)

    def make_engine(size: int) -> Engine:
        sizes.append(size)
        memory.cache_bytes = size
        return Engine({"gpt2": build(loaded[0], options, size)[0]}, torch.device("cpu"))

    kv_cache_bytes(memory, loaded, options, make_engine, memory.capture)
    token_bytes = loaded[0].pool_needs(options)["self"].block_bytes // options.block_size
    small = 3 * PROFILE_TOKENS * token_bytes
    # Engines for a prompt and for streams: a first run of both, two measured runs of each, and the captured steps.
    assert sizes == [small, small, small, 2 * small, small, 2 * small, small]


@pytest.mark.parametrize(
    ("name", "options", "lengths"),
    [
        ("gpt2", {"max_batch_tokens": 100}, [100]),
        ("gpt2", {"max_batch_tokens": 300}, [127, 127, 46]),
        ("marian", {"max_batch_tokens": 150}, [128, 128]),
    ],
)
def test_the_measured_prompts_fill_a_step(pairs, name: str, options: dict, lengths: list[int]) -> None:
    one = pairs(name)
    sized = EngineOptions(block_size=4, **options)
    engine = Engine({name: build(one.loaded, sized, 1 << 22)[0]}, torch.device("cpu"))
    engine.add(memory_profile._largest_prefill(one.loaded, engine.models[name].generation, sized))
    schedule = engine.models[name].generation.scheduler.schedule()
    sources = [group.num_source_tokens for group in schedule.sources]
    assert (sources or [row.num_tokens for row in schedule.rows]) == lengths


def _fields(options: EngineOptions) -> dict[str, object]:
    return {name: getattr(options, name) for name in options.__struct_fields__}


@pytest.mark.parametrize("shape", ["moonshine-tiny", "moonshine-streaming-tiny"])
def test_a_decoder_of_recordings_gets_a_cache(tmp_path, shape) -> None:
    """A speech model gets a KV cache of the right size. The memory of its encoder inputs is small and not measured."""
    moonshine.write(tmp_path, shape)
    cpu = torch.device("cpu")
    loaded = LoadedCheckpoint(ModelSpec(shape, str(tmp_path), "float32"), load(tmp_path, cpu), torch.float32, cpu, 0.0)
    options = EngineOptions(block_size=4, max_batch_rows=3)
    memory = FakeMemory(int(SPARE_SHARE * FakeMemory.total_bytes) + (100 << 20), 10 << 20, 1.0)

    def make_engine(size: int) -> Engine:
        memory.cache_bytes = size
        return Engine({shape: build(loaded, options, size)[0]}, cpu)

    assert kv_cache_bytes(memory, [loaded], options, make_engine, memory.capture) > 50 << 20


@pytest.mark.parametrize(("name", "total_bytes"), [("gpt2", 5 << 18), ("marian", 5 << 19)])
def test_steps_and_captured_steps_fit_beside_the_cache(tmp_path, name: str, total_bytes: int, monkeypatch) -> None:
    """The chosen KV cache, its largest steps and captured steps fit into the memory of the device together.

    Steps of the torch backend copy keys and values, so that they need several times the memory of the cache. The model
    has a long context, so that the cache takes all the memory but the spare share.
    """
    monkeypatch.setattr(kv_cache, "lazy_zeros", lambda shape, dtype, device: torch.zeros(shape, dtype=dtype))
    one = _with_context(tmp_path, name, 4096)
    options = EngineOptions(block_size=4, max_batch_rows=4, max_batch_tokens=64)
    token_bytes = sum(need.block_bytes for need in one.pool_needs(options).values()) // options.block_size
    small = token_bytes * PROFILE_TOKENS * options.max_batch_rows
    graph_bytes = 1 << 18

    def make_engine(size: int) -> Engine:
        return Engine({name: build(one, options, size)[0]}, torch.device("cpu"))

    def capture(engine: Engine) -> None:
        """Allocate memory for captured steps, which they keep as long as the engine exists."""
        engine.models[name].generation.runner.captured = torch.zeros(graph_bytes, dtype=torch.uint8)

    with choice.using("torch"), AccountedMemory(total_bytes) as memory:
        size = kv_cache_bytes(memory, [one], options, make_engine, capture)
        graphs = torch.zeros(graph_bytes, dtype=torch.uint8)
        before = memory.used_bytes()
        peak = before + max(
            memory.peak_bytes(lambda probe=probe: memory_profile._run(make_engine(size), probe))
            for probe in memory_profile._probes([one], options)
        )
    assert small < size, "the cache is larger than that of the measurement"
    assert len(graphs) == graph_bytes and 0.9 * total_bytes <= peak <= (1 - SPARE_SHARE) * total_bytes


def _with_context(directory: Path, name: str, tokens: int) -> LoadedCheckpoint:
    """A tiny random checkpoint whose texts have up to `tokens` tokens. name: its name in `GENERATING`."""
    architecture, config = copy.deepcopy(GENERATING[name])
    config.max_position_embeddings = tokens
    write_model(directory, config, architecture)
    cpu = torch.device("cpu")
    return LoadedCheckpoint(ModelSpec(name, str(directory), "float32"), load(directory, cpu), torch.float32, cpu, 0.0)


@pytest.mark.parametrize("name", ["gpt2", "marian", "t5", "gemma2", "mamba2"])
def test_a_step_leaves_no_tensor_in_a_reference_cycle(pairs, name: str) -> None:
    """Tensors in a reference cycle keep the memory of a step until Python's garbage collector runs."""
    one, options = pairs(name).loaded, EngineOptions(block_size=4, max_batch_rows=4, max_batch_tokens=64)
    with choice.using("torch"):
        for probe in memory_profile._probes([one], options):
            engine = Engine({name: build(one, options, 1 << 17)[0]}, torch.device("cpu"))
            engine.add(probe.make(engine))
            gc.collect()
            gc.disable()
            try:
                for _ in range(3):
                    engine.step()
                kept = {id(x) for x in gc.get_objects() if isinstance(x, torch.Tensor)}
                gc.collect()
                assert kept == {id(x) for x in gc.get_objects() if isinstance(x, torch.Tensor)}
            finally:
                gc.enable()


@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_the_measurement_does_not_depend_on_the_duration_of_steps(pairs, name: str, monkeypatch) -> None:
    """Rows join the running ones as soon as there is room, so that the largest steps have the same rows in all runs."""
    one, found = pairs(name).loaded, []
    options = EngineOptions(block_size=4, max_batch_rows=4, max_batch_tokens=64)
    for seconds in ((1e-6,), (3.0, 1e-3, 0.2)):
        rows: list[int] = []
        durations, now = itertools.cycle(seconds), [0.0]

        def monotonic(durations=durations, now=now) -> float:
            now[0] += next(durations)
            return now[0]

        def make_engine(size: int, rows=rows) -> Engine:
            engine = Engine({name: build(one, options, size)[0]}, torch.device("cpu"))
            step = engine.step

            def watched():
                output = step()
                rows.append(len(engine.models[name].generation.scheduler.running))
                return output

            engine.step = watched
            return engine

        monkeypatch.setattr(generation_engine, "time", SimpleNamespace(monotonic=monotonic))
        memory_profile._run(make_engine(1 << 17), memory_profile._probes([one], options)[1])
        found.append(rows)
    assert found[0] == found[1] and max(found[0]) == 4


def test_a_step_that_fails_in_the_measurement_is_not_taken_for_too_little_memory(pairs) -> None:
    """If a step fails during the measurement for another reason, the error says so and does not advise less memory."""
    one = pairs("gpt2").loaded

    def make_engine(size: int) -> Engine:
        engine = Engine({"gpt2": build(one, EngineOptions(max_batch_rows=3), size)[0]}, torch.device("cpu"))

        def run(*arguments: object) -> None:
            raise errors[0]

        engine.models["gpt2"].generation.runner.run = run
        return engine

    memory = FakeMemory(1 << 50, 0, 1.0)
    errors: list[Exception] = [RuntimeError("PassManager::run failed\nmore lines")]
    with pytest.raises(LoadError, match=r"model 'gpt2': a step failed .*PassManager::run failed\).*--kv-cache-memory"):
        kv_cache_bytes(memory, [one], EngineOptions(max_batch_rows=3), make_engine, no_capture)
    for error in (torch.OutOfMemoryError("x"), RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling")):
        errors[0] = error
        with pytest.raises(LoadError, match="too little for steps and a KV cache"):
            kv_cache_bytes(memory, [one], EngineOptions(max_batch_rows=3), make_engine, no_capture)
