"""The tables of `docs/parameter-names.md` have the parameters of every family, and no others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
import transformers

from models.config import ConfigError
from models.families import FAMILIES
from models.transformer import Transformer
from tests.families.checkpoints import CASES
from tests.parity import cohere_asr, ctc, moonshine, parakeet
from tests.parity.encoder_decoder_cases import CASES as SEQ2SEQ
from tests.parity.recent_encoder_cases import BODIES as RECENT_BODIES
from tests.parity.test_decoders import CASES as DECODERS
from tests.parity.test_encoders import BODIES
from tests.parity.test_sparse_encoders import CASES as SPARSE

PAGE = Path(__file__).parents[2] / "docs" / "parameter-names.md"
INDICES = "NEHPSF"
"""Letters that stand for an index in the tables: layer, expert, head, part, stream, feed-forward."""


def rows():
    """Patterns of the names in the first columns of the tables."""
    cells = re.findall(r"^\| (`.*?`) *\|", PAGE.read_text(), re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell) if "...." not in name]


def pattern(row):
    """A regular expression for the names of one row. A row of the encoder also applies to the decoder."""
    text = row.replace(".", r"\.").translate({ord("{"): "(?:", ord("}"): ")", ord(","): "|"})
    text = re.sub(rf"(?<=\.)[{INDICES}](?=\\\.|$)", r"\\d+", text)
    return re.compile(re.sub(r"^(?:encoder|decoder)\\.", r"(?:encoder|decoder)\\.", text))


def configurations():
    """Yield small configurations of all families that together have all parts."""
    yield from (case[1] for case in (CASES | DECODERS | SEQ2SEQ).values())
    yield transformers.WhisperConfig(**dict.fromkeys(("encoder_layers", "decoder_layers"), 1), d_model=48)
    yield from map(ctc.config, ctc.SHAPES)
    yield from moonshine.SHAPES.values()
    yield from cohere_asr.SHAPES.values()
    yield from map(parakeet.config, parakeet.ENCODERS)
    for stem, settings in (BODIES | RECENT_BODIES | SPARSE).values():
        yield getattr(transformers, f"{stem}Config")(**settings)


def parameter_names():
    """The parameter names of every family, with every head, written as on the page."""
    names, seen = set(), set()
    for config in configurations():
        hf = json.loads(config.to_json_string(use_diff=False))
        family = FAMILIES[hf["model_type"]]
        for architecture in family.architectures:
            try:
                model = family.config(hf, architecture)
            except ConfigError:  # the architecture with pictures, of a configuration of the text part
                continue
            parts = {model.head, model.encoder, model.decoder}
            if parts <= seen:
                continue
            seen |= parts
            with torch.device("meta"):
                found = Transformer(model).named_parameters()
            names |= {re.sub(r"\.\d+(?=\.|$)", ".0", name) for name, _ in found}
    # The page has one row for attention to the own text and to that of the encoder, and for the parts of a sum.
    return {name.replace("cross_attention", "attention").replace("parts.0.", "") for name in names}


def test_the_page_names_every_parameter_and_no_other():
    names, patterns = parameter_names(), {row: pattern(row) for row in rows()}
    assert len(patterns) > 70
    missing = sorted(name for name in names if not any(known.fullmatch(name) for known in patterns.values()))
    unknown = [row for row, known in patterns.items() if not any(map(known.fullmatch, names))]
    assert (missing, unknown) == ([], [])
