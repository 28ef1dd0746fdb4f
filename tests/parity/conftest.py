"""Parity runs where `tests.devices` says."""

from tests.devices import _exact_and_quiet, device

__all__ = ["_exact_and_quiet", "device"]
