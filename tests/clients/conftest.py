"""Fixtures for tests of client packages: a server that needs no API key, and a server that requires one.

A test with the fixture `server` runs once against each. It passes `server.key` to its client as the client's
documentation shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.clients.models import write_models
from tests.e2e.conftest import RunningServer, serving

KEY = "a-key-of-the-client-tests"
NO_KEY = "not-needed"


@dataclass(frozen=True)
class ClientServer:
    """A running server and the API key for its clients.

    key: the required key. For a server without keys it is a placeholder, because some clients need one.
    """

    running: RunningServer
    needs_key: bool

    @property
    def url(self) -> str:
        return self.running.url

    @property
    def key(self) -> str:
        return KEY if self.needs_key else NO_KEY

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers with the key, for requests without a client package."""
        return {"authorization": f"Bearer {KEY}"} if self.needs_key else {}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The models of `tests.clients.models`, as arguments of `triptych serve`."""
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session", params=[False, True], ids=["no-key", "key"])
def server(
    request: pytest.FixtureRequest, models: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClientServer]:
    directory = tmp_path_factory.mktemp("server")
    arguments = list(models)
    if request.param:
        (directory / "keys").write_text(KEY + "\n")
        arguments += ["--api-key-file", str(directory / "keys")]
    with serving(directory / "log", *arguments) as running:
        yield ClientServer(running, request.param)
