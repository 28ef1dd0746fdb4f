"""For every family, a model with a LoRA adapter computes the same as a model into whose weights peft has merged it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from models.backends import choice
from models.checkpoint.loader import load_model
from models.lora.config import LoraConfig
from models.steps.batch import EncoderBatch
from tests.engine.tiny_checkpoints import DECODERS, ENCODERS, SEQ2SEQ
from tests.parity.adapters import save_adapter
from tests.parity.checkpoints import random_ids, save
from tests.parity.paged import Rows, chunked, greedy, one_by_one, one_shot
from tests.parity.speech import frames_of, write
from tests.parity.test_encoders import BODIES, _reference

TEXTS = random_ids(97, [7, 1, 12, 3])
SOURCES = random_ids(97, [5, 9, 1, 14], seed=3)
SETTINGS = {
    "attention-names": {"target_modules": ["q_proj", "v_proj"]},
    "one-pattern": {"target_modules": r".*\.layers\.\d\.(self_attn|mlp)\.(k|o|up|down)_proj"},
    "rank-stabilised": {"use_rslora": True, "r": 9, "lora_alpha": 5},
    "one-layer": {"target_modules": ["q_proj", "gate_proj"], "layers_to_transform": [1], "layers_pattern": "layers"},
    "one-layer-by-any-name": {"target_modules": ["k_proj"], "layers_to_transform": 0},
    "other-ranks": {
        "rank_pattern": {"q_proj": 1, r"layers\.1\.mlp\.\w+": 16},
        "alpha_pattern": {"v_proj": 2, r"model\.layers\.0\.self_attn\.k_proj": 40},
    },
    "left-out": {"exclude_modules": ["o_proj", "down_proj"]},
    "rank-one": {"r": 1, "lora_alpha": 3},
}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
SHARED = ["shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj"]
TARGET_MODULES = {
    "mixtral": ATTENTION,
    "qwen2-moe": [*ATTENTION, *SHARED],
    "qwen3_next": [*ATTENTION, "in_proj_qkvz", "in_proj_ba", "linear_attn.out_proj"],
    "qwen3_5_moe": [*ATTENTION, *SHARED, "in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "linear_attn.out_proj"],
    "qwen3-moe": ATTENTION,
    "glm4-moe": ATTENTION,
    "phimoe": ATTENTION,
    "llama4": ATTENTION,
    "modernbert-decoder": ["q_proj", "k_proj", "v_proj", "Wo", "Wi"],
    "deepseek-v3": ["q_a_proj", "q_b_proj", "q_proj", "kv_a_proj_with_mqa", "o_proj"],
    "falcon_h1": [*ATTENTION, "gate_proj", "up_proj", "down_proj", "in_proj"],
    "nemotron_h": [*ATTENTION, "in_proj"],
    "mamba2": ["in_proj"],
    "fsmt": [*ATTENTION[:3], "out_proj", "fc1", "fc2"],
    "fsmt-tied-deep-encoder": [*ATTENTION[:3], "out_proj", "fc1", "fc2"],
    "switch_transformers": r".*(Attention\.[qkvo]|\.mlp\.w[io])",
    "pegasus_x": r".*\.decoder\..*([qkv]_proj|out_proj|fc[12])",
    "longt5": r".*(\.o|\.wi|\.wi_\d|\.wo|\.SelfAttention\.[qkv]|EncDecAttention\.[qkv])",
}
"""Target modules of the families in which some linear layers cannot have an adapter.

These are experts, gates, summary projections, layers that also project the global vectors of a text, the output head of
FSMT, and the layers of state space models that peft refuses.
"""


def make_models(name: str, directory: Path, device, **settings):
    """Write a checkpoint with the adapter `tone`.

    Returns the base model and the merged model of transformers, and our model.
    """
    architecture, config = (DECODERS | SEQ2SEQ)[name]
    if name == "switch_transformers":
        # `forward` of transformers limits the tokens per expert in the decoder too; `generate` never reaches the limit.
        config = type(config).from_dict(config.to_dict() | {"expert_capacity": 64})
    base = save(directory / "base", config, architecture)
    settings = ({"target_modules": TARGET_MODULES[name]} if name in TARGET_MODULES else {}) | settings
    merged = save_adapter(base, directory / "tone", 5, **settings)
    loaded = load_model(directory / "base", torch.float32, device, adapters={"tone": directory / "tone"})
    return base, merged, loaded.transformer


@torch.inference_mode()
def theirs(model, text: list[int], source: list[int] | None) -> torch.Tensor:
    if source is None:
        return model(torch.tensor([text])).logits[0]
    # With a cache, FSMT of transformers does not mask the later tokens of a text.
    cache = {"use_cache": False} if model.config.model_type == "fsmt" else {}
    return model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([text]), **cache).logits[0]


@torch.inference_mode()
def ours(model, way, texts, sources, adapters) -> list[torch.Tensor]:
    rows = Rows(model, sources, adapters=adapters)
    return [model.logits(hidden).cpu() for hidden in way(rows, texts)]


@pytest.mark.parametrize("name", [*DECODERS, *SEQ2SEQ])
def test_logits_equal_merged_weights(name, tmp_path, device):
    base, merged, model = make_models(name, tmp_path, device)
    sources = SOURCES if name in SEQ2SEQ else None
    pairs = list(zip(TEXTS, sources or [None] * 4, strict=True))
    expected = {
        "tone": [theirs(merged, text, source) for text, source in pairs],
        "": [theirs(base, text, source) for text, source in pairs],
    }
    both = ("tone", "", "tone", "")
    for way in (one_shot, chunked, one_by_one):
        for row, logits in enumerate(ours(model, way, TEXTS, sources, both)):
            torch.testing.assert_close(logits, expected[both[row]][row], rtol=1e-4, atol=1e-4)
    for with_tone, without in zip(*expected.values(), strict=True):
        assert (without - with_tone).abs().max() > 0.1, "no effect"


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt-neox", "phi3", "t5", "bart"])
def test_twenty_greedy_tokens_equal_merged_weights(name, tmp_path, device):
    _, merged, model = make_models(name, tmp_path, device)
    sources = SOURCES if name in SEQ2SEQ else None
    prompts = TEXTS if sources is None else [[0]] * len(SOURCES)
    found = greedy(Rows(model, sources, adapters=("tone",) * 4), prompts, 20)
    for row, prompt in enumerate(prompts):
        text = [*prompt, *found[row]]
        logits = theirs(merged, text, None if sources is None else sources[row])
        assert found[row] == logits[len(prompt) - 1 : -1].argmax(-1).tolist() and len(found[row]) == 20


@pytest.mark.parametrize("kind", SETTINGS)
def test_every_form_of_target_settings(kind, tmp_path, device):
    base, merged, model = make_models("llama", tmp_path, device, **SETTINGS[kind])
    (logits,) = ours(model, one_shot, TEXTS[:1], None, ("tone",))
    expected = theirs(merged, TEXTS[0], None)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    assert (expected - theirs(base, TEXTS[0], None)).abs().max() > 0.01


def test_missing_scale_is_detected(tmp_path, device, monkeypatch):
    """Negative control: without the factor alpha / rank, the logits differ from those of peft."""
    monkeypatch.setattr(LoraConfig, "scale_of", lambda self, module: 1.0)
    _, merged, model = make_models("llama", tmp_path, device)
    (logits,) = ours(model, one_shot, TEXTS[:1], None, ("tone",))
    assert (logits - theirs(merged, TEXTS[0], None)).abs().max() > 0.1


def test_cross_attention_without_the_adapter_is_detected(tmp_path, device, monkeypatch):
    """Negative control: cross-attention whose keys and values lack the adapter differs from merged weights."""
    _, merged, model = make_models("bart", tmp_path, device, target_modules=["k_proj", "v_proj"])
    plain = type(model).write_cross
    monkeypatch.setattr(
        type(model), "write_cross", lambda self, x, slots, cache, sources=None: plain(self, x, slots, cache)
    )
    (logits,) = ours(model, one_shot, TEXTS[:1], SOURCES[:1], ("tone",))
    assert (logits - theirs(merged, TEXTS[0], SOURCES[0])).abs().max() > 0.1


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
def test_dense_weights_equal_merged_weights(name, tmp_path, device):
    """With the torch backend and dense weights, the adapter also equals merged weights."""
    with choice.using("torch"):
        base, merged, model = make_models(name, tmp_path, device)
        sources = SOURCES if name in SEQ2SEQ else None
        both = ("tone", "", "tone", "")
        for row, logits in enumerate(ours(model, one_shot, TEXTS, sources, both)):
            oracle = merged if both[row] else base
            expected = theirs(oracle, TEXTS[row], None if sources is None else sources[row])
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def encoder(name: str, directory: Path, device, **settings):
    architecture, config = ENCODERS[name]
    base = save(directory / "base", config, architecture)
    merged = save_adapter(base, directory / "tone", 5, **settings)
    loaded = load_model(directory / "base", torch.float32, device, adapters={"tone": directory / "tone"})
    return base, merged, loaded.transformer


def batch_of(texts, device, adapters) -> EncoderBatch:
    ids = torch.tensor([token for text in texts for token in text], device=device)
    return EncoderBatch(ids, tuple(map(len, texts)), adapters=adapters)


@torch.inference_mode()
def test_bert_embeddings_equal_merged_weights(tmp_path, device):
    base, merged, model = encoder("bert", tmp_path, device)
    both = ("", "tone", "tone", "")
    hidden = model.encode(batch_of(TEXTS, device, both)).cpu().split([len(text) for text in TEXTS])
    for row, states in enumerate(hidden):
        oracle = merged if both[row] else base
        expected = oracle(torch.tensor([TEXTS[row]])).last_hidden_state[0]
        torch.testing.assert_close(states, expected, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_bert_classification_with_an_adapted_head(tmp_path, device):
    base, merged, model = encoder("classifier", tmp_path, device)
    both = ("tone", "tone", "", "tone")
    batch = batch_of(TEXTS, device, both)
    logits = model.classify(model.encode(batch), batch).cpu()
    for row, text in enumerate(TEXTS):
        oracle = merged if both[row] else base
        torch.testing.assert_close(logits[row], oracle(torch.tensor([text])).logits[0], rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_bart_classification_equals_merged_weights(tmp_path, device):
    """The adapter changes the encoder, the decoder and cross-attention."""
    common = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    config = transformers.BartConfig(
        vocab_size=97, d_model=32, **common, encoder_layers=2, decoder_layers=2, max_position_embeddings=128
    )
    base = save(tmp_path / "base", config, "BartForSequenceClassification")
    merged = save_adapter(base, tmp_path / "tone", 5)
    model = load_model(tmp_path / "base", torch.float32, device, adapters={"tone": tmp_path / "tone"}).transformer
    texts = [[*text, config.eos_token_id] for text in TEXTS]
    both = ("", "tone", "tone", "")
    batch = batch_of(texts, device, both)
    logits = model.classify(model.encode(batch), batch).cpu()
    for row, text in enumerate(texts):
        oracle = merged if both[row] else base
        torch.testing.assert_close(logits[row], oracle(torch.tensor([text])).logits[0], rtol=1e-4, atol=1e-4)


WITHOUT_DISTANCES = r".*\.(value_proj|dense|output\.dense)"
"""Pattern for the names of DeBERTa's linear layers that are not applied to the embeddings of distances."""


@pytest.mark.parametrize("body", BODIES)
@torch.inference_mode()
def test_hidden_states_of_every_encoder_equal_merged_weights(body, tmp_path, device):
    name, _ = BODIES[body]
    base = _reference(body, "Model")
    base.save_pretrained(tmp_path / "base")
    merged = save_adapter(
        base, tmp_path / "tone", 5, **({"target_modules": WITHOUT_DISTANCES} if "Deberta" in name else {})
    )
    model = load_model(tmp_path / "base", torch.float32, device, adapters={"tone": tmp_path / "tone"}).transformer
    texts, both = [[5, 6, 7, 8, 9, 10, 11], [13], [20, 21, 22, 23], [30, 31]], ("tone", "", "tone", "")
    hidden = model.encode(batch_of(texts, device, both)).cpu().split([len(text) for text in texts])
    for row, text in enumerate(texts):
        expected = (merged if both[row] else base)(torch.tensor([text])).last_hidden_state[0]
        torch.testing.assert_close(hidden[row], expected, rtol=0, atol=1e-4)
    changed = merged(torch.tensor(texts[:1])).last_hidden_state - base(torch.tensor(texts[:1])).last_hidden_state
    assert changed.abs().max() > 0.1


@torch.inference_mode()
def test_whisper_with_adapted_and_plain_rows(tmp_path, device):
    base = write(tmp_path / "base", "whisper")
    merged = save_adapter(base, tmp_path / "tone", 5, target_modules=["q_proj", "k_proj", "v_proj", "fc1", "fc2"])
    model = load_model(tmp_path / "base", torch.float32, device, adapters={"tone": tmp_path / "tone"}).transformer
    clips = [
        frames.to(device) for frames in frames_of(4, base.config.num_mel_bins, 2 * base.config.max_source_positions)
    ]
    both = ("", "tone", "tone", "")
    for row, logits in enumerate(ours(model, chunked, TEXTS, clips, both)):
        oracle = merged if both[row] else base
        output = oracle(input_features=clips[row].cpu().T[None], decoder_input_ids=torch.tensor([TEXTS[row]]))
        torch.testing.assert_close(logits, output.logits[0], rtol=1e-4, atol=1e-4)
