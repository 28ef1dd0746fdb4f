"""What is wrong with a configuration."""

from __future__ import annotations


class ConfigError(ValueError):
    """A configuration that no model can be built from, or that asks for something Triptych does not support."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)
