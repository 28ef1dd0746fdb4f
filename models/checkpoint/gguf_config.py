"""Build the settings that correspond to `config.json` from the metadata of a GGUF file. Imports no torch."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from models.families import FAMILIES
from weights.errors import GgufError
from weights.gguf.container import Gguf
from weights.gguf.documents import document
from weights.gguf.metadata import Metadata


def gguf_config(gguf: Gguf) -> dict[str, Any]:
    """The settings of a GGUF file in the form of a `config.json`, with the special token ids for generation.

    Raises GgufError for a file that is not a model, and for an architecture that is not supported.
    """
    if gguf.get("general.type", "model") != "model":
        raise GgufError(f"{gguf.name!r} is not a model: 'general.type' is {str(gguf.get('general.type'))[:40]!r}")
    of = Metadata(gguf)
    families = {family.name: family.gguf for family in FAMILIES.values() if family.gguf is not None}
    readers = [reader for reader in families.values() if of.architecture in reader.settings and reader.applies(of)]
    if not readers:
        names = sorted({name for reader in families.values() for name in reader.settings})
        nearest = get_close_matches(of.architecture, names, 1, cutoff=0.0)[0]
        raise GgufError(
            f"{gguf.name!r}: architecture {of.architecture[:40]!r} is not supported in GGUF files; "
            f"the nearest name is {nearest}"
        )
    (reader,) = readers
    generation = document(gguf, "generation_config.json")
    assert isinstance(generation, dict)
    settings = {**reader.settings[of.architecture](of), **generation}
    if of.optional("attention.causal") is False and not _reads_both_ways(of):
        return {**settings, **_encoder_of_decoder(settings["model_type"])}
    return settings


def _encoder_of_decoder(model_type: str) -> dict[str, Any]:
    """Settings that turn a decoder into an encoder, in which each token attends to the whole text.

    Families that do not support this refuse the settings.
    """
    tasks = FAMILIES[model_type].architectures
    return {"is_causal": False, "architectures": [name for name, served in tasks.items() if served == ("embed",)][:1]}


def _reads_both_ways(of: Metadata) -> bool:
    """Whether all models of an architecture are encoders, whose tokens attend to the whole text."""
    return "bert" in of.architecture or of.architecture == "gemma-embedding"
