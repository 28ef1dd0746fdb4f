"""The page `/docs`: Swagger UI from files of this package, so that it works without any other host.

The page and its files need no API key, because a browser cannot send one when it opens a page. The user enters the
key on the page, which then sends it with `/openapi.json` and every "Try it out" request.
See docs/decisions/0039-api-page.md.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

DIRECTORY = Path(__file__).parent / "static" / "docs"

FILES = {
    "/docs": "index.html",
    "/docs/page.css": "page.css",
    "/docs/page.js": "page.js",
    "/docs/swagger-ui/favicon-32x32.png": "swagger-ui/favicon-32x32.png",
    "/docs/swagger-ui/swagger-ui.css": "swagger-ui/swagger-ui.css",
    "/docs/swagger-ui/swagger-ui-bundle.js": "swagger-ui/swagger-ui-bundle.js",
}
"""Route to file below DIRECTORY. No other file is served."""

_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; connect-src 'self'; font-src 'self' data:; frame-ancestors 'none'; "
        "img-src 'self' data: blob:; media-src 'self' blob:; script-src 'self'; style-src 'self' 'unsafe-inline'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

router = APIRouter()
_static = StaticFiles(directory=DIRECTORY)


async def page_file(name: str, request: Request) -> Response:
    """One file of the page, or 304 when the browser's copy is current."""
    response = await _static.get_response(name, request.scope)
    response.headers.update(_HEADERS)
    return response


for _path, _name in FILES.items():
    router.add_route(_path, partial(page_file, _name), methods=["GET"])
