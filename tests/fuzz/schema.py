"""Generate valid and invalid requests from the OpenAPI document of a running server, for every route (promise 13)."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.chaos.dearest.files import wav
from tests.waiting import HANG_SECONDS

RECORDINGS = st.builds(
    wav, st.sampled_from([0.0, 0.1, 2.0]), st.sampled_from([8_000, 16_000]), st.integers(1, 2), st.just(16)
)
"""Strategy for WAV recordings, for the routes whose body is audio. Any other bytes are also valid by the schema."""
schemathesis.openapi.media_type("audio/wav", RECORDINGS | st.binary(max_size=100_000))
SEQUENCES = st.text(min_size=1, max_size=40) | st.lists(st.integers(0, 99), min_size=1, max_size=8)
LINES = st.lists(SEQUENCES, min_size=1, max_size=20).map(lambda found: "\n".join(map(json.dumps, found)).encode())
"""Strategy for sets of allowed sequences as JSON lines, for the route that stores them."""
schemathesis.openapi.media_type("application/x-ndjson", LINES | st.binary(max_size=1_000))
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


EXAMPLES = 10
"""Number of successive requests of one kind (valid or invalid) to a route, before the next route."""


def check_routes(url: str, seconds: float = 0.0) -> Counter[tuple[str, str, int]]:
    """Send valid and invalid requests to each route. Returns the number of requests by route, kind and status.

    Fails for a status of 500 or above, an answer without a request id, and an error that is not JSON.

    url: address of the server.
    seconds: time for random requests; 0 for one fixed request of each kind to each route.
    """
    schema = schemathesis.openapi.from_dict(httpx.get(f"{url}/openapi.json", timeout=HANG_SECONDS).json())
    models = _models_by_route(url)
    counts: Counter[tuple[str, str, int]] = Counter()
    with httpx.Client(base_url=url, timeout=HANG_SECONDS) as http:
        end = time.monotonic() + seconds
        while not counts or time.monotonic() < end:
            for found in schema.get_all_operations():
                operation = found.ok()
                for mode in MODES:
                    name = f"{operation.method.upper()} {operation.path}"
                    for status in _send(
                        http, operation, mode, EXAMPLES if seconds else 1, models, derandomize=not seconds
                    ):
                        counts[name, mode.value, status] += 1
    return counts


def totals(counts: Counter[tuple[str, str, int]]) -> Counter[tuple[str, int]]:
    """Sum the numbers of requests over all routes. Returns the number by kind and status."""
    found: Counter[tuple[str, int]] = Counter()
    for (_, kind, status), count in counts.items():
        found[kind, status] += count
    return found


def _send(
    http: httpx.Client,
    operation: Any,
    mode: GenerationMode,
    examples: int,
    models: dict[str, list[str]],
    derandomize: bool,
) -> list[int]:
    """Send requests of one kind to one route. Returns the statuses of the answers.

    The list is empty if the route has no requests of this kind.

    mode: valid or invalid requests. examples: number of requests. models: models by path of the route.
    derandomize: whether to send the same requests in every run.
    """
    statuses: list[int] = []

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=derandomize,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        if mode == GenerationMode.POSITIVE:
            _name_a_model(case, models, len(statuses))
        answer = case.call(base_url=str(http.base_url), timeout=HANG_SECONDS)
        place = (
            f"{operation.method.upper()} {operation.path} {mode.value}: {answer.status_code} {answer.content[:300]!r}"
        )
        assert answer.status_code < 500, f"{place} for {json.dumps(case.body, default=repr)[:2000]}"
        assert answer.headers["x-request-id"], place
        if answer.status_code >= 400:
            json.loads(answer.content)
        statuses.append(answer.status_code)

    # A route without a query and a body has no invalid requests.
    if mode == GenerationMode.POSITIVE or len(operation.query) or len(operation.body):
        run()
    return statuses


def _name_a_model(case: Any, models: dict[str, list[str]], number: int) -> None:
    """Replace a generated model name in a request by that of a loaded model. Otherwise the request would be refused.

    A generated timeout is replaced by a long one, because the status 504 after a deadline would count as an error.

    number: index that selects the model.
    """
    fitting = models.get(case.path) or [name for names in models.values() for name in names]
    name = fitting[number % len(fitting)]
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = name
    if case.query and isinstance(case.query.get("model"), str):
        case.query["model"] = name
    if isinstance(case.body, dict) and isinstance(case.body.get("timeout_ms"), int):
        case.body["timeout_ms"] = 60_000
    if case.path_parameters and "model" in case.path_parameters:
        case.path_parameters["model"] = name


def _models_by_route(url: str) -> dict[str, list[str]]:
    def pairs() -> Iterator[tuple[str, str]]:
        for model in httpx.get(f"{url}/info", timeout=HANG_SECONDS).json()["models"]:
            for route in model["routes"]:
                yield route, model["name"]

    found: dict[str, list[str]] = {}
    for route, name in pairs():
        found.setdefault(route, []).append(name)
    return found
