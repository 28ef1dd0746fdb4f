"""Every command in the documentation is run by a test, or states why not. Its commands, flags and files exist."""

from __future__ import annotations

import importlib.util
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from server.cli import COMMANDS, _load_settings, _parser
from tests.documented_commands import GENERATED, REPOSITORY, inline_commands, shell_blocks

BLOCKS = shell_blocks()
COMMANDS_OF_PAGES = [(block, command) for block in BLOCKS for command in block.commands]
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (REPOSITORY / "Makefile").read_text(), re.M))
STAGES = set(re.findall(r"^FROM \S+ AS (\S+)$", (REPOSITORY / "Dockerfile").read_text(), re.M))
URL = "http://127.0.0.1:8000"
ENDS_OF_COMMANDS = {"|", "&&", ";", "||"}
REDIRECTIONS = {">", "<", ">>"}
TESTS_OF_CONSOLE = {"docs/command-line.md": ("triptych", "printf", "cat"), "": ("curl",)}
"""By page, the programs in `console` blocks that other tests run; the empty name stands for all other pages.

test_command_line_page.py runs docs/command-line.md, and test_jobs.py runs `curl` on the others."""


def test_every_command_is_run_or_says_why_not() -> None:
    silent = [
        f"{block.page}:{block.line}"
        for block in BLOCKS
        if block.page not in GENERATED and block.language != "console" and not block.mark
    ]
    assert not silent, "put <!-- run by tests/FILE.py --> or <!-- not run: REASON --> on the line before these blocks"


def test_the_marks_are_true() -> None:
    for block in BLOCKS:
        if block.mark == "run by":
            file = REPOSITORY / block.reason
            assert file.is_file() and Path(block.page).stem in file.read_text(), f"{block.page}:{block.line}"
        elif block.mark == "not run":
            assert block.language != "console", f"{block.page}:{block.line}: `console` blocks are run"


def test_console_blocks_have_only_commands_that_are_run() -> None:
    for block, command in COMMANDS_OF_PAGES:
        if block.language == "console":
            run = TESTS_OF_CONSOLE.get(block.page, TESTS_OF_CONSOLE[""])
            assert command.split()[0] in run, f"{block.page}:{block.line}: no test runs this command"


def test_there_are_commands() -> None:
    assert len(BLOCKS) > 60 and len(COMMANDS_OF_PAGES) > 120
    assert {block.page for block in BLOCKS} >= {"README.md", "CONTRIBUTING.md", "docs/first-hour.md"}


def words(command: str) -> list[list[str]]:
    """The programs that a line runs, with their arguments. Variable assignments before a program are left out."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    before = ""
    for word in lexer:
        before, last = word, before
        if word in ENDS_OF_COMMANDS:
            found.append([])
        elif word in REDIRECTIONS or last in REDIRECTIONS:
            continue
        elif found[-1] or not re.fullmatch(r"\w+=.*", word):
            found[-1].append(word)
    return [program for program in found if program]


def programs(name: str) -> list[tuple[str, list[str]]]:
    """All calls of a program on the pages: (page and line, arguments)."""
    return [
        (f"{block.page}:{block.line}: {command}", arguments)
        for block, command in COMMANDS_OF_PAGES
        for program, *arguments in words(command)
        if Path(program).name == name
    ]


@pytest.mark.parametrize(("place", "arguments"), programs("triptych"))
def test_flags_and_settings_are_accepted(place: str, arguments: list[str]) -> None:
    parsed, unknown = _parser().parse_known_args([word.replace("$TRIPTYCH_URL", URL) for word in arguments])
    assert not unknown, place
    if arguments and arguments[0] in ("serve", "check"):
        _load_settings(parsed)


def test_commands_in_sentences_exist() -> None:
    """Commands within sentences, such as `triptych check ID`, exist with their flags."""
    found = [(page, code.split()) for page, code in inline_commands() if code.startswith("triptych ")]
    assert len(found) > 40
    wrong = []
    for page, (_, *rest) in found:
        if rest == ["--version"]:
            continue
        if not rest or rest[0] not in COMMANDS:
            wrong.append((page, rest))
            continue
        flags = flags_of(rest[0])
        wrong += [(page, word) for word in rest if word.startswith("--") and word.partition("=")[0] not in flags]
    assert not wrong


def flags_of(name: str) -> set[str]:
    (commands,) = (action for action in _parser()._actions if isinstance(action.choices, dict))
    parser = commands.choices[name]
    parser.fill()
    return set(parser._option_string_actions)


def test_targets_of_make_exist() -> None:
    named = [(place, word) for place, arguments in programs("make") for word in arguments if "=" not in word]
    named += [
        (page, word)
        for page, code in inline_commands()
        if code.startswith("make ")
        for word in shlex.split(code)[1:]
        if "=" not in word
    ]
    assert len(named) > 30 and not [place for place in named if place[1] not in TARGETS]


def test_files_modules_and_stages_exist() -> None:
    for place, arguments in [*programs("docker"), *programs("kubectl"), *programs("install")]:
        for flag, value in pairwise(arguments):
            if flag == "--target":
                assert value in STAGES, place
            elif flag in ("-f", "-k"):
                assert (REPOSITORY / value).exists(), place
        for word in arguments:
            if word.startswith("deploy/"):
                assert (REPOSITORY / word).exists(), place
    for place, arguments in programs("python"):
        module = arguments[arguments.index("-m") + 1]
        assert importlib.util.find_spec(module) is not None, place
    for place, arguments in [*programs("uvicorn"), *programs("serve")]:
        for word in arguments:
            if target := re.fullmatch(r"([\w.]+):(\w+)", word):
                assert hasattr(importlib.import_module(target[1]), target[2]), place
