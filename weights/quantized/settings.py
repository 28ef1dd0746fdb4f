"""Strict reading of `quantization_config` in `config.json`: errors name the setting with the wrong value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from weights.errors import WeightsError

_MAX_GROUP = 1 << 20


class QuantizationSettings:
    """Strict reading of a quantised checkpoint's settings.

    Methods raise WeightsError, with the setting's name, for a value that is not supported; `get` does not check.

    where: name of the object in `config.json`, for errors.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "quantization_config") -> None:
        self._values, self._where = values, where

    def choice(self, name: str, allowed: Sequence[Any], default: Any = None) -> Any:
        """The value of a setting, which must be one of `allowed`; `default` if it is absent or null."""
        value = self._values.get(name)
        value = default if value is None else value
        if not any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in allowed):
            self.refuse(name, f"{_short(value)} is not supported, only {', '.join(map(repr, allowed))}")
        return value

    def group_size(self, name: str = "group_size", default: int = 128) -> int:
        """Number of neighbouring inputs that share a scale; -1 for all inputs. `default` if it is absent or null."""
        value = self._values.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or (value != -1 and not 1 <= value <= _MAX_GROUP):
            self.refuse(name, f"must be a positive integer up to {_MAX_GROUP:,}, or -1, not {_short(value)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value: bool = self.choice(name, (True, False), default)
        return value

    def pair(self, name: str, absent: tuple[int, int] | None = None) -> tuple[int, int] | None:
        """A setting of two positive integers, up to 1,048,576. None if it is null, `absent` if the file lacks it."""
        if name not in self._values:
            return absent
        value = self._values[name]
        if value is None:
            return None
        are_integers = isinstance(value, list) and [type(number) for number in value] == [int, int]
        if not are_integers or not 1 <= min(value) <= max(value) <= _MAX_GROUP:
            self.refuse(name, f"must be two positive integers up to {_MAX_GROUP:,}, not {_short(value)}")
        return value[0], value[1]

    def part(self, name: str) -> QuantizationSettings | None:
        """The settings in a nested object, or None if it is absent or null."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.refuse(name, "must be an object")
        return QuantizationSettings(value, f"{self._where}.{name}")

    def parts(self, name: str) -> dict[str, QuantizationSettings]:
        """The settings in each object inside the object `name`, by key; empty if that object is absent or null."""
        value = self._values.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping) or not all(isinstance(settings, Mapping) for settings in value.values()):
            self.refuse(name, "must be an object of objects")
        return {key: QuantizationSettings(settings, f"{self._where}.{name}.{key}") for key, settings in value.items()}

    def names(self, name: str) -> list[str]:
        """A setting that is a list of names; empty if it is absent or null."""
        value = self._values.get(name)
        value = [] if value is None else value
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            self.refuse(name, "must be a list of names")
        return list(value)

    def refuse_unless(self, name: str, *allowed: Any) -> None:
        """Raise WeightsError unless the setting is absent, null or one of `allowed`."""
        value = self._values.get(name)
        if value is not None and value not in allowed:
            only = f"only {', '.join(map(repr, allowed))}" if allowed else "it must be null or absent"
            self.refuse(name, f"{_short(value)} is not supported, {only}")

    def refuse(self, name: str, reason: str) -> NoReturn:
        raise WeightsError(f"'{self._where}.{name}': {reason}")

    def get(self, name: str) -> Any:
        """The value in the file, unchecked; None if it is absent."""
        return self._values.get(name)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
