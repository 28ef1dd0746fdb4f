"""The errors that an invalid or unsupported configuration raises."""

from __future__ import annotations

from typing import Any


class ConfigError(ValueError):
    """A configuration is invalid, or needs something that is not supported. The message is for users."""


class UnservedFamilyError(ConfigError):
    """No family serves the `model_type` of a checkpoint."""


def require(condition: bool, message: str) -> None:
    """Raise ConfigError with the message unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def short(value: Any) -> str:
    """`repr` of a value from a file, at most 60 characters, for error messages."""
    try:
        text = repr(value)
    except ValueError:  # of an integer of more than 4,300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."
