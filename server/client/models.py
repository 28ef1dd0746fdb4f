"""`triptych models --url`: list the models of a running server, with their tasks and memory."""

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
from server.near_names import unknown_model, with_name


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
    """Return the models of a server: (name, line with tasks, family, dtype, memory and context).

    Raises CommandError if no server answers, or if it refuses the request.
    """
    url = arguments.url or os.environ.get(environment.URL) or DEFAULT_URL
    where = ServerAddress(url.rstrip("/"), api_key(arguments.api_key_file))

    async def ask() -> list[dict[str, Any]]:
        async with Connection(where) as connection:
            return await describe_models(connection)

    return [(model["name"], _about(model)) for model in asyncio.run(interruptible(ask()))]


async def describe_models(connection: Connection) -> list[dict[str, Any]]:
    """Return the models of a server as `GET /info` describes them.

    For a server without this route, the descriptions have only a `name`, from `GET /v1/models`.
    """
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
    """Return the names of the models, from `GET /v1/models`; empty for a server without this route.

    Raises RequestFailed for any other error of the server.
    """
    try:
        listed = await connection.get("/v1/models")
        return [str(model["id"]) for model in listed["data"]]
    except RequestFailed as error:
        if error.status not in (404, 405):
            raise
    except (LookupError, TypeError):
        pass
    return []


async def chat_models(connection: Connection) -> list[str]:
    """Return the names of the models that can chat. A model whose routes the server does not tell is included."""
    names = await model_names(connection)
    routes = {model["name"]: model.get("routes") for model in await describe_models(connection)}
    return [name for name in names if "/v1/chat/completions" in (routes.get(name) or ["/v1/chat/completions"])]


async def check_chat_model(connection: Connection, name: str) -> None:
    """Raise RequestFailed for a model that the server does not have, or that cannot chat.

    A server that does not list its models passes.
    """
    names = await model_names(connection)
    if not names:
        return  # a server that does not list its models
    if name not in names:
        raise RequestFailed(with_name(unknown_model(name, names), name), 404)
    able = await chat_models(connection)
    if name not in able:
        raise RequestFailed(f"{name} cannot chat; models that can: {', '.join(able) or 'none'}", 404)


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
