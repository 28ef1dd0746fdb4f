"""Settings of all tests: threads, hypothesis without time limits, a fixed random seed, log levels, certificates."""

from __future__ import annotations

import gc
import logging
import os
import ssl
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

# torch reads this setting when it is imported. Several test processes share the cores, and a thread that spins while it
# waits slows down the others: on two cores, tests/models/test_programs.py took 2.4 times as long without this setting.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.rare_families import is_rare

# Triton reads this setting when our kernels are imported. Without a device, it interprets them.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# No time limits for examples, because a test machine may stall.
settings.register_profile("triptych", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("triptych")


# Each HTTP client reads the certificates of all authorities. Without this cache, that takes 24 ms, more than a request.
ssl.create_default_context = cache(ssl.create_default_context)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_rare(item):
            item.add_marker(pytest.mark.rare_family)


def pytest_collection_finish() -> None:
    """Exclude the imported libraries and the collected tests from garbage collection, to make it faster."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seed() -> None:
    """Seed torch before each test, so that its random numbers do not depend on the tests that ran before it."""
    if torch.cuda.is_available():
        torch.manual_seed(20261122)
    else:  # `torch.manual_seed` is slow: it formats the call stack and stores it for a later start of CUDA.
        torch.default_generator.manual_seed(20261122)


@pytest.fixture(scope="session")
def shared_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory that all test processes of a run share."""
    root = tmp_path_factory.getbasetemp()
    shared = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "shared"
    shared.mkdir(exist_ok=True)
    return shared


@pytest.fixture(scope="session")
def saved(shared_directory: Path) -> Callable[[Any, str], Path]:
    """Function that returns the directory of a random checkpoint: `saved(config, architecture)`.

    All test processes share the directories, so tests must not change them. transformers needs more time to write a
    checkpoint than most tests need to read it.
    """
    from tests.parity.checkpoints import write_once

    return lambda config, architecture: write_once(shared_directory, config, architecture)


@pytest.fixture(autouse=True)
def log_level() -> None:
    """Undo the log level that a command has set for the whole process in an earlier test."""
    logger = logging.getLogger("triptych")
    if logger.level != logging.NOTSET:  # setting a level visits all loggers of the process
        logger.setLevel(logging.NOTSET)
