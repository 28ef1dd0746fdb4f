"""Read from the files of a checkpoint which heads it has in addition to the head of its architecture.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from models.checkpoint.gliner2_files import read_gliner2
from models.checkpoint.gliner_files import GlinerFiles, read_gliner
from models.checkpoint.late_interaction_files import (
    check_attention,
    has_token_heads,
    is_colbert,
    is_multi_vector,
    late_interaction_config,
)
from models.checkpoint.sentence_files import (
    answer_logits,
    is_cross_encoder,
    module_list,
    sentence_config,
    vocabulary_weights,
    without_pooling,
)
from models.checkpoint.settings_files import read_settings
from models.checkpoint.static_files import static_settings
from models.config import (
    ClassificationHead,
    ConfigError,
    EmbeddingConfig,
    HeadConfig,
    LanguageModelHead,
    MaskedLanguageModelHead,
    ModelConfig,
    PoolingHead,
    TokenClassificationHead,
)
from models.config.entities import LabelledSpansConfig
from models.config.late_interaction import LateInteractionConfig
from models.config.sentence import AnswerLogits, Pooling, SentenceConfig, VocabularyWeights
from models.families import family_of
from models.families.model2vec import FAMILY as STATIC_FAMILY
from models.families.shared.family import CheckpointTask, Family
from weights.eagle_heads import eagle_version_of


@dataclass(frozen=True)
class CheckpointHeads:
    """Settings of the heads of one checkpoint; None for heads that it does not have.

    sentence: head that computes one vector per text.
    late_interaction: head that computes one vector per token.
    weights_width: width of the hidden states from which the weight of each token is computed, for sparse embeddings.
    spans: head that finds entities with labels from the request.
    vocabulary: how a sparse vector over the vocabulary is computed, if the checkpoint says it.
    answers: whether the checkpoint is a language model that ranks texts by the logits of one or two answer tokens.
    answer: these answer tokens, if the files of the checkpoint name them.
    tasks: all tasks of the checkpoint; None if they are the tasks of its architecture and `more_tasks`.
    more_tasks: tasks in addition to the tasks of the architecture.
    """

    sentence: SentenceConfig
    late_interaction: LateInteractionConfig | None = None
    weights_width: int | None = None
    spans: LabelledSpansConfig | None = None
    vocabulary: VocabularyWeights | None = None
    answer: AnswerLogits | None = None
    answers: bool = False
    tasks: tuple[CheckpointTask, ...] | None = None
    more_tasks: tuple[CheckpointTask, ...] = ()


@dataclass(frozen=True)
class CheckpointFiles:
    """Settings of a checkpoint, and its family and architecture, which they determine.

    hf: `config.json`; for a GLiNER checkpoint, the configuration of its encoder.
    architecture: class in transformers whose body and head are built. name: class that the files name.
    gliner: configuration of a GLiNER checkpoint, or None.
    """

    directory: Path
    hf: Mapping[str, Any]
    family: Family
    architecture: str
    name: str
    gliner: GlinerFiles | None

    @property
    def is_colbert(self) -> bool:
        return is_colbert(self.hf)

    @property
    def is_static(self) -> bool:
        """Whether the checkpoint is a table with one vector per token, without layers."""
        return self.architecture == "StaticModel"

    def config(self) -> ModelConfig:
        """The configuration of the model. Raises ConfigError for settings that are not supported."""
        config = self.family.config(self.hf, self.architecture)
        if self.gliner is None and not self.is_colbert:
            return config
        if config.encoder is None or config.decoder is not None or not isinstance(config.head, PoolingHead):
            raise ConfigError(f"{self.name}: the family {self.family.name} is not supported as its encoder")
        # The published code of GLiNER does not limit the length of texts for an encoder with relative positions.
        embedding = config.encoder.embedding
        is_relative = isinstance(embedding, EmbeddingConfig) and embedding.positions is None
        is_relative = is_relative and config.encoder.distances is not None
        return replace(config, max_positions=None) if self.gliner is not None and is_relative else config


def _with_quantization(directory: Path, hf: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with `quantization_config`. If it is missing, it is taken from `hf_quant_config.json`.

    Older checkpoints of NVIDIA's Model Optimizer have this separate file.
    """
    settings = (read_settings(directory, "hf_quant_config.json") or {}).get("quantization")
    if hf.get("quantization_config") or not isinstance(settings, dict) or settings.get("quant_algo") is None:
        return hf
    return {**hf, "quantization_config": {**settings, "quant_method": "modelopt"}}


def read_files(directory: Path) -> CheckpointFiles:
    """Read the settings files of a checkpoint, and find its family and architecture.

    Raises ConfigError for a missing or invalid file, and for a family or setting that is not supported.
    """
    gliner = read_gliner(directory) or read_gliner2(directory)
    if gliner is None and (static := static_settings(directory)) is not None:
        return CheckpointFiles(directory, static, STATIC_FAMILY, "StaticModel", "StaticModel", None)
    hf = read_settings(directory, "config.json") if gliner is None else dict(gliner.encoder)
    if hf is None:
        raise ConfigError("the checkpoint has no config.json")
    if eagle_version_of(hf) is not None:
        raise ConfigError(
            "an EAGLE head only drafts for another model: serve that model with --speculative NAME=draft:HEAD"
        )
    hf = _with_quantization(directory, hf)
    if gliner is not None or is_colbert(hf):
        family, architecture = family_of({**hf, "architectures": None})
        name = "HF_ColBERT" if gliner is None else "GLiNER" if gliner.head.schema is None else "GLiNER2"
        return CheckpointFiles(directory, hf, family, family.body or architecture, name, gliner)
    family, architecture = family_of(hf)
    modules = module_list(directory)
    has_own_head = modules is not None and (
        vocabulary_weights(directory) is not None or answer_logits(directory) is not None or is_cross_encoder(directory)
    )
    if family.body is not None and modules is not None and not has_own_head:
        architecture = family.body
    return CheckpointFiles(directory, hf, family, architecture, architecture, None)


def read_heads(files: CheckpointFiles, config: ModelConfig, answers: bool) -> CheckpointHeads:
    """Read the settings of all heads of a checkpoint.

    answers: whether the operator serves a language model as a reranker.
    Raises ConfigError for settings that are not supported, and for heads that the architecture cannot have.
    """
    directory, width = files.directory, config.output_size
    pooling: Pooling = "last" if config.encoder is None else "mean"
    plain = partial(without_pooling, directory, pooling)
    if files.is_static and module_list(directory) is None:
        return CheckpointHeads(SentenceConfig(("mean",), normalize=bool(files.hf["normalize"])))
    if files.gliner is not None:
        return CheckpointHeads(plain(), spans=files.gliner.head, tasks=("token_classify",))
    late = late_interaction_config(directory, files.hf, width)
    if late is not None:
        check_attention(late, config)
        if files.is_colbert or not has_token_heads(directory) or is_multi_vector(directory):
            return CheckpointHeads(plain(), late, tasks=("late_interaction",))
        sentence = sentence_config(directory, width, "cls")
        return CheckpointHeads(sentence, late, width, more_tasks=("late_interaction", "embed_sparse"))
    vocabulary, answer = vocabulary_weights(directory), answer_logits(directory)
    if vocabulary is not None:
        if not isinstance(config.head, MaskedLanguageModelHead):
            raise ConfigError(f"'modules.json': SpladePooling needs a masked language model, not {files.name}")
        return CheckpointHeads(plain(), vocabulary=vocabulary, tasks=("embed_sparse",))
    if answer is not None or (answers and isinstance(config.head, LanguageModelHead)):
        if not isinstance(config.head, LanguageModelHead) or config.encoder is not None:
            raise ConfigError("the logits of an answer are supported for decoders with a language model head only")
        return CheckpointHeads(plain(), answer=answer, answers=True, tasks=("rerank",))
    if is_cross_encoder(directory):
        return CheckpointHeads(plain())
    return CheckpointHeads(sentence_config(directory, width, pooling))


def checkpoint_tasks(
    tasks: tuple[CheckpointTask, ...], head: HeadConfig, heads: CheckpointHeads
) -> tuple[CheckpointTask, ...]:
    """Tasks of a checkpoint: the tasks of its architecture and its heads, and `rerank` for a classifier with one label.

    tasks: tasks of the architecture.
    """
    if heads.tasks is not None:
        return heads.tasks
    is_reranker = isinstance(head, ClassificationHead) and head.num_labels == 1
    return (*tasks, *heads.more_tasks, "rerank") if is_reranker else (*tasks, *heads.more_tasks)


def longest_text(config: ModelConfig, heads: CheckpointHeads) -> int | None:
    """Limit in tokens for a sequence of a decoder or of an encoder-only model; None if the files state no limit."""
    limits = [limit for limit in (config.max_positions, heads.sentence.max_tokens) if limit is not None]
    return min(limits, default=None)


def class_names(hf: Mapping[str, Any], head: HeadConfig) -> tuple[str, ...]:
    """Class names by index, for a classification head; empty for other heads.

    Without names in the files, they are `LABEL_0`, `LABEL_1`..., the default names of transformers.
    Raises ConfigError if the indices are not consecutive.
    """
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
