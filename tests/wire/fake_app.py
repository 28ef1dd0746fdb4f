"""Make the application with the fake worker, for any ASGI server: `uvicorn --factory tests.wire.fake_app:create`."""

from __future__ import annotations

import logging

from starlette.types import ASGIApp

from server.compose import create_app
from tests.wire.fake_serve import WORKER


def create() -> ASGIApp:
    logging.basicConfig(level="INFO")
    return create_app(worker=WORKER)
