"""Encoders and their heads equal transformers, with texts of several lengths in one ragged batch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.checkpoint.loader import LoadedModel, load_model
from models.config import ConfigError
from models.layers.pooling import normalize, pool
from models.steps.batch import EncoderBatch
from tests.parity.encoder_cases import MORE_BODIES
from weights.load import WeightsError

LENGTHS = (5, 1, 17, 9, 3)
VOCAB = 101
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
WIDE = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "intermediate_size": 80,
    "hidden_act": "gelu_new",
}
SMALL_DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
WIDE_DISTIL = {"dim": 48, "n_layers": 3, "n_heads": 3, "hidden_dim": 80, "activation": "relu"}
COMMON = {"vocab_size": VOCAB, "max_position_embeddings": 40, "initializer_range": 0.2}
BODIES = {
    "bert-small": ("Bert", {**COMMON, **SMALL}),
    "bert-wide": ("Bert", {**COMMON, **WIDE, "type_vocab_size": 3, "layer_norm_eps": 1e-6}),
    "roberta-small": ("Roberta", {**COMMON, **SMALL, "type_vocab_size": 1}),
    "roberta-wide": ("Roberta", {**COMMON, **WIDE, "type_vocab_size": 2, "pad_token_id": 0, "layer_norm_eps": 1e-5}),
    "distilbert-small": ("DistilBert", {**COMMON, **SMALL_DISTIL}),
    "distilbert-wide": ("DistilBert", {**COMMON, **WIDE_DISTIL, "sinusoidal_pos_embds": True}),
    **MORE_BODIES,
}
every_body = pytest.mark.parametrize("body", BODIES)
ANSWERERS = [body for body, (name, _) in BODIES.items() if hasattr(transformers, f"{name}ForQuestionAnswering")]


def _reference(body: str, task: str, seed: int = 0, **settings):
    family, options = BODIES[body]
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**options, **settings)
    model = getattr(transformers, f"{family}{task}")(config).eval()
    with torch.no_grad():  # Initial norms of 1 and biases of 0 would hide errors.
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


DEVICE = torch.device(os.environ.get("TRIPTYCH_TEST_DEVICE", "cpu"))


def _load(directory: Path) -> LoadedModel:
    return load_model(directory, torch.float32, DEVICE)


def _saved(model, directory: Path) -> LoadedModel:
    model.save_pretrained(directory)
    return _load(directory)


def _batch(model, with_types: bool = True) -> EncoderBatch:
    generator = torch.Generator().manual_seed(3)
    total, types = sum(LENGTHS), getattr(model.config, "type_vocab_size", 0)
    return EncoderBatch(
        token_ids=torch.randint(5, VOCAB, (total,), generator=generator).to(DEVICE),
        lengths=LENGTHS,
        token_type_ids=torch.randint(types, (total,), generator=generator).to(DEVICE) if types and with_types else None,
    )


def _one_by_one(model, batch: EncoderBatch) -> list:
    """Results of transformers for each sequence, computed one sequence at a time."""
    outputs = []
    for start, end in zip(batch.offsets, batch.offsets[1:], strict=False):
        inputs = {"input_ids": batch.token_ids[None, start:end].cpu()}
        if batch.token_type_ids is not None:
            inputs["token_type_ids"] = batch.token_type_ids[None, start:end].cpu()
        with torch.no_grad():
            outputs.append(model(**inputs))
    return outputs


def _pooled(hidden: Tensor, mode: str) -> Tensor:
    vector = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1], "max": hidden.max(0).values}[mode]
    return vector / vector.norm()


@every_body
@pytest.mark.parametrize("with_types", [True, False])
@torch.inference_mode()
def test_hidden_states(body: str, with_types: bool, tmp_path: Path):
    model = _reference(body, "Model")
    ours, batch = _saved(model, tmp_path), _batch(model, with_types)
    expected = torch.cat([output.last_hidden_state[0] for output in _one_by_one(model, batch)])
    torch.testing.assert_close(ours.transformer.encode(batch).cpu(), expected, atol=1e-4, rtol=0)


@every_body
@pytest.mark.parametrize("mode", ["mean", "cls", "last", "max"])
@torch.inference_mode()
def test_embeddings(body: str, mode: str, tmp_path: Path):
    model = _reference(body, "Model", seed=1)
    ours, batch = _saved(model, tmp_path), _batch(model)
    expected = torch.stack([_pooled(output.last_hidden_state[0], mode) for output in _one_by_one(model, batch)])
    found = normalize(pool(ours.transformer.encode(batch), batch, mode))
    torch.testing.assert_close(found.cpu(), expected, atol=1e-5, rtol=0)


@every_body
@pytest.mark.parametrize("dtype, bound", [(torch.bfloat16, 0.03), (torch.float16, 0.005)], ids=str)
@torch.inference_mode()
def test_half_precision_is_close_to_float32(body: str, dtype: torch.dtype, bound: float, tmp_path: Path):
    """The mean error of hidden states is small relative to their standard deviation.

    bfloat16 has 8 significant bits, float16 has 11.
    """
    model = _reference(body, "Model", seed=5)
    model.save_pretrained(tmp_path)
    batch = _batch(model)
    expected = torch.cat([output.last_hidden_state[0] for output in _one_by_one(model, batch)])
    found = load_model(tmp_path, dtype, DEVICE).transformer.encode(batch).cpu()
    assert found.dtype == dtype
    assert (found.float() - expected).abs().mean() < bound * expected.std()


@every_body
@pytest.mark.parametrize("labels", [1, 5])
@torch.inference_mode()
def test_class_logits(body: str, labels: int, tmp_path: Path):
    model = _reference(body, "ForSequenceClassification", seed=2, num_labels=labels)
    ours, batch = _saved(model, tmp_path), _batch(model)
    expected = torch.cat([output.logits for output in _one_by_one(model, batch)])
    found = ours.transformer.classify(ours.transformer.encode(batch), batch)
    torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=0)
    assert ours.tasks == (("classify", "rerank") if labels == 1 else ("classify",))
    assert ours.labels == tuple(model.config.id2label[index] for index in range(labels))


@every_body
@torch.inference_mode()
def test_masked_token_logits(body: str, tmp_path: Path):
    model = _reference(body, "ForMaskedLM", seed=3)
    ours, batch = _saved(model, tmp_path), _batch(model)
    expected = torch.cat([output.logits[0] for output in _one_by_one(model, batch)])
    found = ours.transformer.logits(ours.transformer.encode(batch))
    torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=0)
    assert ours.tasks == ("embed", "fill_mask")
    assert ours.parameters <= model.num_parameters()


@every_body
@pytest.mark.parametrize("labels", [1, 5])
@torch.inference_mode()
def test_token_logits(body: str, labels: int, tmp_path: Path):
    model = _reference(body, "ForTokenClassification", seed=6, num_labels=labels)
    ours, batch = _saved(model, tmp_path), _batch(model)
    expected = torch.cat([output.logits[0] for output in _one_by_one(model, batch)])
    found = ours.transformer.classify_tokens(ours.transformer.encode(batch), batch)
    torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=0)
    assert ours.tasks == ("token_classify",)
    assert ours.labels == tuple(model.config.id2label[index] for index in range(labels))


@pytest.mark.parametrize("body", ANSWERERS)
@torch.inference_mode()
def test_span_logits(body: str, tmp_path: Path):
    model = _reference(body, "ForQuestionAnswering", seed=7)
    ours, batch = _saved(model, tmp_path), _batch(model)
    outputs = _one_by_one(model, batch)
    expected = torch.cat([torch.stack([output.start_logits[0], output.end_logits[0]], dim=1) for output in outputs])
    found = ours.transformer.classify_tokens(ours.transformer.encode(batch), batch)
    torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=0)
    assert (ours.tasks, ours.labels) == (("question_answer",), ())


@pytest.mark.parametrize("task", ["ForTokenClassification", "ForQuestionAnswering"])
@torch.inference_mode()
def test_token_head_with_an_unused_pooler(task: str, tmp_path: Path):
    """Published token classifiers and question answering models often contain an unused pooler."""
    model = _reference("bert-small", task)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors |= {"bert.pooler.dense.weight": torch.ones(32, 32), "bert.pooler.dense.bias": torch.ones(32)}
    save_file(tensors, tmp_path / "model.safetensors")
    ours, batch = _load(tmp_path), _batch(model)
    expected = [getattr(output, "logits", None) for output in _one_by_one(model, batch)]
    found = ours.transformer.classify_tokens(ours.transformer.encode(batch), batch).cpu()
    if task == "ForTokenClassification":
        torch.testing.assert_close(found, torch.cat([logits[0] for logits in expected]), atol=1e-4, rtol=0)
    else:
        starts = torch.cat([output.start_logits[0] for output in _one_by_one(model, batch)])
        torch.testing.assert_close(found[:, 0], starts, atol=1e-4, rtol=0)


def test_span_head_needs_two_labels():
    from models.families import family_of

    for family, body in (("Bert", "bert-small"), ("Roberta", "roberta-small"), ("DistilBert", "distilbert-small")):
        hf = getattr(transformers, f"{family}Config")(**BODIES[body][1], num_labels=3).to_dict()
        found, architecture = family_of({**hf, "architectures": [f"{family}ForQuestionAnswering"]})
        with pytest.raises(ConfigError, match="num_labels"):
            found.config({**hf, "architectures": [architecture]}, architecture)


@torch.inference_mode()
def test_bert_checkpoint_with_old_names_and_extra_tensors(tmp_path: Path):
    """bert-base-uncased has norms with `gamma` and `beta`, position ids, a pooler and a next-sentence head."""
    model = _reference("bert-small", "ForPreTraining", seed=4)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    assert renamed.keys() != tensors.keys()
    renamed["bert.embeddings.position_ids"] = torch.arange(40)[None]
    renamed["cls.predictions.decoder.weight"] = model.bert.embeddings.word_embeddings.weight.detach().clone()
    renamed["cls.predictions.decoder.bias"] = model.cls.predictions.bias.detach().clone()
    save_file(renamed, tmp_path / "model.safetensors")
    ours, batch = _load(tmp_path), _batch(model)
    expected = torch.cat([output.prediction_logits[0] for output in _one_by_one(model, batch)])
    torch.testing.assert_close(
        ours.transformer.logits(ours.transformer.encode(batch)).cpu(), expected, atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_body_with_and_without_prefix_and_pooler(prefix: str, tmp_path: Path):
    model = _reference("bert-small", "Model")
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    kept = {prefix + name: tensor for name, tensor in tensors.items() if "pooler" not in name}
    assert len(kept) == len(tensors) - 2
    save_file(kept, tmp_path / "model.safetensors")
    ours, batch = _load(tmp_path), _batch(model)
    expected = torch.cat([output.last_hidden_state[0] for output in _one_by_one(model, batch)])
    torch.testing.assert_close(ours.transformer.encode(batch).cpu(), expected, atol=1e-4, rtol=0)


@every_body
@torch.inference_mode()
def test_item_of_a_batch_equals_the_item_alone(body: str, tmp_path: Path):
    model = _reference(body, "Model")
    ours, batch = _saved(model, tmp_path), _batch(model)
    together, types = ours.transformer.encode(batch), batch.token_type_ids
    for index, length in enumerate(LENGTHS):
        where = slice(batch.offsets[index], batch.offsets[index] + length)
        own = EncoderBatch(batch.token_ids[where], (length,), None if types is None else types[where])
        alone = ours.transformer.encode(own)
        torch.testing.assert_close(together[where], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("position_embedding_type", "relative_key"),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("hidden_act", "mish"),
        ("num_attention_heads", 5),
    ],
)
@pytest.mark.parametrize("body", ["bert-small", "roberta-small"])
def test_unsupported_setting_is_refused_by_name(body: str, setting: str, value: object):
    from models.families import family_of

    family, options = BODIES[body]
    hf = {**getattr(transformers, f"{family}Config")(**options).to_dict(), setting: value}
    found, architecture = family_of({**hf, "architectures": [f"{family}Model"]})
    with pytest.raises(ConfigError, match="heads" if "heads" in setting else setting):
        found.config(hf, architecture)


def test_masked_language_model_needs_tied_embeddings():
    from models.families import family_of

    for family, body in (("Bert", "bert-small"), ("Roberta", "roberta-small"), ("DistilBert", "distilbert-small")):
        hf = getattr(transformers, f"{family}Config")(**BODIES[body][1]).to_dict() | {"tie_word_embeddings": False}
        found, architecture = family_of({**hf, "architectures": [f"{family}ForMaskedLM"]})
        with pytest.raises(ConfigError, match="tie_word_embeddings"):
            found.config(hf, architecture)


@pytest.mark.parametrize("body", ["bert-small", "roberta-small", "distilbert-small"])
def test_error_names_the_missing_tensor(body: str, tmp_path: Path):
    model = _reference(body, "ForSequenceClassification")
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    gone = next(name for name in tensors if "layer.1" in name and name.endswith("weight"))
    del tensors[gone]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=f"1 missing .{gone}"):
        _load(tmp_path)
