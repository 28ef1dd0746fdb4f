"""If a model runs eagerly, the worker says so in one line of the log and in the model's description."""

from __future__ import annotations

import pytest

from models.backends import choice
from server.engine.process.service import start
from server.ipc.wire.descriptions import EngineOptions, ModelSpec
from server.ipc.wire.worker_messages import Configure
from tests.engine.tiny_checkpoints import GENERATING


def configure(saved, names, worker_index=0):
    models = []
    for name in names:
        architecture, config = GENERATING[name]
        models.append(ModelSpec(name, str(saved(config, architecture)), "float32"))
    options = EngineOptions(kv_cache_bytes=1 << 20, threads=1, worker_index=worker_index)
    return Configure(1, "cpu", models, options)


@pytest.mark.parametrize("worker_index", [0, 1])
def test_a_fallback_is_logged_once_at_load(saved, caplog, worker_index):
    _, infos = start(configure(saved, ["gpt2", "longt5"], worker_index), lambda progress: None)
    program, eager = (info.execution for info in infos)
    assert program == "program"
    assert eager.startswith("eager: layers of the encoder (attention over full sequences in ")
    lines = [record.getMessage() for record in caplog.records if record.name == "triptych.worker"]
    assert lines == ([f"model 'longt5' runs slower than it could, {eager}"] if worker_index == 0 else [])


def test_missing_kernels_are_told_once(saved, caplog):
    with choice.using("torch"):
        _, (info,) = start(configure(saved, ["gpt2"]), lambda progress: None)
    assert info.is_eager
    assert "runs slower" not in caplog.text, "the missing kernels have a line of their own"
