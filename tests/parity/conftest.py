"""Parity runs where `tests.devices` says."""

from tests.devices import _exact_float32_on_one_thread, device

__all__ = ["_exact_float32_on_one_thread", "device"]
