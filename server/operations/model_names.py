"""Find the model that a request means: by alias, by pattern for clients with fixed names, or by default."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

PLACEHOLDER_NAMES = frozenset({"dummy", "tgi"})
"""Names that Hugging Face clients send if the user names no model. They mean the default model, unless a model has the
name."""


@dataclass(frozen=True)
class ModelNames:
    """Names of models that the operator has configured.

    aliases: pairs of a name, or a pattern with `*` and `?`, and the model that it means. The first that fits applies.
    defaults: operation or route path to the model of requests that name no model.
    """

    aliases: Sequence[tuple[str, str]] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)

    def resolve(self, name: str, known: Container[str]) -> str:
        """The name of the model that a name means. Names in `known`, and names that fit no alias, mean themselves."""
        if name in known:
            return name
        return next((model for pattern, model in self.aliases if fnmatchcase(name, pattern)), name)

    def model(self, name: str | None, operation: str, known: Container[str]) -> str | None:
        """The name of the model for a request; None for the first model that can answer.

        name: the name in the request; None if it names no model. known: names of existing models.
        """
        if name is not None and name not in PLACEHOLDER_NAMES:
            return self.resolve(name, known)
        if name in known:
            return name
        return self.defaults.get(operation, name)


def pairs(entries: Sequence[str]) -> list[tuple[str, str]]:
    """Split `NAME=MODEL` entries into pairs of name and model."""
    found = [entry.partition("=") for entry in entries]
    return [(name, model) for name, _, model in found]
