"""Models that transformers has no class for equal their oracles, which `published_code` makes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from models.config import ConfigError
from models.families import family_of
from tests.parity.cases import VOCAB
from tests.parity.checkpoints import edit_config, load, random_ids
from tests.parity.paged import Rows, chunked, encoder_batch, greedy, one_by_one, one_shot
from tests.parity.published_code import (
    JINA,
    LLAMAS,
    NOMIC,
    write_exaone,
    write_jina,
    write_jina5,
    write_llama_bidirec,
    write_nomic,
    write_pplx,
    write_voyage,
)

LENGTHS = (1, 7, 23, 12)
ENCODERS = {
    "nomic": (write_nomic, {}),
    "nomic-normalized-one-of-three": (
        write_nomic,
        {"moe_normalize_expert_weights": True, "moe_top_k": 1, "num_experts": 3, "n_layer": 4, "n_head": 2},
    ),
    "jina_bert": (write_jina, {}),
    "jina_bert-relu-six-heads": (
        write_jina,
        {"feed_forward_type": "reglu", "hidden_size": 48, "num_attention_heads": 6, "num_hidden_layers": 2},
    ),
}


@pytest.mark.parametrize("shape", LLAMAS)
@torch.inference_mode()
def test_exaone(shape: str, tmp_path: Path, device: torch.device) -> None:
    oracle = write_exaone(tmp_path, shape).to(device)
    model, texts = load(tmp_path, device).transformer, random_ids(VOCAB, LENGTHS)
    for way in (one_shot, chunked, one_by_one):
        for text, hidden in zip(texts, way(Rows(model), texts), strict=True):
            output = oracle(torch.tensor([text], device=device), output_hidden_states=True)
            torch.testing.assert_close(hidden, output.hidden_states[-1][0], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(model.logits(hidden), output.logits[0], atol=1e-4, rtol=1e-4)
    for prompt, answer in zip(texts, greedy(Rows(model), texts, 20), strict=True):
        logits = oracle(torch.tensor([prompt + answer], device=device)).logits[0]
        assert answer == logits[len(prompt) - 1 : -1].argmax(-1).tolist()


@pytest.mark.parametrize("write", [write_llama_bidirec, write_pplx])
@pytest.mark.parametrize("shape", LLAMAS)
@torch.inference_mode()
def test_decoders_as_encoders(shape: str, write, tmp_path: Path, device: torch.device) -> None:
    oracle = write(tmp_path, shape).to(device)
    loaded, texts = load(tmp_path, device), random_ids(VOCAB, LENGTHS)
    theirs = [oracle(torch.tensor([text], device=device)).last_hidden_state[0] for text in texts]
    hidden = loaded.transformer.encode(encoder_batch(texts, device))
    torch.testing.assert_close(hidden, torch.cat(theirs), atol=1e-4, rtol=1e-4)
    assert loaded.tasks == ("embed",)


@pytest.mark.parametrize("shape", LLAMAS)
@torch.inference_mode()
def test_voyage_qwen3(shape: str, tmp_path: Path, device: torch.device) -> None:
    """One checkpoint names its published code, the other only its class. Both have the `model_type` of Qwen3."""
    oracle = write_voyage(tmp_path, shape).to(device)
    loaded, texts = load(tmp_path, device), random_ids(VOCAB, LENGTHS)
    theirs = [oracle.linear(oracle(torch.tensor([text], device=device)).last_hidden_state[0]) for text in texts]
    hidden = loaded.transformer.encode(encoder_batch(texts, device))
    torch.testing.assert_close(hidden, torch.cat(theirs), atol=1e-4, rtol=1e-4)
    assert (loaded.family, loaded.tasks, hidden.shape[1]) == ("voyage_qwen3", ("embed",), 40)


@pytest.mark.parametrize("shape", LLAMAS)
@torch.inference_mode()
def test_jina_embeddings_v5(shape: str, tmp_path: Path, device: torch.device) -> None:
    """One checkpoint is a Qwen3, the other a EuroBERT."""
    oracle = write_jina5(tmp_path, shape).to(device)
    loaded, texts = load(tmp_path, device), random_ids(VOCAB, LENGTHS)
    theirs = [oracle(torch.tensor([text], device=device)).last_hidden_state[0] for text in texts]
    if loaded.config.encoder is not None:
        found = loaded.transformer.encode(encoder_batch(texts, device))
    else:
        found = torch.cat(one_shot(Rows(loaded.transformer), texts))
    torch.testing.assert_close(found, torch.cat(theirs), atol=1e-4, rtol=1e-4)
    assert (loaded.family, loaded.tasks) == ("jina_embeddings_v5", ("embed",))
    assert (loaded.config.encoder is None) == (shape == "grouped")


@pytest.mark.parametrize(("pooling", "labels"), [("avg", 1), ("cls", 3), ("last", 1)])
@torch.inference_mode()
def test_classes_of_llama_bidirec(pooling: str, labels: int, tmp_path: Path, device: torch.device) -> None:
    oracle = write_llama_bidirec(tmp_path, "grouped", labels, pooling).to(device)
    loaded, texts = load(tmp_path, device), random_ids(VOCAB, LENGTHS)
    batch = encoder_batch(texts, device)
    found = loaded.transformer.classify(loaded.transformer.encode(batch), batch)
    states = [oracle.model(torch.tensor([text], device=device)).last_hidden_state[0] for text in texts]
    pooled = [{"avg": state.mean(0), "cls": state[0], "last": state[-1]}[pooling] for state in states]
    torch.testing.assert_close(found, oracle.score(torch.stack(pooled)), atol=1e-4, rtol=1e-4)
    assert loaded.tasks == (("classify", "rerank") if labels == 1 else ("classify",))


@pytest.mark.parametrize("name", ENCODERS)
@torch.inference_mode()
def test_encoders(name: str, tmp_path: Path, device: torch.device) -> None:
    write, settings = ENCODERS[name]
    encode = write(tmp_path, **settings)
    loaded, texts = load(tmp_path, device), random_ids(VOCAB, LENGTHS)
    theirs = torch.cat([encode(torch.tensor(text)) for text in texts])
    found = loaded.transformer.encode(encoder_batch(texts, device))
    torch.testing.assert_close(found.cpu(), theirs, atol=1e-4, rtol=1e-4)
    assert loaded.tasks == ("embed",) and theirs.std() > 0.1


def test_a_model_of_jina_without_a_head_that_names_one(tmp_path: Path, device: torch.device) -> None:
    """Published embedding models name a class with a head, but have no head.

    Their sentence-transformers files show that they give embeddings.
    """
    write_jina(tmp_path)
    edit_config(tmp_path, architectures=["JinaBertForMaskedLM"])
    (tmp_path / "modules.json").write_text(
        '[{"path": "", "type": "sentence_transformers.models.Transformer"},'
        ' {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]'
    )
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    assert load(tmp_path, device).tasks == ("embed",)


@pytest.mark.parametrize(
    ("hf", "name"),
    [
        ({**JINA, "position_embedding_type": "absolute"}, "position_embedding_type"),
        ({**JINA, "feed_forward_type": "original"}, "feed_forward_type"),
        (
            {**JINA, "architectures": None, "auto_map": {"AutoModel": "somebody/it--modeling_bert.JinaBertModel"}},
            "auto_map",
        ),
        ({**NOMIC, "num_shared_experts": 1}, "num_shared_experts"),
        ({**NOMIC, "expert_choice_router": True}, "expert_choice_router"),
        ({**NOMIC, "moe_every_n_layers": 0}, "num_experts"),
        ({**NOMIC, "activation_function": "swiglu"}, "activation_function"),
        ({"model_type": "llama_bidirec", "pooling": "weighted_avg"}, "pooling"),
        (
            {
                "model_type": "llama_bidirec",
                "architectures": ["LlamaBidirectionalForSequenceClassification"],
                "temperature": 0.02,
            },
            "temperature",
        ),
        (
            {"model_type": "bidirectional_pplx_qwen3", "use_bidirectional_attention": False},
            "use_bidirectional_attention",
        ),
        ({"model_type": "exaone", "activation_function": "mish"}, "hidden_act"),
    ],
)
def test_refusals(hf: dict[str, object], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        family, architecture = family_of(hf)
        family.config(hf, architecture)
