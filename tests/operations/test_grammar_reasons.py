"""The reason why the grammar library refuses a format is passed on, but not the parts of the request it quotes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.operations.grammar_process import MAX_REASON_CHARACTERS, _without_words, compile

SECRET = "Geheimnis"


@pytest.mark.parametrize(
    "text_format",
    [
        {"pattern": f"({SECRET}"},
        {"pattern": f"a\n{SECRET}("},
        {"pattern": f"[z-{SECRET}]("},
        {"pattern": f"\\p{{{SECRET}}}"},
        {"pattern": SECRET * 100 + "("},
        {"pattern": f"(?P<{SECRET}>a)\\k<{SECRET}>"},
        {"schema": json.dumps({"$ref": f"#/$defs/{SECRET}é"}), "options": {}},
        {"schema": json.dumps({"type": f"é{SECRET}"}), "options": {}},
        {"schema": json.dumps({"type": "string", "pattern": f"({SECRET}"}), "options": {}},
        {"schema": f'{{"{SECRET}', "options": {}},
    ],
)
def test_a_reason_quotes_no_request(text_format: dict[str, Any]) -> None:
    refused = compile(text_format)["refused"]
    assert refused and len(refused) <= MAX_REASON_CHARACTERS + 40
    for start in range(len(SECRET) - 4):
        assert SECRET[start : start + 5].lower() not in refused.lower(), refused


def test_texts_that_the_library_cuts_or_unescapes_are_hidden() -> None:
    schema = json.dumps({"title": "größtes\nGeheimnis"})
    assert _without_words("at größtes, near eheimn", {"schema": schema}) == "at ..., near ..."
    assert _without_words("unknown format", {"schema": '{"format": "x"}'}) == "unknown format"
