"""Every registered family is compared with its reference in at least two shapes.

For every family that generates, this includes generation with four beams.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
import transformers

from models.families import FAMILIES
from server.engine.loading import LoadedCheckpoint
from server.ipc.descriptions import ModelSpec
from tests.engine import test_speech
from tests.engine.harness import Pair, as_transformers_settings, generate, reference, run
from tests.engine.tiny_checkpoints import GENERATING
from tests.parity import speech, test_native, test_text_of_picture_models
from tests.parity.checkpoints import load, random_ids, save
from tests.parity.decoder_cases import MORE_CASES
from tests.parity.test_decoders import CASES as DECODERS
from tests.parity.test_encoder_decoders import CASES as SEQ2SEQ
from tests.parity.test_encoders import BODIES
from tests.parity.test_sparse_encoder_decoders import CASES as SPARSE_SEQ2SEQ
from tests.parity.test_sparse_encoders import CASES as SPARSE

WRITING = {"generate", "translate"}
ELSEWHERE = {
    # The text part of a `gemma3` with images is a `gemma3_text` with other tensor names.
    "gemma3": test_text_of_picture_models.test_text_part,
    "whisper": test_speech.test_four_beams_equal_transformers,
    "triptych": test_native,
}


def kind(stem: str) -> str:
    """Model type of the configuration class with this prefix."""
    return getattr(transformers, f"{stem}Config").model_type


def compared() -> Counter[str]:
    """Number of shapes of each family whose hidden states, logits and greedy texts are compared."""
    found = Counter(config.model_type for _, config, *_ in (DECODERS | MORE_CASES | SEQ2SEQ).values())
    found += Counter(kind(stem) for stem, *_ in (BODIES | SPARSE | SPARSE_SEQ2SEQ).values())
    return found + Counter({"whisper": len(speech.SHAPES), "triptych": len(test_native.BODIES), "gemma3": 2})


def beamed() -> Counter[str]:
    """Number of shapes of each family whose beams are compared in other tests."""
    found = Counter(config.model_type for name, (_, config) in GENERATING.items() if not name.startswith("native"))
    return found + Counter(kind(stem) for stem, _ in SPARSE_SEQ2SEQ.values())


def writing() -> set[str]:
    """Families that generate, except those with other references."""
    tasks = {name: set().union(*family.architectures.values()) for name, family in FAMILIES.items()}
    return {name for name, does in tasks.items() if does & WRITING} - ELSEWHERE.keys()


SECOND = {
    config.model_type: (architecture, config, more[0] if more else None)
    for architecture, config, *more in (DECODERS | MORE_CASES | SEQ2SEQ).values()
    if beamed()[config.model_type] < 2
}
"""A second shape of each family whose beams are compared for one shape in other tests."""


def missing(families) -> set[str]:
    return {name for name in families if compared()[name] < 2}


def test_every_family_has_two_shapes():
    assert missing(FAMILIES) == set()


def test_every_generating_family_has_beams_in_two_shapes():
    assert {name for name in writing() if beamed()[name] + (name in SECOND) < 2} == set()


def test_family_without_comparison_is_detected():
    """Negative control: the check above reports a family without tests."""
    stranger = replace(FAMILIES["llama"], name="stranger", model_types=("stranger",))
    assert missing({**FAMILIES, "stranger": stranger}) == {"stranger"}


@pytest.mark.parametrize("family", SECOND)
def test_four_beams(family, tmp_path, device):
    """The engine runs three prompts together; the tokens equal those of `generate` for each prompt alone."""
    architecture, config, change = SECOND[family]
    # `generate` of transformers fails for a T5 with more decoder layers than encoder layers.
    shallow = {"num_decoder_layers": 1} if hasattr(config, "num_decoder_layers") else {}
    config = type(config)(**{**config.to_dict(), "eos_token_id": 2, **shallow})
    oracle = save(tmp_path, config, architecture, change=change).to(device)
    loaded = LoadedCheckpoint(
        ModelSpec(family, str(tmp_path), "float32"), load(tmp_path, device), torch.float32, device, 0.0
    )
    pair, prompts = Pair(family, oracle, loaded), random_ids(config.get_text_config().vocab_size, [1, 5, 11], seed=3)
    settings = {"num_beams": 4, "max_new_tokens": 20, "num_return_sequences": 4}
    if pair.starts:
        settings["forced_eos_token_id"] = 2
    results = run(pair.engine(), [generate(pair, index, text, **settings) for index, text in enumerate(prompts)])
    for index, text in enumerate(prompts):
        texts, scores = reference(pair, text, **as_transformers_settings(pair, text, settings))
        assert results.texts(index) == texts
        assert [one.score for one in results.finished[index].hypotheses] == pytest.approx(scores, abs=1e-4)
