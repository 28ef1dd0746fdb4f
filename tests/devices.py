"""The device of models in tests: the CPU, or the one that the environment variable TRIPTYCH_TEST_DEVICE names."""

from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture(scope="session")
def device():
    return torch.device(os.environ.get("TRIPTYCH_TEST_DEVICE", "cpu"))


@pytest.fixture(autouse=True, scope="session")
def _exact_float32_on_one_thread():
    """Disable TF32, so that float32 is exact, and use one thread, because the models of the tests are tiny."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
