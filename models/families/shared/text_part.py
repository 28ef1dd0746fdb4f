"""The text part of a checkpoint that also has a part for pictures, video or sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ConfigError

_OUTSIDE = ("auto_map", "tie_word_embeddings")
"""Settings outside of `text_config` that apply to the text part."""


def text_settings(hf: Mapping[str, Any], outside: Sequence[str] = _OUTSIDE) -> dict[str, Any]:
    """`text_config` with the settings outside of it that apply to the text part."""
    text = hf.get("text_config")
    if not isinstance(text, dict):
        raise ConfigError("'text_config' must be an object")
    return {**text, **{name: hf[name] for name in outside if name in hf}}
