"""Load a model from a checkpoint directory, with its tasks, labels, limits and generation defaults."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from models.backends import choice
from models.backends.tensor_memory import PRIVATE, TensorMemory
from models.batch_invariance import check_batch_invariance
from models.checkpoint.checkpoint_heads import (
    CheckpointFiles,
    CheckpointHeads,
    checkpoint_tasks,
    class_names,
    longest_text,
    read_files,
    read_heads,
)
from models.checkpoint.constant_tables import check_constant_tables
from models.checkpoint.expected_tensors import expected_tensors
from models.checkpoint.fitting_families import fitting_families
from models.checkpoint.gguf_rules import gguf_rules
from models.checkpoint.gliner_files import encoder_rules
from models.checkpoint.kept_quantized import kept_quantized
from models.checkpoint.load_draft_head import (
    HeadLoading,
    LoadedDraftHead,
    load_eagle_head,
    load_prediction_head,
    prediction_head_of,
)
from models.checkpoint.load_heads import load_sentence_head, load_token_heads
from models.checkpoint.pack_weights import WeightPacker
from models.checkpoint.settings_files import read_settings
from models.checkpoint.stored_size import check_count, check_size
from models.config import (
    ConfigError,
    LanguageModelHead,
    ModelConfig,
    UnservedFamilyError,
)
from models.draft_head import DraftHead
from models.families.shared.family import CheckpointTask, Family
from models.generation_defaults import GenerationDefaults, generation_defaults
from models.layers.linear import set_parameter
from models.layers.sentence_head import SentenceHead
from models.layers.token_heads import TokenHeads
from models.lora.read import adaptable, check_lora, read_lora, read_own_lora
from models.transformer import Transformer
from weights.errors import ResolveError, WeightsError
from weights.gguf.choose import is_gguf
from weights.gguf.container import read_gguf
from weights.load import LoadReport, load_weights
from weights.own_adapters import adapter_names
from weights.quantized.formats import QuantizedFormat, quantized_format
from weights.quantized.gguf import GgufFormat
from weights.quantized_matrix import QuantizedMatrix
from weights.read import open_checkpoint
from weights.rules import Drop, Rule
from weights.static_vectors import StaticVectors
from weights.stored import Stored


@dataclass(frozen=True)
class LoadedModel:
    """A model with its weights and the other contents of its checkpoint.

    family, architecture: names of the model's family and of its class in transformers.
    tasks: tasks that the model supports.
    generation: generation defaults of the checkpoint.
    labels: class names by index, for classification; empty without classes.
    problem_type: `problem_type` of config.json, or None.
    sentence: head that computes sentence embeddings.
    heads, head_settings: heads for results per token, in addition to the head of the architecture, and their settings.
    parameters: number of parameters; tied parameters are counted once.
    weight_bytes: memory of the weights, in bytes.
    context_tokens: limit in tokens for a sequence of the decoder, or of an encoder-only model; None without a limit.
    source_tokens: limit in tokens for the source of an encoder-decoder; None without a limit, and for other models.
    adapters: low-rank adapters by name.
    checkpoint_format: format of the checkpoint's quantised matrices, for users; empty if it has none.
    notes: properties of the checkpoint that cost memory or are not used, one sentence each.
    has_prediction_head: whether the checkpoint has a head for multi-token prediction that can draft tokens.
    draft_head: the draft head that was loaded; None without one.
    draft_head_bytes: memory of its weights, in bytes.
    """

    transformer: Transformer
    config: ModelConfig
    family: str
    architecture: str
    tasks: tuple[CheckpointTask, ...]
    generation: GenerationDefaults
    labels: tuple[str, ...]
    problem_type: str | None
    sentence: SentenceHead
    heads: TokenHeads
    head_settings: CheckpointHeads
    parameters: int
    weight_bytes: int
    context_tokens: int | None
    source_tokens: int | None
    adapters: Mapping[str, LoadedAdapter]
    checkpoint_format: str
    notes: tuple[str, ...]
    has_prediction_head: bool = False
    draft_head: DraftHead | None = None
    draft_head_bytes: int = 0


@dataclass(frozen=True)
class LoadedAdapter:
    """Size of a low-rank adapter that was loaded with a model.

    parameters: number of parameters in the adapter's file.
    weight_bytes: memory of the adapter's weights, in bytes.
    """

    parameters: int
    weight_bytes: int


def load_model(
    directory: Path,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[int, int], None] | None = None,
    quantization: choice.Quantization | None = None,
    adapters: Mapping[str, Path] | None = None,
    memory: TensorMemory = PRIVATE,
    answers: bool = False,
    draft_head: Path | None = None,
) -> LoadedModel:
    """Load a checkpoint.

    directory: directory of the checkpoint, or its GGUF file.
    dtype: dtype of weights and hidden states. Adapters are computed in this dtype even if the weights are quantised.
    progress: called with (bytes read so far, total bytes).
    quantization: how weights are rounded, as for `WeightPacker`; None for no rounding. If it is set, matrices that the
        checkpoint stores quantised are dequantised and rounded again.
    adapters: directory of each low-rank adapter, as peft saves it, by name. For an adapter inside the checkpoint,
        `directory` followed by the adapter's name in the checkpoint.
    memory: keeps the tensors of the transformer and its adapters.
    answers: whether to serve a language model as a reranker, by the logits of its answer.
    draft_head: directory of an EAGLE-3 head to load with the model; `directory` itself for the prediction head of the
        checkpoint, if it has one. None for no head.

    Raises QuantizationUnavailable if the device has no kernels for quantised weights, BatchInvarianceUnavailable if the
    bits of the model may depend on other requests and `--batch-invariant` is set, ConfigError for an unsupported
    configuration, and WeightsError or ResolveError for missing or invalid files. Each message is one line and names the
    setting, tensor or file.
    """
    choice.check_quantization(dtype, device, quantization)
    if adapters and is_gguf(directory):
        raise ConfigError(f"adapter {next(iter(adapters))!r}: adapters of models in GGUF files are not supported")
    try:
        files = read_files(directory)
    except UnservedFamilyError as error:
        raise ConfigError(f"{error}{fitting_families(directory)}") from None
    hf, family, architecture = files.hf, files.family, files.architecture
    _refuse_dtype(family, dtype)
    config = files.config()
    heads = read_heads(files, config, answers)
    context_tokens = longest_text(config, heads)
    generation_config = read_settings(directory, "generation_config.json")
    generates_from_source = config.is_encoder_decoder and isinstance(config.head, LanguageModelHead)
    decoder_start = family.decoder_start if generates_from_source else None
    generation = generation_defaults(generation_config, hf, config.vocab_size, decoder_start)
    matrix_format = _matrix_format(directory, files)
    with open_checkpoint(directory, matrix_format=matrix_format) as stored:
        check_size(config, stored)
        prediction_head = prediction_head_of(files, config, stored)
        for name, path in (adapters or {}).items():
            _check_adapter(name, path, directory, hf, stored)

    with torch.device("meta"):
        transformer = Transformer(config)
    check_batch_invariance(transformer)
    transformer.eval()
    rules = tensor_rules(files, config)

    def keep(matrices: Mapping[str, QuantizedMatrix]) -> Collection[str]:
        return kept_quantized(transformer, dtype, device, matrices) if quantization is None else ()

    linears, packer = adaptable(transformer), WeightPacker(transformer, dtype, device, quantization, memory)
    report = _load(
        transformer, directory, family, rules, dtype, device, progress, matrix_format, keep, memory.is_filled, packer
    )
    weight_bytes = packer.finish()
    head = None
    loading = HeadLoading(transformer, dtype, device, quantization, memory, progress)
    if draft_head == directory and prediction_head is not None:
        head = load_prediction_head(directory, prediction_head, matrix_format, loading)
    elif draft_head is not None and draft_head != directory:
        head = _load_eagle_head(draft_head, config, loading)
    loaded_adapters = {
        name: _load_adapter(
            transformer, name, path, directory, hf, rules, linears, dtype, device, memory, matrix_format
        )
        for name, path in (adapters or {}).items()
    }
    token_heads = load_token_heads(directory, heads, device)
    sentence = load_sentence_head(directory, heads.sentence, device)
    check_batch_invariance(token_heads, sentence)
    return LoadedModel(
        transformer=transformer,
        config=config,
        family=files.name.lower() if files.gliner is not None else family.name,
        architecture=files.name,
        tasks=checkpoint_tasks(family.architectures[architecture], config.head, heads),
        generation=generation,
        labels=class_names(hf, config.head),
        problem_type=hf.get("problem_type"),
        sentence=sentence,
        heads=token_heads,
        head_settings=heads,
        parameters=report.parameters
        + sum(parameter.numel() for parameter in token_heads.parameters())
        + (0 if head is None else head.parameters),
        weight_bytes=weight_bytes
        + sum(parameter.nbytes for parameter in token_heads.parameters())
        + (0 if head is None else head.weight_bytes),
        context_tokens=context_tokens,
        source_tokens=(config.max_source_positions or context_tokens) if config.is_encoder_decoder else None,
        adapters=loaded_adapters,
        checkpoint_format="" if matrix_format is None else matrix_format.description,
        notes=(*_notes(matrix_format, report, dtype, quantization), *_text_only(hf)),
        has_prediction_head=prediction_head is not None,
        draft_head=None if head is None else head.head,
        draft_head_bytes=0 if head is None else head.weight_bytes,
    )


def _load_eagle_head(directory: Path, config: ModelConfig, loading: HeadLoading) -> LoadedDraftHead:
    """Load an EAGLE-3 head. Raises ConfigError, with its name, for a head that cannot be loaded."""
    if config.decoder is None or config.encoder is not None:
        raise ConfigError(f"EAGLE-3 head {directory.name!r}: only decoders can use it")
    try:
        return load_eagle_head(directory, config, loading)
    except (ConfigError, WeightsError, ResolveError) as error:
        raise ConfigError(f"EAGLE-3 head {directory.name!r}: {error}") from error


def _matrix_format(directory: Path, files: CheckpointFiles) -> QuantizedFormat | None:
    """Format of the quantised matrices in the files, or of a static table of token vectors; None for plain tensors."""
    if is_gguf(directory):
        return GgufFormat(read_gguf(directory))
    return StaticVectors() if files.is_static else quantized_format(files.hf)


def _load(
    transformer: Transformer,
    directory: Path,
    family: Family,
    rules: Sequence[Rule],
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[int, int], None] | None,
    matrix_format: QuantizedFormat | None,
    keep_quantized: Callable[[Mapping[str, QuantizedMatrix]], Collection[str]],
    shapes_only: bool,
    packer: WeightPacker,
) -> LoadReport:
    """Load the weights of the transformer, with the family's defaults for absent tensors.

    matrix_format: format of the checkpoint's quantised matrices, or None.
    keep_quantized: function that selects the quantised matrices that are not dequantised.
    shapes_only: leave the parameters on the meta device, with their shapes and dtype.
    packer: packs each layer once all its parameters are read. Weights outside of layers are not packed here.
    """
    with open_checkpoint(directory, matrix_format=matrix_format) as stored:
        check_count(len(stored), sum(1 for _ in transformer.parameters()))
        expected = expected_tensors(transformer, family, rules, stored)
        if not shapes_only:
            check_constant_tables(transformer, rules, stored)
    if shapes_only:
        transformer.to(dtype)
    report = load_weights(
        directory,
        rules,
        expected.shapes,
        dtype,
        device,
        packer.assign,
        progress,
        keep_float32=_keeps_float32,
        matrix_format=matrix_format,
        keep_quantized=keep_quantized,
        shapes_only=shapes_only,
    )
    if shapes_only:
        return report
    assign = partial(set_parameter, transformer)
    for name, shape in expected.zero.items():
        assign(name, torch.zeros(shape, dtype=torch.float32 if _keeps_float32(name) else dtype, device=device))
    for name, source in expected.tied.items():
        assign(name, transformer.get_parameter(source))
    return report


def _keeps_float32(name: str) -> bool:
    """Whether a parameter is float32 in a model of any dtype. This is true only for the correction bias of a router."""
    return name.endswith(".router.correction")


def _notes(
    matrix_format: QuantizedFormat | None,
    report: LoadReport,
    dtype: torch.dtype,
    quantization: choice.Quantization | None,
) -> tuple[str, ...]:
    """Sentences for users about quantised matrices that are rounded again or have no kernel, and about unused parts."""
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


def _text_only(hf: Mapping[str, Any]) -> tuple[str, ...]:
    """A note for users, if the checkpoint also has parts for pictures or sound, which are not loaded; else empty."""
    parts = {"vision_config": "pictures", "audio_config": "sound"}
    left_out = [part for name, part in parts.items() if isinstance(hf.get(name), dict)]
    refused = " and ".join(left_out)
    return (f"only its language model is loaded: {refused} in requests are refused",) if left_out else ()


def _load_adapter(
    transformer: Transformer,
    name: str,
    directory: Path,
    base: Path,
    hf: Mapping[str, Any],
    rules: Sequence[Rule],
    linears: Mapping[str, tuple[int, int]],
    dtype: torch.dtype,
    device: torch.device,
    memory: TensorMemory,
    matrix_format: QuantizedFormat | None,
) -> LoadedAdapter:
    try:
        if _is_own(directory, base, hf):
            updates = read_own_lora(base, directory.name, hf, rules, linears, device)
        else:
            with open_checkpoint(base, matrix_format=matrix_format) as stored:
                updates = read_lora(directory, _adapter_settings(directory), rules, linears, stored, device)
    except (ConfigError, WeightsError, ResolveError) as error:
        raise ConfigError(f"adapter {name!r}: {error}") from error
    with torch.inference_mode():
        weight_bytes = transformer.adapters.attach(transformer, name, updates, dtype, memory)
    downs = {id(update.down): update.down for update in updates.values()}.values()
    parameters = sum(down.numel() for down in downs) + sum(update.up.numel() for update in updates.values())
    return LoadedAdapter(parameters, weight_bytes)


def _check_adapter(name: str, directory: Path, base: Path, hf: Mapping[str, Any], stored: Mapping[str, Stored]) -> None:
    """Check an adapter with a separate directory before the weights are read.

    directory: directory of the adapter. base, hf: directory and `config.json` of the model.
    Raises ConfigError if the adapter does not fit the checkpoint.
    """
    if _is_own(directory, base, hf):
        return
    try:
        check_lora(directory, _adapter_settings(directory), stored)
    except (ConfigError, WeightsError, ResolveError) as error:
        raise ConfigError(f"adapter {name!r}: {error}") from error


def _is_own(directory: Path, base: Path, hf: Mapping[str, Any]) -> bool:
    """Whether an adapter is part of the model's checkpoint.

    directory: directory of the adapter. base, hf: directory and `config.json` of the model.
    """
    return directory.parent == base and directory.name in adapter_names(hf)


def _adapter_settings(directory: Path) -> Mapping[str, Any]:
    settings = read_settings(directory, "adapter_config.json")
    if settings is None:
        raise ConfigError("the directory has no adapter_config.json")
    return settings


def refused_dtypes(directory: Path) -> Mapping[str, str]:
    """Names of the dtypes that the family of a checkpoint refuses, with the reasons.

    Raises ConfigError as `read_files` does.
    """
    return read_files(directory).family.refused_dtypes


def _refuse_dtype(family: Family, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    if name in family.refused_dtypes:
        raise ConfigError(f"dtype {name} is not supported for {family.name}: {family.refused_dtypes[name]}")


def tensor_rules(files: CheckpointFiles, config: ModelConfig) -> Sequence[Rule]:
    """Rules for the tensors of the transformer. Tensors of heads that are loaded separately are dropped."""
    if is_gguf(files.directory):
        assert files.family.gguf is not None, "gguf_config chooses among families with GGUF files"
        return gguf_rules(config, files.family.gguf, read_gguf(files.directory).tensors)
    rules = files.family.rules(config, files.hf, files.architecture)
    if files.gliner is not None:
        return encoder_rules(rules, files.gliner.prefix)
    return (Drop(r"linear\.weight"), *rules) if files.is_colbert else rules
