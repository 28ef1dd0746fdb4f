"""Every registered family is compared with its reference in at least two shapes (small configurations).

For every family that generates text, beam search is compared in at least two shapes too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from models.families import FAMILIES
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.ipc.wire.descriptions import ModelSpec
from tests.engine import test_speech
from tests.engine.harness import Pair, as_transformers_settings, generate, reference, run
from tests.engine.tiny_checkpoints import GENERATING
from tests.parity import (
    cohere_asr,
    ctc,
    lara_mini,
    moonshine,
    parakeet,
    speech,
    test_clip,
    test_lara_mini,
    test_native,
    test_published_code_models,
    test_text_of_further_picture_models,
    test_text_of_picture_models,
)
from tests.parity.checkpoints import load, random_ids, save
from tests.parity.decoder_cases import MORE_CASES
from tests.parity.encoder_decoder_cases import CASES as SEQ2SEQ
from tests.parity.recent_encoder_cases import BODIES as RECENT_BODIES
from tests.parity.test_decoders import CASES as DECODERS
from tests.parity.test_encoders import BODIES
from tests.parity.test_sparse_encoder_decoders import CASES as SPARSE_SEQ2SEQ
from tests.parity.test_sparse_encoders import CASES as SPARSE

GENERATING_TASKS = {"generate", "translate"}
TESTED_ELSEWHERE = {
    # These also read images. Their text parts have separate model types, such as `gemma3_text`, and other tensor names.
    "gemma3": test_text_of_picture_models.test_text_part,
    **dict.fromkeys(test_text_of_further_picture_models.SHAPES, test_text_of_further_picture_models.test_text_part),
    "qwen3_5": test_text_of_picture_models.test_text_part_of_qwen,
    "qwen3_5_moe": test_text_of_picture_models.test_text_part_of_qwen,
    "whisper": test_speech.test_four_beams_equal_transformers,
    "triptych": test_native,
    "lara_mini": test_lara_mini.test_four_beams,
    "exaone": test_published_code_models.test_exaone,
    "llama_bidirec": test_published_code_models.test_decoders_as_encoders,
    "bidirectional_pplx_qwen3": test_published_code_models.test_decoders_as_encoders,
    "jina_bert": test_published_code_models.test_encoders,
    "voyage_qwen3": test_published_code_models.test_voyage_qwen3,
    "jina_embeddings_v5": test_published_code_models.test_jina_embeddings_v5,
}
WITHOUT_A_CLASS = (
    "exaone",
    "llama_bidirec",
    "jina_bert",
    "bidirectional_pplx_qwen3",
    "voyage_qwen3",
    "jina_embeddings_v5",
)
"""Families that transformers has no class for. Their code is published with their checkpoints."""


PICTURES = (
    dict.fromkeys(("gemma3", "modernvbert", "qwen3_5", "qwen3_5_moe"), 2) | test_text_of_further_picture_models.SHAPES
)
"""Number of shapes that other tests compare, per family that also reads pictures."""


def model_type_of(stem: str) -> str:
    """The model type of the transformers classes whose names start with `stem`."""
    return getattr(transformers, f"{stem}Config").model_type


def shapes_compared() -> Counter[str]:
    """Number of shapes per family whose hidden states, logits and greedy texts are compared."""
    found = Counter(config.model_type for _, config, *_ in (DECODERS | MORE_CASES | SEQ2SEQ).values())
    stems = [stem for stem, *_ in (BODIES | RECENT_BODIES | SPARSE | SPARSE_SEQ2SEQ).values()]
    found += Counter(model_type_of(stem) for stem in stems)
    found += Counter(model_type_of(stem) for stem, _ in ctc.SHAPES.values())
    # `test_published_layouts` compares the same shapes under other model types.
    found += Counter({"new": found["gte"], "embedding_gemma2": found["embedding_gemma2_text"]})
    found += Counter(dict.fromkeys(WITHOUT_A_CLASS, 2))
    found += Counter(config.model_type for _, config in test_clip.CASES.values())
    found += Counter({"parakeet_ctc": len(parakeet.ENCODERS), "lara_mini": len(lara_mini.SHAPES)})
    found += Counter(config.model_type for config in (moonshine.SHAPES | cohere_asr.SHAPES).values())
    return found + Counter({"whisper": len(speech.SHAPES), "triptych": len(test_native.BODIES), **PICTURES})


def shapes_with_beams() -> Counter[str]:
    """Number of shapes per family whose beam search is compared in other tests."""
    found = Counter(config.model_type for name, (_, config) in GENERATING.items() if not name.startswith("native"))
    return found + Counter(model_type_of(stem) for stem, _ in SPARSE_SEQ2SEQ.values())


def generating_families() -> set[str]:
    """Names of the families that generate text and are not in `TESTED_ELSEWHERE`."""
    tasks = {name: set().union(*family.architectures.values()) for name, family in FAMILIES.items()}
    return {name for name, does in tasks.items() if does & GENERATING_TASKS} - TESTED_ELSEWHERE.keys()


def further_shapes() -> dict[str, tuple[str, Any, Any]]:
    """The shapes that are missing until two of each family are compared with beam search.

    Per shape: the class, the configuration, and a function that changes the model, or None.
    """
    elsewhere, found = shapes_with_beams(), {}
    cases = DECODERS | MORE_CASES | SEQ2SEQ
    for name, (architecture, config, *more) in reversed(cases.items()):
        if elsewhere[config.model_type] < 2:
            elsewhere[config.model_type] += 1
            found[name] = (architecture, config, more[0] if more else None)
    return found


FURTHER_SHAPES = further_shapes()


def families_without_two_shapes(families) -> set[str]:
    return {name for name in families if shapes_compared()[name] < 2}


def test_every_family_has_two_shapes():
    assert families_without_two_shapes(FAMILIES) == set()


def test_every_generating_family_has_beams_in_two_shapes():
    further = Counter(config.model_type for _, config, _ in FURTHER_SHAPES.values())
    assert {name for name in generating_families() if shapes_with_beams()[name] + further[name] < 2} == set()


def test_family_without_comparison_is_detected():
    """Negative control: the check above reports a family without tests."""
    stranger = replace(FAMILIES["llama"], name="stranger", model_types=("stranger",))
    assert families_without_two_shapes({**FAMILIES, "stranger": stranger}) == {"stranger"}


@pytest.mark.parametrize("name", FURTHER_SHAPES)
def test_four_beams(name, tmp_path, device):
    """The engine runs three prompts together and gives the tokens of transformers' `generate` for each prompt alone."""
    architecture, config, change = FURTHER_SHAPES[name]
    # `generate` of transformers fails for a T5 with more decoder layers than encoder layers.
    shallow = {"num_decoder_layers": 1} if hasattr(config, "num_decoder_layers") else {}
    config = type(config)(**{**config.to_dict(), "eos_token_id": 2, **shallow})
    oracle = save(tmp_path, config, architecture, change=change).to(device)
    loaded = LoadedCheckpoint(
        ModelSpec(name, str(tmp_path), "float32"), load(tmp_path, device), torch.float32, device, 0.0
    )
    pair, prompts = Pair(name, oracle, loaded), random_ids(config.get_text_config().vocab_size, [1, 5, 11], seed=3)
    settings = {"num_beams": 4, "max_new_tokens": 12, "num_return_sequences": 4}
    if pair.starts:
        settings["forced_eos_token_id"] = 2
    results = run(pair.engine(), [generate(pair, index, text, **settings) for index, text in enumerate(prompts)])
    for index, text in enumerate(prompts):
        texts, scores = reference(pair, text, **as_transformers_settings(pair, text, settings))
        assert results.texts(index) == texts
        assert [hypothesis.score for hypothesis in results.finished[index].hypotheses] == pytest.approx(
            scores, abs=1e-4
        )
