"""Where models run in tests: on the CPU, or on the device that TRIPTYCH_TEST_DEVICE names."""

from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture(scope="session")
def device():
    return torch.device(os.environ.get("TRIPTYCH_TEST_DEVICE", "cpu"))


@pytest.fixture(autouse=True, scope="session")
def _exact_and_quiet():
    """Float32 as float32 (no TF32), and one thread: models here are tiny."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
