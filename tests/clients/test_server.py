"""The two servers for the client tests load all models, and one of them requires an API key."""

from __future__ import annotations

import httpx

from tests.clients.conftest import ClientServer
from tests.clients.models import DEMO_MODELS, WRITERS


def test_all_models_are_served(server: ClientServer) -> None:
    models = httpx.get(f"{server.url}/info", headers=server.headers).json()["models"]
    assert [model["name"] for model in models] == [*DEMO_MODELS, *WRITERS]


def test_the_key_is_required_where_there_is_one(server: ClientServer) -> None:
    assert httpx.get(f"{server.url}/info").status_code == (401 if server.needs_key else 200)
