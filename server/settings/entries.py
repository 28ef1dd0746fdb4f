"""Types of settings, with their parsers: from the text of a flag, variable or file to sizes, lists and entries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from server.text.languages.language_codes import parse_language
from weights.gguf.choose import model_name

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _parse_bytes(value: object) -> object:
    """Parse a size in bytes: `512M`, `2GiB`, `1073741824`. Units are binary. Other types are returned unchanged.

    Raises ValueError for a text that is no size.
    """
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", value.strip().lower())
        if match is None:
            raise ValueError("write a size as 512M, 2G or a number of bytes")
        return int(float(match[1]) * _UNITS[match[2]])
    return value


def _model_entries(value: object) -> object:
    """Parse the setting `models` into `NAME=SOURCE` entries, from a list, a TOML table, or comma-separated text.

    Entries without a name get one from their source.
    """
    if isinstance(value, Mapping):
        return [f"{name}={path}" for name, path in value.items()]
    entries = _split_commas(value)
    return [_with_name(entry) for entry in entries] if isinstance(entries, list) else entries


def split_entry(entry: str) -> tuple[str, str]:
    """Split `[NAME=]SOURCE` into the name and the source.

    If the name is missing, it is the last part of the source: `name` for `org/name`, `/some/where/name` and
    `name.gguf`. A path may contain `=`: an entry has no name if a slash precedes the first `=`, or if the whole entry
    is an existing path and the part after `=` is not.
    Raises ValueError for a source whose last part cannot be a name.
    """
    name, found, source = entry.partition("=")
    is_path = "/" in name or (Path(entry).exists() and not Path(source).exists())
    if found and not is_path:
        return name, source
    name = re.sub(r":[\w.-]+$", "", entry.partition("@")[0]).rstrip("/").rpartition("/")[2]
    if name in ("", ".", "..", "~"):
        name = Path(entry).expanduser().resolve().name
    name = model_name(name)
    if not MODEL_NAME.fullmatch(name):
        raise ValueError(f"cannot name a model after {entry!r}: write NAME=PATH, for example llm={entry}")
    return name, entry


def _with_name(entry: object) -> object:
    return "=".join(split_entry(entry)) if isinstance(entry, str) else entry


def _named_entries(value: object) -> object:
    """Parse `NAME=VALUE` entries from a list, a TOML table, or comma-separated text."""
    return (
        [f"{name}={method}" for name, method in value.items()] if isinstance(value, Mapping) else _split_commas(value)
    )


def _split_commas(value: object) -> object:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _prompt_entries(value: object) -> object:
    """Parse `NAME=PROMPT` entries from a TOML table, a list, or comma-separated text.

    A text with `{text}` is one entry, because such a prompt may contain commas.
    """
    if isinstance(value, str) and "{text}" in value:
        return [value]
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return [part for entry in value for part in ([entry] if "{text}" in entry else entry.split(","))]
    return _named_entries(value)


def _adapter_entries(value: object) -> object:
    """Parse `NAME=SOURCE@MODEL` entries from comma-separated text, a list of such texts, or a TOML table."""
    if isinstance(value, Mapping):
        return [f"{name}={path}" for name, path in value.items()]
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return _split_commas(",".join(value))
    return _split_commas(value)


def _pivot(value: str) -> str:
    if value in ("auto", "off"):
        return value
    language = parse_language(value)
    if language is None:
        raise ValueError("write auto, off, or a language code such as en")
    return language.language


ErrorDialect = Literal["native", "tei"]
Size = Annotated[int, BeforeValidator(_parse_bytes), Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Models = Annotated[list[str], NoDecode, BeforeValidator(_model_entries)]
Adapters = Annotated[list[str], NoDecode, BeforeValidator(_adapter_entries)]
Speculations = Annotated[list[str], NoDecode, BeforeValidator(_named_entries)]
Aliases = Annotated[list[str], NoDecode, BeforeValidator(_named_entries)]
Languages = Annotated[list[str], NoDecode, BeforeValidator(_named_entries)]
Prompts = Annotated[list[str], NoDecode, BeforeValidator(_named_entries)]
TranslationPrompts = Annotated[list[str], NoDecode, BeforeValidator(_prompt_entries)]
Names = Annotated[list[str], NoDecode, BeforeValidator(_split_commas)]
Pivot = Annotated[str, AfterValidator(_pivot)]
Keys = Annotated[list[SecretStr], NoDecode, BeforeValidator(_split_commas)]
