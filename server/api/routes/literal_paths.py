"""Find the route of most requests in one table look-up, instead of comparing the path with every route in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.types import Receive, Scope, Send


class LiteralPaths(BaseRoute):
    """One route that stands for all routes without parameters in their paths. It must be the application's first route.

    routes: all routes. If two have the same path and method, the first one answers. Routes with parameters are left
        out.
    """

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._routes: dict[tuple[str, str], APIRoute] = {}
        for route in routes:
            if isinstance(route, APIRoute) and not route.param_convertors:
                for method in route.methods or ():
                    self._routes.setdefault((method, route.path), route)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        route = self._routes.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        # With a prefix (`root_path`), the path of the request is longer than that of its route.
        return (Match.NONE, {}) if route is None or scope.get("root_path") else route.matches(scope)

    def url_path_for(self, name: str, /, **path_params: Any) -> NoReturn:
        """Raise NoMatchFound, so that starlette creates the address from the route itself."""
        raise NoMatchFound(name, path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        # `matches` of the route that was found has stored this route in the scope.
        route: APIRoute = scope["route"]
        await route.handle(scope, receive, send)
