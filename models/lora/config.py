"""What an adapter's `adapter_config.json` says: which modules it changes, with what rank and how strongly. No torch.

The file is peft's; the factor is that of Hu et al. 2021, arXiv:2106.09685, section 4.1, or, with `use_rslora`, of
Kalajdzievski 2023, arXiv:2312.03732. Whatever else it may ask for is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.config import ConfigError
from models.families.shared.fields import Fields, short

_CHANGE_NOTHING = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "ensure_weight_tying",
        "eva_config",
        "fan_in_fan_out",
        "inference_mode",
        "lora_dropout",
        "lora_ga_config",
        "loftq_config",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "task_type",
    }
)
"""Where it comes from, how it was trained, how its base lies in memory: nothing that an answer depends on."""

_READ = frozenset(
    {
        "peft_type",
        "r",
        "lora_alpha",
        "use_rslora",
        "bias",
        "init_lora_weights",
        "rank_pattern",
        "alpha_pattern",
        "target_modules",
        "exclude_modules",
        "layers_to_transform",
        "layers_pattern",
    }
)
_SOUND_BEGINNINGS = (True, False, "gaussian", "orthogonal", "eva")
"""Ways to initialise that leave the base's weights alone; the others (PiSSA and such) change them."""

ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class LoraConfig:
    """One adapter's settings. Modules are named as peft sees them in the base model (`model.layers.0.mlp.up_proj`).

    targets: names, whole or from a dot on, or one pattern for whole names, or `all-linear`. excluded: the same, or
    nothing. layers: the only ones that `targets` as names means; empty for all.
    rank_pattern, alpha_pattern: other values for modules whose names end like that.
    """

    rank: int
    alpha: float
    rslora: bool
    targets: str | tuple[str, ...]
    excluded: str | tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    layers_pattern: tuple[str, ...] = ()
    rank_pattern: tuple[tuple[str, float], ...] = ()
    alpha_pattern: tuple[tuple[str, float], ...] = ()

    @classmethod
    def read(cls, hf: Mapping[str, Any]) -> LoraConfig:
        """Raises ConfigError naming the setting that is wrong or not supported."""
        fields = Fields(hf)
        if hf.get("peft_type") != "LORA":
            raise ConfigError(f"'peft_type': {short(hf.get('peft_type'))} is not supported, only 'LORA'")
        fields.refuse_unless("bias", "none")
        fields.refuse_unless("init_lora_weights", *_SOUND_BEGINNINGS)
        for name, value in hf.items():
            if name not in _READ | _CHANGE_NOTHING and value not in (None, False, [], {}):
                raise ConfigError(f"{name!r}: {short(value)} is not supported")
        targets = _names(hf, "target_modules")
        if not targets:
            raise ConfigError("'target_modules' is missing")
        return cls(
            rank=fields.integer("r", 8),
            alpha=fields.number("lora_alpha", 8),
            rslora=fields.flag("use_rslora", False),
            targets=targets,
            excluded=_names(hf, "exclude_modules"),
            layers=_layers(hf),
            layers_pattern=_listed(_names(hf, "layers_pattern")),
            rank_pattern=_pattern(hf, "rank_pattern"),
            alpha_pattern=_pattern(hf, "alpha_pattern"),
        )

    def is_target(self, module: str) -> bool:
        """Whether the adapter changes a linear of this name."""
        if self.excluded and _matches(self.excluded, module):
            return False
        if isinstance(self.targets, str) and self.targets.lower() == ALL_LINEAR:
            return True
        return _matches(self.targets, module) and (isinstance(self.targets, str) or self._is_layer(module))

    def rank_of(self, module: str) -> int:
        """Inner width of the two factors."""
        return int(_first(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str) -> float:
        """What the product of the two factors is multiplied by."""
        rank = self.rank_of(module)
        return _first(self.alpha_pattern, module, self.alpha) / (rank**0.5 if self.rslora else rank)

    def _is_layer(self, module: str) -> bool:
        if not self.layers:
            return True
        names = self.layers_pattern or (r"[^.]*",)
        prefix = r"(?:^|.*?\.)" if self.layers_pattern else r".*?\."
        found = next(filter(None, (re.match(rf"{prefix}{name}\.(\d+)\.", module) for name in names)), None)
        return found is not None and int(found[1]) in self.layers


def _matches(wanted: str | Sequence[str], module: str) -> bool:
    if isinstance(wanted, str):
        return re.fullmatch(wanted, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in wanted)


def _first(pattern: Sequence[tuple[str, float]], module: str, default: float) -> float:
    return next((value for name, value in pattern if re.match(rf"(.*\.)?({name})$", module)), default)


def _names(hf: Mapping[str, Any], name: str) -> str | tuple[str, ...]:
    value = hf.get(name)
    if value is None:
        return ()
    if isinstance(value, str):
        _compile(value, name)
        return value
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ConfigError(f"{name!r} must be a pattern or a list of names")
    return tuple(value)


def _listed(names: str | tuple[str, ...]) -> tuple[str, ...]:
    names = (names,) if isinstance(names, str) else names
    for name in names:
        _compile(name, "layers_pattern")
    return names


def _layers(hf: Mapping[str, Any]) -> tuple[int, ...]:
    value = hf.get("layers_to_transform")
    layers = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(layer, int) and not isinstance(layer, bool) and layer >= 0 for layer in layers):
        raise ConfigError("'layers_to_transform' must be a number of a layer or a list of them")
    return tuple(layers)


def _pattern(hf: Mapping[str, Any], name: str) -> tuple[tuple[str, float], ...]:
    value = hf.get(name) or {}
    if not isinstance(value, dict):
        raise ConfigError(f"{name!r} must be an object")
    for key in value:
        _compile(key, name)
    fields = Fields(value)
    if name == "rank_pattern":
        return tuple((key, fields.integer(key)) for key in value)
    return tuple((key, fields.number(key)) for key in value)


def _compile(pattern: str, name: str) -> None:
    try:
        re.compile(pattern)
    except re.error:
        raise ConfigError(f"{name!r}: {short(pattern)} is not a pattern") from None
