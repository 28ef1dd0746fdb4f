"""Declare the models that are loaded on demand, and read the parts of them that the HTTP process needs."""

from __future__ import annotations

import asyncio
import ctypes
import gc
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
from server.text.checkpoint_text import CheckpointText
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
"""Memory of a tokenizer divided by the size of its files."""
MIN_TEXT_BYTES = 4 << 20
SCAN_SECONDS = 1.0
"""A directory is read again at this age of the last reading, or earlier if an entry was added or removed."""


def models_in_directory(directory: Path) -> dict[str, Path]:
    """The checkpoints directly below a directory, by name: subdirectories with weights, and GGUF files.

    Names that begin with a dot are left out, and so are those that no model can have.
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
    """The time after which a model is unloaded, by its name; None for never. Reads `--idle-seconds`."""
    stated: dict[str, float | None] = {}
    for entry in settings.idle_seconds:
        name, _, seconds = entry.rpartition("=")
        stated[name] = None if seconds == "never" else float(seconds)
    return lambda name: stated.get(name, stated.get(""))


def first_directories(settings: Settings) -> dict[str, Path]:
    """Directories of the models of the start, by name: those of `--models-dir`, and those that the settings name.

    Raises the errors of `find_models`.
    """
    named = find_models(settings)
    if settings.models_dir is None:
        return named
    try:
        return models_in_directory(settings.models_dir) | named
    except OSError as error:
        raise StartError(f"models_dir: cannot read {settings.models_dir}: {error.strerror}") from None


def first_models(settings: Settings, specs: Sequence[ModelSpec]) -> list[DeclaredModel]:
    """The models of the start, as models that are not loaded."""
    idle, named = idle_limits(settings), {entry.partition("=")[0] for entry in settings.models}
    in_directory = settings.models_dir is not None
    return [
        DeclaredModel(spec, idle(spec.name), is_in_directory=in_directory and spec.name not in named) for spec in specs
    ]


class LateSources:
    """Finds models and adapters that are declared while the server runs. Implements `ModelSources`.

    settings: apply to these models too.
    start: specifications of the models that were declared at the start. One that leaves and returns has its own again.
    clock: time in seconds.
    """

    def __init__(
        self, settings: Settings, start: Mapping[str, ModelSpec], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings, self._start, self._clock = settings, start, clock
        self._idle = idle_limits(settings)
        self._read_at = -math.inf
        self._changed_at = 0

    async def discover(self) -> dict[str, DeclaredModel] | None:
        """The models in `--models-dir`; None if they were read a moment ago, or cannot be read now."""
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
        """A model that an operator names. Raises InvalidRequest."""
        if not MODEL_NAME.fullmatch(name):
            raise InvalidRequest("the name of a model has letters, digits, '.', '_' and '-', 96 at most", "model")
        (model,) = self._declare({name: await self._find(source, MODEL_WEIGHTS, "source")})
        return model

    async def adapter(self, model: DeclaredModel, source: str) -> str:
        """Directory of an adapter that an operator names. Raises InvalidRequest."""
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
    """The text parts of models, in `texts` while a model is loaded.

    load: reads the text parts of a model; raises CheckpointError.
    served: a loaded model by its name. forget: drops what else this process keeps of a model.
    """

    async def load_text(spec: ModelSpec) -> None:
        text = await asyncio.to_thread(load, spec)
        texts.update(dict.fromkeys((spec.name, *spec.adapters), text))

    async def drop(model: DeclaredModel) -> None:
        found = served(model.name)
        if found is not None:
            model.description = description_of(found)
        for name in model.names:
            texts.pop(name, None)
        forget(model.name)
        await asyncio.to_thread(give_back_memory)

    async def describe(spec: ModelSpec) -> Description:
        return await asyncio.to_thread(lambda: description_of(ServedModel(_info(spec), load(spec))))

    return TextParts(text_bytes, load_text, drop, describe)


def text_bytes(spec: ModelSpec) -> int:
    """Estimated memory of a model's tokenizer in bytes, from the sizes of the tokenizer files.

    A constant for a GGUF file.
    """
    directory = Path(spec.directory)
    if is_gguf(directory):
        return 16 * MIN_TEXT_BYTES
    files = (directory / name for name in TOKENIZER_FILES)
    return max(sum(file.stat().st_size for file in files if file.is_file()) * TOKENIZER_FILE_MEMORY, MIN_TEXT_BYTES)


def give_back_memory() -> None:
    """Return freed memory of this process to the system. Does nothing without glibc."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _info(spec: ModelSpec) -> ModelInfo:
    """Tasks, labels and context of a checkpoint, from its files without the weights. Other sizes are 0.

    Raises CheckpointError.
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
    """Specifications whose draft models are loaded with them. A draft model that is served too is loaded twice."""
    found = []
    for spec in specs.values():
        speculation = spec.speculation
        if speculation is not None and speculation.draft_model:
            directory = specs[speculation.draft_model].directory
            spec = replace(spec, speculation=replace(speculation, draft_model="", draft_directory=directory))
        found.append(spec)
    return found
