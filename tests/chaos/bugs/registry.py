"""Register planted bugs by name, and install one in the present process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

Process = Literal["http", "worker"]


@dataclass(frozen=True)
class Bug:
    """A planted bug. plant: function that plants it. processes: processes in which it must be called."""

    processes: tuple[Process, ...]
    plant: Callable[[], None]


BUGS: dict[str, Bug] = {}
_replaced: list[tuple[Any, str, Any]] = []


def bug(*processes: Process) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function that plants a bug. Its name is the name of the bug, with dashes."""

    def register(plant: Callable[[], None]) -> Callable[[], None]:
        BUGS[plant.__name__.replace("_", "-")] = Bug(processes, plant)
        return plant

    return register


def replace(owner: Any, name: str, new: Any) -> Any:
    """Replace an attribute of a class or module, and return the old one. Raises AttributeError if there is none.

    If a planted bug had no effect, its check would seem to miss it.
    """
    old = getattr(owner, name)
    _replaced.append((owner, name, old))
    setattr(owner, name, new)
    return old


def install(name: str, *processes: Process) -> None:
    """Plant a bug if it belongs to one of these processes."""
    if set(processes) & set(BUGS[name].processes):
        BUGS[name].plant()


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Context manager that plants a bug in this process, and removes it at the end."""
    first = len(_replaced)
    install(name, "http", "worker")
    try:
        yield
    finally:
        while len(_replaced) > first:
            owner, attribute, old = _replaced.pop()
            setattr(owner, attribute, old)
