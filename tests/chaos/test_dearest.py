"""A quick search for the most expensive bodies, with a fake worker and a planted bug that the monitor must detect.

Times are compared with those of the planted bug in the same run. `make chaos` compares them with the promised limits.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from server.text.documents.formats import format_of
from tests.chaos.dearest import fake
from tests.chaos.dearest.files import DOCUMENT_FORMATS
from tests.chaos.dearest.measure import MeasuredServer, measured_server
from tests.chaos.dearest.recipe import (
    AUDIO,
    MULTIPART,
    WEBSOCKET,
    address,
    body_bytes,
    content_type,
    expand,
    pattern,
    shrink,
)
from tests.chaos.dearest.schema import Mutator
from tests.chaos.dearest.search import body_limit, corpus, live_route, post_routes
from tests.wire.checkpoints import write_all

SCORED = {
    "prompt": {"$list": [{"$text": ["one two. ", 240]}, 16]},
    "max_new_tokens": 1,
    "prompt_logprobs": True,
    "top_logprobs": 20,
}
"""Recipe of a request whose answer has 80,000 log-probabilities."""
REFUSED = {"prompt": "a", "metadata": {"$list": [{"$list": [1, 0]}, 600_000]}}
"""Recipe of a body with 600,000 lists, which is refused."""


@contextmanager
def serving(directory: Path, *launcher: str) -> Iterator[MeasuredServer]:
    models = write_all(directory)
    with measured_server(directory, *models, launcher=("tests.chaos.dearest.fake", *launcher)) as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredServer]:
    with serving(tmp_path_factory.mktemp("product")) as product:
        yield product


def stall(server: MeasuredServer, recipe: object, status: int) -> float:
    """Send a recipe twice at the same time. Returns the longest stall of the event loop in seconds.

    status: expected status of both answers.
    """
    measured = server.measure("/generate", [body_bytes(recipe)] * 2)
    assert [answer.status for answer in measured.answers] == [status] * 2
    return measured.stall_seconds


def test_large_answers_leave_the_event_loop_free_and_the_monitor_sees_a_planted_bug(
    server: MeasuredServer, tmp_path: Path
) -> None:
    answered, refused = stall(server, SCORED, 200), stall(server, REFUSED, 422)
    with serving(tmp_path, fake.INLINE) as planted:
        inline = stall(planted, SCORED, 200)
    assert inline > 4 * answered, f"{inline:.3f} s with the bug, {answered:.3f} s without it"
    assert inline > 4 * refused


def test_recipes_expand_to_bodies_below_the_limit() -> None:
    assert expand({"a": {"$text": ["ab ", 7]}, "b": {"$list": [[{"$each": ["x", 2]}], 2]}}) == {
        "a": "ab ab a",
        "b": [[["x0", "x1"]]] * 2,
    }
    assert expand({"$lines": ["a {}\tx", 2]}) == "a 0\tx\na 1\tx"
    assert expand([{"$keys": [1, 2]}, {"$deep": 2}]) == [{"0": 1, "1": 1}, [[[]]]]
    shrunk = shrink({"a": {"$list": [{"$text": ["a", 1000]}, 100]}, "b": 1}, 20_000)
    assert 5000 < len(body_bytes(shrunk)) <= 20_000 and shrunk["b"] == 1


def test_recipes_of_forms() -> None:
    fields = {"file": {"$wav": [0.5, 8000, 2, 16]}, "lang": ["é", "b"], "count": 2, "none": None}
    form = {"$multipart/form-data": fields}
    assert content_type(form) == "multipart/form-data; boundary=boundary" and content_type({}) == "application/json"
    parts = body_bytes(form).split(b"--boundary")
    assert parts[0] == b"" and parts[-1] == b"--\r\n" and len(parts) == 6
    assert b'name="file"; filename="file"\r\n\r\nRIFF' in parts[1] and 16_000 < len(parts[1]) < 16_200
    assert body_bytes({"$application/x-www-form-urlencoded": fields | {"file": None}}) == b"lang=%C3%A9&lang=b&count=2"
    assert 1000 < len(body_bytes(shrink(form, 3000))) <= 3000
    assert address("/a", form) == "/a"


def test_recipes_of_audio_with_a_query() -> None:
    recipe = {
        "$audio/wav": {"file": {"$wav": [0.5, 8000, 1, 16]}, "prompt": {"$text": ["a ", 4]}, "rate": 8000, "b": None}
    }
    assert address("/live", recipe) == "/live?prompt=a+a+&rate=8000" and content_type(recipe) == "audio/wav"
    assert body_bytes(recipe).startswith(b"RIFF") and len(body_bytes(recipe)) == 8044
    assert len(body_bytes(shrink(recipe, 3000))) <= 3000
    assert address("/live", {"$audio/wav": {"file": {"$wav": [0.5, 8000, 1, 16]}}}) == "/live"


@pytest.mark.parametrize("suffix", DOCUMENT_FORMATS)
def test_recipes_of_documents(suffix: str) -> None:
    pytest.importorskip("lxml")
    pytest.importorskip("translate")
    file = expand({"$document": [suffix, "one two. ", 20]})
    assert len(list(format_of(file.name).read(bytes(file)).units)) == 20
    form = {"$multipart/form-data": {"file": {"$document": [suffix, "one two. ", 2000]}, "target_lang": "FR"}}
    assert f'filename="file.{suffix}"'.encode() in body_bytes(form)
    assert len(body_bytes(shrink(form, 900))) <= 900


def test_events_of_a_live_transcription(server: MeasuredServer) -> None:
    def status(recipe: object) -> int:
        body, kind = body_bytes({"$websocket": recipe}), content_type({"$websocket": recipe})
        return server.measure("/v1/realtime", [body], content_type=kind).answers[0].status

    append = {"type": "input_audio_buffer.append", "audio": {"$text": ["aaaR", 4000]}}
    assert status({"events": {"$list": [append, 3]}}) == 200
    assert status({"events": [append, append | {"audio": "no base64"}]}) == 422


@pytest.mark.parametrize("path, recipe", corpus())
def test_the_corpus_is_within_the_body_limit(path: str, recipe: object) -> None:
    assert path.startswith("/") and len(body_bytes(recipe)) <= body_limit(path)


def test_the_generator_reaches_every_route_and_field(server: MeasuredServer) -> None:
    document = json.loads(server.page("/openapi.json"))
    routes = post_routes(document)
    with_body = {path for path, item in document["paths"].items() if "requestBody" in item.get("post", {})}
    assert {route.path for route in routes} == with_body
    forms = {route.path for route in routes if route.media_type == MULTIPART}
    assert {"/v1/audio/transcriptions", "/v1/audio/translations", "/v2/translate", "/translate"} <= forms
    assert {route.path for route in routes if route.takes_documents} == {"/translate_file", "/v2/document"}
    (live,) = (route for route in routes if route.media_type == AUDIO)
    assert {"file", "model", "prompt", "interval_ms"} <= set(live.schema["properties"])
    recipe = live.body({"interval_ms": 10_001, **live.examples[0]})
    measured = server.measure(address(live.path, recipe), [body_bytes(recipe)], content_type=content_type(recipe))
    assert "interval_ms" in measured.answers[0].text
    route = next(route for route in routes if route.path == "/rerank")
    mutator = Mutator(document["components"]["schemas"], random.Random(0))
    changed = [mutator.mutate(route.schema, dict(route.examples[0])) for _ in range(2000)]
    found = {name for body in changed if isinstance(body, dict) for name in body}
    assert {"query", "texts", "raw_scores", "return_text", "truncate", "truncation_direction"} <= found


def test_the_generator_makes_documents_and_every_live_event(server: MeasuredServer) -> None:
    document = json.loads(server.page("/openapi.json"))
    (route,) = (route for route in post_routes(document) if route.path == "/translate_file")
    mutator = Mutator(document["components"]["schemas"], random.Random(0), takes_documents=True)
    files = [pattern(mutator.mutate(route.schema, dict(route.examples[0]))["file"]) for _ in range(500)]
    assert {found[1][0] for found in files if found is not None} == {*DOCUMENT_FORMATS}
    live, components = live_route()
    mutator = Mutator(components, random.Random(0))
    bodies = [mutator.mutate(live.schema, dict(live.examples[0])) for _ in range(500)]
    assert live.media_type == WEBSOCKET and all(expand(body)["events"] for body in bodies)
    kinds = {event["type"] for body in bodies for event in expand(body)["events"][:4]}
    assert {"session.update", "transcription_session.update"} < kinds and len(kinds) == 5


def test_the_generator_multiplies_inputs_answers_and_beams(server: MeasuredServer) -> None:
    """`Mutator.multiply` reaches the limit of the product, and sets several factors in one body.

    The most expensive body that was ever found had 1,024 prompts with 16 answers each.
    """
    document = json.loads(server.page("/openapi.json"))
    route = next(route for route in post_routes(document) if route.path == "/v1/completions")
    mutator = Mutator(document["components"]["schemas"], random.Random(0))
    products = set()
    for _ in range(2000):
        body = mutator.multiply(route.schema, {"model": "decoder", "prompt": "a"})
        prompts = len(expand(body["prompt"])) if isinstance(body["prompt"], dict) else 1
        products.add((prompts, body.get("n", 1), body.get("best_of", 1)))
    assert max(prompts * answers for prompts, answers, _ in products) == 4096
    assert any(min(found) > 1 for found in products)
