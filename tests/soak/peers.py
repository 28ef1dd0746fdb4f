"""Triptych and the router of llama.cpp behind one interface: servers that load models on demand."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from benchmarks.contestants.peer_server import PeerServer
from tests.e2e.conftest import COMMAND, serving
from tests.soak.both_formats import CHECKPOINTS, CONTEXT_TOKENS, DECODER, EMBEDDER, GGUF_FILES, RERANKER, kind_name
from tests.soak.checkpoints import BROKEN
from tests.soak.traffic import tree_bytes

_SPAWNED = "spawning server instance with name="
"""What the router of llama.cpp prints when it starts the process of a model."""
_OPTIONS = {DECODER: "", EMBEDDER: "embeddings = true\n", RERANKER: "reranking = true\n"}


@dataclass(frozen=True)
class Peer:
    """A running server. All its processes are descendants of the process `pid`.

    count_loads: returns the number of loads that have begun.
    files: the file or directory of a model.
    """

    url: str
    pid: int
    count_loads: Callable[[], int]
    files: Callable[[str], Path]

    def unload(self, name: str) -> None:
        """Unload a model. llama.cpp answers before it is unloaded."""
        answer = httpx.post(f"{self.url}/models/unload", json={"model": name}, timeout=120)
        assert answer.status_code == 200, f"{name}: {answer.text}"

    def kill_largest_child(self) -> bool:
        """Kill the process that has most memory: the worker of Triptych, or a process of llama.cpp with one model.

        Returns False if there is no such process.
        """
        children = psutil.Process(self.pid).children()
        if children:
            max(children, key=lambda child: tree_bytes(child.pid)).kill()
        return bool(children)


@contextmanager
def triptych(directory: Path, *flags: str) -> Iterator[Peer]:
    """Start Triptych with the checkpoints of `both_formats.write(directory)`. flags: more of its command line."""
    models = directory / CHECKPOINTS
    flags = ("--models-dir", str(models), "--device", "cpu", "--dtype", "bfloat16", "--no-access-log", *flags)
    with serving(directory / "triptych.log", *flags, command=COMMAND) as server:
        metric = "triptych_model_loads_total"
        yield Peer(server.url, server.process.pid, lambda: int(server.metric(metric)), lambda name: models / name)


@contextmanager
def llama_router(directory: Path, names: Iterable[str], program: Path, most_models: int) -> Iterator[Peer]:
    """Start the router of llama.cpp with the GGUF files of `both_formats.write(directory)`.

    names: the models without the broken one. most_models: number of models that it keeps loaded.
    """
    models = directory / GGUF_FILES
    with tempfile.NamedTemporaryFile("w", suffix=".ini") as file:
        file.write(presets([*names, BROKEN], models, os.cpu_count() or 1))
        file.flush()
        server = PeerServer([str(program), "--models-preset", file.name, "--models-max", str(most_models)])
        try:
            server.wait()
            url = f"http://127.0.0.1:{server.port}"
            yield Peer(url, server.pid, lambda: server.output().count(_SPAWNED), lambda name: models / f"{name}.gguf")
        finally:
            (directory / "router.log").write_text(server.output())
            server.close()


def presets(names: Iterable[str], models: Path, threads: int) -> str:
    """The preset file of the router: settings of all models, and the file and the settings of each.

    names: the models. models: directory of their GGUF files.
    """
    text = f"version = 1\n[*]\nctx-size = {CONTEXT_TOKENS}\nthreads = {threads}\n"
    for name in names:
        text += f"[{name}]\nmodel = {models / name}.gguf\n{_OPTIONS.get(kind_name(name), '')}"
    return text
