"""Choose the server of a command: a server on a URL, or one that runs in this process during the command."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from server.client import environment
from server.client.connection import DEFAULT_URL, ServerAddress
from server.client.errors import CommandError

StartServer = Callable[[str, Mapping[str, str]], AbstractContextManager[tuple[str, str]]]
"""Function that starts a server in this process. Returns a context manager of the server's URL and API key.

Its arguments are the model, as `[NAME=]PATH_OR_HUB_ID`, and settings of the server by name.
"""

LOAD_SETTINGS = {
    "device": "auto, cpu or cuda",
    "dtype": "auto, float32, bfloat16 or float16",
    "quantize": "int8, int6, int5, int4, int8-fast, int4-32, int4-64, int4-128, or one with -zero: bits of weights",
    "kv_cache_memory": "memory for keys and values, such as 512M",
    "kv_cache_dtype": "int8, or fp8 on cuda: keys and values in half the memory of bfloat16",
    "threads": "number of torch threads",
}
"""Settings of the server that can be given as flags together with `--load`, with their help texts."""


def add_target_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose a model: on a server, or loaded in this process with `--load` and its settings.

    The flags for a server include the API key file, retries and the time limit of a request.
    """
    group = parser.add_argument_group("server")
    group.add_argument("--url", help=f"URL of the server (default: ${environment.URL}, else {DEFAULT_URL})")
    group.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help=f"file with the API key (default: ${environment.API_KEY})"
    )
    group.add_argument(
        "-m", "--model", metavar="NAME", help=f"model on the server (default: ${environment.MODEL}, else the server's)"
    )
    group.add_argument(
        "--retries", type=int, default=8, metavar="N", help="attempts while the server is busy (default: 8)"
    )
    group.add_argument(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help="time limit of a request (default: the server's, usually none)",
    )
    local = parser.add_argument_group("without a server")
    local.add_argument(
        "--load", metavar="PATH_OR_HUB_ID", help="load a model in this process instead, for the time of the command"
    )
    for name, text in LOAD_SETTINGS.items():
        local.add_argument("--" + name.replace("_", "-"), metavar=name.rpartition("_")[2].upper(), help=text)


def seconds(text: str) -> float:
    """Parse a positive, finite number in the value of a flag. Raises ArgumentTypeError for any other text."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"write a number above 0, not {text!r}")
    return value


def count(text: str) -> int:
    """Parse an integer of at least 1 in the value of a flag. Raises ArgumentTypeError for any other text."""
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"write a number from 1, not {text!r}")
    return int(text)


@contextlib.contextmanager
def target(arguments: argparse.Namespace, start: StartServer) -> Iterator[tuple[ServerAddress, str | None]]:
    """Context manager of the server of a command. Yields its address, and the name of the model to use.

    The name is None for the server's default model. With `--load`, the server runs in this process until the end.

    start: starts a server in this process.
    Raises CommandError for flags that exclude each other, and the errors of `start`.
    """
    settings = {name: value for name in LOAD_SETTINGS if (value := getattr(arguments, name)) is not None}
    limits = {"retries": arguments.retries, "timeout_seconds": arguments.timeout}
    if arguments.load is None:
        if settings:
            raise CommandError(
                f"--{next(iter(settings)).replace('_', '-')} needs --load: a server has its own settings"
            )
        url = arguments.url or os.environ.get(environment.URL) or DEFAULT_URL
        model = arguments.model or os.environ.get(environment.MODEL)
        yield ServerAddress(url.rstrip("/"), api_key(arguments.api_key_file), **limits), model
        return
    for name in ("url", "model", "api_key_file"):
        if getattr(arguments, name) is not None:
            raise CommandError(f"--load runs without a server: leave out --{name.replace('_', '-')}")
    if sys.stderr.isatty():
        print(f"loading {arguments.load}", file=sys.stderr)
    with start(arguments.load, settings) as (url, key):
        yield ServerAddress(url, key, **limits), None


def api_key(file: Path | None) -> str:
    """Return the API key to send; empty if there is no key.

    file: file whose first line that is no comment is the key; None to use the environment variable.
    Raises CommandError for a file that cannot be read or has no key.
    """
    if file is None:
        return os.environ.get(environment.API_KEY, "").strip()
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise CommandError(f"--api-key-file: cannot read {file}: {error.strerror}") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise CommandError(f"--api-key-file: {file} contains no key")
    return keys[0]
