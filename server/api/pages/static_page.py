"""Pages from files of this package: a fixed table of routes, a security policy, and 304 for unchanged files."""

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
    files: route to file, relative to `directory`.
    policy: the Content-Security-Policy.
    """

    directory: Path
    files: Mapping[str, str]
    policy: str
    _static: StaticFiles = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_static", StaticFiles(directory=self.directory))

    async def respond(self, name: str, request: Request) -> Response:
        """One file, or 304 when the browser's copy is current."""
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
        """Register the routes, for `GET` and `HEAD`."""
        for path, name in self.files.items():
            router.add_route(path, partial(self.respond, name), methods=["GET"])
