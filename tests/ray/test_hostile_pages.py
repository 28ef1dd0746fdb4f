"""A hostile web page is refused through the ingress as without Ray. The tests need the package ray, but no cluster."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("ray")

from server.ray_serve.arguments import read
from server.ray_serve.ingress import Forwarder
from server.ray_serve.messages import answer
from tests.api.conftest import Bench, bench  # noqa: F401
from tests.api.test_browser_attacks import (  # noqa: F401
    test_a_hostile_page_reads_nothing,
    test_no_form_of_a_hostile_page_is_read,
    test_no_route_of_any_method_serves_a_hostile_page,
    test_probes_say_nothing_to_any_page,
)


class Answer:
    """A stand-in for a response of Ray's handle: the messages of an application that runs in this process."""

    def __init__(self, messages: AsyncGenerator[list[Any], None]) -> None:
        self._messages = messages

    def __aiter__(self) -> AsyncIterator[list[Any]]:
        return self._messages

    def cancel(self) -> None:
        pass


class Handle:
    """A stand-in for Ray's handle, which gives each request to `app`."""

    def __init__(self, app: Any) -> None:
        self.answer = SimpleNamespace(remote=lambda scope, body: Answer(answer(app, scope, body)))

    def options(self, **_: Any) -> Handle:
        return self


@pytest.fixture
async def http(bench: Bench) -> AsyncIterator[httpx.AsyncClient]:  # noqa: F811
    """An HTTP client of the ingress of a cluster without keys."""
    ingress = Forwarder(Handle(bench.app), read({"insecure_no_auth": "true"}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(ingress), base_url="http://localhost") as client:
        yield client
