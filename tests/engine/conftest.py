"""Engines run on the CPU, or on the device that TRIPTYCH_TEST_DEVICE names."""

from __future__ import annotations

import os

import pytest
import torch

from tests.engine.harness import make_pair


@pytest.fixture(scope="session")
def device():
    return torch.device(os.environ.get("TRIPTYCH_TEST_DEVICE", "cpu"))


@pytest.fixture(autouse=True, scope="session")
def _exact_and_quiet():
    """Float32 as float32 (no TF32), and few threads: models here are tiny."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.fixture(scope="session")
def pairs(tmp_path_factory, device):
    """By name, each checkpoint made once: `pairs("gpt2")`."""
    made = {}

    def get(name: str):
        if name not in made:
            made[name] = make_pair(name, tmp_path_factory.mktemp(name), device)
        return made[name]

    return get
