"""The settings of the server. One field defines a flag, an environment variable, a TOML key, a default and a help text.

Precedence: command line, then `TRIPTYCH_*` in the environment, then the file named by `--config`, then the default.
The command line is built from these fields (`server.cli`). Imports no torch and no HTTP framework.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from server.api_keys import ApiKeys, load_keys
from server.client.environment import VARIABLES as CLIENT_VARIABLES
from server.errors import StartError
from server.ipc.wire.descriptions import Quantization
from server.service_links import is_service_link
from server.text.languages.language_codes import parse_language
from weights.gguf.choose import model_name

PREFIX = "TRIPTYCH_"
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _parse_bytes(value: object) -> object:
    """Parse a size in bytes: `512M`, `2GiB`, `1073741824`. Units are binary."""
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", value.strip().lower())
        if match is None:
            raise ValueError("write a size as 512M, 2G or a number of bytes")
        return int(float(match[1]) * _UNITS[match[2]])
    return value


def _model_entries(value: object) -> object:
    """Parse models to `NAME=SOURCE` entries, from a list, a TOML table, or comma-separated text."""
    if isinstance(value, Mapping):
        return [f"{name}={path}" for name, path in value.items()]
    entries = _split_commas(value)
    return [_with_name(entry) for entry in entries] if isinstance(entries, list) else entries


def split_entry(entry: str) -> tuple[str, str]:
    """The name and the source of `[NAME=]SOURCE`.

    A missing name is the last part of the source: `name` for `org/name`, `/some/where/name` and `name.gguf`. A path may
    contain `=` itself: an entry has no name if a slash precedes the first `=`, or if the whole entry is a directory.
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
    """Parse `NAME=PROMPT` entries from a TOML table, a list, or text. A prompt with `{text}` may contain commas."""
    if isinstance(value, str) and "{text}" in value:
        return [value]
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return [part for entry in value for part in ([entry] if "{text}" in entry else entry.split(","))]
    return _named_entries(value)


def _adapter_entries(value: object) -> object:
    """Parse `NAME=SOURCE@MODEL` entries from lists of comma-separated text, a TOML table, or comma-separated text."""
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


def _check_unique(setting: str, names: list[str], taken: Sequence[str] = ()) -> None:
    """Raise ValueError for a name that occurs twice, or is taken by another setting."""
    for name in names:
        if [*taken, *names].count(name) > 1:
            raise ValueError(f"{setting}: the name {name!r} is used twice")


class Settings(BaseSettings):
    """All settings, validated. The names state the units: seconds, bytes, characters, tokens, rows."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    models: Models = Field(
        default=[],
        description="Models to serve; without any, the demo models. The source is a directory or a Hugging Face Hub "
        "id, with @REVISION and :QUANTIZATION (of GGUF) if needed. The name defaults to the last part of the source.",
    )
    memory: Size | None = Field(
        default=None,
        description="Memory of all models together, such as 12G: weights, KV caches, tokenizers and steps. Models are "
        "then loaded when a request asks for them, and unloaded when another one needs room.",
    )
    models_dir: Path | None = Field(
        default=None,
        description="Directory whose subdirectories with a checkpoint, and GGUF files, are models too, loaded when a "
        "request asks for them. New ones appear without a restart.",
    )
    preload: Names = Field(
        default=[],
        description="Models that are loaded at the start although models are loaded when a request asks for them: "
        "names separated by commas, or all.",
    )
    idle_seconds: Names = Field(
        default=[],
        description="Time without requests after which a model is unloaded: seconds for all models, and NAME=SECONDS "
        "or NAME=never entries, separated by commas. Models are then loaded when a request asks for them.",
    )
    allow_admin_load: bool = Field(
        default=False, description="An admin key may declare new models of this machine over HTTP."
    )
    alias: Aliases = Field(
        default=[],
        description="Further names of models, as whisper-1=speech; gpt-*=llm is a pattern with * and ?. A name of a "
        "model comes first, then the first entry that fits. Separate entries by commas.",
    )
    default_model: Aliases = Field(
        default=[],
        description="Model of requests that name none, by operation or route, as embed=e5 or /v1/chat/completions=llm. "
        "By default the first model that can answer. Separate entries by commas.",
    )
    packed_cache: Path | None = Field(
        default=None,
        description="Directory, for this user only, that keeps the weights as they are after packing and rounding, so "
        "that later starts read them and pack nothing. Needs device cpu. By default nothing is kept.",
    )
    packed_cache_size: Size = Field(
        default=20 << 30,
        description="Most bytes of all files in the packed cache. The least recently used ones are removed.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="Device that runs the models; auto is cuda where it is available."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="Data type of the weights; auto is float32 on cpu and bfloat16 on cuda, or float16 on devices "
        "without bfloat16.",
    )
    quantize: Names = Field(
        default=[],
        description="Models whose weights are rounded to 8, 6 or 4 bits: int8, int6, int4, the rougher int8-fast, or "
        "int4-32, int4-64, int4-128 (so many weights share a scale), each also with -zero (and a zero point), for all, "
        "or NAME=KIND entries separated by commas. Faster and less exact. With dtype float32, their attention and KV "
        "cache are bfloat16.",
    )
    adapter: Adapters = Field(
        default=[],
        description="Adapters in the format of peft (LoRA), each for one of the models. Repeat the flag or separate "
        "entries by commas.",
    )
    speculative: Speculations = Field(
        default=[],
        description="Speculative decoding: ngram drafts tokens that followed the same tokens before, for all models "
        "that can use drafts; NAME=ngram, NAME=draft:MODEL_OR_PATH (a smaller model drafts) and NAME=off choose by "
        "model. Separate entries by commas.",
    )
    languages: Languages = Field(
        default=[],
        description="Language pair of a Marian checkpoint whose files do not name it, as NAME=en-de or NAME=en+fr-de; "
        "the name may be left out with a single model. Separate entries by commas.",
    )
    pivot: Pivot = Field(
        default="auto",
        description="Language through which two models translate a pair that no model translates directly, such as "
        "en. auto: the only language that connects the pair, or English; off: none.",
    )
    glossaries: Path | None = Field(
        default=None,
        description="Directory for the stored glossaries of DeepL's clients. By default they are in memory, and lost "
        "when the server stops.",
    )
    suggestions: Path | None = Field(
        default=None,
        description="File for the better translations that readers suggest through /suggest, one JSON object "
        "per line. By default none are taken.",
    )
    rerank_prompts: Prompts = Field(
        default=[],
        description="Language models that answer /rerank by yes or no, as NAME=PROMPT: qwen3-reranker, "
        "bge-reranker-gemma, mxbai-rerank-v2, or a JSON file with a prompt. They do not generate text. Separate "
        "entries by commas.",
    )
    translation_prompt: TranslationPrompts = Field(
        default=[],
        description="Language models that translate, as NAME=PROMPT: a text with {text}, which may also contain "
        "{source}, {target}, {source_code} and {target_code}; the name of a published prompt, such as hy-mt2; or a "
        "JSON file with a prompt. Published models are recognized by their names. Repeat the flag for each model.",
    )
    speculative_tokens: Count | None = Field(
        default=None,
        description="Maximum number of tokens drafted per step and sequence; by default 15 with ngram, which drafts "
        "only as many as save time, and 4 with a draft model.",
    )

    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on. A public address needs an API key or --insecure-no-auth.",
    )
    port: int = Field(default=8000, ge=0, le=65535, description="TCP port to listen on; 0 takes a free port.")
    api_keys: Keys = Field(
        default=[], description="API keys that clients must send, separated by commas. Not available as a flag."
    )
    api_key_file: Path | None = Field(
        default=None,
        description="File with one API key per line, where lines that begin with # are comments, or a TOML file "
        "(*.toml) with a table [keys.NAME] per key. It is read again when it changes.",
    )
    tls_certificate: Path | None = Field(
        default=None,
        description="Certificate chain in PEM form, for HTTPS. Needs --tls-key.",
    )
    tls_key: Path | None = Field(default=None, description="Private key of the certificate in PEM form.")
    tls_key_password: SecretStr | None = Field(
        default=None, description="Password of an encrypted private key. Not available as a flag."
    )
    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        default=None,
        description="Second TCP port, with /metrics, /health and /ready alone. The first port then has no /metrics.",
    )
    metrics_host: str = Field(
        default="127.0.0.1",
        description="Address of the second port. A loopback address needs no API key and has no TLS; any other address "
        "needs the keys of the first port and has its TLS.",
    )
    cors_origins: Names = Field(
        default=[],
        description="Origins whose pages may call the server from a browser, such as https://example.com, separated by "
        "commas; * allows all. A server without API keys refuses the requests of all other pages.",
    )
    allowed_hosts: Names = Field(
        default=[],
        description="Host names under which clients may call a server without API keys, besides localhost, IP "
        "addresses and the name of this machine: ai.example.com, or *.example.com for all names below it, separated by "
        "commas; * allows all.",
    )
    trusted_proxies: Names = Field(
        default=[],
        description="Addresses or networks of reverse proxies, as 127.0.0.1 or 10.0.0.0/8, separated by commas. Only "
        "their X-Forwarded-For and X-Forwarded-Proto are read, for the access log and for the origin of pages.",
    )
    insecure_no_auth: bool = Field(default=False, description="Allow a public address without any API key.")

    dialect_errors: ErrorDialect = Field(
        default="native",
        description="Shape of errors on the native routes: native, or tei for clients of Text Embeddings Inference. A "
        "request header chooses it for one request.",
    )

    max_body_bytes: Size = Field(default=2 << 20, description="Maximum size of a request body.")
    max_chat_body_bytes: Size = Field(
        default=32 << 20,
        description="Maximum size of a chat request, which has the whole conversation. Its prompt must fit the context "
        "of the model.",
    )
    body_timeout_seconds: Seconds = Field(default=10.0, description="Time limit for receiving a request body.")
    max_text_characters: Count = Field(
        default=400_000, description="Maximum length of a single text in a request, in characters."
    )
    auto_truncate: bool = Field(
        default=False,
        description="Shorten inputs of /v1/embeddings that are longer than the model reads, at their end, instead of "
        "refusing them.",
    )
    special_tokens_in_texts: bool = Field(
        default=False,
        description="Special tokens that the texts of users, tools and documents contain, such as <|im_start|>, are "
        "tokens, as in transformers. By default they are text, so that a text cannot take a role.",
    )
    max_audio_bytes: Size = Field(default=25 << 20, description="Maximum size of a request body with an audio file.")
    max_audio_seconds: Seconds = Field(default=1800.0, description="Maximum duration of an audio file.")
    max_recordings: Count = Field(
        default=16, description="Maximum number of audio requests in progress; each holds its audio in memory."
    )
    audio_timeout_seconds: Seconds = Field(
        default=60.0, description="Time limit for receiving a request body with an audio file."
    )
    max_document_bytes: Size = Field(
        default=30 << 20, description="Maximum size of a request body with a document to translate."
    )
    document_timeout_seconds: Seconds = Field(
        default=60.0, description="Time limit for receiving a request body with a document."
    )
    documents_memory: Size = Field(
        default=256 << 20,
        description="Memory of the HTTP process for documents that are translated or wait to be fetched, such as 64M. "
        "A document needs eight times its size until it is translated.",
    )
    documents_ttl_seconds: Seconds = Field(
        default=3600.0, description="Time after its arrival until a document and its translation are dropped."
    )
    max_requests: Count = Field(
        default=512, description="Maximum number of HTTP requests in progress; one more is refused immediately."
    )
    max_connections: Count | None = Field(
        default=None,
        description="Maximum number of open connections; one more is refused immediately. By default 4096, or fewer if "
        "the operating system allows fewer open files.",
    )
    max_request_memory: Size | None = Field(
        default=None,
        description="Memory of the HTTP process for the requests in progress, such as 384M. What a request may need is "
        "reserved before its work begins; by default a sixteenth of the memory, at most 384M.",
    )
    responses_memory: Size = Field(
        default=256 << 20,
        description="Memory of the HTTP process for the stored answers of /v1/responses, such as 64M. Each API key has "
        "an equal share. 0 stores none.",
    )
    responses_ttl_seconds: Seconds = Field(
        default=86_400.0, description="Time after its last use until a stored response is dropped."
    )
    max_queue_requests: Count | None = Field(
        default=None,
        description="Maximum number of sequences (texts) that wait for their first step, over all models; by default "
        "as many as a part of the memory holds, at least 4096.",
    )
    max_queue_tokens: Count | None = Field(
        default=None,
        description="Maximum number of tokens in all sequences that wait for their first step; by default as many as a "
        "part of the memory holds, at least 524288.",
    )
    queue_timeout_seconds: Seconds = Field(
        default=60.0, description="Longest time that a request waits until the engine starts with it."
    )
    default_timeout_seconds: Seconds | None = Field(
        default=None,
        description="Time limit of a whole answer whose request sets none. By default an answer takes as long as it "
        "makes progress.",
    )
    max_timeout_seconds: Seconds = Field(default=600.0, description="Longest timeout that a request may set.")

    max_batch_tokens: Count | None = Field(
        default=None,
        description="Maximum number of tokens in a decoding step, prompt tokens included; by default 512 on cpu, "
        "and 2048 on cuda.",
    )
    max_encode_tokens: Count | None = Field(
        default=None,
        description="Maximum number of tokens in an encoder step while no sequence is decoding; by default 1536 on "
        "cpu, and 16384 on cuda.",
    )
    max_batch_rows: Count = Field(default=128, description="Maximum number of sequences in a decoding step, per model.")
    kv_cache_memory: Size | None = Field(
        default=None,
        description="Memory for the KV cache of all models, such as 512M, in each worker. By default, on cpu as much "
        "as one sequence of 32768 tokens of each model needs, at least 1 GiB, and at most half of the free memory over "
        "all workers; on cuda what weights and steps leave free.",
    )
    kv_cache_dtype: Names = Field(
        default=[],
        description="Data type of keys and values in the KV cache: int8 for all models, or NAME=int8 and NAME=auto "
        "entries separated by commas. int8 takes half the memory of bfloat16; auto is the data type of attention.",
    )
    block_size: Count = Field(default=32, description="Number of tokens in a KV block.")
    prefix_cache: bool = Field(default=True, description="Reuse the KV blocks of prompts with the same beginning.")
    threads: int = Field(
        default=0,
        ge=0,
        description="Number of torch threads of a worker; 0 divides the cores among the workers.",
    )
    workers: int = Field(
        default=0,
        ge=0,
        description="Number of worker processes; each serves all models. 0: one for each CUDA device, or one on a CPU.",
    )

    grace_seconds: Seconds = Field(default=30.0, description="Time that running requests get to finish after SIGTERM.")
    stale_seconds: Seconds = Field(default=2.0, description="Time without a message after which a worker is not ready.")
    hang_seconds: Seconds = Field(
        default=10.0, description="Time without a message from a worker after which it is killed and replaced."
    )
    loading_hang_seconds: Seconds = Field(
        default=30.0, description="Time without a message from a loading worker after which it is killed and replaced."
    )
    max_restarts: Count = Field(
        default=5,
        description="Number of failures of a worker within a minute, or of its failed starts in a row, after which the "
        "server ends with an error, unless another worker is ready.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level of the log messages to write."
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="Format of the log: lines of text, or one JSON object per line."
    )
    access_log: bool = Field(default=True, description="Write one log line per request.")
    traces: bool = Field(
        default=False,
        description="Send an OpenTelemetry trace of each request to the endpoint in OTEL_EXPORTER_OTLP_ENDPOINT. Needs "
        "triptych[otel].",
    )

    @model_validator(mode="after")
    def _check(self) -> Settings:
        for entry in self.models:
            name, _, source = entry.partition("=")
            if not source:
                raise ValueError(f"models: {entry!r} has no path: write NAME=PATH_OR_HUB_ID")
            if not MODEL_NAME.fullmatch(name):
                raise ValueError(
                    f"models: {name!r} cannot be the name of a model (letters, digits, '.', '_' and '-'): "
                    f"write NAME=PATH_OR_HUB_ID, for example llm={source}"
                )
        for entry in self.quantize:
            if entry.rpartition("=")[2] not in get_args(Quantization):
                kinds = ", ".join(get_args(Quantization))
                raise ValueError(f"quantize: write one of {kinds}, or NAME= and one of them, not {entry!r}")
        for entry in self.kv_cache_dtype:
            if entry.rpartition("=")[2] not in ("int8", "auto"):
                raise ValueError(f"kv_cache_dtype: write int8, auto, NAME=int8 or NAME=auto, not {entry!r}")
        for entry in self.adapter:
            name, _, source = entry.partition("=")
            path, _, model = source.rpartition("@")
            if not MODEL_NAME.fullmatch(name) or not path or not MODEL_NAME.fullmatch(model):
                raise ValueError(f"adapter: write NAME=PATH_OR_HUB_ID@MODEL, not {entry!r}")
        for entry in self.speculative:
            if not re.fullmatch("ngram|[^=]+=(ngram|off|draft:.+)", entry):
                raise ValueError(
                    f"speculative: write ngram, NAME=ngram, NAME=draft:MODEL_OR_PATH or NAME=off, not {entry!r}"
                )
        for entry in self.rerank_prompts:
            if not re.fullmatch("[^=]+=.+", entry):
                raise ValueError(f"rerank_prompts: write NAME=PROMPT, not {entry!r}")
        for entry in self.idle_seconds:
            if not re.fullmatch(r"(([^=]+=)?\d+(\.\d+)?)|([^=]+=)?never", entry):
                raise ValueError(f"idle_seconds: write SECONDS, NAME=SECONDS or NAME=never, not {entry!r}")
        for entry in self.alias:
            name, _, model = entry.partition("=")
            if not re.fullmatch(r"[A-Za-z0-9*?][A-Za-z0-9._/:*?-]{0,127}", name) or not MODEL_NAME.fullmatch(model):
                raise ValueError(f"alias: write NAME=MODEL or PATTERN=MODEL, not {entry!r}")
        for entry in self.default_model:
            if not re.fullmatch(r"/?[a-z0-9_/.-]+=[^=]+", entry):
                raise ValueError(f"default_model: write OPERATION=MODEL or ROUTE=MODEL, not {entry!r}")
        for entry in self.translation_prompt:
            if not re.fullmatch("[^=]+=.+", entry, re.DOTALL):
                raise ValueError("translation_prompt: write NAME=PROMPT")
        for origin in self.cors_origins:
            if not re.fullmatch(r"\*|[a-z][a-z0-9+.-]*://[^/\s?#@]+", origin):
                raise ValueError(
                    f"cors_origins: write origins as https://example.com or http://localhost:3000, not {origin!r}"
                )
        for name in self.allowed_hosts:
            if not re.fullmatch(r"\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", name):
                raise ValueError(
                    "allowed_hosts: write host names without scheme and port, as ai.example.com or *.example.com, "
                    f"not {name!r}"
                )
        for name in self.trusted_proxies:
            try:
                ipaddress.ip_network(name, strict=False)
            except ValueError:
                raise ValueError(
                    f"trusted_proxies: write addresses or networks as 127.0.0.1 or 10.0.0.0/8, not {name!r}"
                ) from None
        named_speculative = [entry for entry in self.speculative if "=" in entry]
        models, adapters, speculative, rerankers, translators = (
            [entry.partition("=")[0] for entry in entries]
            for entries in (
                self.models,
                self.adapter,
                named_speculative,
                self.rerank_prompts,
                self.translation_prompt,
            )
        )
        _check_unique("models", models)
        _check_unique("adapter", adapters, models)
        _check_unique("speculative", speculative)
        _check_unique("rerank_prompts", rerankers)
        for setting, entries in (("alias", self.alias), ("default_model", self.default_model)):
            _check_unique(setting, [entry.partition("=")[0] for entry in entries])
        _check_unique("translation_prompt", translators)
        for name in speculative:
            if models and self.models_dir is None and name not in models:
                raise ValueError(f"speculative: no model is named {name!r}, only {', '.join(models)}")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key: set both of them, or neither")
        if self.hang_seconds <= self.stale_seconds:
            raise ValueError(
                f"hang_seconds ({self.hang_seconds:g}) must be more than stale_seconds ({self.stale_seconds:g})"
            )
        if self.default_timeout_seconds is not None and self.default_timeout_seconds > self.max_timeout_seconds:
            raise ValueError(
                f"default_timeout_seconds ({self.default_timeout_seconds:g}) must be at most max_timeout_seconds "
                f"({self.max_timeout_seconds:g})"
            )
        return self

    @property
    def on_demand(self) -> bool:
        """Whether models are loaded when a request asks for them."""
        return self.memory is not None or self.models_dir is not None or bool(self.idle_seconds or self.preload)

    def keys(self) -> ApiKeys:
        """All API keys, from `api_keys` and the key file. Raises StartError for an unreadable or invalid file."""
        return load_keys([key.get_secret_value() for key in self.api_keys], self.api_key_file)

    def check_exposure(self) -> None:
        """Raise StartError for a public address without an API key."""
        if self.keys() or self.insecure_no_auth:
            return
        hosts = {"host": self.host} | ({} if self.metrics_port is None else {"metrics_host": self.metrics_host})
        for name, host in hosts.items():
            if not is_loopback(host):
                raise StartError(
                    f"{name} {host} is reachable from other machines, but no API key is set: "
                    f"set {PREFIX}API_KEYS or --api-key-file, or allow access without a key with --insecure-no-auth"
                )


def _with_file(table: dict[str, Any]) -> type[Settings]:
    """A settings class that reads, in this order: its arguments, the environment, and the table of a file."""

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
            assert isinstance(env_settings, EnvSettingsSource)
            env_settings.env_vars = {
                name: value for name, value in env_settings.env_vars.items() if not is_service_link(name, value or "")
            }
            return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=table)

    return Sources


def load(flags: Mapping[str, Any], config: Path | None = None) -> Settings:
    """Read the settings.

    flags: values of the command line by setting name.
    config: TOML file.
    Raises StartError, one line that names the setting, for an unknown setting or an invalid value.
    """
    for name, value in os.environ.items():
        field = name.removeprefix(PREFIX).lower()
        is_known = field in Settings.model_fields or name in CLIENT_VARIABLES or is_service_link(name, value)
        if name.startswith(PREFIX) and not is_known:
            raise StartError(f"environment: {name} is not a setting of Triptych")
    try:
        return _with_file(_read_table(config) if config is not None else {})(**flags)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        text = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            raise StartError(f"{config}: {where} is not a setting of Triptych") from None
        if (
            where
            and isinstance(first["input"], str | int | float)
            and not where.startswith(("api_key", "tls_key_password"))
        ):
            text += f", not {str(first['input'])[:80]!r}"
        raise StartError(f"{where}: {text}" if where else text) from None


def _read_table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StartError(f"config: cannot read {path}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error).splitlines()[0]


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
