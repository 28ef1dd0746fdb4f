"""Make the fixtures of tests/engine available to the tests in this directory."""

from tests.engine.conftest import _exact_float32_on_one_thread, device, pairs

__all__ = ["_exact_float32_on_one_thread", "device", "pairs"]
