"""Routes without path parameters are found in one look-up, with the same result as a search through all routes."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Match, NoMatchFound

from server.api.dialects.registry import add_routes
from server.api.routes.literal_paths import LiteralPaths


def _scope(method: str, path: str) -> dict[str, object]:
    return {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}


@pytest.fixture(scope="module")
def app() -> FastAPI:
    app = FastAPI(openapi_url=None)
    add_routes(app)
    return app


def test_every_route_without_parameters_is_found_as_in_order(app):
    literal, *others = app.router.routes
    assert isinstance(literal, LiteralPaths)
    paths = [(method, route.path) for route in others if isinstance(route, APIRoute) for method in route.methods]
    found = 0
    for method, path in paths:
        scope = _scope(method, path)
        match, child = literal.matches(scope)
        if "{" in path:
            assert match is Match.NONE, path
            continue
        in_order = next(child for match, child in (route.matches(scope) for route in others) if match is Match.FULL)
        assert match is Match.FULL
        assert child["route"] is in_order["route"], path
        found += 1
    assert found > 60


def test_other_requests_are_left_to_the_other_routes(app):
    literal = app.router.routes[0]
    assert literal.matches(_scope("DELETE", "/generate"))[0] is Match.NONE
    assert literal.matches(_scope("POST", "/prefix/generate") | {"root_path": "/prefix"})[0] is Match.NONE
    assert literal.matches({"type": "websocket", "path": "/v1/realtime", "headers": []})[0] is Match.NONE


def test_addresses_are_made_by_the_routes_themselves(app):
    path = app.router.url_path_for("libretranslate_download_file", file="a.txt")
    assert path.endswith("/a.txt")
    with pytest.raises(NoMatchFound):
        app.router.url_path_for("no_such_route")


async def test_the_route_in_the_scope_answers():
    answered = []

    class Recorder(APIRoute):
        async def handle(self, scope, receive, send):
            answered.append(scope["path"])

    own = LiteralPaths([Recorder("/a", lambda: None, methods=["GET"])])
    scope = _scope("GET", "/a")
    match, child = own.matches(scope)
    assert match is Match.FULL
    await own.handle(scope | child, None, None)
    assert answered == ["/a"]
