"""Find the models, adapters and draft models that the settings name, and read the options for single models."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from server.errors import CheckpointError, StartError
from server.ipc.wire.descriptions import KVCacheDType, ModelSpec, Quantization, Speculation
from server.settings.settings import Settings
from server.text.chats.answer_prompts import AnswerPrompt, PromptError, read_prompt
from server.text.languages.translation_prompts import (
    InstructionPrompt,
    TranslationPromptError,
    read_translation_prompt,
)
from weights.eagle_heads import eagle_version
from weights.errors import ResolveError
from weights.own_adapters import adapter_directory
from weights.resolve import ADAPTER_WEIGHTS, MODEL_WEIGHTS, HubSource, hub_source, resolve
from weights.router_views import QUERY_SUFFIX, route_views


def find_models(settings: Settings) -> dict[str, Path]:
    """Return the directories of the models that the settings name, by name.

    If the settings name neither models nor `models_dir`, these are the demo models.
    Raises StartError if there is no model, for a `models_dir` that is no directory, and for a name that two models
    have; CheckpointError for a checkpoint that cannot be found.
    """
    if settings.models_dir is not None and not settings.models_dir.is_dir():
        raise StartError(f"models_dir: {settings.models_dir} is not a directory")
    if not settings.models and settings.models_dir is None:
        import weights

        demo = Path(weights.__file__).parent / "demo"
        found = {path.parent.name: path.parent for path in sorted(demo.glob("*/config.json"))}
        if not found:
            raise StartError("no model is given and no demo model is installed: triptych serve NAME=PATH_OR_HUB_ID")
        return found
    directories: dict[str, Path] = {}
    for entry in settings.models:
        name, _, source = entry.partition("=")
        found = _with_routes(name, resolved(source), settings)
        if used := found.keys() & directories.keys():
            raise StartError(f"models: {min(used)!r} is the name of two models; a router of two encoders has two names")
        directories |= found
    return directories


def _with_routes(name: str, directory: Path, settings: Settings) -> dict[str, Path]:
    """Return the directory of a model, by its name; two directories for a checkpoint with a query encoder.

    A sentence-transformers router with separate encoders for queries and documents becomes two models. With models on
    demand, it stays one. Raises StartError if the directories of the two encoders cannot be written.
    """
    try:
        views = {} if settings.on_demand else route_views(directory)
    except OSError as error:
        raise StartError(f"{name}: cannot write the views of its routes: {error.strerror}") from None
    return {name: views["document"], name + QUERY_SUFFIX: views["query"]} if views else {name: directory}


@dataclass(frozen=True)
class AdapterSource:
    """An adapter (LoRA) to serve.

    name: name of the adapter.
    directory: directory of the adapter's checkpoint.
    model: name of the base model.
    """

    name: str
    directory: Path
    model: str


def find_adapters(settings: Settings, models: Mapping[str, Path]) -> list[AdapterSource]:
    """Read `--adapter`. The source of an adapter is a path, a hub id, or its name inside the model's checkpoint.

    models: directory of each model, by name.
    Raises StartError for an unknown model or a name that a model has, CheckpointError for a directory that cannot be
    found.
    """
    adapters = []
    for entry in settings.adapter:
        name, _, source = entry.partition("=")
        path, _, model = source.rpartition("@")
        if model not in models:
            raise StartError(f"adapter: no model is named {model!r}, only {', '.join(models)}")
        if name in models:
            raise StartError(f"adapter: the name {name!r} is that of a model")
        directory = adapter_directory(models[model], path) or resolved(path, ADAPTER_WEIGHTS)
        adapters.append(AdapterSource(name, directory, model))
    return adapters


def unnamed_speculation(settings: Settings) -> Speculation | None:
    """The speculative decoding of models that `--speculative` does not name; None for no speculation."""
    if "mtp" in settings.speculative:
        return Speculation(prediction_head=True, is_optional=True)
    return Speculation(is_optional=True) if "ngram" in settings.speculative else None


def find_speculations(settings: Settings, directories: Mapping[str, Path]) -> dict[str, Speculation]:
    """Read `--speculative`. Returns the method of speculative decoding, by name of the target model.

    A draft model is a served model or another checkpoint. The checkpoint may also be an EAGLE-3 head.

    directories: directory of each served model, by name.
    Raises StartError for a model that is not served or that is its own draft, and for an EAGLE head of another version;
    CheckpointError for a draft model that cannot be found.
    """
    unnamed = unnamed_speculation(settings)
    found = {} if unnamed is None else dict.fromkeys(directories, unnamed)
    for entry in settings.speculative:
        name, is_named, method = entry.partition("=")
        if not is_named:
            continue
        draft = method.removeprefix("draft:")
        if name not in directories:
            raise StartError(f"speculative: no model is named {name!r}, only {', '.join(directories)}")
        if draft == name:
            raise StartError(f"speculative: {name!r} is its own draft model, which saves no time")
        if method == "off":
            found.pop(name, None)
        elif method == "ngram":
            found[name] = Speculation()
        elif method == "mtp":
            found[name] = Speculation(prediction_head=True)
        elif draft in directories:
            found[name] = Speculation(draft_model=draft)
        else:
            found[name] = _draft_checkpoint(name, resolved(draft))
    return found


def _draft_checkpoint(name: str, directory: Path) -> Speculation:
    """The speculative decoding of a model by another checkpoint, a draft model or an EAGLE-3 head.

    name: name of the model. Raises StartError for an EAGLE head of another version.
    """
    kind = eagle_version(directory)
    if kind == "eagle":
        raise StartError(
            f"speculative: {name!r}: heads of EAGLE-1 and EAGLE-2 are not supported, only those of EAGLE-3"
        )
    if kind == "eagle3":
        return Speculation(eagle_directory=str(directory))
    return Speculation(draft_directory=str(directory))


def find_answer_prompts(settings: Settings, models: Sequence[str]) -> dict[str, AnswerPrompt]:
    """Read `--rerank-prompts`. Returns the prompt of each named model.

    models: names of the served models.
    Raises StartError for a model that is not served or that `--speculative` names, and for a prompt that cannot be
    used.
    """
    found = {}
    for entry in settings.rerank_prompts:
        name, _, prompt = entry.partition("=")
        if name not in models:
            raise StartError(f"rerank_prompts: no model is named {name!r}, only {', '.join(models)}")
        if any(name in (pair.partition("=")[0], pair.rpartition("draft:")[2]) for pair in settings.speculative):
            raise StartError(f"rerank_prompts: {name!r} generates no text, so it cannot be named in speculative")
        try:
            found[name] = read_prompt(prompt)
        except PromptError as error:
            raise StartError(f"rerank_prompts: {error}") from None
    return found


def hub_sources(settings: Settings) -> list[HubSource]:
    """Return the models, draft models and adapters that the settings name by an id of the Hugging Face hub."""
    served = [entry.partition("=")[::2] for entry in settings.models]
    drafts = [entry.rpartition("draft:")[2] for entry in settings.speculative if "draft:" in entry]
    adapters = [entry.partition("=")[2].rpartition("@")[0] for entry in settings.adapter]
    named = [source for _, source in served]
    named += [draft for draft in drafts if draft not in (name for name, _ in served)]
    found = [hub_source(source) for source in named]
    # A name without a slash may be that of an adapter inside of the model's checkpoint.
    found += [hub_source(source, ADAPTER_WEIGHTS) for source in adapters if "/" in source]
    return [source for source in found if source is not None]


def find_translation_prompts(settings: Settings, models: Sequence[str]) -> dict[str, InstructionPrompt]:
    """Read `--translation-prompt`. Returns the prompt of each named model.

    models: names of the served models.
    Raises StartError for a model that is not served or that `--rerank-prompts` names, and for a prompt that cannot be
    used.
    """
    found = {}
    for entry in settings.translation_prompt:
        name, _, prompt = entry.partition("=")
        if name not in models:
            raise StartError(f"translation_prompt: no model is named {name!r}, only {', '.join(models)}")
        if any(name == reranker.partition("=")[0] for reranker in settings.rerank_prompts):
            raise StartError(f"translation_prompt: {name!r} generates no text, because it is named in rerank_prompts")
        try:
            found[name] = read_translation_prompt(prompt)
        except TranslationPromptError as error:
            raise StartError(f"translation_prompt: {error}") from None
    return found


def resolved(source: str, weights: Sequence[str] = MODEL_WEIGHTS) -> Path:
    """Return the directory of a checkpoint, or its GGUF file.

    source: a path, or an id of the Hugging Face hub. weights: patterns for the names of the weight files.
    Raises CheckpointError for a checkpoint that cannot be found.
    """
    try:
        return resolve(source, weights)
    except ResolveError as error:
        raise CheckpointError(str(error)) from None


def by_model(setting: str, entries: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Read entries of the form `NAME=VALUE` or `VALUE`. Returns the values by model name; `VALUE` has an empty name.

    setting: name of the setting, for errors. names: names of the models.
    Raises StartError for the name of a model that is not served.
    """
    found: dict[str, str] = {}
    for entry in entries:
        name, is_named, value = entry.rpartition("=")
        if is_named and name not in names:
            raise StartError(f"{setting}: no model is named {name!r}, only {', '.join(names)}")
        found[name] = value
    return found


def check_names(settings: Settings, names: Sequence[str]) -> None:
    """Raise StartError if a setting names a model that is not in `names`.

    Checks `--preload`, `--alias`, `--default-model` and `--idle-seconds`. With `--models-dir`, only `--preload` is
    checked, because models may be added to the directory later.
    """
    known = [*names, *(["all"] if settings.preload else [])]
    for setting in ("preload",) if settings.models_dir is not None else ("preload", "alias", "default_model"):
        for entry in getattr(settings, setting):
            if entry.rpartition("=")[2] not in known:
                raise StartError(f"{setting}: no model is named {entry.rpartition('=')[2]!r}, only {', '.join(names)}")
    if settings.models_dir is None:
        by_model("idle_seconds", settings.idle_seconds, names)


def stated_languages(entries: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return the language pair of each model that `--languages` names.

    entries: `NAME=SOURCE-TARGET`, or `SOURCE-TARGET` with a single model. names: names of the served models.
    Raises StartError for a model that is not served.
    """
    found: dict[str, str] = {}
    for entry in entries:
        name, _, pair = entry.rpartition("=")
        if not name and len(names) == 1:
            name = names[0]
        if name not in names:
            raise StartError(f"languages: write NAME=SOURCE-TARGET, where NAME is one of {', '.join(names)}")
        found[name] = pair
    return found


def model_specs(
    directories: Mapping[str, Path],
    settings: Settings,
    speculations: Mapping[str, Speculation],
    adapters: Sequence[AdapterSource] = (),
    answering: Collection[str] = (),
    names: Sequence[str] | None = None,
) -> list[ModelSpec]:
    """Return the specifications by which a worker loads the models.

    directories: directory of each model, by name. speculations: speculative decoding, by name of the model.
    answering: names of the models that answer by a rerank prompt.
    names: all models that settings may name; None for the models in `directories`.
    Raises StartError if a setting for single models names another model.
    """
    names = list(directories) if names is None else names
    cache_dtypes = by_model("kv_cache_dtype", settings.kv_cache_dtype, names)
    quantized = by_model("quantize", settings.quantize, names)
    return [
        ModelSpec(
            name,
            str(directory),
            settings.dtype,
            cast("Quantization | None", quantized.get(name, quantized.get(""))),
            speculations.get(name),
            {adapter.name: str(adapter.directory) for adapter in adapters if adapter.model == name},
            name in answering,
            cast("KVCacheDType | None", cache_dtypes.get(name)),
        )
        for name, directory in directories.items()
    ]
