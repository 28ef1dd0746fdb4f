"""Reading `config.json` strictly: what is absent has a default, what is wrong or not supported is refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from models.config import Activation, ConfigError, RopeConfig
from models.families.published_code import PublishedCode
from models.families.rope_scaling import KINDS, scaling_of

_ACTIVATIONS: Mapping[str, Activation] = {
    "relu": "relu",
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
    """The settings of one `config.json`, asked for by name. Every method raises ConfigError naming the setting.

    published_code: what a family's first checkpoints came with, so that an `auto_map` to it is no reason to refuse.
    defaults: stand in for what is absent or null, before what a method's caller says.
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
            raise ConfigError("'auto_map' asks to run the checkpoint's own code, which is not supported")
        if hf.get("quantization_config"):
            raise ConfigError("'quantization_config': quantized checkpoints are not supported")
        # Also for a family without rotary positions, or with a kind of its own: nobody knows what was meant.
        for where in ("rope_scaling", "rope_parameters"):
            _rope_kind(where, hf.get(where))

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        value = self._present(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{name!r} must be an integer of at least {least}")
        return value

    def optional_integer(self, name: str, absent: int | None = None) -> int | None:
        """None where the setting is null; `absent` where it is not there at all."""
        value = self._hf.get(name, absent)
        return None if value is None else self.integer(name, value)

    def number(self, name: str, default: float | None = None) -> float:
        value = self._present(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise ConfigError(f"{name!r} must be a finite number")
        return float(value)

    def optional_positive(self, name: str) -> float | None:
        """None where the setting is null or not there."""
        return None if self._hf.get(name) is None else self.positive(name)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._present(name, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{name!r} must be true or false")
        return value

    def text(self, name: str, default: str) -> str:
        value = self._present(name, default)
        if not isinstance(value, str):
            raise ConfigError(f"{name!r} must be a string")
        return value

    def activation(self, name: str, default: str | None = None) -> Activation:
        return activation(self._present(name, default), name)

    def refuse_unless(self, name: str, *allowed: Any) -> None:
        """The setting is absent, null or one of `allowed`: whatever else it asks for is not supported."""
        value = self._hf.get(name)
        if value is not None and value not in allowed:
            raise ConfigError(f"{name!r}: {short(value)} is not supported, only {', '.join(map(repr, allowed))}")

    def labels(self, default: int = 2) -> int:
        """How many classes a classification head has."""
        names = self._hf.get("id2label")
        return len(names) if isinstance(names, dict) and names else self.integer("num_labels", default)

    def rope(self, head_dim: int, default_theta: float = 10000.0, default_share: float | None = None) -> RopeConfig:
        """Rotary positions: `rope_theta` and `rope_scaling`, or `rope_parameters` with all in one (transformers 5).

        default_share: how much of each head rotates unless `partial_rotary_factor` says; None for a family that rotates
        all of it and knows no such setting.
        """
        where = "rope_scaling" if self._hf.get("rope_scaling") else "rope_parameters"
        scaling = self._hf.get(where) or {}
        if not isinstance(scaling, dict):
            raise ConfigError(f"{where!r} must be an object")
        if any(isinstance(value, dict) for value in scaling.values()):
            raise ConfigError(f"{where!r}: other positions for each kind of layer are not supported")
        inner = Fields({"rope_theta": self._hf.get("rope_theta"), **scaling})
        theta = inner.number("rope_theta", default_theta)
        if default_share is None:
            self.refuse_unless("partial_rotary_factor", 1, 1.0)
            inner.refuse_unless("partial_rotary_factor", 1, 1.0)
        else:
            share = inner.number("partial_rotary_factor", self.number("partial_rotary_factor", default_share))
            if not 0 < share <= 1:
                raise ConfigError("'partial_rotary_factor' must be above 0 and at most 1")
            head_dim = int(head_dim * share)
        kind = _rope_kind(where, scaling)
        return RopeConfig(theta, head_dim, scaling=scaling_of(kind, self, inner, scaling, head_dim))

    def positive(self, name: str, default: float | None = None) -> float:
        value = self.number(name, default)
        if not value > 0:
            raise ConfigError(f"{name!r} must be greater than zero")
        return value

    def _present(self, name: str, default: Any) -> Any:
        value = self._hf.get(name)
        value = default if value is None else value
        if value is None:
            raise ConfigError(f"{name!r} is missing")
        return value


def _rope_kind(where: str, scaling: Any) -> str:
    """What a description of rotary positions calls their scaling, `default` for none. where: the setting's name."""
    said = scaling if isinstance(scaling, dict) else {}
    kind = said.get("rope_type", said.get("type", "default"))
    kind = "longrope" if kind == "su" else kind
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"{where!r}: type {short(kind)} is not supported, only {', '.join(KINDS)}")
    return kind


def activation(value: Any, name: str) -> Activation:
    """Our word for an activation of transformers."""
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise ConfigError(f"{name!r}: activation {short(value)} is not supported, only {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[value]


def head_width(hidden_size: int, num_heads: int) -> int:
    """Width of a head where the heads share the hidden size evenly."""
    if hidden_size % num_heads:
        raise ConfigError(f"hidden size {hidden_size} is not a multiple of the number of heads {num_heads}")
    return hidden_size // num_heads


def short(value: Any) -> str:
    """A value of the file as it may stand in a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
