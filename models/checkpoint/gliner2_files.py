"""Read the configuration of a GLiNER2 checkpoint: `config.json`, and `encoder_config/config.json` of its encoder.

Source: the published code, https://github.com/fastino-ai/GLiNER2. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from models.checkpoint.gliner_files import GlinerFiles
from models.checkpoint.settings_files import read_settings
from models.config import ConfigError
from models.config.entities import LabelledSpansConfig
from models.families.shared.fields import Fields, short
from weights.gguf.choose import is_gguf
from weights.rules import Drop, Rename, Rule

MODEL_TYPE = "extractor"
ENCODER_FILE = "encoder_config/config.json"
_PREFIX = r"encoder\."
_MAX_WORDS = 2048
"""Largest number of words that are read at once, for a checkpoint without a limit. The published code has no limit."""
_SCHEMAS: Mapping[str, Literal["projection", "transformer"]] = {
    "count_lstm": "projection",
    "count_lstm_v2": "transformer",
}


def read_gliner2(directory: Path) -> GlinerFiles | None:
    """The configuration of a GLiNER2 checkpoint; None for any other checkpoint.

    Raises ConfigError for settings that are not supported.
    """
    settings = None if is_gguf(directory) else read_settings(directory, "config.json")
    if settings is None or settings.get("model_type") != MODEL_TYPE:
        return None
    fields = Fields(settings)
    fields.refuse_unless("architecture", "span")
    fields.refuse_unless("token_pooling", "first")
    fields.refuse_unless("counting_layer", *_SCHEMAS)
    encoder = read_settings(directory, ENCODER_FILE)
    if encoder is None:
        raise ConfigError(f"{ENCODER_FILE!r} is missing: save the checkpoint again with gliner2, which writes it")
    width = Fields(encoder).raw("hidden_size")
    if not isinstance(width, int) or isinstance(width, bool):
        raise ConfigError(f"'hidden_size' of {ENCODER_FILE!r} must be an integer, not {short(width)}")
    encoder = {**encoder, "architectures": None}
    head = LabelledSpansConfig(
        width=width,
        encoder_width=width,
        label_token="[E]",
        label_token_id=None,
        opening=("(", "[P]", "entities", "("),
        closing=(")", ")", "[SEP_TEXT]"),
        max_words=fields.optional_integer("max_len") or _MAX_WORDS,
        max_span_words=fields.integer("max_width", 8),
        recurrent_layers=0,
        schema=_SCHEMAS[fields.text("counting_layer", "count_lstm")],
        class_token="[L]",
    )
    return GlinerFiles(encoder, head, _PREFIX)


def schema_rules(head: LabelledSpansConfig) -> tuple[Rule, ...]:
    """Rules for the tensors after the encoder.

    The tensors that predict how many instances a structure has are dropped, because this number is not computed.
    """
    kinds, spans = r"\.(weight|bias)", r"span_rep\.span_rep_layer\."
    ends = {"project_start": "start", "project_end": "end", "out_project": "span"}
    counted, ours = r"count_embed\.", "scorer.label."
    projection = counted + (r"transformer\.out_projector" if head.schema == "transformer" else "projector")
    layers: Mapping[str, Any] = {"0": 0, "2": 1, "4": 2}
    return (
        *(Rename(rf"{spans}{old}\.0{kinds}", rf"scorer.{new}.up.\1") for old, new in ends.items()),
        *(Rename(rf"{spans}{old}\.3{kinds}", rf"scorer.{new}.down.\1") for old, new in ends.items()),
        Rename(counted + r"pos_embedding\.weight", ours + "instances"),
        Rename(counted + r"gru\.((?:weight|bias)_[ih]h_l0)", ours + r"recurrent.\1"),
        *(Rename(rf"{projection}\.{old}{kinds}", rf"{ours}projection.{new}.\1") for old, new in layers.items()),
        Rename(counted + r"transformer\.in_projector" + kinds, ours + r"narrow.\1"),
        Rename(counted + r"transformer\.transformer\.(.*)", ours + r"transformer.\1"),
        Rename(r"classifier\.0" + kinds, r"classes.up.\1"),
        Rename(r"classifier\.2" + kinds, r"classes.down.\1"),
        Drop(r"count_pred\..*"),
        Drop(rf"{_PREFIX}.*"),
    )
