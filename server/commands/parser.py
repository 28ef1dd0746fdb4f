"""The parser of the command line. Its errors are one line, with the name that was probably meant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from server.near_names import did_you_mean
from server.system.terminal import styled


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are one line.

    fill: adds the arguments to the parser when it is first used, so that unused commands import nothing.
    """

    def __init__(self, *positional: Any, fill: Callable[[Parser], None] | None = None, **named: Any) -> None:
        super().__init__(*positional, **named)
        self._fill = fill

    def fill(self) -> None:
        """Add the arguments to the parser, if that was not done yet."""
        if self._fill is not None:
            fill, self._fill = self._fill, None
            fill(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.fill()
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not among the choices of an argument. Raises ArgumentError, or ends the process."""
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"{value!r} is not a command{did_you_mean(str(value), names) or ': ' + ', '.join(names)}")
        raise argparse.ArgumentError(
            action, f"{value!r} is none of {', '.join(names)}{did_you_mean(str(value), names)}"
        )

    def error(self, message: str) -> NoReturn:
        fail(f"{message} (see {self.prog} --help)", 2)

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """End the process with an error for unknown arguments. unknown: the arguments."""
        flag = next((argument.partition("=")[0] for argument in unknown if argument.startswith("-")), "")
        names = [name for name in self._option_string_actions if name.startswith("--")]
        self.error(f"unrecognized arguments: {' '.join(unknown)}{did_you_mean(flag, names) if flag else ''}")


def fail(message: str, status: int) -> NoReturn:
    """End the process with a message on standard error. status: exit code."""
    print(f"{styled('triptych:', 'red', sys.stderr)} {message}", file=sys.stderr)
    raise SystemExit(status)
