"""One definition of every setting: its flag, its environment variable, its key in a TOML file, its default, its help.

Precedence: command line, then `TRIPTYCH_*` in the environment, then the file named by `--config`, then the default.
Knows no torch and no HTTP framework. The command line is built from these fields (`server.cli`), so that nothing can
disagree.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from server.errors import StartError

PREFIX = "TRIPTYCH_"
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _bytes(value: object) -> object:
    """`512M`, `2GiB`, `1073741824`: a number of bytes, in binary units."""
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", value.strip().lower())
        if match is None:
            raise ValueError("write a size as 512M, 2G or a number of bytes")
        return int(float(match[1]) * _UNITS[match[2]])
    return value


def _models(value: object) -> object:
    """A list of `NAME=PATH` or of sources; a table of names and paths; text with commas (the environment)."""
    if isinstance(value, Mapping):
        return [f"{name}={path}" for name, path in value.items()]
    entries = _commas(value)
    return [_named(entry) for entry in entries] if isinstance(entries, list) else entries


def _named(entry: object) -> object:
    """A source without a name is called by its last part: `org/name` and `/some/where/name` are both `name`."""
    if isinstance(entry, str) and "=" not in entry:
        name = entry.partition("@")[0].rstrip("/").rpartition("/")[2]
        return f"{name}={entry}"
    return entry


def _speculations(value: object) -> object:
    """A list of `NAME=WAY`; a table of names and ways; text with commas."""
    return [f"{name}={way}" for name, way in value.items()] if isinstance(value, Mapping) else _commas(value)


def _commas(value: object) -> object:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _adapters(value: object) -> object:
    """A list of `NAME=PATH@MODEL`; a table of names and `PATH@MODEL`; text, or a list of texts, with commas."""
    if isinstance(value, Mapping):
        return [f"{name}={path}" for name, path in value.items()]
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return _commas(",".join(value))
    return _commas(value)


Size = Annotated[int, BeforeValidator(_bytes), Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Models = Annotated[list[str], NoDecode, BeforeValidator(_models)]
Adapters = Annotated[list[str], NoDecode, BeforeValidator(_adapters)]
Speculations = Annotated[list[str], NoDecode, BeforeValidator(_speculations)]
Names = Annotated[list[str], NoDecode, BeforeValidator(_commas)]
Keys = Annotated[list[SecretStr], NoDecode, BeforeValidator(_commas)]


class Settings(BaseSettings):
    """All settings, checked. Times in seconds, sizes in bytes, tokens, rows or blocks as the names say."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    models: Models = Field(default=[], description="models to serve: [NAME=]PATH_OR_HUB_ID; none: the demo models")
    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="where to compute")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="number format of weights; auto: float32 on cpu, bfloat16 on cuda"
    )
    adapter: Adapters = Field(
        default=[],
        description="low-rank adapters as peft saves them: NAME=PATH_OR_HUB_ID@MODEL; repeat it or put commas between",
    )
    quantize: Names = Field(
        default=[],
        description="models to round to int8: int8 for all, or NAME=int8 with commas between; faster, nearly as exact; "
        "in float32 their attention and its cache are bfloat16",
    )
    api_keys: Keys = Field(default=[], description="keys that clients must send, with commas between (not a flag)")
    api_key_file: Path | None = Field(default=None, description="file with one API key per line")
    insecure_no_auth: bool = Field(default=False, description="allow a public address without any API key")

    max_body_bytes: Size = Field(default=2 << 20, description="largest request body")
    body_timeout_seconds: Seconds = Field(default=10.0, description="how long a client may take to send a request")
    max_text_characters: Count = Field(default=400_000, description="longest single text of a request")
    max_audio_bytes: Size = Field(default=25 << 20, description="largest request body with a recording")
    max_audio_seconds: Seconds = Field(default=1800.0, description="longest recording")
    max_recordings: Count = Field(default=16, description="recordings that are taken in at once; each takes memory")
    audio_timeout_seconds: Seconds = Field(default=60.0, description="how long a client may take to send a recording")
    max_queue_requests: Count = Field(default=256, description="sequences that may wait for their first step")
    max_queue_tokens: Count = Field(default=524_288, description="tokens of the sequences that may wait")
    max_timeout_seconds: Seconds = Field(default=600.0, description="longest deadline that a client may ask for")

    max_batch_tokens: Count = Field(default=512, description="tokens of one decoding step, prompts included")
    max_encode_tokens: Count = Field(default=1536, description="tokens of one encoding step while nobody decodes")
    max_batch_rows: Count = Field(default=128, description="sequences of one decoding step, per model")
    block_size: Count = Field(default=32, description="token slots of one KV block")
    kv_cache_memory: Size = Field(default=1 << 30, description="memory for all KV blocks, such as 512M or 4G")
    prefix_cache: bool = Field(default=True, description="compute the common beginning of prompts once")
    speculative: Speculations = Field(
        default=[], description="guess a model's next tokens: NAME=ngram or NAME=draft:MODEL_OR_PATH, commas between"
    )
    speculative_tokens: Count = Field(default=4, description="tokens guessed ahead, at most")
    threads: int = Field(default=0, ge=0, description="torch threads; 0 leaves torch's own choice")

    grace_seconds: Seconds = Field(default=30.0, description="time that running requests get after SIGTERM")
    stale_seconds: Seconds = Field(default=2.0, description="silence of the worker that makes the server not ready")
    hang_seconds: Seconds = Field(default=10.0, description="silence after which the worker is killed and replaced")
    max_restarts: Count = Field(default=6, description="failed restarts in a row before the server gives up")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="how much to log")
    access_log: bool = Field(default=True, description="one log line per request")

    @model_validator(mode="after")
    def _check(self) -> Settings:
        for entry in self.models:
            name, _, source = entry.partition("=")
            if not MODEL_NAME.fullmatch(name) or not source:
                raise ValueError(f"models: write NAME=PATH_OR_HUB_ID, got {entry!r}")
        for entry in self.quantize:
            if entry.rpartition("=")[2] != "int8":
                raise ValueError(f"quantize: write int8 or NAME=int8, got {entry!r}")
        for entry in self.adapter:
            name, _, source = entry.partition("=")
            path, _, model = source.rpartition("@")
            if not MODEL_NAME.fullmatch(name) or not path or not MODEL_NAME.fullmatch(model):
                raise ValueError(f"adapter: write NAME=PATH_OR_HUB_ID@MODEL, got {entry!r}")
        names = [entry.partition("=")[0] for entry in self.models]
        adapters = [entry.partition("=")[0] for entry in self.adapter]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"models: the name {name!r} is used twice")
        for name in adapters:
            if [*names, *adapters].count(name) > 1:
                raise ValueError(f"adapter: the name {name!r} is used twice")
        guessed = [entry.partition("=")[0] for entry in self.speculative]
        for entry, name in zip(self.speculative, guessed, strict=True):
            way = entry.partition("=")[2]
            if way != "ngram" and not re.fullmatch("draft:.+", way):
                raise ValueError(f"speculative: write NAME=ngram or NAME=draft:MODEL_OR_PATH, got {entry!r}")
            if guessed.count(name) > 1:
                raise ValueError(f"speculative: the name {name!r} is used twice")
            if names and name not in names:
                raise ValueError(f"speculative: no model is called {name!r}")
        if self.hang_seconds <= self.stale_seconds:
            raise ValueError(
                f"hang_seconds ({self.hang_seconds:g}) must be more than stale_seconds ({self.stale_seconds:g})"
            )
        return self

    def keys(self) -> tuple[bytes, ...]:
        """All API keys, of the environment and the file. Raises StartError for a file that is empty or unreadable."""
        keys = [key.get_secret_value() for key in self.api_keys]
        if self.api_key_file is not None:
            try:
                lines = self.api_key_file.read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise StartError(f"api_key_file: cannot read {self.api_key_file}: {_reason(error)}") from None
            found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
            if not found:
                raise StartError(f"api_key_file: {self.api_key_file} holds no key")
            keys += found
        return tuple(key.encode() for key in keys)

    def check_exposure(self) -> None:
        """Raises StartError for a public address that nothing guards."""
        if not self.keys() and not self.insecure_no_auth and not is_loopback(self.host):
            raise StartError(
                f"host {self.host} is reachable from outside and no API key is set: "
                f"set {PREFIX}API_KEYS or --api-key-file, or allow it with --insecure-no-auth"
            )


def _with_file(table: dict[str, Any]) -> type[Settings]:
    """The settings with a file's table as the source of least precedence; no dotenv, no secrets directory."""

    class Sources(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=table)

    return Sources


def load(flags: Mapping[str, Any], config: Path | None = None) -> Settings:
    """Settings from the given flags, the environment and the file.

    Raises StartError, one line that names the setting, for anything unknown or out of bounds.
    """
    for name in os.environ:
        field = name.removeprefix(PREFIX).lower()
        if name.startswith(PREFIX) and field not in Settings.model_fields:
            raise StartError(f"environment: {name} is not a setting of Triptych")
    try:
        return _with_file(_read_table(config) if config is not None else {})(**flags)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        text = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            raise StartError(f"{config}: {where} is not a setting of Triptych") from None
        raise StartError(f"{where}: {text}" if where and not text.startswith(where) else text) from None


def _read_table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StartError(f"config: cannot read {path}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error).splitlines()[0]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def key_matches(key: bytes, keys: tuple[bytes, ...]) -> bool:
    """Whether `key` is one of `keys`; the time taken does not depend on which, nor on how much of one is right.

    Digests are compared, so that lengths tell nothing either.
    """
    digest = hashlib.sha256(key).digest()
    found = False
    for known in keys:
        found |= hmac.compare_digest(digest, hashlib.sha256(known).digest())
    return found
