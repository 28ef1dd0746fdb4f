"""What a family of checkpoints is: how its `config.json` and its tensor names are read. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from models.config import ModelConfig
from weights.rules import Rule

Task = Literal[
    "generate",
    "translate",
    "embed",
    "classify",
    "rerank",
    "fill_mask",
    "token_classify",
    "question_answer",
    "transcribe",
]

DecoderStart = Literal["token", "language"]


@dataclass(frozen=True)
class Family:
    """One family of checkpoints, all data and pure functions; a family file ends in `FAMILY = Family(...)`.

    name: for people (`llama`). model_types: values of `model_type` in `config.json` that mean this family.
    architectures: class names of `architectures` in `config.json` that can be served, each with what it can do; the
    first one stands in where the file names none.
    config: (`config.json`, architecture) to the model. Raises ConfigError naming the setting that is not supported.
    rules: (model, `config.json`, architecture) to the rules for the checkpoint's tensors.
    decoder_start: the first token of a decoder beside an encoder: a fixed token (`token`), or the target language
    (`language`), which a request then names where the checkpoint does not.
    zero_if_absent: our names of parameters that some checkpoints leave out and that are zero then.
    tied_if_absent: our names of parameters that some checkpoints leave out, each with the one it is tied to then.
    body: the architecture that is its layers alone, which makes vectors of texts; what a checkpoint of sentence-
    transformers is served as, whatever head it was trained from. None where no head has to be taken off.
    refused_dtypes: dtypes that give wrong numbers in this family, with the reason.
    """

    name: str
    model_types: tuple[str, ...]
    architectures: Mapping[str, tuple[Task, ...]]
    config: Callable[[Mapping[str, Any], str], ModelConfig]
    rules: Callable[[ModelConfig, Mapping[str, Any], str], Sequence[Rule]]
    decoder_start: DecoderStart = "token"
    zero_if_absent: frozenset[str] = frozenset()
    tied_if_absent: Mapping[str, str] = field(default_factory=dict)
    refused_dtypes: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
