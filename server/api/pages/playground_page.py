"""`GET /`: the playground for browsers, and a short description of the server for other clients.

The page and its files need no API key, because a browser cannot send one when it opens a page. The user enters the
key on the page. See docs/decisions/0045-playground.md.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api.bodies.json_answer import json_response
from server.api.pages.static_page import DIRECTORY, StaticPage
from server.api.state import of

_FOLDER = DIRECTORY / "playground"
_INDEX = "index.html"
_ZERO = frozenset({"q=0", "q=0.0", "q=0.00", "q=0.000"})

PAGE = StaticPage(
    _FOLDER,
    {
        f"/playground/{name}": name
        for file in sorted(_FOLDER.rglob("*"))
        if file.is_file() and (name := file.relative_to(_FOLDER).as_posix()) != _INDEX
    },
    "default-src 'none'; base-uri 'none'; connect-src 'self'; form-action 'none'; frame-ancestors 'none'; "
    "img-src 'self'; media-src 'self' blob:; script-src 'self'; style-src 'self'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
)
"""The playground and its files. The list of files is read at import, so a file that is added later is not served."""

FILES = frozenset({"/", *PAGE.files})


async def index(request: Request) -> Response:
    """Answer `GET /`: the playground for clients that accept HTML, otherwise a JSON object about the server.

    The object tells whether requests need an API key.
    """
    if accepts_html(request.headers.get("accept", "")):
        response = await PAGE.respond(_INDEX, request)
    else:
        about = {"name": "triptych", "info": "/info", "openapi": "/openapi.json", "needs_key": bool(of(request).keys)}
        response = json_response(about)
        response.headers["cache-control"] = "no-store"
    response.headers["vary"] = "Accept"
    return response


def accepts_html(accept: str) -> bool:
    """Whether a header `Accept` contains `text/html` with a weight above 0. Source: RFC 9110, section 12.5.1."""
    ranges = ["".join(part.split()).lower().split(";") for part in accept.split(",")]
    return any(kind == "text/html" and not _ZERO.intersection(parameters) for kind, *parameters in ranges)


router = APIRouter()
router.add_route("/", index, methods=["GET"])
PAGE.add_to(router)
