"""The worker's main loop: loads the models, then reads messages, runs steps and sends results.

All of this runs in one thread, which also sends the heartbeat. A heartbeat therefore proves that the loop is running.
During a long step a second thread sends heartbeats instead (`server.engine.process.step_beats`).
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import platform
import time
from collections.abc import Callable, Mapping

import torch
from msgspec.structs import replace

from models.backends import choice
from models.backends.cpu.missing import why_kernels_are_missing
from models.backends.tensor_memory import PRIVATE, TensorMemory
from server.engine.device.devices import cuda_device, why_no_device, why_too_old
from server.engine.loading.host_memory import warn_without_host_pool
from server.engine.loading.load import LoadError, load, unexpected
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.loading.model_building import build
from server.engine.loading.model_infos import adapter_infos
from server.engine.loading.packed_cache import packed_cache
from server.engine.loading.shared_weights import fingerprint, map_weights
from server.engine.loading.speculation import find_drafts, kv_shares, make_drafter
from server.engine.process import device_kernels
from server.engine.process.captures import CAPTURED, capture_models
from server.engine.process.cpu_memory import default_kv_cache_bytes, warn_of_too_much
from server.engine.process.device_kernels import KernelBeats, KernelReports
from server.engine.process.host import map_large_blocks, reuse_large_blocks, use_all_processors
from server.engine.process.memory_profile import CudaMemory, kv_cache_bytes, room_for_models
from server.engine.process.model_loader import POLL_SECONDS, ModelLoader
from server.engine.process.step_beats import StepBeats
from server.engine.process.thread_choice import MIN_CORES, request_work, threads_for
from server.engine.process.warm_up import warm_up
from server.engine.process.worker_socket import ConnectionClosed, WorkerSocket
from server.engine.stepping.engine import Engine
from server.engine.stepping.model_engine import ModelEngine
from server.ipc.wire.descriptions import DeviceChoice, EngineOptions, ModelInfo, ModelSpec
from server.ipc.wire.encode_messages import Encode
from server.ipc.wire.generate_messages import ForgetSequences, Generate, SequencePart, Vocabulary
from server.ipc.wire.messages import ToWorker
from server.ipc.wire.model_messages import ModelMessage
from server.ipc.wire.step_messages import Abort
from server.ipc.wire.worker_messages import Configure, LoadFailed, Progress, Ready, Shutdown
from server.system.cores import cores_of_this_process

log = logging.getLogger("triptych.worker")

PROGRESS_SECONDS = 0.1
DRAIN_SECONDS = 2.0


def run_worker(
    connection: WorkerSocket, configure: Configure, early: list[ToWorker], stop_beats: Callable[[], None]
) -> int:
    """Run a worker until `Shutdown`. Returns the exit status: 0, or 2 if a model cannot be loaded.

    early: messages that arrived together with `configure`.
    stop_beats: stops the heartbeats of the loading phase. After it, the main loop sends heartbeats.
    Raises ConnectionClosed if the HTTP process closes the connection.
    """
    epoch = configure.epoch
    try:
        kernels = KernelReports(epoch, connection.send)
        engine, infos = start(configure, connection.send)
        kernels.end_of_start()
        room = _room(engine.device, configure.options)
        stop_beats()
        if engine.device.type == "cuda":
            about = device_kernels.describe(engine.device)
            connection.send(Ready(epoch, infos, "cuda", torch.cuda.device_count(), room, about))
        else:
            connection.send(Ready(epoch, infos))
    except ConnectionClosed:
        raise
    except Exception as error:
        # Every other exception comes again with the same files, so that a restart would not help either.
        if not isinstance(error, LoadError):
            log.debug("an exception while loading", exc_info=error)
            error = LoadError(f"cannot start: {unexpected(error)}")
        stop_beats()
        connection.send(LoadFailed(epoch, str(error)))
        connection.drain(DRAIN_SECONDS)
        return 2
    options = replace(configure.options, threads=torch.get_num_threads())
    loader = ModelLoader(engine, options, connection.send, room)
    return _serve(engine, loader, connection, early, configure.options.stats_interval_seconds)


def start(configure: Configure, send: Callable[[Progress], None]) -> tuple[Engine, list[ModelInfo]]:
    """Load all models, divide the KV memory among them, and warm them up.

    configure: models and options. send: called with the progress of loading.
    Returns the engine and the descriptions of all models and adapters.
    Raises LoadError if a model cannot be loaded, or if an option does not fit the device.
    """
    try:
        choice.check_kernels()
    except choice.StaleKernels as error:
        raise LoadError(str(error)) from error
    options = configure.options
    map_large_blocks()
    device = _device(configure.device, options.worker_index)
    _prepare(device, options)
    loaded, drafts = _load_models(configure, device, send)
    if not options.kv_cache_bytes:
        options = replace(options, kv_cache_bytes=_kv_cache_bytes(loaded, drafts, options, device))
    built = _build(loaded, drafts, options)
    if device.type == "cpu" and not options.threads and loaded:
        torch.set_num_threads(_threads(loaded, [info for _, info in built]))
    if device.type == "cpu":
        warn_of_too_much(loaded, drafts, [info for _, info in built], options)
    engine = Engine({model.name: model for model, _ in built}, device, configure.epoch)
    warn_without_host_pool(engine.models.values(), options)
    warm_up(engine, loaded)
    captured = {}
    if device.type == "cuda":
        captured = capture_models(engine, loaded, options, CudaMemory(device).free_bytes)
    # Objects that live as long as the process are excluded from garbage collection.
    gc.collect()
    gc.freeze()
    reuse_large_blocks()
    infos = [
        replace(info, execution=captured.get(info.name, model.model.transformer.execution))
        for model, (_, info) in zip(loaded, built, strict=True)
    ]
    if options.worker_index == 0:
        _log_notes(loaded, infos, captured)
    adapters = [info for model, base in zip(loaded, infos, strict=True) for info in adapter_infos(model, base)]
    return engine, infos + adapters


def _prepare(device: torch.device, options: EngineOptions) -> None:
    """Set up torch and the kernels for a device, before models are loaded. Logs why the device computes slowly.

    Raises LoadError for an option that does not fit the device.
    """
    if device.type != "cpu":
        use_all_processors()
    if device.type == "cuda" and choice.runs_cuda_kernels(device):
        device_kernels.make_directory_writable()
        device_kernels.check_kernels(device)
    torch.set_num_threads(options.threads or cores_of_this_process().threads)
    torch.backends.cuda.matmul.allow_tf32 = False
    if device.type == "cpu" and not choice.kernels_are_built:
        reason = why_kernels_are_missing()
        log.warning("the compiled kernels are missing, so the CPU computes with torch alone, slower: %s", reason)
    if device.type == "cpu" and choice.is_amx_refused():
        log.warning(
            "the system does not let this process use the matrix unit (AMX) of the processor, so products in bfloat16, "
            "int8 and 4 bits are slower; it needs Linux 5.16 or newer, and in a container a seccomp profile that "
            "permits arch_prctl"
        )
    if device.type == "cpu" and choice.kernels_are_generic():
        log.warning(
            "the compiled kernels for this processor (%s) are generic: correct, but neither tuned nor timed",
            platform.machine(),
        )
    if options.batch_invariant:
        try:
            choice.use_batch_invariance(device)
        except choice.BatchInvarianceUnavailable as error:
            raise LoadError(str(error)) from error
    if options.kv_spill_bytes and device.type != "cuda":
        raise LoadError(
            "--kv-spill-memory needs a CUDA device: on a CPU, the KV cache is in host memory; use a larger "
            "--kv-cache-memory instead"
        )
    if options.packed_cache and device.type != "cpu":
        raise LoadError("--packed-cache needs --device cpu")


def _room(device: torch.device, options: EngineOptions) -> int:
    """Memory in bytes that models on demand may take of a CUDA device; 0 without models on demand, and on a CPU.

    Raises LoadError if the device has less than `--memory`, or if there are more workers than CUDA devices.
    """
    if not options.on_demand or device.type != "cuda":
        return 0
    if options.worker_index >= torch.cuda.device_count():
        raise LoadError(
            f"models on demand need a CUDA device for each worker: start at most {torch.cuda.device_count()} workers"
        )
    return room_for_models(CudaMemory(device), options)


def _threads(loaded: list[LoadedCheckpoint], infos: list[ModelInfo]) -> int:
    """Choose the number of threads of a worker for which the operator has set none, by the size of its models.

    If it is below the number of cores, the reason is logged.
    """
    cores = torch.get_num_threads()
    if cores < MIN_CORES:
        return cores
    works = [
        request_work(model.model.config, info.parameters, info.weight_bytes, model.generates)
        for model, info in zip(loaded, infos, strict=True)
    ]
    threads = threads_for(works, cores)
    if threads < cores:
        log.info(
            "computing with %d threads on %d cores: more would wait for one another longer than they save with models "
            "of this size; --threads sets another number, and --workers uses the other cores",
            threads,
            cores,
        )
    return threads


def _log_notes(loaded: list[LoadedCheckpoint], infos: list[ModelInfo], captured: Mapping[str, str]) -> None:
    """Log, as warnings, the notes about each checkpoint, and the models that run slower than they could.

    captured: result of `capture_models`: for each model that should run as CUDA graphs, how it runs, by model name.
    """
    for model, info in zip(loaded, infos, strict=True):
        for note in info.notes:
            read_from = f", {info.checkpoint_format}" if info.checkpoint_format else ""
            log.warning("model %r%s: %s", info.name, read_from, note)
        is_slower = info.is_eager and bool(model.model.transformer.eager_parts)
        if info.name in captured:
            is_slower = info.execution != CAPTURED
        if is_slower:
            log.warning("model %r runs slower than it could, %s", info.name, info.execution)


def _build(
    loaded: list[LoadedCheckpoint], drafts: dict[str, LoadedCheckpoint], options: EngineOptions
) -> list[tuple[ModelEngine, ModelInfo]]:
    """Build the engine and the description of each model. Raises LoadError if the KV memory is too small."""
    built = []
    for model, share in zip(loaded, kv_shares(loaded, drafts, options), strict=True):
        own_share, drafter = make_drafter(model, drafts.get(model.spec.name), options, share)
        built.append(build(model, options, own_share, drafter))
    return built


def _kv_cache_bytes(
    loaded: list[LoadedCheckpoint], drafts: dict[str, LoadedCheckpoint], options: EngineOptions, device: torch.device
) -> int:
    """Bytes for the KV caches of all models if the operator has set no size.

    Raises LoadError if the device has too little memory, or if another worker shares the CUDA device.
    """
    if device.type != "cuda" or not any(model.generates for model in loaded):
        return default_kv_cache_bytes(loaded, drafts, options)
    if options.worker_index >= torch.cuda.device_count():
        raise LoadError(
            f"worker {options.worker_index + 1} shares its CUDA device with another worker: set --kv-cache-memory, or "
            f"start at most {torch.cuda.device_count()} workers"
        )

    def make_engine(size: int) -> Engine:
        built = _build(loaded, drafts, replace(options, kv_cache_bytes=size, kv_spill_bytes=0))
        return Engine({model.name: model for model, _ in built}, device)

    def capture(engine: Engine) -> None:
        capture_models(engine, loaded, options, is_measurement=True)

    return kv_cache_bytes(CudaMemory(device), loaded, options, make_engine, capture)


def _load_models(
    configure: Configure, device: torch.device, send: Callable[[Progress], None]
) -> tuple[list[LoadedCheckpoint], dict[str, LoadedCheckpoint]]:
    """Load all models and draft models. Raises LoadError if one cannot be loaded.

    On a CPU the weights are in the memory that the workers share, if `Configure` has one.
    Returns the models, and the draft models by the name of their target model.
    """
    seconds: dict[str, float] = {}
    from_cache: set[str] = set()
    cache = packed_cache(configure.options)
    if cache is not None and configure.options.checks_packed_cache:
        found = cache.check()
        if found.damaged:
            log.warning(
                "%d of the %d files in the packed cache were damaged, and are removed", found.damaged, found.files
            )

    def load_into(memory: TensorMemory) -> tuple[list[LoadedCheckpoint], dict[str, LoadedCheckpoint]]:
        def read(spec: ModelSpec) -> LoadedCheckpoint:
            model = load(spec, device, _reporter(configure.epoch, spec.name, send), memory, cache)
            # The worker that writes the shared memory loads twice: to write, and to map.
            seconds[spec.name] = seconds.get(spec.name, 0.0) + model.seconds
            if model.is_from_cache:
                from_cache.add(spec.name)
            return dataclasses.replace(model, seconds=seconds[spec.name], is_from_cache=spec.name in from_cache)

        loaded = [read(spec) for spec in configure.models]
        return loaded, find_drafts(loaded, read)

    if configure.weights_descriptor is None or device.type != "cpu":
        return load_into(PRIVATE)
    try:
        mapped = map_weights(configure.weights_descriptor, fingerprint(configure.models), load_into)
    except OSError as error:
        raise LoadError(f"cannot write the weights to shared memory: {error.strerror}") from error
    if mapped is None:
        log.warning("a checkpoint has changed on disk: this worker does not share its weights with the others")
        return load_into(PRIVATE)
    return load_into(mapped)


def _device(choice: DeviceChoice, worker_index: int) -> torch.device:
    """The device of a worker. Raises LoadError if the operator chose CUDA and no CUDA device can be used."""
    cpu = torch.device("cpu")
    if choice == "cpu":
        return cpu
    if not torch.cuda.is_available():
        if choice == "cuda":
            raise LoadError(f"device cuda was requested, but {why_no_device()}")
        return cpu
    device = cuda_device(worker_index)
    problem = why_too_old(device)
    if problem is None:
        torch.cuda.set_device(device)
        return device
    if choice == "cuda":
        raise LoadError(problem)
    log.warning("the models run on the CPU: %s", problem)
    return cpu


def _reporter(epoch: int, name: str, send: Callable[[Progress], None]) -> Callable[[int, int], None]:
    """A callback that sends the progress of loading a model, at most every PROGRESS_SECONDS, and at the end.

    name: name of the model.
    """
    last = -PROGRESS_SECONDS

    def report(done_bytes: int, total_bytes: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PROGRESS_SECONDS or done_bytes == total_bytes:
            last = now
            send(Progress(epoch, name, done_bytes, total_bytes))

    return report


def _serve(
    engine: Engine, loader: ModelLoader, connection: WorkerSocket, early: list[ToWorker], stats_seconds: float
) -> int:
    engine.send = connection.send
    # A device that hangs keeps a thread of its process busy too, so beats would only delay its end.
    if engine.device.type == "cpu":
        StepBeats(connection, engine.epoch, lambda: engine.step_seconds)
    else:
        KernelBeats(connection, engine.epoch)
    next_stats = time.monotonic()
    messages = early
    while True:
        for message in messages:
            if isinstance(message, Generate | Encode):
                engine.add(message)
            elif isinstance(message, Abort):
                engine.abort(message.sequence_id)
            elif isinstance(message, Vocabulary):
                engine.set_vocabulary(message)
            elif isinstance(message, SequencePart | ForgetSequences):
                engine.take_sequences(message)
            elif isinstance(message, ModelMessage):
                loader.add(message)
            elif isinstance(message, Shutdown):
                connection.drain(DRAIN_SECONDS)
                return 0
            else:
                log.error("ignored a second Configure message")
        output = engine.step()
        if output is not None:
            connection.send(output)
        if loader.is_busy:
            loader.poll()
        now = time.monotonic()
        if now >= next_stats:
            connection.send(engine.stats())
            next_stats = now + stats_seconds
        pause = max(next_stats - now, 0.0)
        if engine.has_work or loader.has_steps:
            pause = 0.0
        elif loader.is_busy:
            pause = min(pause, POLL_SECONDS)
        messages = connection.receive(pause)
