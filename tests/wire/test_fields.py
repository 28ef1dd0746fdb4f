"""Every field of `/generate` over a socket: values within bounds are accepted; errors for others name the field."""

from __future__ import annotations

import httpx
import pytest

from tests.wire.test_generate import generate, refused


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("prompt", {"prompt": ""}),
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": [[]]}),
        ("prompt", {"prompt": [259]}),
        ("prompt", {"prompt": ["a", 1]}),
        ("prompt", {"prompt": [True]}),
        ("prompt", {"prompt": {"text": "a"}}),
        ("prompt", {"prompt": ["a"] * 1025}),
        ("temperature", {"temperature": True}),
        ("temperature", {"temperature": "1"}),
        ("temperature", {"temperature": -0.1}),
        ("top_k", {"top_k": 1.5}),
        ("top_p", {"top_p": 0}),
        ("seed", {"seed": 2**64}),
        ("seed", {"seed": -1}),
        ("n", {"n": 17}),
        ("n", {"n": 0}),
        ("max_new_tokens", {"max_new_tokens": 0}),
        ("max_new_tokens", {"max_new_tokens": "5"}),
        ("stop", {"stop": ["a"] * 17}),
        ("stop", {"stop": "a" * 257}),
        ("stop", {"stop": ""}),
        ("stop_token_ids", {"stop_token_ids": [259]}),
        ("suppress_tokens", {"suppress_tokens": [100000]}),
        ("top_logprobs", {"top_logprobs": 21, "logprobs": True}),
        ("top_logprobs", {"top_logprobs": 2}),
        ("include_stop", {"include_stop": True}),
        ("num_return_sequences", {"num_beams": 2, "num_return_sequences": 3}),
        ("do_sample", {"num_beams": 2, "do_sample": True}),
        ("temperature", {"num_beams": 2, "temperature": 0.5}),
        ("n", {"num_beams": 2, "n": 3}),
        ("n", {"num_beams": 4, "n": 2, "num_return_sequences": 3}),
        ("stop", {"num_beams": 2, "stop": "x\ufffd"}),
        ("skip_special_tokens", {"num_beams": 2, "stop": "x", "skip_special_tokens": False}),
        ("top_k", {"do_sample": False, "top_k": 5}),
        ("length_penalty", {"length_penalty": 0.0}),
        ("early_stopping", {"early_stopping": True}),
        ("early_stopping", {"early_stopping": "sometimes", "num_beams": 2}),
        ("min_new_tokens", {"min_new_tokens": 9, "max_new_tokens": 8}),
        ("forced_bos_token", {"forced_bos_token": "x"}),
        ("decoder_prefix", {"decoder_prefix": "x"}),
        ("source_lang", {"source_lang": "en"}),
        ("target_lang", {"target_lang": "de"}),
        ("unknown_field", {"unknown_field": 1}),
        ("timeout_ms", {"timeout_ms": 0}),
        ("timeout_ms", {"timeout_ms": 600_001}),
        ("typical_p", {"typical_p": 0}),
        ("typical_p", {"typical_p": 1.01}),
        ("typical_p", {"typical_p": True}),
        ("typical_p", {"typical_p": 0.5, "do_sample": False}),
        ("typical_p", {"typical_p": 0.5, "num_beams": 2}),
        ("presence_penalty", {"presence_penalty": 2.01}),
        ("presence_penalty", {"presence_penalty": -2.01}),
        ("presence_penalty", {"presence_penalty": "0"}),
        ("frequency_penalty", {"frequency_penalty": 2.01}),
        ("frequency_penalty", {"frequency_penalty": -2.01}),
        ("frequency_penalty", {"frequency_penalty": False}),
        ("encoder_no_repeat_ngram_size", {"encoder_no_repeat_ngram_size": -1}),
        ("encoder_no_repeat_ngram_size", {"encoder_no_repeat_ngram_size": 2.0}),
        ("encoder_no_repeat_ngram_size", {"encoder_no_repeat_ngram_size": (1 << 20) + 1}),
        ("logit_bias", {"logit_bias": {"5": 100.5}}),
        ("logit_bias", {"logit_bias": {"5": -100.5}}),
        ("logit_bias", {"logit_bias": {"5": True}}),
        ("logit_bias", {"logit_bias": {"5": None}}),
        ("logit_bias", {"logit_bias": {"259": 1}}),
        ("logit_bias", {"logit_bias": {"-1": 1}}),
        ("logit_bias", {"logit_bias": {"05": 1}}),
        ("logit_bias", {"logit_bias": {"a": 1}}),
        ("logit_bias", {"logit_bias": {"5\n": 1}}),
        ("logit_bias", {"logit_bias": {"٥": 1}}),
        ("logit_bias", {"logit_bias": {"9" * 30: 1}}),
        ("logit_bias", {"logit_bias": [5]}),
        ("allowed_token_ids", {"allowed_token_ids": []}),
        ("allowed_token_ids", {"allowed_token_ids": [5, 259]}),
        ("allowed_token_ids", {"allowed_token_ids": [-1]}),
        ("allowed_token_ids", {"allowed_token_ids": ["5"]}),
        ("best_of", {"best_of": 0}),
        ("best_of", {"best_of": 17}),
        ("best_of", {"best_of": 2, "n": 3}),
        ("best_of", {"best_of": 2, "stream": True}),
        ("best_of", {"best_of": 3, "num_beams": 2}),
        ("best_of", {"best_of": 2, "num_beams": 4, "num_return_sequences": 3}),
        ("best_of", {"best_of": 2, "num_beams": 4, "n": 3}),
        ("num_beam_groups", {"num_beam_groups": 2}),
        ("num_beam_groups", {"num_beam_groups": 2, "diversity_penalty": 0.5}),
        ("num_beam_groups", {"num_beam_groups": 3, "diversity_penalty": 0.5, "num_beams": 4}),
        ("num_beam_groups", {"num_beam_groups": 8, "diversity_penalty": 0.5, "num_beams": 4}),
        ("num_beam_groups", {"num_beam_groups": 2, "num_beams": 4}),
        ("num_beam_groups", {"num_beam_groups": 2, "num_beams": 4, "diversity_penalty": 0}),
        ("num_beam_groups", {"num_beam_groups": 0}),
        ("num_beam_groups", {"num_beam_groups": 17}),
        ("num_beam_groups", {"num_beam_groups": True}),
        ("diversity_penalty", {"diversity_penalty": 0.5}),
        ("diversity_penalty", {"diversity_penalty": 0.5, "num_beams": 4}),
        ("diversity_penalty", {"diversity_penalty": -0.1, "num_beams": 4, "num_beam_groups": 2}),
        ("diversity_penalty", {"diversity_penalty": 100.1, "num_beams": 4, "num_beam_groups": 2}),
        ("prompt_logprobs", {"prompt_logprobs": 1}),
        ("prompt_logprobs", {"prompt_logprobs": True, "model": "translator"}),
        ("echo", {"echo": "yes"}),
        ("echo", {"echo": True, "model": "translator"}),
        ("return_attention", {"return_attention": True}),
        ("response_format", {"response_format": {}}),
        ("response_format", {"response_format": "json_object"}),
        ("response_format", {"response_format": {"type": "xml"}}),
        ("response_format", {"response_format": {"type": "json_object", "schema": {}}}),
        ("response_format", {"response_format": {"type": "json_schema"}}),
        ("response_format", {"response_format": {"type": "json_schema", "schema": True}}),
        ("response_format", {"response_format": {"type": "json_schema", "schema": {"type": "thing"}}}),
        ("response_format", {"response_format": {"type": "json_schema", "schema": {"not": {}}}}),
        ("response_format", {"response_format": {"type": "json_schema", "schema": {"$ref": "#"}}}),
        ("response_format", {"response_format": {"type": "json_schema", "schema": {"$ref": "http://a.example/b"}}}),
        ("response_format", {"response_format": {"type": "json_schema", "schema": {"const": "a" * 262_144}}}),
        ("response_format", {"response_format": {"type": "regex", "pattern": ""}}),
        ("response_format", {"response_format": {"type": "regex", "pattern": "("}}),
        ("response_format", {"response_format": {"type": "regex", "pattern": r"(a)\1"}}),
        ("response_format", {"response_format": {"type": "regex", "pattern": "a(?=b)"}}),
        ("response_format", {"response_format": {"type": "regex", "pattern": r"[^\x00-\x{10ffff}]"}}),
        ("response_format", {"response_format": {"type": "regex", "pattern": "a" * 4097}}),
        ("response_format", {"response_format": {"type": "choice", "choices": []}}),
        ("response_format", {"response_format": {"type": "choice", "choices": [""]}}),
        ("response_format", {"response_format": {"type": "choice", "choices": ["a", 1]}}),
        ("response_format", {"response_format": {"type": "choice", "choices": ["a", "a"]}}),
        ("response_format", {"response_format": {"type": "choice", "choices": [str(i) for i in range(1025)]}}),
        ("response_format", {"response_format": {"type": "choice", "choices": ["a" * 40_000, "b" * 40_000]}}),
        ("ignore_eos", {"response_format": {"type": "json_object"}, "ignore_eos": True}),
        (
            "forced_bos_token",
            {"response_format": {"type": "json_object"}, "forced_bos_token": "a", "model": "translator"},
        ),
        ("return_attention", {"return_attention": 1, "model": "translator"}),
        ("return_attention", {"return_attention": True, "model": "translator", "stream": True}),
        ("return_attention", {"return_attention": True, "model": "translator", "stop": "a", "num_beams": 1}),
        ("return_attention", {"return_attention": True, "model": "translator", "prompt": ["a" * 200] * 100}),
        ("model", {"model": "embedder"}),
    ],
)
def test_a_refusal_names_the_field(client: httpx.Client, param: str, body: dict) -> None:
    message = refused(client, param, **body)
    assert param in message or param == "model"


def test_neutral_values_of_unused_fields_pass(client: httpx.Client) -> None:
    neutral = {
        "typical_p": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "encoder_no_repeat_ngram_size": 0,
        "logit_bias": {},
        "allowed_token_ids": None,
        "n": 2,
        "best_of": 2,
        "num_beams": 1,
        "num_beam_groups": 1,
        "diversity_penalty": 0,
        "prompt_logprobs": False,
        "echo": False,
        "return_attention": False,
        "response_format": {"type": "text"},
        "do_sample": False,
        "temperature": 1.0,
        "top_p": 1,
        "top_k": 0,
        "min_p": 0,
        "length_penalty": 1.0,
        "early_stopping": False,
        "logprobs": False,
        "top_logprobs": 0,
        "stop": [],
        "user": "someone",
        "metadata": {"a": [1]},
        "store": True,
    }
    choices = generate(client, prompt="abc", **neutral)["choices"]
    assert [c["text"] for c in choices] == ["abc", "abc"]


@pytest.mark.parametrize(
    "body",
    [
        {"typical_p": 1e-6},
        {"typical_p": 0.999999},
        {"presence_penalty": 2},
        {"presence_penalty": -2.0},
        {"frequency_penalty": 2.0},
        {"frequency_penalty": -2},
        {"encoder_no_repeat_ngram_size": 1},
        {"encoder_no_repeat_ngram_size": 1 << 20},
        {"logit_bias": {"0": 100, "258": -100.0, "7": 0}},
        {"allowed_token_ids": [0]},
        {"allowed_token_ids": [258, 5, 5]},
        {"num_beams": 16, "num_beam_groups": 16, "diversity_penalty": 100, "max_new_tokens": 8},
        {"num_beams": 2, "num_beam_groups": 2, "diversity_penalty": 1e-6, "max_new_tokens": 8},
        {"num_beams": 2, "num_beam_groups": 1, "diversity_penalty": 0.0, "max_new_tokens": 8},
        {"best_of": 1},
        {"best_of": 16},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "schema": {}}},
        {"response_format": {"type": "json_schema", "schema": {"const": "a" * 262_000}}},
        {"response_format": {"type": "regex", "pattern": "a" * 4096}},
        {"response_format": {"type": "choice", "choices": ["a"]}},
        {"response_format": {"type": "choice", "choices": [str(i) for i in range(1024)]}},
        {"response_format": {"type": "choice", "choices": ["é" * 32_768]}},
    ],
)
def test_values_at_the_bounds_pass(client: httpx.Client, body: dict) -> None:
    answer = generate(client, prompt="abc", seed=0, **body)
    assert [choice["text"] for choice in answer["choices"]] == ["abc"]


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"type": "regex", "pattern": r"(a)\1"}, "backreferences are not supported"),
        ({"type": "regex", "pattern": "("}, "unclosed group"),
        ({"type": "json_schema", "schema": {"type": "secret"}}, "`type` has a value that is not valid"),
        ({"type": "json_schema", "schema": {"uniqueItems": True}}, "`uniqueItems` cannot be enforced"),
        ({"type": "json_schema", "schema": {"uniqueItems": True, "x-guidance": {"lenient": True}}}, "uniqueItems"),
        ({"type": "json_schema", "schema": {"minLength": 5, "maxLength": 3, "type": "string"}}, "minLength"),
        ({"type": "json_schema", "schema": {"$ref": "#"}}, "`$ref` requires itself without an end"),
        ({"type": "json_schema"}, "needs the field `schema`"),
        ({"type": "regex", "pattern": "a", "flags": "i"}, "unknown field `flags`"),
        ({"type": "secret"}, "must be one of 'text', 'json_object', 'json_schema', 'regex', 'choice'"),
        ({"type": "choice", "choices": ["secret", "secret"]}, "contains a choice twice"),
    ],
)
def test_an_invalid_format_is_refused_with_a_reason_that_does_not_quote_it(
    client: httpx.Client, wanted: dict, reason: str
) -> None:
    for stream in (False, True):
        message = refused(client, "response_format", response_format=wanted, stream=stream)
        assert reason in message and "secret" not in message and "\n" not in message


@pytest.mark.parametrize("depth", [20, 90, 100])
def test_the_nesting_limit_applies_to_schemas(client: httpx.Client, depth: int) -> None:
    schema: dict = {"type": "integer"}
    for _ in range(depth):
        schema = {"items": schema}
    body = {"response_format": {"type": "json_schema", "schema": schema}}
    if depth == 100:
        refused(client, None, **body)
    else:
        assert generate(client, prompt="abc", **body)["choices"][0]["text"] == "abc"


def test_text_with_a_format_is_decoded_byte_by_byte(client: httpx.Client) -> None:
    """Tokens are single bytes, so characters arrive in parts. The fake engine ignores the grammar."""
    for prompt in ("héllo 😀 wörld", "[1, 2 , 3]"):
        body = {"prompt": prompt, "response_format": {"type": "json_object"}}
        assert generate(client, **body)["choices"][0]["text"] == prompt
        assert generate(client, **body, stop="l", include_stop=True)["choices"][0]["text"] in ("hél", prompt)
