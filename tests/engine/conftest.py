"""Fixtures of engine tests. Engines run on the device that `tests.devices` selects."""

from __future__ import annotations

import pytest

from tests.devices import _exact_float32_on_one_thread, device
from tests.engine.drafted_models import head_models
from tests.engine.harness import Pair, make_pair

__all__ = ["_exact_float32_on_one_thread", "device", "head_models", "pairs"]

_made: dict[str, Pair] = {}


@pytest.fixture(scope="session")
def pairs(tmp_path_factory, device):
    """A function that returns the `Pair` of a checkpoint, such as `pairs("gpt2")`. Each is made once per process."""

    def get(name: str):
        if name not in _made:
            _made[name] = make_pair(name, tmp_path_factory.mktemp(name), device)
        return _made[name]

    return get
