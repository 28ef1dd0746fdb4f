"""What each encoder family has beside the common heads: pretraining checkpoints, shared layers, settings it refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import transformers

from models.config import ConfigError, StackConfig
from models.families import family_of
from tests.parity.encoder_cases import MORE_BODIES
from tests.parity.test_encoders import _batch, _one_by_one, _reference, _saved


def _config(body: str, task: str, **changes):
    """Our configuration of a shape, with settings of its `config.json` changed."""
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
def test_a_discriminator_is_an_encoder(body: str, tmp_path: Path):
    model = _reference(body, "ForPreTraining")
    found, expected = _hidden(_saved(model, tmp_path), model.electra)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("body", ["albert-small", "albert-wide"])
@torch.inference_mode()
def test_a_pretrained_albert_predicts_masked_words(body: str, tmp_path: Path):
    model = _reference(body, "ForPreTraining")
    ours, batch = _saved(model, tmp_path), _batch(model)
    expected = torch.cat([output.prediction_logits[0] for output in _one_by_one(model, batch)])
    found = ours.transformer.logits(ours.transformer.encode(batch))
    torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=0)
    assert ours.tasks == ("embed", "fill_mask")


@torch.inference_mode()
def test_shared_layers_are_loaded_once_and_used_in_their_order(tmp_path: Path):
    model = _reference("albert-wide", "Model")
    ours = _saved(model, tmp_path)
    stack = ours.config.encoder
    assert stack is not None and stack.sharing == (0, 1, 0, 1, 0, 1, 6, 7, 6, 7)
    pooler = sum(parameter.numel() for parameter in model.pooler.parameters())
    assert ours.parameters == sum(parameter.numel() for parameter in model.parameters()) - pooler
    # The control: the same weights in another order are another model.
    encoder = ours.transformer.encoder
    assert encoder is not None
    _, expected = _hidden(ours, model)
    encoder.layers[2], encoder.layers[6] = encoder.layers[6], encoder.layers[2]
    found, _ = _hidden(ours, model)
    assert not torch.allclose(found, expected, atol=1e-2)


@pytest.mark.parametrize("sharing", [(0,), (1, 1), (0, 2), (0, 0, 1), (-1, 0)])
def test_sharing_names_an_earlier_layer_with_weights_of_its_own(sharing: tuple[int, ...]):
    stack = _config("albert-small", "Model").encoder
    with pytest.raises(ConfigError):
        dataclasses.replace(stack, layers=stack.layers[: max(2, len(sharing))], sharing=sharing)


def test_only_equal_layers_share_weights():
    stack: StackConfig = _config("albert-small", "Model").encoder
    first = stack.layers[0]
    other = dataclasses.replace(first, attention=dataclasses.replace(first.attention, window=3))
    with pytest.raises(ConfigError, match="share weights"):
        dataclasses.replace(stack, layers=(first, other), sharing=(0, 0))


@pytest.mark.parametrize(
    ("body", "setting", "value"),
    [
        ("albert-small", "num_hidden_groups", 5),
        ("albert-small", "embedding_size", 0),
        ("electra-small", "position_embedding_type", "relative_key"),
        ("mpnet-small", "relative_attention_num_buckets", 16),
    ],
)
def test_settings_that_are_refused_by_name(body: str, setting: str, value: object):
    with pytest.raises(ConfigError, match=setting):
        _config(body, "Model", **{setting: value})
