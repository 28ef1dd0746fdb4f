"""Write `docs/api-reference.md` from the OpenAPI document: every route, every field. Run: `make reference`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from server.api.app import create_routes  # noqa: E402
from server.api.fields.field_descriptions import reachable  # noqa: E402
from server.api.fields.field_kinds import KIND  # noqa: E402
from server.api.fields.fields import GenerationFields  # noqa: E402
from server.api.routes.documents import QUERY  # noqa: E402
from server.api.state import State  # noqa: E402
from server.ipc.client.client import EngineClient  # noqa: E402
from server.metrics import Metrics  # noqa: E402
from server.operations.runtime import Runtime  # noqa: E402
from server.settings.settings import Settings  # noqa: E402

PAGE = ROOT / "docs" / "api-reference.md"
DECODING = frozenset(GenerationFields.model_fields)
_HEAD = """# API reference

Every route and every field of its body, generated from the server's own schema (`make reference`). The server shows the
same at `/docs`, with examples and the schemas of the answers. [requests.md](requests.md) has a `curl` example for each
native route, and [decoding.md](decoding.md) the exact definition of every decoding field.

- Required fields are **bold**. All others may be absent or null. A field that is not listed is refused, by name.
- Dialects of other servers have fields of three more kinds, which the tables name. A *hint* cannot change which
  answers are right; it is accepted without effect. A *wish* asks for something that the server cannot do; it is
  dropped, and the header `X-Ignored-Parameters` of the answer names it. A *refused* field would change the answer, its
  format or its safety; only null and values without an effect are accepted.
- Without `model`, the first loaded model that fits answers, in the order of the command line; for text generation
  decoders come before encoder-decoders, and for a translation the first model that has the languages answers.
  `GET /info` names the default model of each route under `defaults`, and answers name their model.
- A list of inputs has at most 1024 items. The server splits it, and other requests are answered meanwhile.
- `truncate` is a number of tokens to keep where text is generated or translated. Where text is embedded or classified,
  it is true (the default) to shorten long texts to what the model reads, or false to refuse them.
- `HEAD` works for every `GET` route, and a slash at the end of a path is ignored.
"""


def openapi() -> dict[str, Any]:
    """The OpenAPI document of an application without models."""
    settings = Settings.model_construct(**{name: field.get_default() for name, field in Settings.model_fields.items()})
    runtime = Runtime(EngineClient(None, 1, 1), Metrics(), {}, 1)  # type: ignore[arg-type]
    return create_routes(State(settings, runtime, lambda: False, lambda: False)).openapi()


def page() -> str:
    """The text of the page."""
    document = openapi()
    schemas = document["components"]["schemas"]
    bodies: dict[str, None] = {}
    lines = [_HEAD, "## Routes", ""]
    for path, item in document["paths"].items():
        for method, operation in item.items():
            names = dict.fromkeys(name for content in _contents(operation) for name in _names(content["schema"]))
            names |= dict.fromkeys(_names(operation.get(QUERY, {})))
            bodies |= names
            lines += [f"### `{method.upper()} {path}`", "", operation["description"].strip().replace("\n", " "), ""]
            lines += [*(f"- {_fields(schemas[name])}" for name in names), *[""] * bool(names)]
    found = set(reachable(schemas, list(bodies)))
    decoding = ", ".join(f"`{name}`" for name in GenerationFields.model_fields)
    lines += ["## Decoding fields", "", f"The routes that generate text share these fields: {decoding}.", ""]
    lines += ["## Objects", "", "Objects inside of bodies, with their fields.", ""]
    inner = [name for name in sorted(found - bodies.keys()) if schemas[name].get("properties")]
    lines += [f"- {name}: {_fields(schemas[name])}" for name in inner]
    lines += ["", "## Fields", "", "| field | kind | value | meaning |", "|---|---|---|---|", *_rows(schemas, found)]
    return "\n".join(lines).rstrip() + "\n"


def _contents(operation: dict[str, Any]) -> list[dict[str, Any]]:
    content: dict[str, dict[str, Any]] = operation.get("requestBody", {}).get("content", {})
    return list({str(body["schema"]): body for body in content.values()}.values())


def _names(schema: dict[str, Any]) -> list[str]:
    """Names of the schemas of a body: one, or several if the body may have one of several forms."""
    return [variant["$ref"].rpartition("/")[2] for variant in schema.get("anyOf", [schema]) if "$ref" in variant]


def _fields(schema: dict[str, Any]) -> str:
    """The fields of a schema as Markdown. Required fields are bold; the decoding fields are one link to their table."""
    fields, required = schema.get("properties", {}), schema.get("required", ())
    grouped = DECODING if fields.keys() >= DECODING else frozenset()
    shown = [f"**`{name}`**" if name in required else f"`{name}`" for name in fields if name not in grouped]
    return ", ".join([*shown, *["the [decoding fields](#decoding-fields)"] * bool(grouped)])


def _rows(schemas: dict[str, Any], names: set[str]) -> Iterator[str]:
    """Yield one table row for each field and meaning. A field with several meanings has several rows, which name the
    schemas.
    """
    meanings: dict[str, dict[tuple[str, str, str], list[str]]] = {}
    for name in sorted(names):
        for field, schema in schemas[name].get("properties", {}).items():
            key = schema.get(KIND, ""), _value(schema), schema.get("description", "")
            meanings.setdefault(field, {}).setdefault(key, []).append(name)
    for field in sorted(meanings):
        for (kind, value, text), owners in meanings[field].items():
            where = f" ({', '.join(owners)})" if len(meanings[field]) > 1 else ""
            yield f"| `{field}` | {kind} | {value} | {text}{where} |".replace("\n", " ")


def _value(schema: dict[str, Any]) -> str:
    """Type and bounds of a field's value, as text. The type null is left out."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema or "oneOf" in schema:
        kinds = [
            _value(variant) for variant in schema.get("anyOf", schema.get("oneOf", ())) if variant.get("type") != "null"
        ]
        return " or ".join(dict.fromkeys(kinds)) or "null"
    if "const" in schema or "enum" in schema:
        return ", ".join(
            str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in _choices(schema)
        )
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_value(schema.get('items', {}))}"
    low, high = (
        _bound(schema, "minimum", "exclusiveMinimum", "above"),
        _bound(schema, "maximum", "exclusiveMaximum", "below"),
    )
    names = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false"}
    bounds = (
        f" {low} to {high}" if low and high else f", at least {low}" if low else f", at most {high}" if high else ""
    )
    return f"{names.get(kind, kind)}{bounds}"


def _choices(schema: dict[str, Any]) -> list[Any]:
    return [schema["const"]] if "const" in schema else list(schema["enum"])


def _bound(schema: dict[str, Any], key: str, exclusive: str, word: str) -> str:
    value = schema.get(key, schema.get(exclusive))
    if value is None:
        return ""
    number = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{word} {number}" if exclusive in schema else number


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
