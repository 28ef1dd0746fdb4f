"""The page `/docs`: Swagger UI from files of this package, so that it works without any other host.

The page and its files need no API key, because a browser cannot send one when it opens a page. The user enters the
key on the page, which then sends it with `/openapi.json` and every "Try it out" request.
See docs/decisions/0039-the-api-page.md.
"""

from __future__ import annotations

from fastapi import APIRouter

from server.api.pages.static_page import DIRECTORY, StaticPage

PAGE = StaticPage(
    DIRECTORY / "docs",
    {
        "/docs": "index.html",
        "/docs/page.css": "page.css",
        "/docs/page.js": "page.js",
        "/docs/examples.js": "examples.js",
        "/docs/swagger-ui/swagger-ui.css": "swagger-ui/swagger-ui.css",
        "/docs/swagger-ui/swagger-ui-bundle.js": "swagger-ui/swagger-ui-bundle.js",
    },
    "default-src 'none'; connect-src 'self'; font-src 'self' data:; frame-ancestors 'none'; "
    "img-src 'self' data: blob:; media-src 'self' blob:; script-src 'self'; style-src 'self' 'unsafe-inline'",
)

router = APIRouter()
PAGE.add_to(router)
