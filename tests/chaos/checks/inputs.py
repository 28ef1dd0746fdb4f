"""Check promises 13 and 14: parameters at the edges of their bounds, and hostile JSON, on every route."""

from __future__ import annotations

import asyncio
import json
import random

from tests.chaos import facts
from tests.chaos.connection import Closed, Connection
from tests.chaos.openapi import BOUNDARIES, edges, json_routes
from tests.chaos.record import Record
from tests.chaos.server import server
from tests.wire.test_hostile import CANARY, HOSTILE


def boundaries(per_route: int) -> Record:
    """Promise 13: send bodies with one field at or beyond an edge of its bounds to every route.

    per_route: number of bodies for each route.
    """
    record = Record("request")
    rng = random.Random(13)

    async def send(url: str) -> None:
        async with Connection(url) as connection:
            for route in json_routes(url):
                values = [
                    (name, value) for name, schema in route.fields.items() for value in (*BOUNDARIES, *edges(schema))
                ]
                # One half are edges that the schema states, the rest a sample of all values.
                stated = [(name, value) for name, schema in route.fields.items() for value in edges(schema)]
                chosen = rng.sample(stated, min(len(stated), per_route // 2))
                chosen += rng.sample(values, min(len(values), per_route - len(chosen)))
                for name, value in chosen:
                    body = {
                        **route.example,
                        name: value,
                        **({"timeout_ms": 5000} if "timeout_ms" in route.fields else {}),
                    }
                    body[name] = value
                    try:
                        answer = await connection.request(route.method, route.path, json.dumps(body).encode())
                    except Closed as closed:
                        record.must(False, f"{route.path} {name}={value!r:.60}: {closed}")
                        connection.close()
                        continue
                    record.runs += 1
                    expired = answer.status == 504 and b"deadline" in answer.body
                    record.must(answer.status < 500 or expired, f"{route.path} {name}={value!r:.60}: {answer.status}")

    with server() as running:
        worker = running.worker().pid
        asyncio.run(send(running.url))
        record.must(running.worker().pid == worker, "the worker was replaced")
        restarts = facts.metric(facts.metric_page(running.url), "triptych_worker_restarts_total")
        record.most("worker restarts", restarts, 0, "")
        record.most("status 500", _count(running.url, "500"), 0, "")
    return record


def _count(url: str, status: str) -> float:
    return facts.metric(facts.metric_page(url), "triptych_requests_total", status=status)


def hostile_json(every: int = 1) -> Record:
    """Promise 14: send every hostile body to every route. An error is valid JSON that repeats nothing of the body.

    every: only every n-th route is tried.
    """
    record = Record("request")

    async def send(url: str) -> None:
        async with Connection(url) as connection:
            for route in json_routes(url)[::every]:
                field = next(iter(route.example), "prompt")
                bodies = {name: body.replace(b'"prompt"', f'"{field}"'.encode()) for name, body in HOSTILE.items()}
                for name, body in bodies.items():
                    where = f"{route.path}: {name}"
                    try:
                        answer = await connection.request(
                            route.method, route.path, body.replace(b"%s", CANARY.encode())
                        )
                    except Closed as closed:
                        record.must(False, f"{where}: {closed}")
                        connection.close()
                        continue
                    record.runs += 1
                    # Some of these bodies are valid for other routes than /generate, which then answer them.
                    if not record.must(answer.status < 500, f"{where}: status {answer.status}"):
                        continue
                    if answer.status >= 400:
                        record.must(CANARY.encode() not in answer.body, f"{where}: the answer repeats the request")
                        record.must(_is_json(answer.body), f"{where}: the answer is not JSON")

    with server() as running:
        worker = running.worker().pid
        asyncio.run(send(running.url))
        record.must(running.worker().pid == worker, "the worker was replaced")
        record.must(CANARY not in running.log.read_text(), "the log repeats the request")
    return record


def _is_json(body: bytes) -> bool:
    def refuse(constant: str) -> float:
        raise ValueError(constant)

    try:
        json.loads(body, parse_constant=refuse)
    except ValueError:
        return False
    return True
