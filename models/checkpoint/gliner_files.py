"""Read the configuration of a GLiNER checkpoint: `gliner_config.json`, which contains the configuration of its encoder.

Source: the published code, https://github.com/urchade/GLiNER (version 0.2.29). Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.checkpoint.settings_files import read_settings
from models.config import ConfigError
from models.config.entities import LabelledSpansConfig
from models.families.shared.fields import Fields, short
from weights.gguf.choose import is_gguf
from weights.rules import Drop, Rename, Rule

FILE = "gliner_config.json"
ENCODER_PREFIX = r"token_rep_layer\.bert_layer\.model\."
_UNSUPPORTED: Mapping[str, str] = {
    "labels_encoder": "a second encoder for the labels",
    "labels_decoder": "a decoder that writes labels",
    "relations_layer": "relations between entities",
    "post_fusion_schema": "attention between words and labels after the encoder",
    "span_encoder_config": "a second encoder for the words",
}
"""Settings that are not supported. The value is the feature that the setting turns on, for the error message."""


@dataclass(frozen=True)
class GlinerFiles:
    """Configuration of a GLiNER or GLiNER2 checkpoint.

    encoder: `config.json` of its encoder.
    head: settings of the parts after the encoder.
    prefix: regular expression for the first part of the encoder's tensor names.
    """

    encoder: Mapping[str, Any]
    head: LabelledSpansConfig
    prefix: str = ENCODER_PREFIX


def read_gliner(directory: Path) -> GlinerFiles | None:
    """The configuration of a GLiNER checkpoint; None for any other checkpoint.

    Raises ConfigError for settings that are not supported.
    """
    settings = None if is_gguf(directory) else read_settings(directory, FILE)
    if settings is None:
        return None
    for name, meaning in _UNSUPPORTED.items():
        if settings.get(name):
            raise ConfigError(f"{name!r}: {meaning} is not supported")
    fields = Fields(settings)
    fields.refuse_unless("fuse_layers", False)
    fields.refuse_unless("represent_spans", False)
    fields.refuse_unless("precomputed_prompts_mode", False)
    fields.refuse_unless("embed_ent_token", True)
    fields.refuse_unless("subtoken_pooling", "first")
    fields.refuse_unless("words_splitter_type", "whitespace")
    fields.refuse_unless("span_mode", "markerV0", "token_level")
    encoder = settings.get("encoder_config")
    if not isinstance(encoder, dict):
        raise ConfigError(
            f"{FILE!r} has no 'encoder_config': save the checkpoint again with gliner 0.2 or newer, which writes it "
            "and the tokenizer"
        )
    if fields.integer("class_token_index", -1, least=-1) < 0:
        raise ConfigError("'class_token_index': -1 stands for an untrained model")
    encoder = {**encoder, "model_type": encoder.get("model_type", "deberta-v2"), "architectures": None}
    width = Fields(encoder).raw("hidden_size")
    if not isinstance(width, int):
        raise ConfigError(f"'hidden_size' of 'encoder_config' must be an integer, not {short(width)}")
    head = LabelledSpansConfig(
        width=fields.integer("hidden_size", 512),
        encoder_width=width,
        label_token=fields.text("ent_token", "<<ENT>>"),
        label_token_id=fields.integer("class_token_index", least=0),
        closing=(fields.text("sep_token", "<<SEP>>"),),
        max_words=fields.integer("max_len", 384),
        max_span_words=fields.integer("max_width", 12),
        recurrent_layers=fields.integer("num_rnn_layers", 1, least=0),
        by_word=fields.text("span_mode", "markerV0") == "token_level",
    )
    return GlinerFiles(encoder, head)


def encoder_rules(rules: Sequence[Rule], prefix: str) -> tuple[Rule, ...]:
    """Rules for the encoder of a GLiNER checkpoint. Tensors outside of the encoder are dropped.

    rules: rules of the encoder's family. prefix: regular expression for the first part of the encoder's tensor names.
    """
    inside = (Rule(f"{prefix}(?:{rule.pattern})", rule.names, rule.changes) for rule in rules)
    return (*inside, Drop(rf"(?!{prefix}).*"))


def head_rules() -> tuple[Rule, ...]:
    """Rules for the tensors after the encoder. Tensors of the encoder are dropped."""
    kinds = r"\.(weight|bias)"
    projections = {
        r"span_rep_layer\.span_rep_layer\.project_start": "start",
        r"span_rep_layer\.span_rep_layer\.project_end": "end",
        r"span_rep_layer\.span_rep_layer\.out_project": "span",
        r"prompt_rep_layer": "label",
        r"scorer\.out_mlp": "output",
    }
    return (
        Rename(r"token_rep_layer\.projection" + kinds, r"projection.\1"),
        Rename(r"rnn\.lstm\.((?:weight|bias)_[ih]h_l\d+(?:_reverse)?)", r"recurrent.\1"),
        *(Rename(rf"{old}\.0{kinds}", rf"scorer.{new}.up.\1") for old, new in projections.items()),
        *(Rename(rf"{old}\.3{kinds}", rf"scorer.{new}.down.\1") for old, new in projections.items()),
        Rename(r"scorer\.proj_(token|label)" + kinds, r"scorer.\1.\2"),
        Drop(rf"{ENCODER_PREFIX}.*"),
    )
