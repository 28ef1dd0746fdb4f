"""What only single encoder families have: pretraining checkpoints, shared layers, and settings that we refuse."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from models.backends import choice
from models.backends.torch.attention import TorchAttention
from models.config import ConfigError, ConvolutionLayerConfig, DistanceConfig, StackConfig
from models.families import family_of
from models.layers.convolution_layer import ConvolutionLayer
from models.layers.disentangled_attention import row_of_distance
from tests.parity.checkpoints import edit_config, load
from tests.parity.encoder_cases import MORE_BODIES
from tests.parity.test_encoders import DEVICE, _batch, _one_by_one, _reference, _saved


def _config(body: str, task: str, **changes):
    """Our configuration of an encoder case, after `changes` to its `config.json`."""
    family, options = MORE_BODIES[body]
    name = f"{family}{task}"
    hf = getattr(transformers, f"{family}Config")(**options).to_dict() | {"architectures": [name]} | changes
    return family_of(hf)[0].config(hf, name)


def _hidden(ours, model) -> tuple[torch.Tensor, torch.Tensor]:
    batch = _batch(model)
    expected = torch.cat([output.last_hidden_state[0] for output in _one_by_one(model, batch)])
    return ours.transformer.encode(batch).cpu(), expected


@pytest.mark.parametrize("body", ["electra-small", "electra-wide"])
@torch.inference_mode()
def test_discriminator_loads_as_an_encoder(body: str, tmp_path: Path):
    model = _reference(body, "ForPreTraining")
    found, expected = _hidden(_saved(model, tmp_path), model.electra)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("body", ["albert-small", "albert-wide"])
@torch.inference_mode()
def test_pretrained_albert_predicts_masked_tokens(body: str, tmp_path: Path):
    model = _reference(body, "ForPreTraining")
    ours, batch = _saved(model, tmp_path), _batch(model)
    expected = torch.cat([output.prediction_logits[0] for output in _one_by_one(model, batch)])
    found = ours.transformer.logits(ours.transformer.encode(batch))
    torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=0)
    assert ours.tasks == ("embed", "fill_mask")


@torch.inference_mode()
def test_shared_layers_are_loaded_once_and_run_in_order(tmp_path: Path):
    model = _reference("albert-wide", "Model")
    ours = _saved(model, tmp_path)
    stack = ours.config.encoder
    assert stack is not None and stack.sharing == (0, 1, 0, 1, 0, 1, 6, 7, 6, 7)
    pooler = sum(parameter.numel() for parameter in model.pooler.parameters())
    assert ours.parameters == sum(parameter.numel() for parameter in model.parameters()) - pooler
    # Negative control: the same weights in another order give other results.
    encoder = ours.transformer.encoder
    assert encoder is not None
    _, expected = _hidden(ours, model)
    encoder.layers[2], encoder.layers[6] = encoder.layers[6], encoder.layers[2]
    # The torch backend, because the other backend records the order of layers before this test changes it.
    with choice.using("torch"):
        found, _ = _hidden(ours, model)
    assert not torch.allclose(found, expected, atol=1e-2)


@pytest.mark.parametrize("sharing", [(0,), (1, 1), (0, 2), (0, 0, 1), (-1, 0)])
def test_sharing_refers_to_an_earlier_layer_with_own_weights(sharing: tuple[int, ...]):
    stack = _config("albert-small", "Model").encoder
    with pytest.raises(ConfigError):
        dataclasses.replace(stack, layers=stack.layers[: max(2, len(sharing))], sharing=sharing)


def test_only_equal_layers_share_weights():
    stack: StackConfig = _config("albert-small", "Model").encoder
    first = stack.layers[0]
    other = dataclasses.replace(first, attention=dataclasses.replace(first.attention, window=3))
    with pytest.raises(ConfigError, match="share weights"):
        dataclasses.replace(stack, layers=(first, other), sharing=(0, 0))


@torch.inference_mode()
def test_two_types_of_modernbert_layers_rotate_differently(tmp_path: Path):
    """Older names of the two settings also work. Negative control: with wrong settings, the results differ."""
    model = _reference("modernbert-small", "Model")
    assert _config("modernbert-small", "Model").encoder.layers[1].attention.window == 4
    model.save_pretrained(tmp_path)
    older = {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    edit_config(tmp_path, **older, rope_parameters=None, layer_types=None)
    found, expected = _hidden(load(tmp_path, DEVICE), model)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    for wrong in ({"local_rope_theta": 160000.0}, {"local_attention": 4}, {"global_attn_every_n_layers": 2}):
        edit_config(tmp_path, **older | wrong)
        assert not torch.allclose(_hidden(load(tmp_path, DEVICE), model)[0], expected, atol=1e-3)
        edit_config(tmp_path, local_attention=6)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10},
    ],
    ids=lambda scaling: scaling["rope_type"],
)
@torch.inference_mode()
def test_rope_scaling_of_one_type_of_modernbert_layers(scaling: dict, tmp_path: Path):
    both = {"full_attention": {**scaling, "rope_theta": 5000.0}, "sliding_attention": {"rope_theta": 900.0}}
    model = _reference("modernbert-small", "Model", rope_parameters=both)
    found, expected = _hidden(_saved(model, tmp_path), model)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("task", ["Model", "ForMaskedLM"])
@torch.inference_mode()
def test_nomic_checkpoint_in_its_first_format(task: str, tmp_path: Path):
    """The first format has GPT-2's setting names, fused projections, other tensor names, and heads without biases."""
    model = _reference("nomic_bert-small", task)
    if task == "ForMaskedLM":
        predictions = model.cls.predictions
        for bias in (predictions.transform.dense.bias, predictions.bias, predictions.decoder.bias):
            bias.zero_()
    model.save_pretrained(tmp_path)
    _publish_nomic(tmp_path, model)
    ours, batch = load(tmp_path, DEVICE), _batch(model)
    assert ours.context_tokens == 64
    hidden = ours.transformer.encode(batch)
    if task == "Model":
        expected = torch.cat([output.last_hidden_state[0] for output in _one_by_one(model, batch)])
        torch.testing.assert_close(hidden.cpu(), expected, atol=1e-4, rtol=0)
    else:
        expected = torch.cat([output.logits[0] for output in _one_by_one(model, batch)])
        torch.testing.assert_close(ours.transformer.logits(hidden).cpu(), expected, atol=1e-4, rtol=0)
    edit_config(tmp_path, rotary_scaling_factor=2, max_trained_positions=32)
    assert load(tmp_path, DEVICE).context_tokens == 32


def _publish_nomic(directory: Path, model) -> None:
    """Rewrite a checkpoint that transformers has saved as the code of the model's authors would save it."""
    words = {
        "embeddings.LayerNorm": "emb_ln",
        "self_attn.o_proj": "attn.out_proj",
        "gate_proj": "fc12",
        "up_proj": "fc11",
        "down_proj": "fc2",
        "post_attention_layernorm": "norm1",
        "post_mlp_layernorm": "norm2",
        "nomic_bert.": "bert.",
        "layers.": "encoder.layers.",
    }
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for index in range(2):
        prefix = f"{'' if 'layers.0.mlp.up_proj.weight' in tensors else 'nomic_bert.'}layers.{index}."
        parts = [tensors.pop(f"{prefix}self_attn.{part}_proj.weight") for part in "qkv"]
        tensors[f"{prefix}attn.Wqkv.weight"] = torch.cat(parts)
    published = {}
    for name, tensor in tensors.items():
        for ours, theirs in words.items():
            name = name.replace(ours, theirs)
        if not (name.startswith("cls") and name.endswith("bias") and "layer_norm" not in name):
            published[name] = tensor
    save_file(published, directory / "model.safetensors")
    code = "nomic-ai/nomic-bert-2048--{}_hf_nomic_bert.{}"
    config = {
        "model_type": "nomic_bert",
        "architectures": [type(model).__name__],
        "auto_map": {"AutoModel": code.format("modeling", "NomicBertModel")},
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_inner": 64,
        "n_positions": 64,
        "vocab_size": 101,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "activation_function": "swiglu",
        "layer_norm_epsilon": 1e-12,
    }
    (directory / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(("buckets", "farthest"), [(256, 512), (6, 40), (2, 9), (None, 5)])
def test_rows_of_distances_equal_the_reference(buckets: int | None, farthest: int):
    """We map each distance of a long text to the same embedding row as transformers, including float32 rounding."""
    places = torch.arange(1500)
    distance = places[:, None] - places
    expected = distance
    if buckets is not None:
        expected = make_log_bucket_position(distance, buckets, farthest).long()
    span = buckets or farthest
    found = row_of_distance(distance, DistanceConfig(farthest, buckets))
    assert torch.equal(found, (expected + span).clamp(0, 2 * span - 1))


@pytest.mark.parametrize("body", ["deberta-wide", "deberta-v2-small", "deberta-v2-wide"])
@torch.inference_mode()
def test_planted_disentangled_attention_bugs_are_detected(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Negative controls: distances with swapped signs, one of the two scores missing, convolution across sequences."""
    model = _reference(body, "Model")
    ours = _saved(model, tmp_path)
    found, expected = _hidden(ours, model)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    right, faults = TorchAttention.disentangled_attention, []

    def turned(self, query, key, value, to, of, plan, scale):
        distances = dataclasses.replace(plan.distances, row_of=plan.distances.row_of.flip(0))
        return right(self, query, key, value, to, of, dataclasses.replace(plan, distances=distances), scale)

    faults.append(turned)
    faults.append(lambda self, q, k, v, to, of, plan, scale: right(self, q, k, v, to, None, plan, scale))
    faults.append(lambda self, q, k, v, to, of, plan, scale: right(self, q, k, v, None, of, plan, scale))
    for fault in faults:
        monkeypatch.setattr(TorchAttention, "disentangled_attention", fault)
        assert not torch.allclose(_hidden(ours, model)[0], expected, atol=1e-3)
    monkeypatch.setattr(TorchAttention, "disentangled_attention", right)
    if isinstance(ours.config.encoder.layers[0], ConvolutionLayerConfig):
        plain = ConvolutionLayer._convolve
        one = lambda self, x, lengths: plain(self, x, (sum(lengths),))  # noqa: E731
        monkeypatch.setattr(ConvolutionLayer, "_convolve", one)
        assert not torch.allclose(_hidden(ours, model)[0], expected, atol=1e-3)


@torch.inference_mode()
def test_first_deberta_checkpoints_use_the_later_head_names(tmp_path: Path):
    """microsoft/deberta-base has no setting `legacy`, and names its head `lm_predictions` as later checkpoints do."""
    model = _reference("deberta-wide", "ForMaskedLM")
    model.save_pretrained(tmp_path)
    edit_config(tmp_path, legacy=None)
    ours, batch = load(tmp_path, DEVICE), _batch(model)
    expected = torch.cat([output.logits[0] for output in _one_by_one(model, batch)])
    found = ours.transformer.logits(ours.transformer.encode(batch))
    torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("body", "setting", "value"),
    [
        ("deberta-small", "talking_head", True),
        ("deberta-small", "pos_att_type", ["c2p", "p2p"]),
        ("deberta-small", "pos_att_type", "c2p|c2p"),
        ("deberta-small", "embedding_size", 16),
        ("deberta-small", "max_relative_positions", "many"),
        ("deberta-v2-small", "norm_rel_ebd", "rms"),
        ("deberta-v2-small", "position_buckets", 40.5),
        ("deberta-v2-small", "attention_head_size", 16),
        ("deberta-v2-wide", "conv_act", "maxout"),
        ("modernbert-small", "classifier_pooling", "max"),
        ("modernbert-small", "layer_types", ["chunked_attention"] * 4),
        ("modernbert-small", "local_rope_theta", None),
        ("modernbert-small", "rope_parameters", {"full_attention": "linear"}),
        ("modernbert-small", "rope_parameters", {"rope_type": "default"}),
        ("modernbert-small", "rope_scaling", "linear"),
        ("nomic_bert-small", "prenorm", True),
        ("nomic_bert-small", "num_experts", 8),
        ("nomic_bert-small", "rotary_emb_fraction", 0.5),
        ("nomic_bert-small", "n_embd", 64),
        ("nomic_bert-small", "rotary_emb_base", 10000),
        ("nomic_bert-small", "num_heads_kv", 2),
        ("nomic_bert-small", "rotary_emb_scale_base", 512),
        ("nomic_bert-small", "auto_map", {"AutoModel": "modeling_other.NomicBertModel"}),
        ("albert-small", "num_hidden_groups", 5),
        ("albert-small", "embedding_size", 0),
        ("electra-small", "position_embedding_type", "relative_key"),
        ("mpnet-small", "relative_attention_num_buckets", 16),
    ],
)
def test_unsupported_setting_is_refused_by_name(body: str, setting: str, value: object):
    with pytest.raises(ConfigError, match=setting):
        _config(body, "ForSequenceClassification", **{setting: value})
