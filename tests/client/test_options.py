"""The flags of the client commands are the fields of the server's request bodies."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel, ValidationError

from server.api.dialects.native.bodies import (
    ClassifyBody,
    EmbedBody,
    GenerateBody,
    LateInteractionBody,
    RerankBody,
    TranslateBody,
)
from server.api.dialects.openai.audio.form import TranscriptionForm
from server.api.dialects.openai.chat_body import ChatCompletionBody
from server.client import environment, target
from server.client.chat import chat_fields
from server.client.errors import CommandError
from server.client.options import (
    CHAT,
    RERANKING,
    TRANSCRIPTION,
    Option,
    add_flags,
    add_format_flags,
    fields,
    response_format,
)
from server.client.tasks import TASKS
from server.settings.fields import PREFIX
from server.settings.read import load
from server.settings.settings import Settings

BODIES: dict[str, tuple[type[BaseModel], ...]] = {
    "generate": (GenerateBody,),
    "translate": (TranslateBody,),
    "embed": (EmbedBody, LateInteractionBody),
    "classify": (ClassifyBody,),
}
NOT_OPTIONS = {
    "model": "--model chooses the model",
    "timeout_ms": "--timeout sends a header",
    "stream": "the command decides",
    "response_format": "--schema, --regex and --choice",
    "user": "no effect",
    "metadata": "no effect",
    "store": "no effect",
}
VALUES: dict[str, list[str]] = {
    "early_stopping": ["never"],
    "logit_bias": ["5=1.5", "7=-2"],
    "stop_token_ids": ["1,2", "3"],
    "allowed_token_ids": ["1,2"],
    "suppress_tokens": ["4"],
    "stop": ["a", "b c"],
    "bad_words": ["a"],
    "temperature": ["0.5"],
    "glossary": ["house=maison", "old house=vieille maison"],
}


@pytest.mark.parametrize("name", BODIES)
def test_every_field_is_a_flag(name: str) -> None:
    task, bodies = TASKS[name], BODIES[name]
    assert all(task.field in body.model_fields for body in bodies)
    known = {field for body in bodies for field in body.model_fields}
    assert {option.name for option in task.options} == known - {task.field} - set(NOT_OPTIONS)


def given(option: Option) -> list[str]:
    """The arguments that set an option to a valid value on a command line."""
    flag = "--" + option.name.replace("_", "-")
    if option.convert is bool:
        return [flag]
    number = option.convert in (int, float)
    values = VALUES.get(option.name) or (list(option.choices[:1]) or ["1" if number else "text"])
    return [part for value in values for part in (flag, value)]


@pytest.mark.parametrize("name", BODIES)
def test_every_flag_sends_what_the_server_reads(name: str) -> None:
    task, bodies = TASKS[name], BODIES[name]
    for option in task.options:
        body = next(body for body in bodies if option.name in body.model_fields)
        parser = argparse.ArgumentParser()
        add_flags(parser, task.options)
        sent = fields(parser.parse_args(given(option)), task.options)
        assert list(sent) == [option.name]
        body.model_validate({task.field: "text"} | json.loads(json.dumps(sent)))
        with pytest.raises(ValidationError):
            body.model_validate({task.field: "text", option.name: {"wrong": ["type"]}})


def parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_flags(parser, TASKS["generate"].options)
    add_format_flags(parser)
    return parser.parse_args(argv)


def test_repeated_flags_are_joined() -> None:
    argv = ["--stop", "a", "--stop", "b", "--stop-token-ids", "1,2", "--stop-token-ids", "3", "--logit-bias", "5=1"]
    assert fields(parse(*argv, "--logit-bias", "6=-2.5", "--no-do-sample"), TASKS["generate"].options) == {
        "stop": ["a", "b"],
        "stop_token_ids": [1, 2, 3],
        "logit_bias": {"5": 1.0, "6": -2.5},
        "do_sample": False,
    }
    assert fields(parse("--early-stopping", "true", "--forced-bos-token", "7"), TASKS["generate"].options) == {
        "early_stopping": True,
        "forced_bos_token": 7,
    }
    assert fields(parse(), TASKS["generate"].options) == {}


@pytest.mark.parametrize(
    "argv", [["--stop-token-ids", "1,x"], ["--logit-bias", "a=1"], ["--early-stopping", "maybe"], ["--top-k", "x"]]
)
def test_a_wrong_value_names_its_flag(argv: list[str]) -> None:
    with pytest.raises(argparse.ArgumentError, match=argv[0]) as error:
        parse(*argv)
    assert not re.search(r"invalid _\w+ value", str(error.value))


def test_formats(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    for argv in (["--schema", str(schema)], ["--regex", "a+"], ["--choice", "a", "--choice", "b"]):
        sent = response_format(parse(*argv))
        GenerateBody.model_validate({"prompt": "a", **sent})
    assert sent == {"response_format": {"type": "choice", "choices": ["a", "b"]}}
    assert response_format(parse()) == {}
    schema.write_text("{")
    with pytest.raises(CommandError, match="is not JSON"):
        response_format(parse("--schema", str(schema)))
    with pytest.raises(CommandError, match="cannot read"):
        response_format(parse("--schema", str(tmp_path / "none")))


def test_chat_has_the_sampling_flags() -> None:
    names = {option.name for option in CHAT}
    assert {"max_new_tokens", "temperature", "seed", "stop", "num_beams", "logit_bias"} <= names
    assert not {"n", "echo", "truncate", "source_lang"} & names


def test_settings_of_load_are_settings_of_the_server() -> None:
    for name in target.LOAD_SETTINGS:
        assert name in Settings.model_fields
    assert {"auto, cpu or cuda"} == {target.LOAD_SETTINGS["device"]}
    assert get_args(Settings.model_fields["device"].annotation) == ("auto", "cpu", "cuda")
    assert get_args(Settings.model_fields["dtype"].annotation) == ("auto", "float32", "bfloat16", "float16")


def test_the_server_leaves_the_variables_of_clients_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment.VARIABLES:
        assert name.startswith(PREFIX)
        monkeypatch.setenv(name, "value")
    assert load({}).port == Settings.model_fields["port"].default


def test_the_key_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.API_KEY, raising=False)
    assert target.api_key(None) == ""
    monkeypatch.setenv(environment.API_KEY, " from-environment ")
    assert target.api_key(None) == "from-environment"
    file = tmp_path / "key"
    file.write_text("# comment\n\n from-file \nanother\n")
    assert target.api_key(file) == "from-file"
    file.write_text("# comment\n")
    with pytest.raises(CommandError, match="no key"):
        target.api_key(file)


def test_no_flag_takes_a_key() -> None:
    """No flag takes an API key, because all users of a machine can see the command lines."""
    parser = argparse.ArgumentParser()
    target.add_target_flags(parser)
    flags = [flag for action in parser._actions for flag in action.option_strings]
    assert [flag for flag in flags if "key" in flag] == ["--api-key-file"]


def test_every_flag_of_chat_sends_what_openai_routes_read() -> None:
    for option in CHAT:
        parser = argparse.ArgumentParser()
        add_flags(parser, CHAT)
        sent = chat_fields(parser.parse_args(given(option)))
        assert len(sent) == 1
        ChatCompletionBody.model_validate({"messages": [{"role": "user", "content": "a"}], **sent})


@pytest.mark.parametrize(
    ("options", "body", "required"),
    [
        (RERANKING, RerankBody, {"query": "a", "texts": ["b"]}),
        (TRANSCRIPTION, TranscriptionForm, {}),
    ],
)
def test_every_flag_of_rerank_and_transcribe_sends_what_the_server_reads(
    options: tuple[Option, ...], body: type[BaseModel], required: dict[str, object]
) -> None:
    for option in options:
        assert option.name in body.model_fields
        parser = argparse.ArgumentParser()
        add_flags(parser, options)
        body.model_validate(required | fields(parser.parse_args(given(option)), options))
