"""Fixtures that run the parity tests on the device that `tests.devices` selects."""

from __future__ import annotations

from tests.devices import _exact_float32_on_one_thread, device

__all__ = ["_exact_float32_on_one_thread", "device"]
