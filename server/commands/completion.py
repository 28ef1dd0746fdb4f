"""`triptych completion`: write the script that lets a shell complete commands, flags and their values."""

from __future__ import annotations

import argparse
from pathlib import Path

from server.commands.parser import Parser
from server.errors import StartError
from server.system.help_texts import HelpFormatter

SHELLS = ("bash", "zsh", "fish")
HELP_END = """
examples:
  triptych completion bash > ~/.local/share/bash-completion/completions/triptych
  triptych completion zsh > ~/.zfunc/_triptych           # with fpath=(~/.zfunc $fpath) before compinit in ~/.zshrc
  triptych completion fish > ~/.config/fish/completions/triptych.fish

Create the directory of the script first. A new shell reads it. Write it again after an update of Triptych. Needs the
package shtab: pip install 'triptych[completion]'.
"""
_FILES = frozenset({"FILE", "IN", "OUT", "RECORDING", "PATH_OR_HUB_ID", "[NAME=]PATH_OR_HUB_ID"})
_DIRECTORIES = frozenset({"DIR", "DIRECTORY"})


def add_arguments(parser: Parser) -> None:
    """Add the arguments of the command to its parser."""
    parser.formatter_class = HelpFormatter
    parser.epilog = HELP_END
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the completion script of a shell.

    shell: `bash`, `zsh` or `fish`. parser: the parser of `triptych`, with its commands.
    Raises StartError if the package shtab is not installed.
    """
    try:
        import shtab
    except ImportError:
        raise StartError("completion: install the package for it: pip install 'triptych[completion]'") from None
    for command in _commands(parser):
        command.fill()
        for action in command._actions:
            if action.metavar in _DIRECTORIES:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            elif action.metavar in _FILES or action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))


def _commands(parser: argparse.ArgumentParser) -> list[Parser]:
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return list(commands.choices.values())
