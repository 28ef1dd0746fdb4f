"""Serve pages from files of this package, with a fixed table of routes, security headers, and 304 if unchanged."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

mimetypes.add_type("text/javascript", ".js")  # Some systems map .js to another type, and browsers then refuse modules.
DIRECTORY = Path(__file__).parents[1] / "static"


@dataclass(frozen=True)
class StaticPage:
    """A page and its files. No other file is served.

    directory: folder with the files.
    files: request path to file name, relative to `directory`.
    policy: value of the header `Content-Security-Policy`.
    """

    directory: Path
    files: Mapping[str, str]
    policy: str
    _static: StaticFiles = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_static", StaticFiles(directory=self.directory))

    async def respond(self, name: str, request: Request) -> Response:
        """Send a file, or status 304 if the browser's copy is current. name: file name, relative to `directory`."""
        response = await self._static.get_response(name, request.scope)
        response.headers.update(
            {
                "cache-control": "no-cache",
                "content-security-policy": self.policy,
                "referrer-policy": "no-referrer",
                "x-content-type-options": "nosniff",
            }
        )
        return response

    def add_to(self, router: APIRouter) -> None:
        """Register a `GET` route for each file."""
        for path, name in self.files.items():
            router.add_route(path, partial(self.respond, name), methods=["GET"])
