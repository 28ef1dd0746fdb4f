"""Decoders with heads other than a language model head equal transformers.

Tested are embeddings, classification, token classification and answer spans, in every family with such a head. All
texts are in one ragged batch.
"""

from __future__ import annotations

import itertools
import json

import pytest
import torch
import transformers

from models.config import ClassificationHead
from models.families import FAMILIES
from models.layers.pooling import normalize, pool
from tests.engine.harness import reset_dynamic_rope
from tests.models.family_bases import BASES
from tests.parity.checkpoints import edit_config, load, random_ids, save
from tests.parity.decoder_cases import MORE_CASES
from tests.parity.paged import encoder_batch
from tests.parity.test_decoders import CASES
from tests.parity.test_registry import PICTURES, WITHOUT_A_CLASS

VOCAB = 97
LENGTHS = (5, 1, 17, 9, 23)
STEMS = {
    name: next(iter(family.architectures))
    for name, family in FAMILIES.items()
    if family.body is not None and name not in WITHOUT_A_CLASS and name != "lara_mini"
}
"""Per family of transformers 5.23, the name of one of its classes. `test_lara_mini` tests the heads of Lara Mini."""


def architectures(kind):
    return FAMILIES[kind].architectures


def _cases(suffix: str, shapes: int = 2) -> dict[str, tuple[str, object]]:
    """Up to `shapes` configurations of each family that has a class with this suffix in transformers."""
    made: dict[str, tuple[str, object]] = {}
    for name, (_, config) in (CASES | MORE_CASES).items():
        found = [
            architecture for architecture in FAMILIES[config.model_type].architectures if architecture.endswith(suffix)
        ]
        found = [architecture for architecture in found if "LMHead" not in architecture]
        if found and sum(config.model_type == other.model_type for _, other in made.values()) < shapes:
            made[name] = (found[0], config)
    return made


def _config(config, **changes):
    return type(config)(**{**config.to_dict(), **changes})


def _in_turn(names, values):
    """Pairs of (case, value) such that each family is tested with all values.

    A family with as many cases as values has one value per case. In other families, each case has all values.
    """
    families: dict[str, list[str]] = {}
    for name, (_, config) in names.items():
        families.setdefault(config.model_type, []).append(name)
    pairs = []
    for cases in families.values():
        pairs += zip(cases, values, strict=True) if len(cases) == len(values) else itertools.product(cases, values)
    return pairs


BODIES, TEXTS = _cases("Model"), _cases("ForSequenceClassification")
# One configuration is enough for these heads: they are one matrix after the body, and `test_embeddings` compares the
# body in both configurations.
TOKENS, ANSWERS = _cases("ForTokenClassification", shapes=1), _cases("ForQuestionAnswering", shapes=1)


SUFFIXES = {
    "Model": BODIES,
    "ForSequenceClassification": TEXTS,
    "ForTokenClassification": TOKENS,
    "ForQuestionAnswering": ANSWERS,
}
PADDED = [kind for kind in STEMS if any(name.endswith("ForSequenceClassification") for name in architectures(kind))]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_head_of_transformers_is_served_and_tested(suffix):
    # These families read images too. The families of their text parts are `gemma3_text` and so on.
    classes = {kind: FAMILIES[kind].body.removesuffix("Model") + suffix for kind in set(STEMS) - PICTURES.keys()}
    served = {kind for kind, name in classes.items() if name in architectures(kind)}
    assert served == {kind for kind, name in classes.items() if hasattr(transformers, name)}
    assert served == {config.model_type for _, config in SUFFIXES[suffix].values()}


@pytest.mark.parametrize("kind", PADDED)
def test_default_pad_token_equals_that_of_transformers(kind):
    """Older versions of transformers save no pad token. Then the default of the configuration class applies."""
    family, config = FAMILIES[kind], transformers.AutoConfig.for_model(kind).get_text_config()
    (architecture,) = (name for name in family.architectures if name.endswith("ForSequenceClassification"))
    hf = {name: value for name, value in BASES[config.model_type].items() if name != "pad_token_id"}
    assert family.config(hf, architecture).head.pad_token_id == config.pad_token_id


def _one_by_one(oracle, texts):
    return [oracle(torch.tensor([text], device=oracle.device)) for text in texts]


@pytest.mark.parametrize("name, with_head", _in_turn(BODIES, [False, True]))
@torch.inference_mode()
def test_embeddings(name, with_head, tmp_path, device):
    """Models without a head, and language models with sentence-transformers files, give embeddings."""
    architecture, config = BODIES[name]
    if with_head:
        architecture = next(iter(FAMILIES[config.model_type].architectures))
        architecture = architecture.replace("MPTFor", "MptFor")
    oracle = save(tmp_path, config, architecture).to(device)
    if with_head:
        oracle = getattr(oracle, oracle.base_model_prefix, None) or oracle.model
        _sentence_files(tmp_path)
    loaded, texts = load(tmp_path, device), random_ids(VOCAB, LENGTHS)
    assert loaded.tasks == ("embed",)
    batch = encoder_batch(texts, device)
    hidden = loaded.transformer.encode(batch)
    expected = [output.last_hidden_state[0] for output in _one_by_one(oracle, texts)]
    # Random weights of this model amplify rounding: float32 and float64 differ by as much in transformers.
    atol = 5e-4 if name == "qwen3_5_moe" else 1e-4
    torch.testing.assert_close(hidden, torch.cat(expected), atol=atol, rtol=1e-4)
    for mode in ("last", "mean"):
        theirs = torch.stack([states[-1] if mode == "last" else states.mean(0) for states in expected])
        torch.testing.assert_close(normalize(pool(hidden, batch, mode)), normalize(theirs), atol=1e-5, rtol=0)


def _sentence_files(directory) -> None:
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))


@pytest.mark.parametrize("name, labels", _in_turn(TEXTS, [1, 5]))
@torch.inference_mode()
def test_class_logits(name, labels, tmp_path, device):
    architecture, config = TEXTS[name]
    # The configuration of ModernBERT decoders always has a pad token.
    pad = None if labels == 1 and config.model_type != "modernbert-decoder" else 7
    oracle = save(tmp_path, _config(config, num_labels=labels, pad_token_id=pad), architecture).to(device)
    loaded, texts = load(tmp_path, device), random_ids(VOCAB, LENGTHS)
    texts[0][-2:], texts[1], texts[2][4] = [7, 7], [7], 7
    batch = encoder_batch(texts, device)
    found = loaded.transformer.classify(loaded.transformer.encode(batch), batch)
    expected = torch.cat([output.logits for output in _one_by_one(oracle, texts)])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert loaded.tasks == (("classify", "rerank") if labels == 1 else ("classify",))
    assert loaded.labels == tuple(f"LABEL_{index}" for index in range(labels))
    alone = [
        loaded.transformer.classify(loaded.transformer.encode(text_batch), text_batch)
        for text_batch in map(_alone(device), texts)
    ]
    torch.testing.assert_close(torch.cat(alone), found, atol=1e-5, rtol=1e-5)


def _alone(device):
    return lambda text: encoder_batch([text], device)


@pytest.mark.parametrize("name", TOKENS)
@torch.inference_mode()
def test_token_logits(name, tmp_path, device):
    architecture, config = TOKENS[name]
    oracle = save(tmp_path, _config(config, num_labels=4), architecture).to(device)
    loaded, texts = load(tmp_path, device), random_ids(VOCAB, LENGTHS)
    batch = encoder_batch(texts, device)
    found = loaded.transformer.classify_tokens(loaded.transformer.encode(batch), batch)
    expected = torch.cat([output.logits[0] for output in _one_by_one(oracle, texts)])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert loaded.tasks == ("token_classify",)


@pytest.mark.parametrize("name", ANSWERS)
@torch.inference_mode()
def test_span_logits(name, tmp_path, device):
    architecture, config = ANSWERS[name]
    oracle = save(tmp_path, config, architecture).to(device)
    loaded, texts = load(tmp_path, device), random_ids(VOCAB, LENGTHS)
    batch = encoder_batch(texts, device)
    found = loaded.transformer.classify_tokens(loaded.transformer.encode(batch), batch)
    pairs = [(output.start_logits[0], output.end_logits[0]) for output in _one_by_one(oracle, texts)]
    expected = torch.cat([torch.stack(pair, dim=1) for pair in pairs])
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    batches = list(map(_alone(device), texts))
    alone = [
        loaded.transformer.classify_tokens(loaded.transformer.encode(text_batch), text_batch) for text_batch in batches
    ]
    torch.testing.assert_close(torch.cat(alone), found, atol=1e-5, rtol=1e-5)
    assert (loaded.tasks, loaded.labels) == (("question_answer",), ())


@torch.inference_mode()
def test_counted_padding_is_detected(tmp_path, device):
    """Negative control: without a pad token id, the model classifies by a padding token, and the logits differ."""
    architecture, config = TEXTS["llama-mha"]
    oracle = save(tmp_path, _config(config, pad_token_id=7), architecture).to(device)
    texts = [[*text, 7] for text in random_ids(VOCAB, LENGTHS, low=8)]
    expected = torch.cat([output.logits for output in _one_by_one(oracle, texts)])
    edit_config(tmp_path, pad_token_id=None)
    loaded, batch = load(tmp_path, device), encoder_batch(texts, device)
    assert isinstance(loaded.config.head, ClassificationHead) and loaded.config.head.pad_token_id is None
    found = loaded.transformer.classify(loaded.transformer.encode(batch), batch)
    assert (found - expected).abs().amax(-1).min() > 1e-2


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
@torch.inference_mode()
def test_embeddings_beyond_the_original_length(kind, tmp_path, device):
    """The rotation of a text depends on its own length, not on the other texts of the batch."""
    rope = {"rope_type": kind, "rope_theta": 100.0, "factor": 4.0}
    if kind == "longrope":
        factors = {"short_factor": [1.0, 1.5, 2.0, 4.0], "long_factor": [2.0, 3.0, 5.0, 9.0]}
        rope |= {**factors, "original_max_position_embeddings": 12}
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    longest = 12 if kind == "dynamic" else 48
    config = transformers.LlamaConfig(
        **sizes, num_attention_heads=4, max_position_embeddings=longest, rope_parameters=rope
    )
    oracle = save(tmp_path, config, "LlamaModel").to(device)
    loaded, texts = load(tmp_path, device), random_ids(VOCAB, LENGTHS)
    assert loaded.context_tokens == 48
    expected = []
    for text in texts:
        reset_dynamic_rope(oracle)
        expected.append(oracle(torch.tensor([text], device=device)).last_hidden_state[0])
    found = loaded.transformer.encode(encoder_batch(texts, device))
    torch.testing.assert_close(found, torch.cat(expected), atol=1e-4, rtol=1e-4)
