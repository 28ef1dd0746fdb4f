"""The OpenAPI document describes every route: body, answers, errors, and examples that the schemas accept."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Route

from server.api import docs_page, playground_page, status_routes
from server.api.app import create_routes
from server.api.body import validate
from server.api.dialects import registry
from server.api.dialects.native import answers
from tests.api.conftest import Bench

FORMS = {"transcriptions", "translations"}
OPERATIONS = {
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
    "transcriptions",
    "translations",
    "tokenize",
    "detokenize",
}
ROUTES = {f"/v1/audio/{name}" if name in FORMS else f"/{name}" for name in OPERATIONS}
ROUTES |= {"/health", "/ready", "/info", "/metrics"}


@pytest.fixture
def document(bench: Bench) -> dict[str, Any]:
    return create_routes(bench.state).openapi()


def resolve(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = schema["$ref"].removeprefix("#/components/schemas/")
    found: dict[str, Any] = document["components"]["schemas"][name]
    return found


def test_every_route_is_described(document: dict[str, Any]) -> None:
    assert set(document["paths"]) == ROUTES
    for path, item in document["paths"].items():
        for method, operation in item.items():
            name = operation["operationId"]
            assert operation["description"] and name == path.rpartition("/")[2]
            answers = operation["responses"]
            assert "200" in answers
            for status, answer in answers.items():
                if status != "200":
                    assert resolve(document, answer["content"]["application/json"]["schema"])["title"] == "ErrorAnswer"
            if method == "post":
                media = operation["requestBody"]["content"][
                    "multipart/form-data" if name in FORMS else "application/json"
                ]
                body = resolve(document, media["schema"])
                assert ("file" in body["properties"]) is (name in FORMS)
                assert body["additionalProperties"] is False and media["example"]
                wrong = "400" if name in FORMS else "422"
                assert set(answers) == {"200", "401", "404", "408", "413", "415", wrong, "429", "500", "503", "504"}
                assert "schema" in answers["200"]["content"]["application/json"]


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


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_examples_are_valid(name: str) -> None:
    (route,) = (route for route in registry.ROUTES if route.operation_id == name)
    body, answer = route.example
    validate({key: value for key, value in body.items() if name not in FORMS or key != "file"}, route.body)
    route.answer.model_validate(answer)


def test_no_route_is_missing_from_the_document(bench: Bench) -> None:
    app = create_routes(bench.state)
    documented = {path for route in registry.ROUTES for path in (route.path, *route.aliases)}
    documented |= {route.path for route in status_routes.router.routes if isinstance(route, APIRoute)}
    assert documented == ROUTES | {"/predict", "/ner"}
    other = {route.path for route in app.routes if isinstance(route, Route)}
    assert other <= documented | {"/openapi.json"} | set(docs_page.PAGE.files) | playground_page.FILES


def test_generate_has_exactly_the_fields_of_the_contract(document: dict[str, Any]) -> None:
    fields = set(document["components"]["schemas"]["GenerateBody"]["properties"])
    contract = """
    model prompt stream max_new_tokens min_new_tokens do_sample temperature top_k top_p min_p typical_p
    repetition_penalty presence_penalty frequency_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size
    logit_bias bad_words allowed_token_ids suppress_tokens seed n best_of num_beams num_return_sequences
    length_penalty early_stopping num_beam_groups diversity_penalty stop stop_token_ids include_stop ignore_eos
    skip_special_tokens logprobs top_logprobs prompt_logprobs echo return_token_ids return_attention truncate
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
