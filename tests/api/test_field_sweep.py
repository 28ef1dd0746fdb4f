"""Send every field of every dialect with null, with its neutral values, and with other values.

Null and neutral values have the same result as an absent field, and `X-Ignored-Parameters` does not name the field. The
kind of the field decides about other values. A hint has no effect and is not named. A wish has no effect and is named.
A refused field is an error that names it. Fields that work are tested elsewhere.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from pydantic import BaseModel

from server.api.bodies.body import validate
from server.api.dialects.openai.responses.body import ResponsesBody
from server.api.dialects.openai.responses.conversation import StoredConversation
from server.api.dialects.registry import ROUTES
from server.api.fields.ignored_parameters import ignored_parameters
from server.errors import RequestError
from tests.api.field_samples import bodies, classes, objects, samples

Place = tuple[str | int, ...]
ANYTHING: tuple[Any, ...] = ("text", 7, 0.5, True, ["a"], {"key": {"inner": 1}})
WISHES: Mapping[str, tuple[Any, ...]] = {
    "AnthropicMessagesBody.thread": ({"type": "create"},),
    "AnthropicCountBody.thread": ({"type": "create"},),
    "OllamaOptions.repeat_last_n": (64,),
    "OllamaShowBody.verbose": (True,),
}
"""Valid values of those wishes (see `SCHEMA.FIELD`) that do not accept arbitrary values."""
WORKING = {"OllamaOptions.repeat_last_n": (0,)}
"""Values of wishes that the server supports. They have an effect, and the field is not named."""
BODIES = bodies()
ABSENT = object()


def swept(body: type[BaseModel]) -> Iterator[tuple[Mapping[str, Any], Place, type[BaseModel]]]:
    """Yield (sample, path, class) of each object in the samples of a body.

    Objects of the same class whose paths differ only in list indices are yielded once.
    """
    seen = set()
    for sample in samples(body):
        for place, kind in objects(validate(sample, body)):
            key = kind, tuple(part for part in place if isinstance(part, str))
            if key not in seen and is_placed(sample, place):
                seen.add(key)
                yield sample, place, kind


def fields(kind: type[BaseModel]) -> Iterator[tuple[str, str | None, tuple[Any, ...]]]:
    """Yield (name in the JSON, kind, neutral values) of each optional field of a schema."""
    for name, field in kind.model_fields.items():
        if not field.is_required():
            neutral = [value for mark in field.metadata for value in getattr(mark, "neutral", ())]
            marks = [mark.kind for mark in field.metadata if hasattr(mark, "kind")]
            yield field.alias or name, marks[0] if marks else None, tuple(neutral)


def with_value(sample: Mapping[str, Any], place: Place, name: str, value: Any) -> dict[str, Any]:
    """Copy a sample and set the field `name` of the object at the path `place`, or remove it if `value` is ABSENT."""
    made = copy.deepcopy(dict(sample))
    owner: Any = made
    for part in place:
        owner = owner[part]
    if value is ABSENT:
        owner.pop(name, None)
    else:
        owner[name] = value
    return made


def outcome(body: type[BaseModel], value: dict[str, Any]) -> tuple[Any, list[str]]:
    """Validate and parse a body. Returns its specification or the text of the error, and names of dropped fields."""
    try:
        checked = validate(value, body)
        if isinstance(checked, ResponsesBody):
            checked.continue_stored(StoredConversation(), 1 << 20)
        route = next((route for route in ROUTES if route.body is body), None)
        parse = getattr(route, "parse", None) or getattr(route, "options", None) or getattr(body, "spec", None)
        has_file = "file" in inspect.signature(parse).parameters
        spec = checked.spec(b"RIFF", 60.0) if has_file else parse(checked)
    except RequestError as error:
        return f"{error.message} ({error.param})", []
    return spec, ignored_parameters(checked)


def is_form(body: type[BaseModel]) -> bool:
    """Whether a body is a form or a query, whose values are texts and never null."""
    return body.__name__.endswith(("Form", "Query"))


def spelled(place: Place) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return path.removeprefix(".")


def is_placed(sample: Mapping[str, Any], place: Place) -> bool:
    """Whether the JSON of a sample has an object at this path. Validation turns some texts into objects."""
    owner: Any = sample
    for part in place:
        if isinstance(owner, str):
            return False
        owner = owner[part]
    return isinstance(owner, dict)


def test_the_samples_have_every_object_of_every_body() -> None:
    """If this fails, add a sample with the object to tests/api/field_samples.py."""
    missing = []
    for body in BODIES:
        needed: set[type[BaseModel]] = set()
        classes(body, needed)
        missing += [f"{body.__name__}: {kind.__name__}" for kind in needed - {kind for _, _, kind in swept(body)}]
    assert not missing


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_every_field_is_of_its_kind(body: type[BaseModel]) -> None:
    wrong: list[str] = []
    for sample, place, kind in swept(body):
        for name, mark, neutral in fields(kind):
            path = spelled((*place, name))
            absent = outcome(body, with_value(sample, place, name, ABSENT))

            def sent(value: Any, path: str = path, expected: Any = absent, names: Sequence[str] = ()) -> None:
                found = outcome(body, with_value(sample, place, name, value))  # noqa: B023
                if found[0] != expected[0] or sorted(found[1]) != sorted([*expected[1], *names]):
                    wrong.append(f"{path} = {value!r}: {found[0]}, named {found[1]}")

            own = f"{kind.__name__}.{name}"
            for value in neutral if is_form(body) else (None, *neutral):
                if value not in WORKING.get(own, ()):
                    sent(value)
            for value in ANYTHING if mark == "hint" else ():
                sent(value)
            for value in WISHES.get(own, ANYTHING) if mark == "wish" else ():
                if value not in neutral:
                    sent(value, names=[path])
            for value in ANYTHING if mark == "refused" else ():
                if value not in neutral:
                    found, _ = outcome(body, with_value(sample, place, name, value))
                    if name not in str(found) or not str(found).endswith(f"({(*place, name)[0]})"):
                        wrong.append(f"{path} = {value!r}: {found}")
    assert not wrong, "\n".join(wrong)


def test_the_sweep_sees_all_kinds() -> None:
    counts = {"hint": 0, "wish": 0, "refused": 0}
    for body in BODIES:
        needed: set[type[BaseModel]] = set()
        classes(body, needed)
        for kind in needed:
            for _, mark, _ in fields(kind):
                if mark is not None:
                    counts[mark] += 1
    assert min(counts.values()) > 20, counts
