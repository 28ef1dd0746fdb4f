"""Headers of a request that are found in a dictionary, because the checks of a request look for some twenty names."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

_HEADERS = "triptych.headers"
"""Key in the ASGI scope: the `IndexedHeaders` of the request."""


class IndexedHeaders(Headers):
    """Headers with a dictionary from name to values. `Headers` of starlette compares all names at each look-up.

    raw: name and value of each header, as in the ASGI scope: names are in lower case.
    """

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        super().__init__(raw=raw)
        self._values: dict[str, list[str]] = {}
        for name, value in raw:
            self._values.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))

    def are_of(self, raw: object) -> bool:
        """Whether these headers were made from this very list. False for another list with the same contents."""
        return self._list is raw

    def getlist(self, key: str) -> list[str]:
        return list(self._values.get(key.lower(), ()))

    def get(self, key: str, default: Any = None) -> Any:
        found = self._values.get(key.lower())
        return default if found is None else found[0]

    def __getitem__(self, key: str) -> str:
        return self._values[key.lower()][0]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key.lower() in self._values


def headers_of(scope: Scope) -> IndexedHeaders:
    """The headers of a request, read once and kept in its scope."""
    found: IndexedHeaders | None = scope.get(_HEADERS)
    if found is None or not found.are_of(scope["headers"]):
        scope["headers"] = raw = list(scope["headers"])
        found = scope[_HEADERS] = IndexedHeaders(raw)
    return found


class IndexedRequest(Request):
    """A request whose attribute `headers` is the result of `headers_of`: headers that are found in a dictionary."""

    @cached_property
    def headers(self) -> Headers:
        return headers_of(self.scope)
