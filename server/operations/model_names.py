"""Further names of models: aliases, patterns for clients that hard-code names, and defaults of operations."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

PLACEHOLDER_NAMES = frozenset({"dummy", "tgi"})
"""Names that Hugging Face clients send if the user names no model: the default model, unless a model has the name."""


@dataclass(frozen=True)
class ModelNames:
    """Names that the operator has chosen.

    aliases: pairs of a name, or a pattern with `*` and `?`, and a model. The first one that fits applies.
    defaults: model of requests that name none, by operation, or by path of the route.
    """

    aliases: Sequence[tuple[str, str]] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)

    def resolve(self, name: str, known: Container[str]) -> str:
        """The model that a name means. A name in `known` means itself, and so does one that no alias fits."""
        if name in known:
            return name
        return next((model for pattern, model in self.aliases if fnmatchcase(name, pattern)), name)

    def model(self, name: str | None, operation: str, known: Container[str]) -> str | None:
        """The model of a request for an operation; None for the first model that can answer.

        name: as the request has it. known: see `resolve`.
        """
        if name is not None and name not in PLACEHOLDER_NAMES:
            return self.resolve(name, known)
        if name in known:
            return name
        return self.defaults.get(operation, name)


def pairs(entries: Sequence[str]) -> list[tuple[str, str]]:
    """`NAME=MODEL` entries as pairs."""
    found = [entry.partition("=") for entry in entries]
    return [(name, model) for name, _, model in found]
