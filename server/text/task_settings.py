"""Settings per task of an encoder-decoder: a prefix, and decoding settings that replace the checkpoint's defaults.

`task_specific_params` of `config.json` has them by the task's name (`summarization`, `translation_en_to_de`).
T5 and BART checkpoints were published with them (Raffel et al. 2020, arXiv:1910.10683, appendix D), and the pipelines
of transformers 4 apply them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_COUNTS = (
    "max_new_tokens",
    "min_new_tokens",
    "max_length",
    "min_length",
    "num_beams",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
)
_NUMBERS = ("length_penalty", "repetition_penalty")
"""Decoding settings that may be fractions.

Only these settings, the integers in `_COUNTS`, and `early_stopping` are applied. Values out of range are ignored.
"""
_SMALLEST = {"num_beams": 1, "max_length": 2, "max_new_tokens": 1, "length_penalty": -100, "repetition_penalty": 1e-3}
"""Smallest value that a setting may have; 0 for settings that are not listed."""
_LARGEST = {"num_beams": 16, "length_penalty": 100, "repetition_penalty": 100}
"""Largest value that a setting may have; `_MAX_COUNT` for settings that are not listed."""
_MAX_COUNT = 1 << 20
_NEW_TOKENS = {"max_length": "max_new_tokens", "min_length": "min_new_tokens"}


@dataclass(frozen=True)
class TaskSettings:
    """Settings of one task.

    prefix: text to put before each input; empty if the task has no prefix.
    generation: decoding settings by name, such as `num_beams` and `length_penalty`.
    """

    prefix: str = ""
    generation: Mapping[str, Any] = field(default_factory=dict)


def task_settings(config: Mapping[str, Any]) -> dict[str, TaskSettings]:
    """Return the settings of each task, by its name. config: contents of `config.json`."""
    tasks = config.get("task_specific_params")
    if not isinstance(tasks, dict):
        return {}
    return {name: _settings(given) for name, given in tasks.items() if isinstance(given, dict)}


def _settings(given: Mapping[str, Any]) -> TaskSettings:
    found: dict[str, Any] = {}
    for name in (*_COUNTS, *_NUMBERS):
        value = given.get(name)
        if isinstance(value, bool) or not isinstance(value, int if name in _COUNTS else (int, float)):
            continue
        if not _SMALLEST.get(name, 0) <= value <= _LARGEST.get(name, _MAX_COUNT):
            continue
        if name in _NEW_TOKENS:
            # Both lengths count the start token of the decoder. The number of new tokens takes precedence.
            found.setdefault(_NEW_TOKENS[name], max(value - 1, 0))
        else:
            found[name] = value
    if isinstance(given.get("early_stopping"), bool):
        found["early_stopping"] = given["early_stopping"]
    prefix = given.get("prefix")
    return TaskSettings(prefix if isinstance(prefix, str) else "", found)
