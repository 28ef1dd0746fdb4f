"""Read the settings of the text part of a checkpoint that also has parts for pictures, video or sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ConfigError

_OUTSIDE = ("auto_map", "tie_word_embeddings")
"""Settings at the top level of `config.json` that apply to the text part."""


def text_settings(hf: Mapping[str, Any], outside: Sequence[str] = _OUTSIDE) -> dict[str, Any]:
    """Return the settings in `text_config`, and of the settings `outside` all that the top level of `hf` has.

    outside: names of settings at the top level that apply to the text part.
    Raises ConfigError if `text_config` is no object.
    """
    text = hf.get("text_config")
    if not isinstance(text, dict):
        raise ConfigError("'text_config' must be an object")
    return {**text, **{name: hf[name] for name in outside if name in hf}}
