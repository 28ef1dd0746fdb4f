"""Search for the most expensive bodies of every `POST` route by hill climbing, with changes that its schema allows.

The events of live transcriptions (WebSocket) are searched in the same way.
"""

from __future__ import annotations

import json
import math
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from server.api.dialects.openai.audio import realtime, realtime_body
from tests.chaos.dearest.measure import MeasuredServer, Measurement
from tests.chaos.dearest.recipe import (
    AUDIO,
    JSON,
    MULTIPART,
    URL_ENCODED,
    WEBSOCKET,
    Recipe,
    address,
    body_bytes,
    body_parts,
    content_type,
    shrink,
)
from tests.chaos.dearest.schema import Mutator

STALL_LIMIT_SECONDS = 0.05
MEMORY_LIMIT_BYTES = 1 << 30
AT_ONCE = 16
_MULTIPLIED = 0.25
"""Share of the new bodies that `Mutator.multiply` makes."""
_KEPT = 3
"""Number of bodies of a route that are kept for further changes: the most expensive ones."""
_FILE = {"$wav": [1, 16_000, 1, 16]}
_DOCUMENT = {"$document": ["txt", "one two. ", 1]}
_LIVE_EVENTS = (
    {"type": "session.update", "session": {"type": "transcription", "audio": {"input": {"turn_detection": None}}}},
    {"type": "input_audio_buffer.append", "audio": {"$text": ["aaaR", 64_000]}},
    {"type": "input_audio_buffer.commit"},
)
_SPECIAL_LIMITS = (
    (re.compile("/audio/|/inference|/realtime"), 25 << 20),
    (re.compile("/document|/translate_file"), 30 << 20),
    (re.compile("/chat|/responses|/messages"), 32 << 20),
)
"""Default limits in bytes of the bodies with recordings, documents or conversations, by pattern of the path."""
_USUAL_LIMIT = 2 << 20
FORGET_DOCUMENTS = ("--documents-ttl-seconds", "5")
"""Arguments for the server, so that documents of one measurement are deleted before later measurements."""


@dataclass(frozen=True)
class Dear:
    """A body and its cost. status: status of the answer. The fields in bytes and seconds are those of `Measurement`."""

    path: str
    recipe: Recipe
    status: int
    stall_seconds: float
    grown_bytes: int
    peak_bytes: int
    seconds: float

    @property
    def score(self) -> float:
        """The cost as a share of the nearest limit, of stalls or of memory. 1 or more means that a limit is reached."""
        return max(self.stall_seconds / STALL_LIMIT_SECONDS, self.grown_bytes / (MEMORY_LIMIT_BYTES / AT_ONCE))


@dataclass(frozen=True)
class PostRoute:
    """A route of the OpenAPI document.

    schema: schema of its body. If the body is audio, it contains the parameters of the query too.
    media_type: media type of JSON, a form or audio, or `WEBSOCKET`.
    takes_documents: whether the file in its form is a document; otherwise it is a recording.
    """

    path: str
    schema: Mapping[str, Any]
    examples: Sequence[Mapping[str, Any]]
    media_type: str = JSON
    takes_documents: bool = False

    def body(self, fields: Recipe) -> Recipe:
        """The recipe of a body with these fields."""
        return fields if self.media_type == JSON else {f"${self.media_type}": fields}


def post_routes(document: Mapping[str, Any], models: Sequence[str] = ()) -> list[PostRoute]:
    """All routes with a body, once for each media type, and once for each model if the path names one."""
    routes = []
    for path, methods in document["paths"].items():
        content = methods.get("post", {}).get("requestBody", {}).get("content", {})
        for media_type in (JSON, MULTIPART, URL_ENCODED):
            if media_type in content:
                media = content[media_type]
                found = media["examples"].values() if "examples" in media else [{"value": media.get("example", {})}]
                examples = [example["value"] for example in found]
                takes_documents = media_type == MULTIPART and "document" in str(examples[0].get("file"))
                if media_type == MULTIPART:
                    file = _DOCUMENT if takes_documents else _FILE
                    examples = [{**example, "file": file} if "file" in example else example for example in examples]
                paths = [path.replace("{model}", name) for name in models] if "{model}" in path and models else [path]
                routes += [
                    PostRoute(route_path, media["schema"], examples, media_type, takes_documents)
                    for route_path in paths
                ]
        if AUDIO in content:
            fields = {"file": content[AUDIO]["schema"]}
            fields |= {
                named["name"]: named["schema"] for named in methods["post"]["parameters"] if named["in"] == "query"
            }
            schema = {"type": "object", "properties": fields, "required": ["file"]}
            routes.append(PostRoute(path, schema, [{"file": _FILE}], AUDIO))
    return routes


def live_route() -> tuple[PostRoute, dict[str, Any]]:
    """The WebSocket route of live transcriptions, and the schemas of its events. The OpenAPI document lacks both."""
    prefix = "live."
    events = TypeAdapter(realtime_body.ClientEvent).json_schema(ref_template=f"#/components/schemas/{prefix}{{model}}")
    components = {f"{prefix}{name}": schema for name, schema in events.pop("$defs").items()}
    schema = {
        "type": "object",
        "properties": {"events": {"type": "array", "items": events, "minItems": 1}},
        "required": ["events"],
    }
    return PostRoute(realtime.PATH, schema, [{"events": [*_LIVE_EVENTS]}], WEBSOCKET), components


def body_limit(path: str) -> int:
    """The default limit of a route's body, in bytes."""
    return next((limit for pattern, limit in _SPECIAL_LIMITS if pattern.search(path)), _USUAL_LIMIT)


def search(
    server: MeasuredServer,
    tries: int,
    seed: int = 0,
    only: str = "",
    timeout: float = 20.0,
    report: Callable[[str], None] = print,
    end: float = math.inf,
    first: int = 0,
) -> list[Dear]:
    """Find the most expensive bodies of each route, and send each alone and then sixteen at once.

    tries: number of bodies to send to each route.
    only: regular expression; paths that it does not match are left out.
    timeout: seconds after which the client disconnects.
    end: time of `time.monotonic()` after which no further route is searched.
    first: index of the first route, modulo the number of routes.
    """
    document = json.loads(server.page("/openapi.json"))
    models = [model["name"] for model in json.loads(server.page("/info"))["models"]]
    found: list[Dear] = []
    live, live_components = live_route()
    components = document["components"]["schemas"] | live_components
    routes = [*post_routes(document, models), live]
    first %= len(routes)
    for number, route in enumerate([*routes[first:], *routes[:first]]):
        if not re.search(only, route.path):
            continue
        if time.monotonic() > end:
            report(f"{len(routes) - number} of {len(routes)} routes are not searched: the time is over")
            break
        mutator = Mutator(components, random.Random(f"{seed}{route.path}"), takes_documents=route.takes_documents)
        dearest = _climb(server, route, mutator, models, tries, timeout, body_limit(route.path))
        for worst in dearest[:1]:
            report(line(worst, 1))
            together = _dear(server, worst.path, worst.recipe, AT_ONCE, timeout)
            report(line(together, AT_ONCE))
            found += [worst, together]
    return found


def corpus() -> list[tuple[str, Recipe]]:
    """Path and recipe of the most expensive bodies that earlier searches have found."""
    return [
        (entry["path"], entry["recipe"]) for entry in json.loads(Path(__file__).with_name("corpus.json").read_bytes())
    ]


def measure_corpus(
    server: MeasuredServer,
    counts: Sequence[int] = (1, AT_ONCE),
    only: str = "",
    timeout: float = 20.0,
    report: Callable[[str], None] = print,
    end: float = math.inf,
) -> list[Dear]:
    """Measure the cost of each body of the corpus.

    counts: numbers of equal requests to send at once. Each body is measured with each number.
    end: time of `time.monotonic()` after which no further body is measured.
    """
    found = []
    for path, recipe in corpus():
        if re.search(only, path):
            for count in counts:
                if time.monotonic() > end:
                    return found
                found.append(_dear(server, path, recipe, count, timeout))
                report(line(found[-1], count))
    return found


def line(dear: Dear, count: int) -> str:
    """The line of the report about a body. count: number of equal requests that were sent at once."""
    path = f"{dear.path} ({count} at once)" if count > 1 else dear.path
    cost = f"{dear.stall_seconds * 1e3:7.0f} ms {dear.grown_bytes / 2**20:7.0f} MiB {dear.peak_bytes / 2**20:6.0f} MiB"
    return f"{path:42} {dear.status} {cost} {dear.seconds:6.1f} s  {json.dumps(dear.recipe)[:300]}"


def _climb(
    server: MeasuredServer,
    route: PostRoute,
    mutator: Mutator,
    models: Sequence[str],
    tries: int,
    timeout: float,
    max_bytes: int,
) -> list[Dear]:
    """Search for the most expensive bodies of one route. Returns them in descending order of their cost.

    Each try sends one of the most expensive bodies so far with up to three random changes.
    """
    kept = [_first(server, route, example, models, timeout) for example in route.examples]
    for _ in range(tries):
        _, recipe = body_parts(mutator.random.choice(kept).recipe)
        if mutator.random.random() < _MULTIPLIED:
            recipe = mutator.multiply(route.schema, recipe)
        for _ in range(mutator.random.choice((1, 1, 2, 3))):
            recipe = mutator.mutate(route.schema, recipe)
        tried = _dear(server, route.path, shrink(route.body(recipe), max_bytes), 1, timeout, mutator)
        # A refused body is kept for further changes only if it was expensive.
        if tried.status < 400 or tried.score > kept[0].score:
            kept = sorted([*kept, tried], key=lambda dear: -dear.score)[: max(_KEPT, len(route.examples))]
    return sorted(kept, key=lambda dear: -dear.score)


def _first(
    server: MeasuredServer, route: PostRoute, example: Mapping[str, Any], models: Sequence[str], timeout: float
) -> Dear:
    """Measure the example of a route. Without an accepted default model, each of `models` is tried."""
    unnamed = {name: value for name, value in example.items() if name != "model"}
    first = _dear(server, route.path, route.body(unnamed), 1, timeout)
    for name in models:
        if first.status < 400:
            break
        first = _dear(server, route.path, route.body(unnamed | {"model": name}), 1, timeout)
    return first


def _dear(
    server: MeasuredServer, path: str, recipe: Recipe, count: int, timeout: float, mutator: Mutator | None = None
) -> Dear:
    bodies = [body_bytes(recipe)] * count
    measured: Measurement = server.measure(
        address(path, recipe), bodies, timeout, content_type(recipe), STALL_LIMIT_SECONDS
    )
    first = measured.answers[0]
    if mutator is not None and first.status in (400, 413, 422):
        mutator.hints += [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]{0,9}(?!\d)", first.text)[:4]]
    slowest = max(answer.seconds for answer in measured.answers)
    return Dear(path, recipe, first.status, measured.stall_seconds, measured.grown_bytes, measured.peak_bytes, slowest)
