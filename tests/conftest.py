"""What holds for all tests."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, settings

# Without its clocks: a machine that stands still for a moment makes an example slow, not wrong.
settings.register_profile("triptych", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("triptych")


@pytest.fixture(autouse=True)
def seed() -> None:
    """What a test draws is the same in every run, whichever tests ran before it."""
    torch.manual_seed(20261122)
