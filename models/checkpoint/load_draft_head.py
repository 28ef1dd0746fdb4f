"""Load a draft head: the prediction head of a model's checkpoint, or an EAGLE-3 head from a separate checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from models.backends import choice
from models.backends.tensor_memory import TensorMemory
from models.checkpoint.checkpoint_heads import CheckpointFiles
from models.checkpoint.eagle_files import eagle_config, eagle_rules
from models.checkpoint.pack_weights import WeightPacker
from models.config import ConfigError, ModelConfig
from models.config.draft_head import DraftHeadConfig
from models.draft_head import DraftHead
from models.families.shared.prediction_head import PredictionHead
from models.transformer import Transformer
from weights.errors import WeightsError
from weights.gguf.choose import is_gguf
from weights.load import load_weights
from weights.quantized.formats import QuantizedFormat
from weights.read import open_checkpoint
from weights.rules import Rule
from weights.stored import Stored, StoredTensor


@dataclass(frozen=True)
class LoadedDraftHead:
    """A draft head with its weights.

    parameters: number of parameters that the head does not share with its target. weight_bytes: their memory, in bytes.
    """

    head: DraftHead
    parameters: int
    weight_bytes: int


@dataclass(frozen=True)
class HeadLoading:
    """The target of a draft head, and the settings with which the target was loaded and the head will be.

    The fields other than `target` are arguments of `models.checkpoint.loader.load_model`.
    """

    target: Transformer
    dtype: torch.dtype
    device: torch.device
    quantization: choice.Quantization | None
    memory: TensorMemory
    progress: Callable[[int, int], None] | None = None


def prediction_head_of(
    files: CheckpointFiles, config: ModelConfig, stored: Mapping[str, Stored]
) -> PredictionHead | None:
    """The prediction head of a checkpoint; None for a checkpoint without such a head.

    config: configuration of the model. stored: tensors of the checkpoint by name.
    Raises ConfigError for a head with settings that are not supported.
    """
    describe = files.family.prediction_head
    if describe is None or is_gguf(files.directory) or config.decoder is None:
        return None
    head = describe(config, files.hf, files.architecture)
    return head if head is not None and head.marker in stored else None


def load_prediction_head(
    directory: Path, head: PredictionHead, matrix_format: QuantizedFormat | None, loading: HeadLoading
) -> LoadedDraftHead:
    """Load the prediction head of a checkpoint.

    matrix_format: format of the checkpoint's quantised matrices, which are dequantised; None without such matrices.
    Raises the same errors as `load_model`. A WeightsError names the head.
    """
    try:
        return _load(directory, head.config, head.rules, matrix_format, loading)
    except WeightsError as error:
        raise WeightsError(f"its prediction head: {error}") from error


def load_eagle_head(directory: Path, config: ModelConfig, loading: HeadLoading) -> LoadedDraftHead:
    """Load an EAGLE-3 head, and make its target keep the inputs of the layers that the head reads.

    config: configuration of the target.
    Raises ConfigError for a head that does not fit the target, and the same errors as `load_model`.
    """
    with open_checkpoint(directory) as stored:
        own = eagle_config(directory, stored.keys(), config)
        token_ids = _token_ids(stored.get("d2t"), own.logits_size, config.vocab_size)
    loaded = _load(directory, own, eagle_rules(), None, loading)
    if token_ids is not None:
        loaded.head.token_ids = token_ids.to(loading.device)
    assert loading.target.decoder is not None
    loading.target.decoder.taps = own.target_layers
    return loaded


def _token_ids(offsets: Stored | None, count: int, vocab_size: int) -> Tensor | None:
    """Id of the token that each logit of a head belongs to: [count], int64. None if the head has a logit per token.

    offsets: tensor `d2t`: entry i is the token id of logit i, minus i; None if the checkpoint does not have it.
    count: number of logits. vocab_size: number of tokens of the target.
    Raises ConfigError if two logits have the same token id, or a logit has none below `vocab_size`.
    """
    if offsets is None:
        if count != vocab_size:
            raise ConfigError(
                f"the head predicts {count:,} of {vocab_size:,} tokens, but has no tensor d2t that names them"
            )
        return None
    if count > vocab_size:
        raise ConfigError(f"the head predicts {count:,} tokens, the model has {vocab_size:,}")
    if not isinstance(offsets, StoredTensor) or offsets.dtype not in (torch.int64, torch.int32):
        raise ConfigError("the tensor d2t of the head must have integers")
    if tuple(offsets.shape) != (count,):
        raise ConfigError(f"the tensor d2t has shape {list(offsets.shape)}, not [{count}]")
    tokens = offsets.read().to(torch.int64) + torch.arange(count)
    if int(tokens.min()) < 0 or int(tokens.max()) >= vocab_size or len(torch.unique(tokens)) != count:
        raise ConfigError(f"the tensor d2t does not map the logits to different tokens below {vocab_size:,}")
    return tokens


def _load(
    directory: Path,
    config: DraftHeadConfig,
    rules: Sequence[Rule],
    matrix_format: QuantizedFormat | None,
    loading: HeadLoading,
) -> LoadedDraftHead:
    with torch.device("meta"):
        head = DraftHead(config, loading.target)
    head.eval()
    expected = {name: tuple(parameter.shape) for name, parameter in head.named_parameters()}
    packer = WeightPacker(head, loading.dtype, loading.device, loading.quantization, loading.memory)
    if loading.memory.is_filled:
        head.to(loading.dtype)
    report = load_weights(
        directory,
        rules,
        expected,
        loading.dtype,
        loading.device,
        packer.assign,
        loading.progress,
        keep_float32=lambda name: name.endswith(".router.correction"),
        matrix_format=matrix_format,
        shapes_only=loading.memory.is_filled,
    )
    return LoadedDraftHead(head, report.parameters, packer.finish())
