"""Refuse settings whose entries have the wrong form, whose names are used twice, or that contradict each other."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import get_args

from server.ipc.wire.descriptions import KVCacheDType, Quantization
from server.settings.entries import MODEL_NAME
from server.settings.fields import SettingsFields


def check_entries(settings: SettingsFields) -> None:
    """Raise ValueError if an entry of a setting that is a list has the wrong form."""
    for entry in settings.models:
        name, _, source = entry.partition("=")
        if not source:
            raise ValueError(f"models: {entry!r} has no path: write NAME=PATH_OR_HUB_ID")
        if not MODEL_NAME.fullmatch(name):
            raise ValueError(
                f"models: {name!r} cannot be the name of a model (letters, digits, '.', '_' and '-'): "
                f"write NAME=PATH_OR_HUB_ID, for example llm={source}"
            )
    for entry in settings.quantize:
        if entry.rpartition("=")[2] not in get_args(Quantization):
            kinds = ", ".join(get_args(Quantization))
            raise ValueError(f"quantize: write one of {kinds}, or NAME= and one of them, not {entry!r}")
    for entry in settings.kv_cache_dtype:
        if entry.rpartition("=")[2] not in get_args(KVCacheDType):
            kinds = ", ".join(get_args(KVCacheDType))
            raise ValueError(f"kv_cache_dtype: write one of {kinds}, or NAME= and one of them, not {entry!r}")
    for entry in settings.adapter:
        name, _, source = entry.partition("=")
        path, _, model = source.rpartition("@")
        if not MODEL_NAME.fullmatch(name) or not path or not MODEL_NAME.fullmatch(model):
            raise ValueError(f"adapter: write NAME=PATH_OR_HUB_ID@MODEL, not {entry!r}")
    for entry in settings.speculative:
        if not re.fullmatch("ngram|mtp|[^=]+=(ngram|mtp|off|draft:.+)", entry):
            raise ValueError(
                "speculative: write ngram, mtp, NAME=ngram, NAME=mtp, NAME=draft:MODEL_OR_PATH or NAME=off, not "
                f"{entry!r}"
            )
    if {"ngram", "mtp"} <= set(settings.speculative):
        raise ValueError("speculative: write ngram or mtp, and NAME= and the other one for some models")
    for entry in settings.rerank_prompts:
        if not re.fullmatch("[^=]+=.+", entry):
            raise ValueError(f"rerank_prompts: write NAME=PROMPT, not {entry!r}")
    for entry in settings.idle_seconds:
        if not re.fullmatch(r"(([^=]+=)?\d+(\.\d+)?)|([^=]+=)?never", entry):
            raise ValueError(f"idle_seconds: write SECONDS, NAME=SECONDS or NAME=never, not {entry!r}")
    for entry in settings.alias:
        name, _, model = entry.partition("=")
        if not re.fullmatch(r"[A-Za-z0-9*?][A-Za-z0-9._/:*?-]{0,127}", name) or not MODEL_NAME.fullmatch(model):
            raise ValueError(f"alias: write NAME=MODEL or PATTERN=MODEL, not {entry!r}")
    for entry in settings.default_model:
        if not re.fullmatch(r"/?[a-z0-9_/.-]+=[^=]+", entry):
            raise ValueError(f"default_model: write OPERATION=MODEL or ROUTE=MODEL, not {entry!r}")
    for entry in settings.translation_prompt:
        if not re.fullmatch("[^=]+=.+", entry, re.DOTALL):
            raise ValueError("translation_prompt: write NAME=PROMPT")
    for origin in settings.cors_origins:
        if not re.fullmatch(r"\*|[a-z][a-z0-9+.-]*://[^/\s?#@]+", origin):
            raise ValueError(
                f"cors_origins: write origins as https://example.com or http://localhost:3000, not {origin!r}"
            )
    for name in settings.allowed_hosts:
        if not re.fullmatch(r"\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", name):
            raise ValueError(
                "allowed_hosts: write host names without scheme and port, as ai.example.com or *.example.com, "
                f"not {name!r}"
            )
    for name in settings.trusted_proxies:
        try:
            ipaddress.ip_network(name, strict=False)
        except ValueError:
            raise ValueError(
                f"trusted_proxies: write addresses or networks as 127.0.0.1 or 10.0.0.0/8, not {name!r}"
            ) from None


def check_names(settings: SettingsFields) -> None:
    """Raise ValueError if a name is used twice, or if `speculative` names a model that `models` does not have."""
    named_speculative = [entry for entry in settings.speculative if "=" in entry]
    models, adapters, speculative, rerankers, translators = (
        [entry.partition("=")[0] for entry in entries]
        for entries in (
            settings.models,
            settings.adapter,
            named_speculative,
            settings.rerank_prompts,
            settings.translation_prompt,
        )
    )
    _check_unique("models", models)
    _check_unique("adapter", adapters, models)
    _check_unique("speculative", speculative)
    _check_unique("rerank_prompts", rerankers)
    for setting, entries in (("alias", settings.alias), ("default_model", settings.default_model)):
        _check_unique(setting, [entry.partition("=")[0] for entry in entries])
    _check_unique("translation_prompt", translators)
    for name in speculative:
        if models and settings.models_dir is None and name not in models:
            raise ValueError(f"speculative: no model is named {name!r}, only {', '.join(models)}")


def check_pairs(settings: SettingsFields) -> None:
    """Raise ValueError for settings that contradict each other: TLS files, pairs of time limits, and others."""
    if settings.kv_spill_memory and not settings.prefix_cache:
        raise ValueError("kv_spill_memory: keeps blocks of the prefix cache, which is off; set prefix_cache")
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise ValueError("tls_certificate and tls_key: set both of them, or neither")
    if settings.hang_seconds <= settings.stale_seconds:
        raise ValueError(
            f"hang_seconds ({settings.hang_seconds:g}) must be more than stale_seconds ({settings.stale_seconds:g})"
        )
    if settings.default_timeout_seconds is not None and settings.default_timeout_seconds > settings.max_timeout_seconds:
        raise ValueError(
            f"default_timeout_seconds ({settings.default_timeout_seconds:g}) must be at most max_timeout_seconds "
            f"({settings.max_timeout_seconds:g})"
        )


def _check_unique(setting: str, names: list[str], taken: Sequence[str] = ()) -> None:
    """Raise ValueError for a name that occurs twice, or that is in `taken`. setting: its name, for the message."""
    for name in names:
        if [*taken, *names].count(name) > 1:
            raise ValueError(f"{setting}: the name {name!r} is used twice")
