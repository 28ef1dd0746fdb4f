"""The cache of packed weights on disk: same results, only for the same files and settings, never from damaged files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from models.backends.tensor_memory import PRIVATE
from models.checkpoint import loader
from server.engine.loading import packed_cache, packed_file
from server.engine.loading.load import load
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.loading.model_building import build
from server.engine.loading.packed_cache import PackedCache
from server.engine.loading.shared_weights import fingerprint, map_weights
from server.engine.process.service import start
from server.engine.stepping.engine import Engine
from server.ipc.wire.descriptions import EngineOptions, ModelSpec
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams
from server.ipc.wire.worker_messages import Configure
from server.ipc.workers.weight_memory import WeightMemory
from tests.engine.harness import run
from tests.engine.tiny_checkpoints import ENCODERS, GENERATING
from tests.parity.adapters import save_adapter
from tests.parity.checkpoints import save

CPU = torch.device("cpu")
OPTIONS = EngineOptions(block_size=4, kv_cache_bytes=1 << 22, threads=1)
CASES = {
    "llama-tied-bfloat16": ("llama-tied", "bfloat16", None),
    "llama-tied-int8": ("llama-tied", "float32", "int8"),
    "llama-tied-int4": ("llama-tied", "float32", "int4"),
    "t5-float32": ("t5", "float32", None),
    "mixtral-int8": ("mixtral", "float32", "int8"),
    "classifier-bfloat16": ("classifier", "bfloat16", None),
}
TENSORS = [
    torch.arange(40, dtype=torch.float32).view(8, 5),
    torch.tensor(7),
    torch.zeros(0, 3, dtype=torch.bfloat16),
    torch.arange(7, dtype=torch.int8),
]


@pytest.fixture(autouse=True)
def _cpu_only(device):
    if device.type != "cpu":
        pytest.skip("only models on a CPU have packed weights")


@pytest.fixture
def cache(tmp_path):
    return PackedCache(tmp_path / "packed", 1 << 30)


def no_progress(done_bytes: int, total_bytes: int) -> None:
    pass


def results(loaded: LoadedCheckpoint):
    """Run requests with a loaded checkpoint. Returns token events, encoder results, and the model's description."""
    requests: list[Generate | Encode] = []
    if loaded.generates:
        starts = [5] if loaded.model.config.is_encoder_decoder else []
        rows = [GenerateRow(1, 6, 0, starts)]
        requests.append(Generate("m", GenerationParams(logprobs=True), [[5, 6, 7, 8, 9]], rows))
    if loaded.encodes:
        requests.append(Encode(2, "m", loaded.encode_tasks[-1], [EncodeItem([5, 6, 7, 8])]))
    model, info = build(loaded, OPTIONS, OPTIONS.kv_cache_bytes)
    found = run(Engine({"m": model}, CPU), requests)
    assert not found.failed and (found.token_events or found.encoded)
    return found.token_events, found.encoded, replace(info, load_seconds=0.0, is_from_packed_cache=False)


def kept(cache: PackedCache, key: str = "key", tensors: list[torch.Tensor] = TENSORS) -> bool:
    """Load tensors through a cache, and check them. Returns whether they came from the cache."""
    found, is_from_cache = cache.load(
        "m", lambda: key, PRIVATE, no_progress, lambda memory: [memory.keep(tensor) for tensor in tensors]
    )
    assert all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(found, tensors, strict=True))
    return is_from_cache


def only_file(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "packed").iterdir()
    return path


def test_each_system_call_that_reads_has_a_turn(tmp_path, monkeypatch):
    monkeypatch.setattr(packed_file, "_READ_BYTES", 64)
    monkeypatch.setattr(packed_file, "_CALL_BYTES", 24)
    turns: list[int] = []

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        turns.append(threading.get_ident())
        yield

    cache = PackedCache(tmp_path / "packed", 1 << 30, turn)
    assert not kept(cache) and not turns
    assert kept(cache)
    # 160 bytes in parts of 64, 64 and 32 bytes; 8 bytes; nothing; 7 bytes.
    assert len(turns) == 3 + 3 + 2 + 1 + 1
    assert threading.get_ident() not in turns


@pytest.mark.parametrize("name, dtype, quantization", CASES.values(), ids=CASES)
def test_results_have_the_same_bits_with_and_without_a_cache(saved, cache, monkeypatch, name, dtype, quantization):
    architecture, config = (GENERATING | ENCODERS)[name]
    spec = ModelSpec("m", str(saved(config, architecture)), dtype, quantization)
    expected = results(load(spec, CPU, no_progress))
    first = load(spec, CPU, no_progress, cache=cache)
    assert not first.is_from_cache and results(first) == expected
    _read_no_weights(monkeypatch)
    progress: list[tuple[int, int]] = []
    again = load(spec, CPU, lambda done, total: progress.append((done, total)), cache=cache)
    assert again.is_from_cache and results(again) == expected
    assert progress[0][0] == 0 and progress[-1][0] == progress[-1][1] > 0


def _read_no_weights(monkeypatch) -> None:
    """Make every further load fail if it reads weights of a checkpoint."""
    load_weights = loader.load_weights

    def checked(*arguments, shapes_only: bool, **options):
        assert shapes_only
        return load_weights(*arguments, shapes_only=shapes_only, **options)

    monkeypatch.setattr(loader, "load_weights", checked)


def test_shared_weights_come_from_the_cache(saved, cache):
    architecture, config = GENERATING["llama-tied"]
    spec = ModelSpec("m", str(saved(config, architecture)), "float32", "int8")
    expected = results(load(spec, CPU, no_progress))
    for is_kept in (False, True):
        memory, written = WeightMemory([]), []
        shared = map_weights(
            memory.current(),
            fingerprint([spec]),
            lambda writing, written=written: written.append(load(spec, CPU, no_progress, writing, cache)),
        )
        assert written[0].is_from_cache is is_kept
        assert results(load(spec, CPU, no_progress, shared, cache)) == expected
        memory.close()


@pytest.mark.parametrize("shares", [False, True])
def test_a_worker_says_which_models_it_read_from_the_cache(tmp_path, shares):
    architecture, config = GENERATING["llama"]
    oracle = save(tmp_path / "base", config, architecture)
    save_adapter(oracle, tmp_path / "warm", 0)
    spec = ModelSpec("base", str(tmp_path / "base"), "float32", None, None, {"warm": str(tmp_path / "warm")})
    options = replace(OPTIONS, packed_cache=str(tmp_path / "packed"), packed_cache_bytes=1 << 30)
    tokens: list[dict[int, list[int]]] = []
    for is_kept in (False, True):
        memory = WeightMemory([spec])
        configure = Configure(1, "cpu", [spec], options, memory.current() if shares else None)
        engine, infos = start(configure, lambda progress: None)
        assert [info.is_from_packed_cache for info in infos] == [is_kept, is_kept]
        rows = [Generate("warm", GenerationParams(), [[5, 6, 7]], [GenerateRow(1, 6)])]
        tokens.append(run(engine, rows).tokens)
        memory.close()
    assert tokens[0] == tokens[1] and tokens[0][1]


def test_other_files_and_settings_have_other_keys(saved, tmp_path):
    architecture, config = GENERATING["llama-tied"]
    spec = ModelSpec("m", str(saved(config, architecture)), "float32")

    def key(spec: ModelSpec = spec, dtype: torch.dtype = torch.float32) -> str:
        return packed_cache.packed_key(spec, dtype, CPU)

    first = key()
    # Name, drafts and KV cache change no weight.
    assert key(replace(spec, name="other", kv_cache_dtype="int8")) == first
    others = {key(dtype=torch.bfloat16), key(replace(spec, quantization="int8")), key(replace(spec, answers=True))}
    weights_file = next(Path(spec.directory).glob("*.safetensors"))
    status = weights_file.stat()
    os.utime(weights_file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    others.add(key())
    os.utime(weights_file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert key() == first
    settings = Path(spec.directory) / "config.json"
    status, text = settings.stat(), settings.read_text()
    settings.write_text(text + " ")
    os.utime(settings, ns=(status.st_atime_ns, status.st_mtime_ns))
    others.add(key())
    settings.write_text(text)
    assert len(others - {first}) == 5


def test_a_checkpoint_that_changes_while_it_loads_is_not_kept(cache, tmp_path):
    keys = iter(["before", "after"])
    cache.load("m", lambda: next(keys), PRIVATE, no_progress, lambda memory: memory.keep(TENSORS[0]))
    assert list((tmp_path / "packed").iterdir()) == []


def test_directory_and_files_are_the_owners_alone(cache, tmp_path):
    assert not kept(cache) and kept(cache)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "packed", only_file(tmp_path))}
    assert modes == {0o700, 0o600}


def _cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def _flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "empty": lambda path: _cut(path, 0),
    "partial header": lambda path: _cut(path, 40),
    "partial tensors": lambda path: _cut(path, 100),
    "last byte missing": lambda path: _cut(path, path.stat().st_size - 1),
    "one byte more": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "other format": lambda path: _flip(path, 0),
    "offset of the index": lambda path: _flip(path, 9),
    "huge index": lambda path: _flip(path, 23),
    "index": lambda path: _flip(path, -10),
    "open to a group": lambda path: path.chmod(0o640),
    "a link": lambda path: (path.rename(path.with_suffix(".moved")), path.symlink_to(path.with_suffix(".moved"))),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path, 0o600)),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_or_foreign_file_is_replaced_with_one_warning(cache, tmp_path, caplog, damage):
    kept(cache)
    damage(only_file(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert not kept(cache)
    assert len(caplog.records) == 1 and "packed again" in caplog.text
    assert str(tmp_path) not in caplog.text
    assert kept(cache)


def test_tensors_of_another_model_are_not_used(cache, tmp_path, caplog):
    """A file is not used if its content has another key than its name says, or other tensors than are needed."""
    kept(cache, "other")
    path = only_file(tmp_path)
    path.rename(path.with_name(packed_cache._name("key")))
    assert not kept(cache) and "other files or settings" in caplog.text
    for others in ([TENSORS[0].view(5, 8), *TENSORS[1:]], TENSORS[:3], [*TENSORS, TENSORS[0]]):
        assert not kept(cache, tensors=others)
        assert caplog.text.count("another model") == 1
        caplog.clear()
        assert not kept(cache)
        caplog.clear()


def test_check_finds_tensors_that_have_changed(cache, tmp_path):
    kept(cache, "one")
    _flip(only_file(tmp_path), 70)
    kept(cache, "two")
    assert cache.check() == (2, 1)
    assert cache.check() == (1, 0)
    assert not kept(cache, "one") and kept(cache, "two")


def test_a_worker_checks_the_cache_before_it_loads(saved, tmp_path, caplog):
    architecture, config = GENERATING["llama-tied"]
    spec = ModelSpec("m", str(saved(config, architecture)), "float32")
    options = replace(
        OPTIONS, packed_cache=str(tmp_path / "packed"), packed_cache_bytes=1 << 30, checks_packed_cache=True
    )
    configure = Configure(1, "cpu", [spec], options)
    for is_kept, warnings in ((False, 0), (True, 0), (False, 1)):
        _, infos = start(configure, lambda progress: None)
        assert infos[0].is_from_packed_cache is is_kept
        assert caplog.text.count("1 of the 1 files in the packed cache were damaged") == warnings
        if is_kept:
            _flip(only_file(tmp_path), 70)


def test_two_writers_of_one_file(cache, tmp_path):
    """If two processes write the same file at the same time, one complete file is left."""
    barrier = threading.Barrier(2, timeout=60)
    found = []

    def write() -> None:
        def read(memory):
            barrier.wait()
            result = [memory.keep(tensor) for tensor in TENSORS]
            barrier.wait()
            return result

        writer = PackedCache(tmp_path / "packed", 1 << 30)
        found.append(writer.load("m", lambda: "key", PRIVATE, no_progress, read)[1])

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [False, False]
    assert only_file(tmp_path) and kept(cache) and cache.check() == (1, 0)


def test_the_file_of_a_killed_writer_is_removed_and_that_of_a_living_one_is_not(cache, tmp_path):
    kept(cache)
    dead, alive = (tmp_path / "packed" / f"{name}.writing" for name in ("dead", "alive"))
    dead.write_bytes(b"half")
    alive.write_bytes(b"half")
    for path in (dead, alive):
        path.chmod(0o600)
    with alive.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        kept(cache, "further")
        assert not dead.exists() and alive.exists()


def test_the_least_recently_used_files_make_room(tmp_path):
    tensors = [torch.zeros(1000, dtype=torch.uint8)]
    cache = PackedCache(tmp_path / "packed", 4500)
    for key in ("one", "two", "three"):
        kept(cache, key, tensors)
        _age(tmp_path)
    assert kept(cache, "one", tensors)
    _age(tmp_path)
    kept(cache, "four", tensors)
    assert sum(path.stat().st_size for path in (tmp_path / "packed").iterdir()) <= 4500
    assert [kept(cache, key, tensors) for key in ("one", "three", "four")] == [True, True, True]
    assert not kept(cache, "two", tensors)


def _age(tmp_path: Path) -> None:
    """Set the times of all files back, because file systems have coarse clocks."""
    for path in (tmp_path / "packed").iterdir():
        age = path.stat().st_mtime_ns - 10**9
        os.utime(path, ns=(age, age))


def test_a_model_that_is_larger_than_the_cache_removes_nothing(tmp_path, caplog):
    cache = PackedCache(tmp_path / "packed", 4500)
    kept(cache)
    large = [torch.zeros(5000, dtype=torch.uint8)]
    assert not kept(cache, "large", large) and not kept(cache, "large", large)
    assert caplog.text.count("--packed-cache-size") == 1 and kept(cache)
    assert len(list((tmp_path / "packed").iterdir())) == 1


def test_a_read_only_directory_is_read(cache, monkeypatch, caplog):
    """In a read-only directory, existing files are used. Other weights are packed in memory, with one warning."""
    kept(cache)
    opened = os.open

    def refuse(path, flags, *arguments, **options):
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(path, flags, *arguments, **options)

    monkeypatch.setattr(packed_cache.os, "open", refuse)
    assert kept(cache) and caplog.text == ""
    assert not kept(cache, "other") and not kept(cache, "other")
    assert [record.getMessage() for record in caplog.records] == [
        "model 'm' is not kept in the packed cache: Read-only file system"
    ]


def test_a_file_system_without_locks_keeps_nothing_open(cache, tmp_path, monkeypatch, caplog):
    def refuse(*arguments):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(packed_cache.fcntl, "flock", refuse)
    open_files = set(os.listdir("/proc/self/fd"))
    assert not kept(cache)
    assert set(os.listdir("/proc/self/fd")) == open_files and list((tmp_path / "packed").iterdir()) == []
    assert "No locks available" in caplog.text


def test_a_full_disk_ends_the_writing_and_not_the_load(cache, tmp_path, monkeypatch, caplog):
    def refuse(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("server.engine.loading.packed_file.os.pwrite", refuse)
    assert not kept(cache)
    assert "No space left" in caplog.text and list((tmp_path / "packed").iterdir()) == []


@pytest.mark.parametrize("problem", ["another user", "0700", "Not a directory", "No such file"])
def test_a_directory_that_cannot_be_used_costs_one_warning(tmp_path, monkeypatch, caplog, problem):
    directory = tmp_path / "packed"
    cache = PackedCache(directory / "below" if problem == "No such file" else directory, 1 << 30)
    if problem == "another user":
        kept(cache)
        monkeypatch.setattr(packed_cache.os, "geteuid", lambda: directory.stat().st_uid + 1)
    elif problem == "0700":
        directory.mkdir()
        directory.chmod(0o750)
    elif problem == "Not a directory":
        directory.write_text("")
    assert not kept(cache) and not kept(cache)
    assert len(caplog.records) == 1 and problem in caplog.text


def test_a_file_of_another_user_is_not_read(cache, tmp_path, monkeypatch, caplog):
    kept(cache)
    files, why = only_file(tmp_path).stat().st_ino, packed_cache._why_unsafe

    def of_another(status: os.stat_result) -> str | None:
        return "it belongs to another user" if status.st_ino == files else why(status)

    monkeypatch.setattr(packed_cache, "_why_unsafe", of_another)
    assert not kept(cache) and "another user" in caplog.text


def test_a_changed_file_in_a_folder_has_another_key(tmp_path):
    """A changed file in a folder of a checkpoint changes the key, although the folder's own time does not change.

    Modules of sentence-transformers have their weights in folders.
    """
    weights_file = tmp_path / "model" / "2_Dense" / "model.safetensors"
    weights_file.parent.mkdir(parents=True)
    weights_file.write_bytes(b"before")
    spec = ModelSpec("m", str(tmp_path / "model"), "float32")
    first = packed_cache.packed_key(spec, torch.float32, CPU), fingerprint([spec])
    status = weights_file.stat()
    weights_file.write_bytes(b"behind")
    os.utime(weights_file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert not {packed_cache.packed_key(spec, torch.float32, CPU), fingerprint([spec])} & set(first)
