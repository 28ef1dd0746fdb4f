"""`triptych models --url`: the models of a running server, with what they can do and the memory they take."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any

from server.client import environment
from server.client.connection import DEFAULT_URL, Connection, ServerAddress
from server.client.errors import RequestFailed
from server.client.interrupts import interruptible
from server.client.target import api_key


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.usage = "triptych models [--url [URL]] [--api-key-file FILE]"
    parser.add_argument(
        "--url",
        nargs="?",
        const="",
        help=f"list the models of a server: this URL, or without one ${environment.URL}, else {DEFAULT_URL}",
    )
    parser.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help=f"file with the API key (default: ${environment.API_KEY})"
    )


def served_models(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """The models of a server: names, and a line about each. Raises CommandError."""
    url = arguments.url or os.environ.get(environment.URL) or DEFAULT_URL
    where = ServerAddress(url.rstrip("/"), api_key(arguments.api_key_file))

    async def ask() -> list[dict[str, Any]]:
        async with Connection(where) as connection:
            return await describe_models(connection)

    return [(model["name"], _about(model)) for model in asyncio.run(interruptible(ask()))]


async def describe_models(connection: Connection) -> list[dict[str, Any]]:
    """The models as `GET /info` describes them. Other servers have names only, from `GET /v1/models`."""
    try:
        models = (await connection.get("/info"))["models"]
        return [model for model in models if model["name"]]
    except RequestFailed as error:
        if error.status not in (404, 405):
            raise
    except (LookupError, TypeError):
        pass
    return [{"name": name} for name in await model_names(connection)]


async def model_names(connection: Connection) -> list[str]:
    """The names of the models, from `GET /v1/models`; empty for a server without this route. Raises RequestFailed."""
    try:
        listed = await connection.get("/v1/models")
        return [str(model["id"]) for model in listed["data"]]
    except RequestFailed as error:
        if error.status not in (404, 405):
            raise
    except (LookupError, TypeError):
        pass
    return []


def _about(model: dict[str, Any]) -> str:
    if "tasks" not in model:
        return ""
    parts = [
        ", ".join(model["tasks"]),
        model["family"],
        f"{model['quantization'] or model['dtype']}, {model['weight_bytes'] / 2**20:,.0f} MiB",
        f"{model['usable_tokens'] or model['max_input_tokens']:,} tokens",
    ]
    if model["adapter_of"]:
        parts.insert(1, f"adapter of {model['adapter_of']}")
    return "; ".join(parts)
