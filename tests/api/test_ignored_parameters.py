"""The kinds of fields decide which are dropped or refused, and a header names the dropped ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from server.api.bodies.body import validate
from server.api.dialects.openai.chat_body import ChatCompletionBody
from server.api.fields.field_kinds import KIND, Hint, only, wish
from server.api.fields.ignored_parameters import MAX_HEADER_BYTES, header_value, ignored_parameters
from server.api.fields.schema_errors import describe_errors
from server.errors import InvalidRequest


class Part(BaseModel):
    text: str = ""
    detail: Annotated[Any, wish("auto")] = None


class Message(BaseModel):
    parts: list[Part] = []
    reasoning_: Annotated[Any, wish(), Field(alias="reasoning")] = None
    audio: Annotated[Any, only()] = None


class Body(BaseModel):
    messages: list[Message] = []
    user: Hint = None
    tier: Annotated[str | None, wish("auto", "default")] = None
    effort: Annotated[Any, only("none")] = None
    tools: list[str] = []

    def dropped(self) -> Iterator[str]:
        yield from (f"tools[{index}]" for index, tool in enumerate(self.tools) if tool == "search")


def test_wishes_are_named_with_their_places() -> None:
    body = Body.model_validate(
        {
            "messages": [
                {"reasoning": None},
                {"parts": [{"detail": "auto"}, {"detail": "low"}], "reasoning": {"a": 1}},
            ],
            "user": "me",
            "tier": "flex",
            "tools": ["f", "search"],
        }
    )
    assert ignored_parameters(body) == [
        "messages[1].parts[1].detail",
        "messages[1].reasoning",
        "tier",
        "tools[1]",
    ]


@pytest.mark.parametrize("neutral", [{}, {"tier": None}, {"tier": "default"}, {"effort": "none"}, {"user": {"x": 1}}])
def test_neutral_values_are_not_named(neutral: dict[str, Any]) -> None:
    assert ignored_parameters(Body.model_validate(neutral)) == []


def test_refused_fields_name_their_neutral_values() -> None:
    with pytest.raises(ValueError, match="is not supported, except as") as error:
        Body.model_validate({"effort": "high"})
    message, field = describe_errors({"effort": "high"}, error.value.errors(), Body)  # type: ignore[attr-defined]
    assert (message, field) == ('`effort` is not supported, except as "none"', "effort")
    with pytest.raises(ValueError, match="is not supported"):
        Body.model_validate({"messages": [{"audio": 1}]})


@pytest.mark.parametrize("name", ["mirostat", "n_probs", "min_keep", "t_max_predict_ms"])
def test_a_number_is_no_truth_value(name: str) -> None:
    """A field that accepts only 0 refuses false, and the reverse.

    Python treats `Annotated[Any, only(0)]` and `Annotated[Any, only(False)]` as the same type, because 0 == False.
    """
    given = {"messages": [{"role": "user", "content": "a"}]}
    assert not ignored_parameters(validate(given | {name: 0}, ChatCompletionBody))
    with pytest.raises(InvalidRequest, match=f"`{name}` is not supported, except as 0"):
        validate(given | {name: False}, ChatCompletionBody)
    validate(given | {"post_sampling_probs": False}, ChatCompletionBody)
    with pytest.raises(InvalidRequest, match="except as false"):
        validate(given | {"post_sampling_probs": 0}, ChatCompletionBody)


def test_the_schema_names_the_kinds() -> None:
    schemas = Body.model_json_schema()
    kinds = {name: field.get(KIND) for name, field in schemas["properties"].items()}
    assert kinds == {"messages": None, "user": "hint", "tier": "wish", "effort": "refused", "tools": None}
    assert schemas["$defs"]["Message"]["properties"]["reasoning"][KIND] == "wish"


def test_the_header_is_short_and_counts_what_it_leaves_out() -> None:
    assert header_value(["a", "b", "a"]) == "a, b"
    names = [f"tools[{index}].input_schema:propertyNames" for index in range(200)]
    value = header_value(names)
    listed, _, rest = value.rpartition(", +")
    count = len(listed.split(", "))
    assert rest == f"{200 - count} more" and listed.split(", ") == names[:count]
    assert MAX_HEADER_BYTES - len(names[count]) - 2 < len(listed) <= MAX_HEADER_BYTES
    exact = ["x" * 511, "y" * 511]
    assert header_value(exact) == ", ".join(exact)
    assert header_value(["x" * 511, "y" * 512]) == "x" * 511 + ", +1 more"
