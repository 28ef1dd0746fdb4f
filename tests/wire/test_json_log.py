"""`--log-format json`: every line of the log is one JSON object."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.waiting import eventually
from tests.wire.conftest import Process


def test_the_whole_log_of_a_server_in_json(start: Callable[..., Process]) -> None:
    server = start("--log-format", "json").wait_ready()
    server.post("/generate", json={"prompt": "secret", "model": "decoder"})
    server.worker().kill()
    eventually(lambda: '"worker 2 is ready' in server.output)
    server.stop()
    printed = [line for line in server.lines if line.startswith("{")]
    values = [json.loads(line) for line in printed]
    (access,) = [value for value in values if value["logger"] == "triptych.access"]
    assert (access["path"], access["model"], access["status"], access["client"]) == (
        "/generate",
        "decoder",
        200,
        "127.0.0.1",
    )
    assert any("was killed by SIGKILL" in value["message"] for value in values)
    others = [line for line in server.lines if not line.startswith("{")]
    assert others[0].startswith("Triptych is ready on") and "secret" not in server.output
