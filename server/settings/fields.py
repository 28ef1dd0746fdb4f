"""The definitions of the server's settings.

Each field defines a flag, an environment variable, a TOML key, a default and a help text. `server.cli` builds the
command line from these fields.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from server.settings.entries import (
    Adapters,
    Aliases,
    Count,
    ErrorDialect,
    Keys,
    Languages,
    Models,
    Names,
    Pivot,
    Prompts,
    Seconds,
    Size,
    Speculations,
    TranslationPrompts,
)

PREFIX = "TRIPTYCH_"


class SettingsFields(BaseSettings):
    """All settings, without checks of their combinations. Names end in the unit: seconds, bytes, characters, tokens."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    models: Models = Field(
        default=[],
        description="Models to serve; without any, the demo models. The source is a directory or a Hugging Face Hub "
        "id, with @REVISION and :QUANTIZATION (of GGUF) if needed. The name defaults to the last part of the source.",
    )
    memory: Size | None = Field(
        default=None,
        description="Memory of all models together, such as 12G: weights, KV caches, tokenizers and steps. Models are "
        "then loaded when a request asks for them, and unloaded when another one needs room. On CUDA, of each device.",
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
        description="Models whose weights are rounded to 8, 6 or 4 bits: int8, int6, int5 (6 and 4 bits), int4, the "
        "rougher int8-fast, or int4-32, int4-64, int4-128 (so many weights share a scale), each also with -zero (and a "
        "zero point), for all, or NAME=KIND entries separated by commas. Faster and less exact. With dtype float32, "
        "their attention and KV cache are bfloat16.",
    )
    adapter: Adapters = Field(
        default=[],
        description="Adapters in the format of peft (LoRA), each for one of the models. Repeat the flag or separate "
        "entries by commas.",
    )
    speculative: Speculations = Field(
        default=[],
        description="Speculative decoding: ngram drafts tokens that followed the same tokens before, for all models "
        "that can use drafts; mtp drafts with the prediction head of each checkpoint that has one. NAME=ngram, "
        "NAME=mtp, NAME=draft:MODEL_OR_PATH (a smaller model or an EAGLE-3 head drafts) and NAME=off choose by model. "
        "Separate entries by commas.",
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
        description="Maximum number of tokens drafted per step and sequence; by default 15 with ngram, 6 with "
        "mtp or an EAGLE-3 head, which draft only as many as save time, and 4 with a draft model.",
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
    allowed_sequences_memory: Size = Field(
        default=256 << 20,
        description="Memory of the HTTP process for stored sets of allowed sequences, such as 64M. Each worker needs "
        "as much. Each API key has an equal share. 0 stores none.",
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
    kv_spill_memory: Size | None = Field(
        default=None,
        description="Host memory in each worker, such as 16G, for blocks of the prefix cache that a CUDA device needs "
        "for other requests. Later prompts with the same beginning get them back. By default they are lost.",
    )
    kv_cache_dtype: Names = Field(
        default=[],
        description="Data type of keys and values in the KV cache: int8, fp8 (on cuda only) or auto for all models, or "
        "NAME=int8, NAME=fp8 and NAME=auto entries separated by commas. int8 and fp8 take half the memory of bfloat16; "
        "auto is the data type of attention.",
    )
    block_size: Count = Field(default=32, description="Number of tokens in a KV block.")
    prefix_cache: bool = Field(default=True, description="Reuse the KV blocks of prompts with the same beginning.")
    batch_invariant: bool = Field(
        default=False,
        description="On cuda, give a request the same bits alone and in every batch, at the cost of slower steps. On "
        "cpu this is always so.",
    )
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
