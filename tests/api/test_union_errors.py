"""Errors inside the members of unions name the field at fault, in every body of every dialect.

The tests read the JSON schema of each body. For each member of each union they build a valid request. Then they break
one field of the member at a time, and check that the message names this field.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from server.api.bodies.body import validate
from server.api.dialects.huggingface.hub_bodies import HubTaskBody
from server.api.dialects.openai.chat_body import ChatCompletionBody
from server.api.dialects.openai.responses.body import ResponsesBody
from server.api.fields import schema_errors
from server.api.fields.error_places import Place
from server.errors import InvalidRequest
from tests.api.test_schema_errors import BODIES as ROUTES
from tests.api.test_schema_errors import PYDANTIC, message_of

Path = tuple[str | int, ...]
HUB = {member.__name__: member for member in get_args(HubTaskBody.model_fields["root"].annotation)}
"""The bodies of the route `/models/{model}`, which depend on the model's task, by name of their schema."""
BODIES: dict[str, type[BaseModel]] = {name: route.body for name, route in ROUTES.items()} | HUB
WRONG: tuple[Any, ...] = (5, "x", [5], {"zz": 5}, True)
DEPTH = 6
TEXTS = {"arguments": "{}"}
"""Valid values of text fields whose format is not in the JSON schema, by name of the field."""
_STEP = re.compile(r"\.?([A-Za-z_][A-Za-z0-9_]*)|\[(\d+)\]")


def resolved(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    return schema


def members(schema: dict[str, Any], root: dict[str, Any]) -> list[dict[str, Any]]:
    """The members of a union except null. For any other schema: the schema itself."""
    schema = resolved(schema, root)
    inner = schema.get("anyOf") or schema.get("oneOf")
    if inner is None:
        return [schema]
    found = [member for each in inner for member in members(each, root)]
    return [member for member in found if member.get("type") != "null"]


def smallest(schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """A small value that is valid for a schema."""
    schema = members(schema, root)[0]
    if "const" in schema or "enum" in schema:
        return schema.get("const", (schema.get("enum") or [None])[0])
    match schema.get("type"):
        case "object":
            required = schema.get("required", [])
            fields = schema.get("properties", {})
            return {name: TEXTS.get(name) or smallest(fields[name], root) for name in required}
        case "array":
            return [smallest(schema.get("items", {}), root)] * schema.get("minItems", 0)
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
    return "ab"


def unions(schema: Any, root: dict[str, Any], path: Path = (), depth: int = 0) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield each member of each union in a schema: the path of the union, and the schema of the member."""
    if depth > DEPTH:
        return
    found = members(schema, root)
    for row in found:
        if len(found) > 1:
            yield path, row
        for name, inner in row.get("properties", {}).items():
            yield from unions(inner, root, (*path, name), depth + 1)
        if row.get("type") == "array" and "items" in row:
            yield from unions(row["items"], root, (*path, 0), depth + 1)


def put(value: Any, path: Path, new: Any, schema: Any, root: dict[str, Any]) -> Any:
    """Copy a value and put `new` at a path. Missing objects on the path are created with their required fields."""
    if not path:
        return new
    first, rest = path[0], path[1:]
    if isinstance(first, int):
        fitting = [member for member in members(schema, root) if member.get("type") == "array"]
        inner = value[0] if isinstance(value, list) and value else None
        return [put(inner, rest, new, fitting[0]["items"], root)]
    fitting = [member for member in members(schema, root) if first in member.get("properties", {})]
    own = next((member for member in fitting if not rest or leads(member["properties"][first], rest, root)), fitting[0])
    base = copy.deepcopy(value) if isinstance(value, dict) and fits(value, own) else smallest(own, root)
    return {**base, first: put(base.get(first), rest, new, own["properties"][first], root)}


def leads(schema: Any, path: Path, root: dict[str, Any]) -> bool:
    """Whether a value of this schema can have something at this path."""
    if not path:
        return True
    if isinstance(path[0], int):
        return any(
            leads(member.get("items", {}), path[1:], root) for member in members(schema, root) if "items" in member
        )
    found = [
        member["properties"][path[0]] for member in members(schema, root) if path[0] in member.get("properties", {})
    ]
    return any(leads(member, path[1:], root) for member in found)


def fits(value: dict[str, Any], schema: dict[str, Any]) -> bool:
    """Whether a value can be of this member of a union: it has the member's constants and required fields."""
    constants = {name: field["const"] for name, field in schema.get("properties", {}).items() if "const" in field}
    return all(value.get(name) == constant for name, constant in constants.items()) and value.keys() >= set(
        schema.get("required", [])
    )


def at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def named_path(message: str) -> Path:
    """The path that a message names first."""
    found = re.search(r"`([^`]+)`", message)
    assert found is not None, message
    return tuple(name or int(index) for name, index in _STEP.findall(found[1]))


def refusal(value: dict[str, Any], name: str) -> str | None:
    try:
        validate(value, BODIES[name])
    except InvalidRequest as error:
        return error.message
    return None


def check(value: dict[str, Any], broken: Path, union: Path, name: str, words: set[str]) -> bool:
    """Check the message about a broken field. Returns whether the message names exactly this field."""
    message = refusal(value, name)
    if message is None:
        return False
    assert not PYDANTIC.search(message), message
    assert not words & set(re.findall(r"[A-Za-z_]\w+", message)), message
    path = named_path(message)
    if "needs the field" in message or message.startswith("unknown field"):
        path = path[: len(broken)]
    else:
        at(value, path)
    common = min(len(path), len(broken))
    is_about = path[:common] == broken[:common] and len(path) >= min(len(union), len(broken) - 1)
    if "has an unknown field" in message:
        is_about = path == broken
    assert is_about, f"{message} is not about {broken}"
    return path == broken


def class_names(name: str) -> set[str]:
    """Names of the Python classes in the schema of a body. No message may contain one."""
    schema = BODIES[name].model_json_schema()
    return {key for key in schema.get("$defs", {}) if key[0].isupper()}


def broken_requests(name: str) -> Iterator[tuple[dict[str, Any], Path, Path]]:
    """Yield requests with one broken field in a member of a union, with the path of the field and that of the union."""
    root = BODIES[name].model_json_schema()
    example = dict(ROUTES[name].example[0]) if name in ROUTES else smallest(root, root)
    if name.endswith("Form"):
        example.pop("file", None)  # a part of the form that is no field of the body
    for union, member in unions(root, root):
        given = smallest(member, root)
        value = put(example, union, given, root, root)
        if not isinstance(given, dict):
            continue
        for field in member.get("properties", {}):
            for wrong in WRONG:
                yield put(example, union, {**given, field: wrong}, root, root), (*union, field), union
        for field in member.get("required", []):
            less = {key: kept for key, kept in given.items() if key != field}
            yield put(example, union, less, root, root), (*union, field), union
        yield put(example, union, {**given, "zz": 1}, root, root), union, union
        for wrong in WRONG:
            yield put(value, union, wrong, root, root), union, union


@pytest.mark.parametrize("name", sorted(BODIES))
def test_a_wrong_value_in_a_member_of_a_union_is_named(name: str) -> None:
    words = class_names(name)
    for value, broken, union in broken_requests(name):
        check(value, broken, union, name, words)


def test_the_walk_finds_unions_and_exact_fields() -> None:
    """Control: the test above breaks enough fields, and many messages name exactly the broken field."""
    exact = {
        name: sum(check(*case, name, set()) for case in broken_requests(name))
        for name in ("AnthropicMessagesBody", "CohereChatBody", "ResponsesBody", "GenerateBody", "JinaRerankBody")
    }
    assert min(exact.values()) >= 5 and exact["AnthropicMessagesBody"] > 40, exact


@pytest.mark.parametrize("name", ["AnthropicMessagesBody", "ChatCompletionBody"])
def test_a_tag_in_place_of_a_field_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: messages use pydantic's location, which contains the tag of a member. The test must fail."""
    monkeypatch.setattr(schema_errors, "place_of", lambda schema, location: Place(tuple(location)))
    with pytest.raises(AssertionError):
        test_a_wrong_value_in_a_member_of_a_union_is_named(name)


def test_messages_of_tagged_unions() -> None:
    def anthropic(*blocks: Any) -> str:
        body = BODIES["AnthropicMessagesBody"]
        return message_of({"max_tokens": 5, "messages": [{"role": "user", "content": [*blocks]}]}, body)

    text = {"type": "text", "text": "a"}
    assert anthropic(text, {**text, "text": 5}) == "`messages[0].content[1].text` must be a string"
    assert anthropic({**text, "zz": 1}) == "`messages[0].content[0]` has an unknown field `zz`"
    assert anthropic({"type": "text"}) == "`messages[0].content[0]` needs the field `text`"
    assert anthropic({"type": "thinking", "thinking": 4}) == "`messages[0].content[0].thinking` must be a string"
    nested = {"type": "tool_result", "tool_use_id": "a", "content": [{**text, "text": []}]}
    assert anthropic(nested) == "`messages[0].content[0].content[0].text` must be a string"
    cohere = BODIES["CohereChatBody"]
    assert message_of({"messages": [{"role": "x"}]}, cohere).startswith("`messages[0]` has an unknown `role`; it must")
    assert message_of({"messages": [{}]}, cohere) == "`messages[0]` needs the field `role`"


def test_messages_of_unions_without_tags() -> None:
    rerank = BODIES["JinaRerankBody"]
    assert message_of({"query": "a", "documents": [{"text": 5}]}, rerank) == "`documents[0].text` must be a string"
    assert message_of({"query": "a", "documents": [{}]}, rerank) == "`documents[0]` needs the field `text`"
    assert message_of({"query": "a", "documents": [5]}, rerank) == "`documents[0]` must be a string or an object"


@pytest.mark.parametrize("kind", ["text", "input_text"])
def test_parts_that_become_one_text_are_named(kind: str) -> None:
    messages = [{"role": "user", "content": [{"type": kind, "text": "a"}, {"type": kind, "text": 5}]}]
    body, field = (ChatCompletionBody, "messages") if kind == "text" else (ResponsesBody, "input")
    assert message_of({field: messages}, body) == f"`{field}[0].content[1].text` must be a string"


def test_a_type_of_item_that_is_not_supported_has_its_own_message() -> None:
    message = message_of({"input": [{"type": "zz"}]}, ResponsesBody)
    assert message.startswith("`input[0]` has a type that is not supported")


def test_keys_of_the_client_are_not_repeated_unless_they_are_names_or_ids() -> None:
    generate = BODIES["GenerateBody"]
    assert message_of({"prompt": "a", "logit_bias": {"7": "x"}}, generate) == "`logit_bias.7` must be a number"
    assert message_of({"prompt": "a", "logit_bias": {"a b": 1}}, generate).startswith("a value in `logit_bias` has")
