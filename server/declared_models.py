"""Declare the models that are loaded on demand, and read the parts of them that the HTTP process needs."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from models.checkpoint.checkpoint_heads import checkpoint_tasks, class_names, read_files, read_heads
from models.config import ConfigError
from server.errors import CheckpointError, InvalidRequest
from server.ipc.wire.descriptions import ModelInfo, ModelSpec
from server.model_sources import model_specs, resolved, unnamed_speculation
from server.operations.on_demand.declared import DeclaredModel, Description
from server.operations.on_demand.registry import TextParts
from server.operations.runtime import ServedModel
from server.settings import MODEL_NAME, Settings
from server.text.checkpoint_text import CheckpointText
from weights.errors import WeightsError
from weights.gguf.choose import is_gguf, model_name, models_in
from weights.own_adapters import adapter_directory
from weights.resolve import ADAPTER_WEIGHTS, MODEL_WEIGHTS

TEXT_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", "source.spm", "target.spm", "tokenizer.model")
TEXT_FILE_MEMORY = 8
"""Memory of a tokenizer divided by the size of its files."""
MIN_TEXT_BYTES = 4 << 20


def models_in_directory(directory: Path) -> dict[str, Path]:
    """The checkpoints directly below a directory, by name: subdirectories with weights, and GGUF files.

    Names that begin with a dot are left out, and so are those that no model can have.
    """
    found: dict[str, Path] = {}
    try:
        subdirectories = [path for path in sorted(directory.iterdir()) if path.is_dir()]
    except OSError:  # it is gone, or its file system is not mounted now
        return {}
    subdirectories = [path for path in subdirectories if not path.name.startswith(".")]
    for path in subdirectories:
        if (path / "config.json").is_file():
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


def declare(spec: ModelSpec, idle: Callable[[str], float | None]) -> DeclaredModel:
    """A model that is not loaded."""
    return DeclaredModel(spec, idle(spec.name))


class LateSources:
    """Finds models and adapters that are declared while the server runs. Implements `ModelSources`.

    settings: apply to these models too. idle: see `idle_limits`. known: names of all declared models.
    """

    def __init__(self, settings: Settings, idle: Callable[[str], float | None], known: Callable[[], list[str]]) -> None:
        self._settings, self._idle, self._known = settings, idle, known

    async def discover(self) -> list[DeclaredModel]:
        """The models that have come to `--models-dir`."""
        directory = self._settings.models_dir
        if directory is None:
            return []
        found = await asyncio.to_thread(models_in_directory, directory)
        known = set(self._known())
        return self._declare({name: path for name, path in found.items() if name not in known})

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
        specs = model_specs(directories, self._settings, speculations, (), (), [*self._known(), *directories])
        return [declare(spec, self._idle) for spec in specs]

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
            model.description = _description(found)
        for name in model.names:
            texts.pop(name, None)
        forget(model.name)
        await asyncio.to_thread(give_back_memory)

    async def describe(spec: ModelSpec) -> Description:
        return await asyncio.to_thread(lambda: _description(ServedModel(_info(spec), load(spec))))

    return TextParts(text_bytes, load_text, drop, describe)


def text_bytes(spec: ModelSpec) -> int:
    """Memory of the tokenizer of a model, from the sizes of its files."""
    directory = Path(spec.directory)
    if is_gguf(directory):
        return 16 * MIN_TEXT_BYTES
    files = (directory / name for name in TEXT_FILES)
    return max(sum(file.stat().st_size for file in files if file.is_file()) * TEXT_FILE_MEMORY, MIN_TEXT_BYTES)


def give_back_memory() -> None:
    """Return freed memory of this process to the system. Does nothing without glibc."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _description(model: ServedModel) -> Description:
    operations = (*model.operations(), "tokenize", "detokenize")
    return Description(operations, model.text.languages, model.info.is_encoder_decoder)


def _info(spec: ModelSpec) -> ModelInfo:
    """Tasks and labels of a checkpoint, from its files without the weights. Sizes are 0. Raises CheckpointError."""
    try:
        files = read_files(Path(spec.directory))
        config = files.config()
        heads = read_heads(files, config, spec.answers)
        tasks = checkpoint_tasks(files.family.architectures[files.architecture], config.head, heads)
        labels = class_names(files.hf, config.head)
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
        context_tokens=0,
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
