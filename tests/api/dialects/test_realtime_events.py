"""Invalid events of live transcriptions are refused. The error names the field and repeats no value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.api.dialects.openai.audio.realtime_body import Commit, Update, parse_event
from server.errors import InvalidRequest

CANARY = "CaNaRy <7f3>"
INPUT = {"transcription": {"model": CANARY}, "format": {"type": "audio/pcm", "rate": 24000}}


def refused(event: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as error:
        parse_event(event if isinstance(event, str) else json.dumps(event))
    assert CANARY not in error.value.message and CANARY not in (error.value.param or "")
    assert len(error.value.message) < 300
    return error.value


def test_events() -> None:
    assert parse_event('{"type": "input_audio_buffer.commit", "event_id": "e"}') == Commit(
        type="input_audio_buffer.commit", event_id="e"
    )
    event = parse_event(
        json.dumps({"type": "session.update", "session": {"type": "transcription", "audio": {"input": INPUT}}})
    )
    assert isinstance(event, Update) and event.session.audio is not None and event.session.audio.input is not None
    assert event.session.audio.input.format is not None and event.session.audio.input.format.rate == 24000


@pytest.mark.parametrize(
    ("event", "param"),
    [
        ("{", None),
        ("[]", None),
        ('"a"', None),
        ("{}", "type"),
        ({"type": CANARY}, "type"),
        ({"type": [CANARY]}, "type"),
        ({"type": "input_audio_buffer.commit", CANARY: 1}, None),
        ({"type": "input_audio_buffer.commit", "more": CANARY}, "more"),
        ({"type": "input_audio_buffer.commit", CANARY * 100_000: 1}, None),
        ({"type": "session.update"}, "session"),
        ({"type": "session.update", "session": {"type": CANARY}}, "session.type"),
        ({"type": "session.update", "session": {"type": "transcription", CANARY: CANARY}}, "session"),
        (
            {"type": "session.update", "session": {"type": "transcription", "audio": {"input": INPUT | {CANARY: 1}}}},
            "session.audio.input",
        ),
        ({"type": "input_audio_buffer.append", "audio": {CANARY: CANARY}}, "audio"),
    ],
)
def test_an_error_repeats_nothing(event: Any, param: str | None) -> None:
    assert refused(event).param == param


def test_a_message_of_many_values_is_not_parsed() -> None:
    """An event with too many values is refused before it is parsed.

    Parsing 4 MB of empty lists would block all threads of Python for more than 100 ms.
    """
    event = {"type": "session.update", "session": {"type": "transcription", "audio": {"input": {"noise_reduction": 0}}}}
    text = json.dumps(event).replace("0}}}}", f"[{'[],' * 1_000_000}[]]}}}}}}}}")
    json.loads(text)
    assert "lists and objects" in refused(text).message or "values" in refused(text).message
