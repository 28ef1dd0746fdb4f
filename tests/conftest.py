"""Settings of all tests: a hypothesis profile without time limits, and a fixed random seed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, settings

# No time limits for examples, because a test machine may stall.
settings.register_profile("triptych", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("triptych")


@pytest.fixture(autouse=True)
def seed() -> None:
    """Seed torch before each test, so that its random numbers do not depend on the tests that ran before it."""
    torch.manual_seed(20261122)
