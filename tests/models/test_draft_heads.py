"""Draft heads equal references that follow their published descriptions: prediction heads and EAGLE-3 heads."""

from __future__ import annotations

import json

import pytest
import torch
import transformers

from models.backends import choice
from models.backends.logits import LogitsRequest
from models.checkpoint.loader import load_model
from models.config import ConfigError
from models.steps.batch import DecoderBatch
from models.steps.kv_cache import KVCache
from tests.models.draft_heads import (
    LLAMA,
    PREDICTING,
    eagle_config,
    eagle_reference,
    eagle_tensors,
    predicting_checkpoint,
    write_head,
)
from tests.parity.checkpoints import random_ids, save
from tests.parity.paged import Rows
from weights.eagle_heads import eagle_version
from weights.errors import WeightsError

TEXT = random_ids(97, [23], seed=8)[0]


def states_of(loaded, text):
    """The model's states that the draft head reads, computed in two steps with a paged cache: [tokens, hidden]."""
    rows = Rows(loaded.transformer)
    found = []
    for part in (text[:9], text[9:]):
        output = rows.decode({0: part})
        found.append(output.hidden if output.draft_states is None else output.draft_states)
    return loaded.draft_head.combined(torch.cat(found))


def head_step(head, cache, start, tokens, states, request=None):
    """Run a draft head for several positions. Returns its output.

    start: first position. tokens: the token after each position. states: state at each position.
    """
    size, count = cache.block_size, len(tokens)
    positions = torch.arange(start, start + count)
    blocks = torch.arange(-(-(start + count) // size))
    batch = DecoderBatch(torch.tensor(tokens), positions, (count,), (start + count,), positions, blocks[None])
    return head.decode(batch, states, cache, request)


def check_head(loaded, reference, atol=2e-4):
    head = loaded.draft_head
    states = states_of(loaded, TEXT)
    cache = KVCache(head.config.attention_layers, 16, 4, head.attention_dtype, head.device)
    logits = []
    for start, end in ((0, 5), (5, 6), (6, len(TEXT) - 1)):
        output = head_step(head, cache, start, TEXT[start + 1 : end + 1], states[start:end], LogitsRequest())
        logits.append(output.logits.clone())
    found, expected = torch.cat(logits), reference.logits(TEXT)
    if head.token_ids is not None:
        expected = expected[:, head.token_ids]
    torch.testing.assert_close(found.double(), expected, atol=atol, rtol=1e-4)
    draft, hidden = [], output.hidden[-1:]
    for step in range(4):
        best = int(output.top_k.ids[-1, 0])
        draft.append(best if head.token_ids is None else int(head.token_ids[best]))
        hidden = output.hidden[-1:]
        output = head_step(head, cache, len(TEXT) - 1 + step, draft[-1:], hidden, LogitsRequest())
    assert draft == reference.draft(TEXT, 4)
    return head


@pytest.mark.parametrize("programs", [True, False])
@pytest.mark.parametrize("name", PREDICTING)
def test_prediction_heads_equal_their_description(name, programs, tmp_path, monkeypatch):
    monkeypatch.setattr(choice, "programs_are_enabled", programs)
    reference = predicting_checkpoint(name, tmp_path)
    loaded = load_model(tmp_path, torch.float32, torch.device("cpu"), draft_head=tmp_path)
    assert loaded.has_prediction_head
    with torch.inference_mode():
        head = check_head(loaded, reference)
    # A head runs as a program where its target does.
    assert head.is_eager == bool(loaded.transformer.eager_parts)
    plain = load_model(tmp_path, torch.float32, torch.device("cpu"))
    assert plain.draft_head is None and plain.has_prediction_head
    own = sum(parameter.numel() for name, parameter in head.named_parameters())
    assert loaded.weight_bytes > plain.weight_bytes and own >= 0
    assert loaded.parameters > plain.parameters


@pytest.mark.parametrize("programs", [True, False])
@pytest.mark.parametrize(
    "more, own_tokens, layers",
    [
        ({}, False, (2, 4, 5)),
        ({"draft_vocab_size": None}, True, (2, 4, 5)),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}, False, (1, 3, 5)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 4]}}, False, (1, 3, 5)),
        ({"norm_before_residual": True, "eagle_aux_hidden_state_layer_ids": [0, 2, 4]}, True, (0, 2, 4)),
    ],
)
def test_eagle_heads_equal_their_description(more, own_tokens, layers, programs, tmp_path, monkeypatch):
    monkeypatch.setattr(choice, "programs_are_enabled", programs)
    architecture, config = LLAMA
    oracle = save(tmp_path / "model", config, architecture)
    settings = eagle_config(**more)
    tensors = eagle_tensors(settings, own_tokens=own_tokens)
    write_head(tmp_path / "head", settings, tensors)
    reference = eagle_reference(oracle, settings, tensors, layers, bool(more.get("norm_before_residual")))
    loaded = load_model(tmp_path / "model", torch.float32, torch.device("cpu"), draft_head=tmp_path / "head")
    with torch.inference_mode():
        head = check_head(loaded, reference)
    assert not head.is_eager or not programs
    assert loaded.transformer.decoder.taps == layers


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """Directory of a LLaMA without a draft head."""
    directory = tmp_path_factory.mktemp("llama")
    save(directory, LLAMA[1], LLAMA[0])
    return directory


def with_d2t(change):
    """Return a function that changes the tensor `d2t` of a head (draft token → token). change: changes it in place."""
    tensors = eagle_tensors(eagle_config())
    change(tensors)
    return tensors


@pytest.mark.parametrize(
    "more, tensors, message",
    [
        ({"vocab_size": 90}, None, "the head has 90 tokens, the model has 97"),
        ({"num_hidden_layers": 2}, None, "'num_hidden_layers': 2 is not supported"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 8]}, None, "reads the input of layer 8, the model has 8 layers"),
        ({"eagle_aux_hidden_state_layer_ids": [1, "2", 3]}, None, "must be a list of integers"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 1, 3]}, None, "reads a layer twice"),
        ({"norm_before_fc": True}, None, "'norm_before_fc': True is not supported"),
        ({"draft_vocab_size": 98}, eagle_tensors(eagle_config()), "predicts up to 97 tokens, not 98"),
        ({}, with_d2t(lambda t: t.pop("d2t")), "has no tensor d2t"),
        ({}, with_d2t(lambda t: t["d2t"].fill_(60)), "does not map the logits to different tokens"),
        ({}, with_d2t(lambda t: t.update(d2t=t["d2t"][:-1].clone())), r"d2t has shape \[39\], not \[40\]"),
        ({}, with_d2t(lambda t: t.update(d2t=t["d2t"].float())), "d2t of the head must have integers"),
        ({}, with_d2t(lambda t: t.pop("fc.weight")), r"1 missing"),
        ({}, with_d2t(lambda t: t.update(other=torch.ones(2))), r"1 unexpected \(other\)"),
    ],
)
def test_eagle_heads_that_do_not_fit_are_refused(llama, more, tensors, message, tmp_path):
    settings = eagle_config(**more)
    write_head(tmp_path / "head", settings, eagle_tensors(settings) if tensors is None else tensors)
    with pytest.raises((ConfigError, WeightsError), match=message) as raised:
        load_model(llama, torch.float32, torch.device("cpu"), draft_head=tmp_path / "head")
    assert "EAGLE-3 head 'head'" in str(raised.value) or "unexpected" in message


def test_a_head_alone_is_no_model(tmp_path):
    write_head(tmp_path, eagle_config(), eagle_tensors(eagle_config()))
    with pytest.raises(ConfigError, match="only drafts for another model"):
        load_model(tmp_path, torch.float32, torch.device("cpu"))


def test_a_checkpoint_without_a_head_loads_none(llama):
    loaded = load_model(llama, torch.float32, torch.device("cpu"), draft_head=llama)
    assert loaded.draft_head is None and not loaded.has_prediction_head and loaded.draft_head_bytes == 0


def test_settings_of_a_head_that_change_its_meaning_are_refused(tmp_path):
    predicting_checkpoint("qwen3_5", tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "mtp_use_dedicated_embeddings": True}))
    with pytest.raises(ConfigError, match="'mtp_use_dedicated_embeddings': True is not supported"):
        load_model(tmp_path, torch.float32, torch.device("cpu"), draft_head=tmp_path)


def test_heads_of_speculators_have_their_settings_in_two_places(llama, tmp_path):
    """EAGLE-3 heads in the format of the library speculators are read.

    Their layer settings are in `transformer_layer_config`, and their layer is named `layers.0`.
    """
    own = {"draft_vocab_size", "architectures", "model_type"}
    plain = eagle_config()
    settings = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 40,
        "norm_before_residual": True,
        "transformer_layer_config": {name: value for name, value in plain.items() if name not in own},
    }
    tensors = eagle_tensors(plain)
    write_head(tmp_path, settings, {name.replace("midlayer", "layers.0"): value for name, value in tensors.items()})
    loaded = load_model(llama, torch.float32, torch.device("cpu"), draft_head=tmp_path)
    oracle = transformers.LlamaForCausalLM.from_pretrained(llama, attn_implementation="eager").eval()
    with torch.inference_mode():
        check_head(loaded, eagle_reference(oracle, plain, tensors, (2, 4, 5), normed_residual=True))


@pytest.mark.parametrize(
    "settings, version",
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ({"architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3"}, "eagle3"),
        ({"speculators_model_type": "eagle"}, "eagle"),
        ({"architectures": ["EagleLlamaForCausalLM"]}, "eagle"),
        ({"architectures": ["LlamaForCausalLM"]}, None),
        ({"architectures": "Eagle3"}, None),
        ([], None),
    ],
)
def test_eagle_heads_are_recognized(settings, version, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert eagle_version(tmp_path) == version


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_rounded_heads_predict_nearly_the_same(quantization, tmp_path):
    reference = predicting_checkpoint("glm4_moe", tmp_path)
    if why := choice.why_no_kernels(torch.float32, torch.device("cpu")):
        pytest.skip(why)
    loaded = load_model(tmp_path, torch.float32, torch.device("cpu"), quantization=quantization, draft_head=tmp_path)
    with torch.inference_mode():
        states, head = states_of(loaded, TEXT), loaded.draft_head
        cache = KVCache(head.config.attention_layers, 16, 4, head.attention_dtype, head.device)
        found = head_step(head, cache, 0, TEXT[1:], states[:-1], LogitsRequest()).logits
    expected = reference.logits(TEXT)
    similarity = torch.nn.functional.cosine_similarity(found.double(), expected, dim=1)
    assert float(similarity.mean()) > (0.98 if quantization == "int8" else 0.8)
