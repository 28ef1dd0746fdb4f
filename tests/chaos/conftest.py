"""Make the fixtures of tests/api and tests/engine available to the tests in this directory."""

from tests.api.conftest import bench, http
from tests.engine.conftest import _exact_float32_on_one_thread, device, pairs
from tests.invariance.test_bad_row_fails_alone import poison

__all__ = ["_exact_float32_on_one_thread", "bench", "device", "http", "pairs", "poison"]
