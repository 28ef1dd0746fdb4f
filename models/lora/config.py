"""Settings of a LoRA adapter: the modules that it changes, their rank and their scale. Imports no torch.

The settings are those of `adapter_config.json`, as peft writes it. Unsupported settings raise ConfigError.
Source of the scale: Hu et al. 2021, arXiv:2106.09685, section 4.1; with `use_rslora`, Kalajdzievski 2023,
arXiv:2312.03732.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.config import ConfigError
from models.families.shared.fields import Fields, short

_IGNORED = frozenset(
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
"""Settings that have no effect on outputs: origin and training of the adapter, and memory layout of the base model."""

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
_SUPPORTED_INITS = (True, False, "gaussian", "orthogonal", "eva")
"""Initialisations that leave the weights of the base model unchanged. Other initialisations, such as PiSSA, change
them."""

ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class LoraConfig:
    """Settings of one adapter. Modules have their names in transformers, such as `model.layers.0.mlp.up_proj`.

    rank: rank of an update, the inner width of its two factors.
    alpha: numerator of the scale.
    rslora: whether the scale is alpha divided by the square root of the rank; otherwise alpha divided by the rank.
    targets: which modules the adapter changes: a tuple of module names or their last parts, one regular expression for
        full names, or `all-linear`.
    excluded: modules that are no targets, in the form of `targets`; empty to exclude no module.
    layers: indices of the layers whose modules may be targets, if `targets` is a tuple; empty for all layers.
    layers_pattern: names of the module lists that contain the layers; empty for any list.
    rank_pattern, alpha_pattern: pairs of a regular expression and a value, for modules whose names end with a match.
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
        """Read the settings that peft wrote.

        Raises ConfigError, which names a setting that is invalid or not supported.
        """
        fields = Fields(hf)
        if hf.get("peft_type") != "LORA":
            raise ConfigError(f"'peft_type': {short(hf.get('peft_type'))} is not supported; only 'LORA' is")
        fields.refuse_unless("bias", "none")
        fields.refuse_unless("init_lora_weights", *_SUPPORTED_INITS)
        for name, value in hf.items():
            if name not in _READ | _IGNORED and value not in (None, False, [], {}):
                raise ConfigError(f"{name!r}: {short(value)} is not supported")
        targets = _names(hf, "target_modules")
        if not targets:
            raise ConfigError("'target_modules' is missing or empty")
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
        """Whether the adapter changes the module with this name."""
        if self.excluded and _matches(self.excluded, module):
            return False
        if isinstance(self.targets, str) and self.targets.lower() == ALL_LINEAR:
            return True
        return _matches(self.targets, module) and (isinstance(self.targets, str) or self._is_layer(module))

    def rank_of(self, module: str) -> int:
        """Rank of the update of a module."""
        return int(_first(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str) -> float:
        """Factor by which the update of a module is multiplied."""
        rank = self.rank_of(module)
        return _first(self.alpha_pattern, module, self.alpha) / (rank**0.5 if self.rslora else rank)

    def _is_layer(self, module: str) -> bool:
        if not self.layers:
            return True
        names = self.layers_pattern or (r"[^.]*",)
        prefix = r"(?:^|.*?\.)" if self.layers_pattern else r".*?\."
        found = next(filter(None, (re.match(rf"{prefix}{name}\.(\d+)\.", module) for name in names)), None)
        return found is not None and int(found[1]) in self.layers


def _matches(targets: str | Sequence[str], module: str) -> bool:
    if isinstance(targets, str):
        return re.fullmatch(targets, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in targets)


def _first(pattern: Sequence[tuple[str, float]], module: str, default: float) -> float:
    return next((value for name, value in pattern if re.match(rf"(.*\.)?({name})$", module)), default)


def _names(hf: Mapping[str, Any], name: str) -> str | tuple[str, ...]:
    value = hf.get(name)
    if value is None:
        return ()
    if isinstance(value, str):
        _compile(value, name)
        return value
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise ConfigError(f"{name!r} must be a regular expression or a list of names")
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
        raise ConfigError("'layers_to_transform' must be the index of a layer or a list of such indices")
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
        raise ConfigError(f"{name!r}: {short(pattern)} is not a regular expression") from None
