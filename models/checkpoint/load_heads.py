"""Build the heads that a checkpoint has in addition to the head of its architecture, and load their weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from models.checkpoint.checkpoint_heads import CheckpointHeads
from models.checkpoint.gliner2_files import schema_rules
from models.checkpoint.gliner_files import head_rules
from models.checkpoint.late_interaction_files import TOKEN_WEIGHTS_FILE
from models.config.sentence import DenseConfig, SentenceConfig, VectorNormConfig
from models.layers.linear import set_parameter
from models.layers.sentence_head import SentenceHead
from models.layers.token_heads import TokenHeads
from weights.load import WeightsError, load_weights
from weights.rules import Drop, Rename, Rule

_DENSE_RULES = (Rename(r"(linear|residual|norm)\.(weight|bias)", r"\1.\2"),)


def load_sentence_head(directory: Path, config: SentenceConfig, device: torch.device) -> SentenceHead:
    """Build the head that computes the vector of a text, and load its dense layers in float32.

    Each layer has a separate folder.

    Raises WeightsError for missing or invalid weights.
    """
    with torch.device("meta"):
        head = SentenceHead(config)
    for layer, module in zip(config.dense, head.dense, strict=True):
        _load_dense(directory, layer, module, device)
    return head.eval()


def load_token_heads(directory: Path, config: CheckpointHeads, device: torch.device) -> TokenHeads:
    """Build the heads that compute results per token, and load their weights in float32.

    Raises WeightsError for missing or invalid weights.
    """
    with torch.device("meta"):
        heads = TokenHeads(
            config.late_interaction, config.weights_width, config.spans, config.vocabulary, config.answers
        )
    if heads.vectors is not None:
        for layer, module in zip(heads.vectors.config.dense, heads.vectors.dense, strict=True):
            _load_dense(directory, layer, module, device)
    if heads.weights is not None:
        rules = (Rename(r"(weight|bias)", r"linear.\1"),)
        _load(directory, heads.weights, rules, device, file=TOKEN_WEIGHTS_FILE)
    if heads.spans is not None:
        spans = heads.spans.config
        _load(directory, heads.spans, head_rules() if spans.schema is None else schema_rules(spans), device)
    return heads.eval()


def _load_dense(
    directory: Path, config: DenseConfig | VectorNormConfig, module: nn.Module, device: torch.device
) -> None:
    rules: Sequence[Rule] = _DENSE_RULES
    file = config.file if isinstance(config, DenseConfig) else ""
    if file:
        rules = (Rename(r"(weight|bias)", r"linear.\1"),)
    elif not config.folder:
        rules = (*rules, Drop(r".*"))
    try:
        _load(directory, module, rules, device, config.folder, file)
    except WeightsError as error:
        raise WeightsError(f"{file or config.folder}: {error}".removeprefix(": ")) from None


def _load(
    directory: Path, module: nn.Module, rules: Sequence[Rule], device: torch.device, folder: str = "", file: str = ""
) -> None:
    shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    assign = partial(set_parameter, module)
    load_weights(directory, rules, shapes, torch.float32, device, assign, folder=folder, file=file)
