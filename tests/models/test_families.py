"""Families build configurations, map the tensor names of first releases, and do not import torch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import models.families
from models.config import (
    AttentionConfig,
    BucketBiasConfig,
    ConfigError,
    DynamicScaling,
    FeedForwardConfig,
    LanguageModelHead,
    LongScaling,
    MixtureOfExpertsConfig,
    NormConfig,
    RopeConfig,
    RouterConfig,
    YarnScaling,
)
from models.families import FAMILIES, family_of
from tests.models.family_bases import (
    BART,
    BASES,
    BLENDERBOT,
    BLENDERBOT_SMALL,
    BLOOM,
    GPTJ,
    M2M_100,
    MBART,
    NEO,
    NEOX,
    OPENAI,
    OPT,
    PEGASUS,
    PHI,
    build,
)
from weights.rules import first_match


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_every_base_configuration_is_supported(base):
    config = build(base)
    family, architecture = family_of(base)
    assert family.rules(config, base, architecture)


def test_every_family_is_registered_under_its_model_types():
    for kind, family in FAMILIES.items():
        assert kind in family.model_types and family.architectures


@pytest.mark.parametrize(
    ("base", "dropped", "renamed"),
    [
        (GPTJ, "transformer.h.0.attn.masked_bias", "transformer.wte.weight"),
        (NEOX, "gpt_neox.layers.3.attention.rotary_emb.inv_freq", "gpt_neox.embed_in.weight"),
        (NEO, "transformer.h.0.attn.attention.masked_bias", "transformer.wte.weight"),
        (OPENAI, "h.0.attn.bias", "tokens_embed.weight"),
        (OPT, "model.decoder.version", "decoder.embed_tokens.weight"),
        (PHI, "model.layers.0.self_attn.rotary_emb.inv_freq", "model.embed_tokens.weight"),
        (BLOOM, None, "word_embeddings.weight"),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_tensor_names_of_first_releases(base, dropped, renamed):
    family, architecture = family_of(base)
    rules = family.rules(build(base), base, architecture)
    assert dropped is None or first_match(rules, dropped)[1] == ()
    assert first_match(rules, renamed)[1] == ("decoder.embedding.tokens.weight",)


@pytest.mark.parametrize("base", [BART, MBART, M2M_100, PEGASUS, BLENDERBOT, BLENDERBOT_SMALL])
def test_tensor_names_of_first_seq2seq_releases(base):
    """Checkpoints of first releases load, although they contain all copies of tied embeddings and sinusoidal tables.

    Triptych computes these tables itself.
    """
    family, architecture = family_of(base)
    rules = family.rules(build(base), base, architecture)
    for name in ("shared", "encoder.embed_tokens", "decoder.embed_tokens"):
        for prefix in ("", "model."):
            assert first_match(rules, f"{prefix}{name}.weight")[1] == ("encoder.embedding.tokens.weight",)
    assert first_match(rules, "lm_head.weight")[1] == ("encoder.embedding.tokens.weight",)
    assert first_match(rules, "model.decoder.version")[1] == ()
    if base in (M2M_100, PEGASUS):
        assert first_match(rules, "model.encoder.embed_positions.weight")[1] == ()
    assert base is not M2M_100 or first_match(rules, "model.decoder.embed_positions.weights")[1] == ()


@pytest.mark.parametrize(
    "make",
    [
        lambda: NormConfig("layer", 0.0),
        lambda: RopeConfig(10000.0, 7),
        lambda: RopeConfig(-1.0, 8),
        lambda: RopeConfig(1.0, 8, scaling=YarnScaling(2.0, 64, 32.0, 1.0, True, 1.0)),
        lambda: RopeConfig(10000.0, 8, scaling=LongScaling((1.0,) * 4, (1.0,), 64, 1.0)),
        lambda: RopeConfig(10000.0, 2, scaling=DynamicScaling(2.0, 64)),
        lambda: AttentionConfig(4, 4, 8, 1.0, True, score_cap=0.0),
        lambda: LanguageModelHead(tied=True, cap=-1.0),
        lambda: AttentionConfig(4, 3, 8, 1.0, True),
        lambda: AttentionConfig(4, 4, 8, 1.0, True, rope=RopeConfig(10000.0, 16)),
        lambda: AttentionConfig(4, 4, 8, 1.0, True, window=0),
        lambda: FeedForwardConfig(0, "relu"),
        lambda: MixtureOfExpertsConfig(FeedForwardConfig(8, "relu"), 4, 5, RouterConfig(normalized=True)),
        lambda: BucketBiasConfig(32, 8, bidirectional=True),
    ],
)
def test_invalid_configurations_of_parts_are_refused(make):
    with pytest.raises(ConfigError):
        make()


def test_families_import_no_torch():
    code = "import sys, models.families; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_family_imports_no_other_family():
    folder = Path(models.families.__file__).parent
    names = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    for path in folder.rglob("*.py"):
        if path != folder / "__init__.py":
            imported = re.findall(r"models\.families\.(\w+)|from models\.families import (\w+)", path.read_text())
            assert not names & {name for pair in imported for name in pair}, path.name
