"""The OpenAPI document describes every route: body, answers, errors, and examples that the schemas accept."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Route

from server.api.app import create_routes
from server.api.bodies.body import validate
from server.api.dialects import registry
from server.api.dialects.native import answers
from server.api.pages import docs_page, playground_page
from server.api.routes import status_routes
from tests.api.conftest import Bench

NATIVE = {
    "generate",
    "translate",
    "embed",
    "embed_all",
    "classify",
    "similarity",
    "rerank",
    "fill_mask",
    "token_classify",
    "question_answer",
    "zero_shot_classify",
    "tokenize",
    "detokenize",
}
STATUS_ROUTES = {"/health", "/ready", "/info", "/metrics"}


@pytest.fixture
def document(bench: Bench) -> dict[str, Any]:
    return create_routes(bench.state).openapi()


def resolve(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = schema["$ref"].removeprefix("#/components/schemas/")
    found: dict[str, Any] = document["components"]["schemas"][name]
    return found


def test_every_route_is_described(document: dict[str, Any]) -> None:
    routes: dict[tuple[str, str], Any] = {(route.path, "post"): route for route in registry.ROUTES}
    routes |= {(route.path, "get"): route for route in registry.GET_ROUTES}
    routes |= {(route.path, route.method.lower()): route for route in registry.OWNED_ROUTES}
    described = {(path, method) for path, item in document["paths"].items() for method in item}
    assert described == routes.keys() | {(path, "get") for path in STATUS_ROUTES}
    assert {f"/{name}" for name in NATIVE} < document["paths"].keys()
    for (path, method), route in routes.items():
        operation = document["paths"][path][method]
        assert operation["description"] and operation["operationId"]
        answers = operation["responses"]
        done = str(getattr(route, "status", 200))
        assert done in answers and done[0] == "2"
        assert "schema" in answers[done]["content"]["application/json"]
        has_body = path in registry.OPERATION_PATHS and method == "post"
        statuses = {401, 404, 408, 413, 415, 422, 429, 500, 503, 504} if has_body else {401, 404, 500, 503}
        assert answers.keys() >= {done, *(str(route.errors.statuses.get(status, status)) for status in statuses)}
        sharing = [other for other in registry.ROUTES if path in (other.path, *other.aliases)] or [route]
        assert "422" not in answers or any(422 not in other.errors.statuses for other in sharing)
        if has_body:
            is_form = route.media_type == "multipart/form-data"
            media = operation["requestBody"]["content"][route.media_type]
            body = resolve(document, media["schema"]) if "$ref" in media["schema"] else None
            assert media["example"]
            for status in (
                [] if body is None else [resolve(document, option) for option in body.get("anyOf", ())] or [body]
            ):
                assert ("file" in status["properties"]) is is_form
                assert status["additionalProperties"] is False


def test_errors_are_described_in_the_shape_of_their_dialect(document: dict[str, Any]) -> None:
    for route in registry.ROUTES:
        unauthorized = str(route.errors.statuses.get(401, 401))
        answer = document["paths"][route.path]["post"]["responses"][unauthorized]
        schema = answer["content"]["application/json"]["schema"]
        schemas = schema.get("anyOf", [schema])
        assert route.errors.answer.__name__ in {resolve(document, member)["title"] for member in schemas}


def test_every_reference_resolves(document: dict[str, Any]) -> None:
    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                resolve(document, value)
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(document)


@pytest.mark.parametrize("route", registry.ROUTES, ids=lambda route: f"{route.operation_id} {route.path}")
def test_examples_are_valid(route: Any) -> None:
    body, answer = route.example
    sent = {key: value for key, value in body.items() if route.media_type == "application/json" or key != "file"}
    parameters = dict.fromkeys(re.findall(r"{(\w+)", route.path), "a-name")
    validate(sent | parameters, route.body)
    route.answer.model_validate(answer)


@pytest.mark.parametrize("route", (*registry.GET_ROUTES, *registry.OWNED_ROUTES), ids=lambda route: route.path)
def test_examples_of_routes_without_a_body_are_valid(route: Any) -> None:
    route.answer.model_validate(route.example)


def test_no_route_is_missing_from_the_document(bench: Bench) -> None:
    app = create_routes(bench.state)
    documented = {path for route in registry.ROUTES for path in (route.path, *route.aliases)}
    documented |= {path for route in registry.GET_ROUTES for path in (route.path, *route.aliases)}
    documented |= {route.path for route in registry.OWNED_ROUTES}
    routers = (status_routes.router, status_routes.probes, status_routes.metrics_router)
    documented |= {route.path for router in routers for route in router.routes if isinstance(route, APIRoute)}
    assert documented >= STATUS_ROUTES | {"/predict", "/ner"}
    other = {route.path for route in app.routes if isinstance(route, Route)}
    assert other <= documented | {"/openapi.json"} | set(docs_page.PAGE.files) | playground_page.FILES


def test_generate_has_exactly_the_fields_of_the_contract(document: dict[str, Any]) -> None:
    fields = set(document["components"]["schemas"]["GenerateBody"]["properties"])
    contract = """
    model prompt stream max_new_tokens min_new_tokens do_sample temperature top_k top_p min_p typical_p
    repetition_penalty presence_penalty frequency_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size
    logit_bias bad_words allowed_token_ids allowed_sequences suppress_tokens seed n best_of num_beams
    num_return_sequences length_penalty early_stopping num_beam_groups diversity_penalty stop stop_token_ids
    include_stop ignore_eos skip_special_tokens logprobs top_logprobs prompt_logprobs echo return_token_ids
    return_attention truncate
    forced_bos_token decoder_prefix source_lang target_lang response_format timeout_ms user metadata store
    """
    assert fields == set(contract.split())
    assert answers.Choice.model_fields.keys() >= {
        "index",
        "text",
        "finish_reason",
        "stop_reason",
        "score",
        "logprobs",
    }


def test_operations_are_grouped_by_their_clients(document: dict[str, Any]) -> None:
    groups = [tag["name"] for tag in document["tags"]]
    operations = [operation for item in document["paths"].values() for operation in item.values()]
    assert {name for operation in operations for name in operation["tags"]} == set(groups)
    for path, method, group in [
        ("/generate", "post", "Triptych"),
        ("/v1/chat/completions", "post", "OpenAI"),
        ("/v1/responses/{response_id}", "delete", "OpenAI"),
        ("/api/tags", "get", "Ollama"),
        ("/v3/glossaries", "post", "DeepL"),
        ("/health", "get", "Server"),
    ]:
        assert document["paths"][path][method]["tags"] == [group]
    for operation in operations:
        assert operation["description"].startswith(operation["summary"]) and len(operation["summary"]) > 6
