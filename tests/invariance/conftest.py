"""The same fixtures as the engine's own tests."""

from tests.engine.conftest import _exact_and_quiet, device, pairs

__all__ = ["_exact_and_quiet", "device", "pairs"]
