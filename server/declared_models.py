"""Find the models that are loaded on demand, and read their tokenizers and settings for the HTTP process."""

from __future__ import annotations

import asyncio
import math
import os.path
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from models.checkpoint.checkpoint_heads import (
    checkpoint_tasks,
    class_names,
    longest_text,
    read_files,
    read_heads,
)
from models.config import ConfigError
from server.errors import CheckpointError, InvalidRequest, StartError
from server.ipc.wire.descriptions import ModelInfo, ModelSpec
from server.model_sources import find_models, model_specs, resolved, unnamed_speculation
from server.operations.on_demand.declared import DeclaredModel, Description, description_of
from server.operations.on_demand.loader import TextParts
from server.operations.served_model import ServedModel
from server.settings.entries import MODEL_NAME
from server.settings.settings import Settings
from server.system.malloc import give_back_memory
from server.text.checkpoint_text import CheckpointText
from server.text.tokenizers.short_holds import free_later, free_unused
from weights.errors import WeightsError
from weights.gguf.choose import is_gguf, model_name, models_in
from weights.own_adapters import adapter_directory
from weights.resolve import ADAPTER_WEIGHTS, MODEL_WEIGHTS

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "source.spm",
    "target.spm",
    "tokenizer.model",
)
TOKENIZER_FILE_MEMORY = 8
"""Estimated memory of a tokenizer per byte of its files."""
MIN_TEXT_BYTES = 4 << 20
SCAN_SECONDS = 1.0
"""Time after which `--models-dir` is listed again. It is listed earlier if an entry was added or removed."""


def models_in_directory(directory: Path) -> dict[str, Path]:
    """Find the checkpoints directly below a directory, by name.

    They are GGUF files, and subdirectories with a `config.json` or a single GGUF model. Subdirectories whose name
    begins with a dot are left out, and so are names that no model can have.
    Raises OSError for a directory that cannot be read.
    """
    found: dict[str, Path] = {}
    subdirectories = [path for path in sorted(directory.iterdir()) if os.path.isdir(path)]
    subdirectories = [path for path in subdirectories if not path.name.startswith(".")]
    for path in subdirectories:
        if os.path.isfile(path / "config.json"):
            found[path.name] = path
        elif len(files := models_in(path)) == 1:
            found[path.name] = files[0]
    for path in models_in(directory):
        found.setdefault(model_name(path.name), path)
    return {name: path for name, path in found.items() if MODEL_NAME.fullmatch(name)}


def idle_limits(settings: Settings) -> Callable[[str], float | None]:
    """Read `--idle-seconds`. Returns a function from a model's name to its limit.

    The limit is the time in seconds without requests after which the model is unloaded; None for no limit.
    """
    stated: dict[str, float | None] = {}
    for entry in settings.idle_seconds:
        name, _, seconds = entry.rpartition("=")
        stated[name] = None if seconds == "never" else float(seconds)
    return lambda name: stated.get(name, stated.get(""))


def first_directories(settings: Settings) -> dict[str, Path]:
    """Return the directories of the models that are known at the start, by name.

    They are the models in `--models-dir` and the models that the settings name. If names are equal, the settings
    decide.
    Raises StartError if there is no model or `--models-dir` cannot be read, CheckpointError for a model that cannot be
    found.
    """
    named = find_models(settings)
    if settings.models_dir is None:
        return named
    try:
        return models_in_directory(settings.models_dir) | named
    except OSError as error:
        raise StartError(f"models_dir: cannot read {settings.models_dir}: {error.strerror}") from None


def first_models(settings: Settings, specs: Sequence[ModelSpec]) -> list[DeclaredModel]:
    """Declare the models that are known at the start. None of them is loaded. specs: their specifications."""
    idle, named = idle_limits(settings), {entry.partition("=")[0] for entry in settings.models}
    in_directory = settings.models_dir is not None
    return [
        DeclaredModel(spec, idle(spec.name), is_in_directory=in_directory and spec.name not in named) for spec in specs
    ]


class LateSources:
    """Finds models and adapters that are declared while the server runs. Implements `ModelSources`.

    settings: settings of the server, which apply to these models too.
    start: specifications of the models that were declared at the start, by name. If such a model is removed and comes
        back with the same directory, it gets this specification again.
    clock: returns the current time in seconds.
    """

    def __init__(
        self, settings: Settings, start: Mapping[str, ModelSpec], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings, self._start, self._clock = settings, start, clock
        self._idle = idle_limits(settings)
        self._read_at = -math.inf
        self._changed_at = 0

    async def discover(self) -> dict[str, DeclaredModel] | None:
        """Return the models in `--models-dir`, by name.

        None without `--models-dir`, if it was listed less than `SCAN_SECONDS` ago, or if it cannot be read.
        """
        directory = self._settings.models_dir
        found = None if directory is None else await asyncio.to_thread(self._read, directory)
        if found is None:
            return None
        models = {model.name: model for model in self._declare(found)}
        for model in models.values():
            model.is_in_directory = True
        return models

    def _read(self, directory: Path) -> dict[str, Path] | None:
        try:
            changed_at = directory.stat().st_mtime_ns
            if changed_at == self._changed_at and self._clock() < self._read_at + SCAN_SECONDS:
                return None
            self._read_at, self._changed_at = self._clock(), changed_at
            return models_in_directory(directory)
        except OSError:  # its file system is not mounted now; nothing is known about its models
            return None

    async def model(self, name: str, source: str) -> DeclaredModel:
        """Declare a model that an operator names in a request.

        source: path or hub id of the checkpoint. Raises InvalidRequest for an invalid name, or a checkpoint that cannot
        be found.
        """
        if not MODEL_NAME.fullmatch(name):
            raise InvalidRequest("the name of a model has letters, digits, '.', '_' and '-', 96 at most", "model")
        (model,) = self._declare({name: await self._find(source, MODEL_WEIGHTS, "source")})
        return model

    async def adapter(self, model: DeclaredModel, source: str) -> str:
        """Return the directory of an adapter that an operator names in a request.

        source: name of an adapter inside the model's checkpoint, or path or hub id of another. Raises InvalidRequest if
        it cannot be found.
        """
        own = adapter_directory(Path(model.spec.directory), source)
        return str(own or await self._find(source, ADAPTER_WEIGHTS, "lora_path"))

    def _declare(self, directories: dict[str, Path]) -> list[DeclaredModel]:
        speculation = unnamed_speculation(self._settings)
        speculations = {} if speculation is None else dict.fromkeys(directories, speculation)
        found = []
        for spec in model_specs(directories, self._settings, speculations, (), (), [*self._start, *directories]):
            own = self._start.get(spec.name)
            spec = own if own is not None and own.directory == spec.directory else spec
            found.append(DeclaredModel(spec, self._idle(spec.name)))
        return found

    @staticmethod
    async def _find(source: str, weights: Sequence[str], field: str) -> Path:
        try:
            return await asyncio.to_thread(resolved, source, weights)
        except CheckpointError:
            raise InvalidRequest(f"`{field}` is neither a checkpoint nor an id of the hub", field) from None


def text_parts(
    load: Callable[[ModelSpec], CheckpointText],
    texts: dict[str, CheckpointText],
    served: Callable[[str], ServedModel | None],
    forget: Callable[[str], None],
) -> TextParts:
    """Return functions that estimate, load, drop and describe the text parts (tokenizer and so on) of models.

    load: reads the text parts of a model; raises CheckpointError.
    texts: filled with the text parts of the loaded models, by the names of models and adapters.
    served: returns a loaded model by its name; None if it is not loaded.
    forget: drops everything else that this process keeps for a model, by its name.
    """

    async def load_text(spec: ModelSpec) -> None:
        text = await asyncio.to_thread(load, spec)
        texts.update(dict.fromkeys((spec.name, *spec.adapters), text))

    def describe_loaded(model: DeclaredModel) -> None:
        found = served(model.name)
        if found is not None:
            model.description = description_of(found)

    async def drop(model: DeclaredModel) -> None:
        describe_loaded(model)
        for name in model.names:
            if name in texts:
                free_later(texts.pop(name).tokenizer)
        forget(model.name)
        await asyncio.to_thread(free_unused)
        await asyncio.to_thread(give_back_memory)

    async def describe(spec: ModelSpec) -> Description:
        return await asyncio.to_thread(lambda: description_of(ServedModel(_info(spec), load(spec))))

    return TextParts(text_bytes, load_text, drop, describe)


def text_bytes(spec: ModelSpec) -> int:
    """Estimate the memory of a model's tokenizer in bytes, from the sizes of the tokenizer files.

    It is a constant for a GGUF file.
    """
    directory = Path(spec.directory)
    if is_gguf(directory):
        return 16 * MIN_TEXT_BYTES
    files = (directory / name for name in TOKENIZER_FILES)
    return max(sum(file.stat().st_size for file in files if file.is_file()) * TOKENIZER_FILE_MEMORY, MIN_TEXT_BYTES)


def _info(spec: ModelSpec) -> ModelInfo:
    """Describe a model that is not loaded: its tasks, labels and context, from the files without the weights.

    The numbers of parameters and bytes are 0. Raises CheckpointError for a model that is not supported.
    """
    try:
        files = read_files(Path(spec.directory))
        config = files.config()
        heads = read_heads(files, config, spec.answers)
        tasks = checkpoint_tasks(files.family.architectures[files.architecture], config.head, heads)
        labels = class_names(files.hf, config.head)
        context_tokens = longest_text(config, heads) or 0
    except (ConfigError, WeightsError) as error:
        raise CheckpointError(f"model {spec.name!r}: {error}") from None
    return ModelInfo(
        spec.name,
        files.family.name,
        files.name,
        list(tasks),
        "float32",
        parameters=0,
        weight_bytes=0,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        context_tokens=context_tokens,
        source_tokens=(config.max_source_positions or context_tokens) if config.is_encoder_decoder else 0,
        is_encoder_decoder=config.is_encoder_decoder,
        labels=list(labels),
    )


def with_own_drafts(specs: Mapping[str, ModelSpec]) -> list[ModelSpec]:
    """Give each model that uses a draft model a copy of its own, by replacing the draft model's name by its directory.

    The two are then loaded and unloaded together. A draft model that is also served is loaded twice.

    specs: specifications by the model's name.
    """
    found = []
    for spec in specs.values():
        speculation = spec.speculation
        if speculation is not None and speculation.draft_model:
            directory = specs[speculation.draft_model].directory
            spec = replace(spec, speculation=replace(speculation, draft_model="", draft_directory=directory))
        found.append(spec)
    return found
