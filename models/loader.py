"""Load a model from a checkpoint directory, with its tasks, labels, limits and generation defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from models.backends import interface as ops
from models.config import (
    ClassificationHead,
    ConfigError,
    HeadConfig,
    LanguageModelHead,
    ModelConfig,
    TokenClassificationHead,
)
from models.config.sentence import SentenceConfig
from models.families import family_of
from models.families.shared.family import Family, Task
from models.generation_defaults import GenerationDefaults, generation_defaults
from models.gguf_rules import gguf_rules
from models.json_file import json_object
from models.layers.embeddings import EmbeddingTable
from models.layers.heads import LanguageModel
from models.layers.linear import Linear, set_parameter
from models.layers.moe import MixtureOfExperts
from models.layers.sentence_head import SentenceHead
from models.lora.read import adaptable, read_lora
from models.pack_weights import pack_weights
from models.sentence_files import sentence_config
from models.tensor_memory import PRIVATE, TensorMemory
from models.transformer import Transformer
from weights.gguf.choose import is_gguf
from weights.gguf.container import read_gguf
from weights.load import LoadReport, load_weights
from weights.quantized.formats import QuantizedFormat, quantized_format
from weights.quantized.gguf import GgufFormat
from weights.quantized_matrix import QuantizedMatrix
from weights.read import WeightsError, open_checkpoint
from weights.resolve import ResolveError, file_in
from weights.rules import Rename, Rule, first_match

_DEQUANTIZED = frozenset(("router", "shared_gate", "experts", "key_heads", "value_heads"))
"""Modules of mixtures of experts and of latent attention whose matrices are packed together, or never rounded, and
therefore dequantised. The exception is an expert that is packed by itself."""


@dataclass(frozen=True)
class LoadedModel:
    """A model with its weights and the other contents of its checkpoint.

    family, architecture: names of the model's family and of its class in transformers.
    tasks: tasks that the model supports.
    generation: generation defaults of the checkpoint.
    labels: class names by index, for classification; empty without classes.
    problem_type: `problem_type` of config.json, or None.
    sentence: head that computes sentence embeddings.
    parameters: number of parameters; tied ones count once.
    weight_bytes: memory of the weights.
    context_tokens: longest sequence of the decoder, or of the encoder of an encoder-only model; None without a limit.
    source_tokens: longest source of an encoder-decoder; None without a limit, and for other models.
    adapters: low-rank adapters by name.
    checkpoint_format: format of the quantised matrices of the checkpoint, or empty.
    notes: properties of the checkpoint that cost memory or are not used, one sentence each.
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
    checkpoint_format: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class LoadedAdapter:
    """A low-rank adapter of a loaded model.

    parameters: number of parameters in its file.
    weight_bytes: memory of its weights.
    """

    parameters: int
    weight_bytes: int


def load_model(
    directory: Path,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[int, int], None] | None = None,
    quantization: ops.Quantization | None = None,
    adapters: Mapping[str, Path] | None = None,
    memory: TensorMemory = PRIVATE,
) -> LoadedModel:
    """Load a checkpoint.

    directory: directory of the checkpoint, or its GGUF file.
    dtype: dtype of weights and hidden states. Adapters are computed in this dtype even if the weights are quantised.
    progress: called with (bytes read so far, total bytes).
    quantization: see `pack_weights`. Matrices that the checkpoint stores quantised are then dequantised and rounded.
    adapters: directory of each low-rank adapter, as peft saves it, by name.
    memory: keeps the tensors of the transformer and its adapters.

    Raises QuantizationUnavailable where the device has no int8 kernels, ConfigError for an unsupported configuration,
    and WeightsError or ResolveError for missing or invalid files. Each message is one line and names the setting,
    tensor or file.
    """
    ops.check_quantization(dtype, device, quantization)
    if adapters and is_gguf(directory):
        raise ConfigError(f"adapter {next(iter(adapters))!r}: adapters of models in GGUF files are not supported")
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
    generation_config = json_object(directory, "generation_config.json")
    generates_from_source = config.is_encoder_decoder and isinstance(config.head, LanguageModelHead)
    decoder_start = family.decoder_start if generates_from_source else None
    generation = generation_defaults(generation_config, hf, config.vocab_size, decoder_start)

    with torch.device("meta"):
        transformer = Transformer(config)
    transformer.eval()
    rules = gguf_rules(config, hf) if is_gguf(directory) else family.rules(config, hf, architecture)
    matrix_format = GgufFormat(read_gguf(directory)) if is_gguf(directory) else quantized_format(hf)
    keep: Callable[[str, QuantizedMatrix], bool] = _never
    if quantization is None:
        keep = partial(_keeps_quantized, transformer, dtype, device)
    report = _load(
        transformer, directory, family, rules, dtype, device, progress, matrix_format, keep, memory.is_filled
    )
    linears = adaptable(transformer)
    weight_bytes = pack_weights(transformer, quantization, device, memory)
    loaded_adapters = {
        name: _load_adapter(transformer, name, path, directory, rules, linears, dtype, device, memory, matrix_format)
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
        sentence=_load_sentence_head(directory, sentence, device),
        parameters=report.parameters,
        weight_bytes=weight_bytes,
        context_tokens=context_tokens,
        source_tokens=(config.max_source_positions or context_tokens) if config.is_encoder_decoder else None,
        adapters=loaded_adapters,
        checkpoint_format="" if matrix_format is None else matrix_format.description,
        notes=_notes(matrix_format, report, dtype, quantization),
    )


def _load(
    transformer: Transformer,
    directory: Path,
    family: Family,
    rules: Sequence[Rule],
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[int, int], None] | None,
    matrix_format: QuantizedFormat | None,
    keep_quantized: Callable[[str, QuantizedMatrix], bool],
    shapes_only: bool,
) -> LoadReport:
    """Load the weights of the transformer, with the family's defaults for absent tensors.

    matrix_format, keep_quantized: see `load_weights`.
    shapes_only: leave the parameters on the meta device, with their shapes and dtype.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in transformer.named_parameters()}
    with open_checkpoint(directory, matrix_format=matrix_format) as stored:
        matches = [first_match(rules, name) for name in stored]
    found = {target for match in matches if match is not None for target in match[1]}
    zero = {name: shapes.pop(name) for name in family.zero_if_absent & shapes.keys() - found}
    tied = {name: family.tied_if_absent[name] for name in family.tied_if_absent.keys() & shapes.keys() - found}
    for name in tied:
        del shapes[name]
    if shapes_only:
        transformer.to(dtype)
    assign = partial(set_parameter, transformer)
    report = load_weights(
        directory,
        rules,
        shapes,
        dtype,
        device,
        assign,
        progress,
        keep_float32=_keeps_float32,
        matrix_format=matrix_format,
        keep_quantized=keep_quantized,
        shapes_only=shapes_only,
    )
    if shapes_only:
        return report
    for name, shape in zero.items():
        assign(name, torch.zeros(shape, dtype=torch.float32 if _keeps_float32(name) else dtype, device=device))
    for name, source in tied.items():
        assign(name, transformer.get_parameter(source))
    return report


def _keeps_quantized(
    transformer: Transformer, dtype: torch.dtype, device: torch.device, name: str, matrix: QuantizedMatrix
) -> bool:
    """Whether the transformer computes with this quantised matrix as it is. name: name of the parameter."""
    path, _, attribute = name.rpartition(".")
    owner = transformer.get_submodule(path)
    takes = isinstance(owner, Linear | LanguageModel) or type(owner) is EmbeddingTable
    return (
        takes
        and attribute == "weight"
        and (_DEQUANTIZED.isdisjoint(path.split(".")) or _is_expert_apart(transformer, path))
        and ops.has_kernel(matrix, dtype, device)
    )


def _is_expert_apart(transformer: Transformer, path: str) -> bool:
    """Whether a linear belongs to an expert that is packed by itself. path: path of the linear."""
    mixture, separator, _ = path.partition(".experts.")
    owner = transformer.get_submodule(mixture)
    return bool(separator) and isinstance(owner, MixtureOfExperts) and not owner.packs_together


def _keeps_float32(name: str) -> bool:
    """Whether this parameter is float32 in a model of any dtype: the correction of a router."""
    return name.endswith(".router.correction")


def _never(name: str, matrix: QuantizedMatrix) -> bool:
    return False


def _notes(
    matrix_format: QuantizedFormat | None, report: LoadReport, dtype: torch.dtype, quantization: ops.Quantization | None
) -> tuple[str, ...]:
    """See `LoadedModel.notes`."""
    if matrix_format is None:
        return ()
    name, notes = str(dtype).removeprefix("torch."), []
    if quantization is not None:
        notes.append(f"{report.dequantized} quantized matrices are rounded again, to {quantization}")
    elif report.dequantized:
        notes.append(
            f"{report.dequantized} of {report.dequantized + report.matrices} quantized matrices have no kernel: "
            f"they are dequantized to {name} and take {report.dequantized_bytes / 2**20:,.1f} MiB"
        )
    if matrix_format.unused:
        notes.append(f"the server does not use the {matrix_format.unused} of the checkpoint")
    return tuple(notes)


def _load_sentence_head(directory: Path, config: SentenceConfig, device: torch.device) -> SentenceHead:
    """Build the sentence embedding head and load its dense layers, which have a folder each."""
    with torch.device("meta"):
        head = SentenceHead(config)
    rules = (Rename(r"linear\.(weight|bias)", r"linear.\1"),)
    for layer, module in zip(config.dense, head.dense, strict=True):
        shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
        assign = partial(set_parameter, module)
        try:
            load_weights(directory, rules, shapes, torch.float32, device, assign, folder=layer.folder)
        except WeightsError as error:
            raise WeightsError(f"{layer.folder}: {error}") from None
    return head.eval()


def _load_adapter(
    transformer: Transformer,
    name: str,
    directory: Path,
    base: Path,
    rules: Sequence[Rule],
    linears: Mapping[str, tuple[int, int]],
    dtype: torch.dtype,
    device: torch.device,
    memory: TensorMemory,
    matrix_format: QuantizedFormat | None,
) -> LoadedAdapter:
    try:
        settings = json_object(directory, "adapter_config.json")
        if settings is None:
            raise ConfigError("the directory has no adapter_config.json")
        with open_checkpoint(base, matrix_format=matrix_format) as stored:
            updates = read_lora(directory, settings, rules, linears, stored, device)
    except (ConfigError, WeightsError, ResolveError) as error:
        raise ConfigError(f"adapter {name!r}: {error}") from error
    with torch.inference_mode():
        weight_bytes = transformer.adapters.attach(transformer, name, updates, dtype, memory)
    downs = {id(update.down): update.down for update in updates.values()}.values()
    parameters = sum(down.numel() for down in downs) + sum(update.up.numel() for update in updates.values())
    return LoadedAdapter(parameters, weight_bytes)


def _refuse_dtype(family: Family, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    if name in family.refused_dtypes:
        raise ConfigError(f"dtype {name} is not supported for {family.name}: {family.refused_dtypes[name]}")


def _tasks(tasks: tuple[Task, ...], head: HeadConfig) -> tuple[Task, ...]:
    """Tasks of a checkpoint: those of its architecture, and `rerank` for a classifier with a single label."""
    return (*tasks, "rerank") if isinstance(head, ClassificationHead) and head.num_labels == 1 else tasks


def _labels(hf: Mapping[str, Any], head: HeadConfig) -> tuple[str, ...]:
    """Class names by index; empty without classes. transformers does not save its default names `LABEL_0`, ..."""
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
        raise ConfigError(f"'id2label' must have the keys 0 to {len(names) - 1}")
    return tuple(by_index[index] for index in range(len(by_index)))
