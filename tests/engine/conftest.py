"""Fixtures of engine tests. Engines run on the device that `tests.devices` selects."""

from __future__ import annotations

import pytest

from tests.devices import _exact_float32_on_one_thread, device
from tests.engine.harness import make_pair

__all__ = ["_exact_float32_on_one_thread", "device", "pairs"]


@pytest.fixture(scope="session")
def pairs(tmp_path_factory, device):
    """Function that returns the checkpoint with a name, made once per session: `pairs("gpt2")`."""
    made = {}

    def get(name: str):
        if name not in made:
            made[name] = make_pair(name, tmp_path_factory.mktemp(name), device)
        return made[name]

    return get
