"""The error of a configuration."""

from __future__ import annotations


class ConfigError(ValueError):
    """A configuration is invalid, or needs something that is not supported."""


def require(condition: bool, message: str) -> None:
    """Raise ConfigError with the message unless the condition holds."""
    if not condition:
        raise ConfigError(message)
