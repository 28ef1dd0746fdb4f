"""The description of a family: how its `config.json` and its tensor names are read. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from models.config import ModelConfig
from models.families.shared.gguf import GgufFamily
from models.families.shared.prediction_head import PredictionHead
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
"""A task that an architecture can do. `server.ipc.wire` repeats these names, because it must not import `models`."""

DecoderStart = Literal["token", "language"]


@dataclass(frozen=True)
class Family:
    """One family of checkpoints: data and pure functions.

    name: the family's name for users, for example `llama`.
    model_types: values of `model_type` in `config.json`.
    architectures: supported values of `architectures` in `config.json`, each with its tasks. The default comes first.
    config: builds the model configuration from the contents of `config.json` and the architecture. Raises ConfigError
        with the name of a setting that is not supported.
    rules: returns the tensor rules for a model configuration, the contents of `config.json` and the architecture.
    decoder_start: what the decoder of an encoder-decoder starts with. `token`: a fixed token. `language`: the token of
        the target language, which a request must name if the checkpoint does not.
    zero_if_absent: names of model parameters that are zero if a checkpoint does not have them.
    tied_if_absent: model parameters that a checkpoint may lack, each with the parameter that is used in its place.
    refused_dtypes: dtypes that give wrong numbers in this family, each with the reason.
    body: architecture without a head. A sentence-transformers checkpoint is loaded as this architecture. None if every
        architecture can be loaded as it is.
    published_as: code of the family's first checkpoints, by the foreign `model_type` that these checkpoints have.
    gguf: how GGUF files of the family are read, None if they are not supported.
    prediction_head: describes the head for multi-token prediction that checkpoints of the family may have; takes the
        arguments of `rules`, and raises ConfigError for a setting that is not supported. None if they have none, or if
        it is not supported.
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
    prediction_head: Callable[[ModelConfig, Mapping[str, Any], str], PredictionHead | None] | None = None
