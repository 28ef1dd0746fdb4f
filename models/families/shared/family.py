"""The description of a family: how its `config.json` and its tensor names are read. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from models.config import ModelConfig
from models.families.shared.gguf import GgufFamily
from models.families.shared.published_code import PublishedCode
from weights.rules import Rule

CheckpointTask = Literal[
    "generate",
    "translate",
    "embed",
    "classify",
    "rerank",
    "fill_mask",
    "token_classify",
    "question_answer",
    "transcribe",
    "embed_sparse",
    "late_interaction",
]
"""A task that an architecture can do. `Task` of the messages has the same names: they know nothing of models."""

DecoderStart = Literal["token", "language"]


@dataclass(frozen=True)
class Family:
    """One family of checkpoints: data and pure functions.

    name: the family's name for users, for example `llama`.
    model_types: values of `model_type` in `config.json`.
    architectures: supported values of `architectures` in `config.json`, each with its tasks. The default comes first.
    config: builds the model configuration from (`config.json`, architecture). Raises ConfigError with the name of a
        setting that is not supported.
    rules: returns the tensor rules for (model, `config.json`, architecture).
    decoder_start: start of the decoder of an encoder-decoder. `token`: a fixed token. `language`: the target language,
        which a request must name if the checkpoint does not.
    zero_if_absent: names of our parameters that are zero if a checkpoint does not have them.
    tied_if_absent: names of our parameters that are tied to another one if a checkpoint does not have them.
    refused_dtypes: dtypes that give wrong numbers in this family, with the reason.
    body: architecture without a head. A sentence-transformers checkpoint is loaded as this architecture. None if every
        architecture can be loaded as it is.
    published_as: published code of the family whose checkpoints have another `model_type`, by that `model_type`.
    gguf: how the GGUF files of the family are read, None if they are not supported.
    """

    name: str
    model_types: tuple[str, ...]
    architectures: Mapping[str, tuple[CheckpointTask, ...]]
    config: Callable[[Mapping[str, Any], str], ModelConfig]
    rules: Callable[[ModelConfig, Mapping[str, Any], str], Sequence[Rule]]
    decoder_start: DecoderStart = "token"
    zero_if_absent: frozenset[str] = frozenset()
    tied_if_absent: Mapping[str, str] = field(default_factory=dict)
    refused_dtypes: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    published_as: Mapping[str, PublishedCode] = field(default_factory=dict)
    gguf: GgufFamily | None = None
