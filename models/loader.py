"""From a checkpoint directory to a model that can run, and everything the checkpoint says about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.backends.interface import Quantization
from models.config import (
    ClassificationHead,
    ConfigError,
    HeadConfig,
    LanguageModelHead,
    ModelConfig,
    TokenClassificationHead,
)
from models.config.sentence import sentence_config
from models.families import family_of
from models.families.family import Family, Task
from models.generation_defaults import GenerationDefaults, generation_defaults
from models.json_file import json_object
from models.layers.sentence_head import SentenceHead, load_sentence_head
from models.lora.read import adaptable, read_lora
from models.pack_weights import pack_weights
from models.transformer import Transformer
from weights.load import load_weights
from weights.read import WeightsError, open_checkpoint
from weights.resolve import ResolveError, file_in
from weights.rules import Rule, first_match


@dataclass(frozen=True)
class LoadedModel:
    """A model with its weights, and what its checkpoint says of it.

    tasks: what it can do. labels: class names by index, for classification. problem_type: the
    checkpoint's word for its classification, or None. sentence: how it makes one vector of a text.
    parameters: numbers in all weights, tied ones once. weight_bytes: memory they take.
    context_tokens: longest sequence a decoder (or a lone encoder) can take, None where nothing limits it.
    source_tokens: the same for the encoder of an encoder-decoder, None also where there is none.
    adapters: those that can be asked for by name.
    """

    transformer: Transformer
    config: ModelConfig
    family: str
    architecture: str
    tasks: tuple[Task, ...]
    generation: GenerationDefaults
    labels: tuple[str, ...]
    problem_type: str | None
    sentence: SentenceHead
    parameters: int
    weight_bytes: int
    context_tokens: int | None
    source_tokens: int | None
    adapters: Mapping[str, LoadedAdapter]


@dataclass(frozen=True)
class LoadedAdapter:
    """A low-rank adapter beside a model's weights. parameters: numbers in its file. weight_bytes: memory they take."""

    parameters: int
    weight_bytes: int


def load_model(
    directory: Path,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[int, int], None] | None = None,
    quantization: Quantization | None = None,
    adapters: Mapping[str, Path] | None = None,
) -> LoadedModel:
    """Read a checkpoint. progress: told (bytes read so far, bytes in all). quantization: see `pack_weights`.

    adapters: names and directories of low-rank adapters as peft saves them; they are computed in `dtype`, whatever the
    weights are rounded to.

    Raises ConfigError for a configuration that is not supported, WeightsError or ResolveError for files that are not
    as they must be; each is one line that names the setting, tensor or file.
    """
    hf = json_object(directory, "config.json")
    if hf is None:
        raise ConfigError("the checkpoint has no config.json")
    family, architecture = family_of(hf)
    _refuse_dtype(family, dtype)
    if family.body is not None and file_in(directory, "modules.json") is not None:
        architecture = family.body
    config = family.config(hf, architecture)
    sentence = sentence_config(directory, config.output_size, "last" if config.encoder is None else "mean")
    limits = [limit for limit in (config.max_positions, sentence.max_tokens) if limit is not None]
    context_tokens = min(limits, default=None)
    said = json_object(directory, "generation_config.json")
    generates_from_source = config.is_encoder_decoder and isinstance(config.head, LanguageModelHead)
    decoder_start = family.decoder_start if generates_from_source else None
    generation = generation_defaults(said, hf, config.vocab_size, decoder_start)

    with torch.device("meta"):
        transformer = Transformer(config)
    transformer.eval()
    rules = family.rules(config, hf, architecture)
    parameters = _load(transformer, directory, family, rules, dtype, device, progress)
    linears = adaptable(transformer)
    weight_bytes = pack_weights(transformer, quantization)
    loaded_adapters = {
        name: _load_adapter(transformer, name, path, directory, rules, linears, dtype, device)
        for name, path in (adapters or {}).items()
    }
    return LoadedModel(
        transformer=transformer,
        config=config,
        family=family.name,
        architecture=architecture,
        tasks=_tasks(family.architectures[architecture], config.head),
        generation=generation,
        labels=_labels(hf, config.head),
        problem_type=hf.get("problem_type"),
        sentence=load_sentence_head(directory, sentence, device),
        parameters=parameters,
        weight_bytes=weight_bytes,
        context_tokens=context_tokens,
        source_tokens=(config.max_source_positions or context_tokens) if config.is_encoder_decoder else None,
        adapters=loaded_adapters,
    )


def _load(
    transformer: Transformer,
    directory: Path,
    family: Family,
    rules: Sequence[Rule],
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[int, int], None] | None,
) -> int:
    shapes = {name: tuple(parameter.shape) for name, parameter in transformer.named_parameters()}
    with open_checkpoint(directory) as stored:
        matches = [first_match(rules, name) for name in stored]
    found = {target for match in matches if match is not None for target in match[1]}
    zero = {name: shapes.pop(name) for name in family.zero_if_absent & shapes.keys() - found}
    tied = {name: family.tied_if_absent[name] for name in family.tied_if_absent.keys() & shapes.keys() - found}
    for name in tied:
        del shapes[name]

    def assign(name: str, tensor: Tensor) -> None:
        owner, _, attribute = name.rpartition(".")
        setattr(transformer.get_submodule(owner), attribute, nn.Parameter(tensor, requires_grad=False))

    report = load_weights(directory, rules, shapes, dtype, device, assign, progress)
    for name, shape in zero.items():
        assign(name, torch.zeros(shape, dtype=dtype, device=device))
    for name, source in tied.items():
        assign(name, transformer.get_parameter(source))
    return report.parameters


def _load_adapter(
    transformer: Transformer,
    name: str,
    directory: Path,
    base: Path,
    rules: Sequence[Rule],
    linears: Mapping[str, tuple[int, int]],
    dtype: torch.dtype,
    device: torch.device,
) -> LoadedAdapter:
    try:
        settings = json_object(directory, "adapter_config.json")
        if settings is None:
            raise ConfigError("the directory holds no adapter_config.json")
        with open_checkpoint(base) as stored:
            pairs = read_lora(directory, settings, rules, linears, stored, device)
    except (ConfigError, WeightsError, ResolveError) as error:
        raise ConfigError(f"adapter {name!r}: {error}") from error
    with torch.inference_mode():
        weight_bytes = transformer.adapters.attach(transformer, name, pairs, dtype)
    downs = {id(pair.down): pair.down for pair in pairs.values()}.values()
    numbers = sum(down.numel() for down in downs) + sum(pair.up.numel() for pair in pairs.values())
    return LoadedAdapter(numbers, weight_bytes)


def _refuse_dtype(family: Family, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    if name in family.refused_dtypes:
        raise ConfigError(f"dtype {name} is not supported for {family.name}: {family.refused_dtypes[name]}")


def _tasks(tasks: tuple[Task, ...], head: HeadConfig) -> tuple[Task, ...]:
    """What a checkpoint can do: what its architecture can, and with one label for a pair of texts also rank by it."""
    return (*tasks, "rerank") if isinstance(head, ClassificationHead) and head.num_labels == 1 else tasks


def _labels(hf: Mapping[str, Any], head: HeadConfig) -> tuple[str, ...]:
    """Class names by index, empty without classes. transformers does not write its own, `LABEL_0`, `LABEL_1`..."""
    if not isinstance(head, ClassificationHead | TokenClassificationHead):
        return ()
    names = hf.get("id2label")
    if not isinstance(names, dict) or not names:
        return tuple(f"LABEL_{index}" for index in range(head.num_labels))
    try:
        by_index = {int(index): str(label) for index, label in names.items()}
    except ValueError:
        by_index = {}
    if sorted(by_index) != list(range(len(names))):
        raise ConfigError("'id2label' must name the classes 0, 1, 2 and so on")
    return tuple(by_index[index] for index in range(len(by_index)))
