"""Read settings from a checkpoint's `config.json`. A wrong type or value raises an error that names the setting."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from models.config import Activation, ConfigError
from models.config.errors import short as short
from models.families.shared.published_code import PublishedCode

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional")
"""Supported values of `rope_type`."""

MAX_INTEGER = (1 << 31) - 1
MAX_LAYERS, MAX_HEADS = 4096, 1 << 16
_MOST: Mapping[re.Pattern[str], int] = {
    re.compile(r"(^|_)layers?$|^block_count$|^full_attn_idxs$"): MAX_LAYERS,
    re.compile(r"(^|_)heads?$"): MAX_HEADS,
}
"""Largest allowed value of settings that count layers or heads, by a pattern for the setting's name.

The limit bounds how many objects a `config.json` can create. Published models have at most 200 layers and 256 heads.
Widths and numbers of experts are compared with the weights instead (`models.checkpoint.stored_size`)."""
MAX_NUMBER, LEAST_POSITIVE = 1e15, 1e-20
"""Largest magnitude of any number, and smallest value of a positive one. Products of two stay finite in float32."""

_ACTIVATIONS: Mapping[str, Activation] = {
    "relu": "relu",
    "relu2": "relu_squared",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "gelu_quick",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


class Fields:
    """Typed access to the settings of one `config.json`.

    Methods that read a setting raise ConfigError, with the setting's name, for a value of the wrong type or range;
    `raw` does not check. A method without a default raises ConfigError if the setting is absent or null.

    hf: contents of the file, with the setting names of Hugging Face transformers.
    published_code: code of the family's first checkpoints. An `auto_map` that names only this code is accepted; any
        other `auto_map` raises ConfigError.
    defaults: values for settings that are absent or null. They take precedence over the defaults of a method call.
    """

    def __init__(
        self,
        hf: Mapping[str, Any],
        published_code: PublishedCode | None = None,
        defaults: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._hf = {**hf, **{name: value for name, value in defaults.items() if hf.get(name) is None}}
        own = published_code is not None and published_code.is_all_of(hf.get("auto_map"))
        if hf.get("auto_map") and not own:
            raise ConfigError("'auto_map': running code from the checkpoint is not supported")
        # Checked for every family, because an unknown type means that the positions of the model are unknown.
        for name in ("rope_scaling", "rope_parameters"):
            rope_type(name, hf.get(name))

    def raw(self, name: str, absent: Any = None) -> Any:
        """The value in the file or in `defaults`, unchecked and None for null; `absent` if neither has the setting."""
        return self._hf.get(name, absent)

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        value = self._present(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{name!r} must be an integer of at least {least}, not {short(value)}")
        most = next((most for pattern, most in _MOST.items() if pattern.search(name)), MAX_INTEGER)
        if value > most:
            raise ConfigError(f"{name!r} must be at most {most:,}, not {short(value)}")
        return value

    def optional_integer(self, name: str, absent: int | None = None) -> int | None:
        """The setting as an integer: None if it is null, `absent` if the file does not have it."""
        value = self._hf.get(name, absent)
        return None if value is None else self.integer(name, value)

    def integers(self, name: str) -> list[int] | None:
        """The setting as a list of integers of at least 0; None if it is null or absent."""
        value = self._hf.get(name)
        is_list = value is None or isinstance(value, list)
        if not is_list or any(
            not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MAX_INTEGER
            for number in value or ()
        ):
            raise ConfigError(f"{name!r} must be a list of integers of at least 0, not {short(value)}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._present(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not -math.inf < value < math.inf:
            raise ConfigError(f"{name!r} must be a finite number, not {short(value)}")
        if not -MAX_NUMBER <= value <= MAX_NUMBER:
            raise ConfigError(f"{name!r} must be a number within {MAX_NUMBER:g} of zero, not {short(value)}")
        return float(value)

    def positive(self, name: str, default: float | None = None) -> float:
        value = self.number(name, default)
        if not value > 0:
            raise ConfigError(f"{name!r} must be greater than zero, not {value}")
        if value < LEAST_POSITIVE:
            raise ConfigError(f"{name!r} must be at least {LEAST_POSITIVE:g}, not {value}")
        return value

    def optional_positive(self, name: str) -> float | None:
        """The setting as a positive number: None if it is null or absent."""
        return None if self._hf.get(name) is None else self.positive(name)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._present(name, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{name!r} must be true or false, not {short(value)}")
        return value

    def text(self, name: str, default: str) -> str:
        value = self._present(name, default)
        if not isinstance(value, str):
            raise ConfigError(f"{name!r} must be a string, not {short(value)}")
        return value

    def activation(self, name: str, default: str | None = None) -> Activation:
        return activation(self._present(name, default), name)

    def refuse_unless(self, name: str, *allowed: Any) -> None:
        """Raise ConfigError unless the setting is absent, null or one of `allowed`."""
        value = self._hf.get(name)
        if value is not None and value not in allowed:
            supported = f"only {', '.join(map(repr, allowed))}" if allowed else "the setting must be null or absent"
            raise ConfigError(f"{name!r}: {short(value)} is not supported, {supported}")

    def labels(self, default: int = 2) -> int:
        """Number of classes of a classification head: entries of `id2label`, else `num_labels`, else `default`."""
        names = self._hf.get("id2label")
        return len(names) if isinstance(names, dict) and names else self.integer("num_labels", default)

    def _present(self, name: str, default: Any) -> Any:
        value = self._hf.get(name)
        value = default if value is None else value
        if value is None:
            raise ConfigError(f"{name!r} is missing")
        return value


def rope_type(name: str, settings: Any) -> str:
    """How rotary positions are scaled for long texts, one of `ROPE_TYPES`; `default` for no scaling.

    name: name of the setting, for error messages.
    settings: value of the setting, of any type.
    Raises ConfigError for an unknown type.
    """
    described = settings if isinstance(settings, dict) else {}
    kind = described.get("rope_type", described.get("type", "default"))
    kind = "longrope" if kind == "su" else kind
    if not isinstance(kind, str) or kind not in ROPE_TYPES:
        raise ConfigError(f"{name!r}: type {short(kind)} is not supported, only {', '.join(ROPE_TYPES)}")
    return kind


def activation(value: Any, name: str) -> Activation:
    """Translate an activation's name in transformers to the name in `models`. Raises ConfigError for an unknown one.

    name: name of the setting, for error messages.
    """
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise ConfigError(f"{name!r}: activation {short(value)} is not supported, only {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[value]


def head_width(hidden_size: int, num_heads: int) -> int:
    """Width of one head if all heads together are as wide as the hidden state.

    Raises ConfigError if `hidden_size` is not a multiple of `num_heads`.
    """
    if hidden_size % num_heads:
        raise ConfigError(f"hidden size {hidden_size} is not a multiple of the number of heads {num_heads}")
    return hidden_size // num_heads
