"""Errors of a checkpoint. Each message is one line, with file names but no paths.

ResolveError      no checkpoint, or a file that may not be opened
  GgufError       a GGUF file is damaged, or not supported
WeightsError      weights cannot be read, or do not match the model
"""

from __future__ import annotations


def shown(name: str, most: int = 80) -> str:
    """Prepare a name from a file for a message: escape control characters, and cut it to `most` characters."""
    text = name if len(name) <= most else f"{name[: most - 3]}..."
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


class ResolveError(ValueError):
    """No checkpoint directory was found, or one of its files may not be opened."""


class GgufError(ResolveError):
    """A GGUF file is damaged, or contains something that is not supported. The message names the file."""


class WeightsError(ValueError):
    """Weights cannot be read, or do not match the model."""
