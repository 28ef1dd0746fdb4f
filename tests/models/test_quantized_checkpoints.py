"""Quantised checkpoints have the results of the same weights in float32. Damaged ones are refused."""

from __future__ import annotations

import shutil

import pytest
import torch
from transformers import BertConfig, LlamaConfig, MixtralConfig, Phi3Config, Qwen2Config

from models.backends import choice
from models.checkpoint.loader import LoadedModel, load_model
from server.engine.loading.load import load
from server.engine.loading.shared_weights import fingerprint, map_weights
from server.ipc.wire.descriptions import ModelSpec
from server.ipc.workers.weight_memory import WeightMemory
from tests.parity.checkpoints import edit_config, random_ids, write_model
from tests.parity.paged import Rows, encoder_batch
from tests.parity.quantized_checkpoints import FORMATS, KERNEL_FORMATS, changed, quantize, relative_error
from weights.load import WeightsError

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 70,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
DECODER = {**SIZES, "num_key_value_heads": 2}
TEXTS = random_ids(70, (5, 9, 2))
DECODERS = {
    "llama": (LlamaConfig(**DECODER), "LlamaForCausalLM"),
    "llama, tied": (LlamaConfig(**DECODER, tie_word_embeddings=True), "LlamaForCausalLM"),
    "qwen2, with biases": (Qwen2Config(**DECODER), "Qwen2ForCausalLM"),
    "phi3, fused projections": (Phi3Config(**DECODER, pad_token_id=0), "Phi3ForCausalLM"),
    "mixtral, experts": (MixtralConfig(**DECODER, num_local_experts=3, num_experts_per_tok=2), "MixtralForCausalLM"),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A function that returns the directory of a random checkpoint, given its key in `DECODERS`."""
    made = {}

    def get(name: str):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("checkpoints") / name.split(",")[0]
            write_model(made[name], *DECODERS[name])
        return made[name]

    return get


@pytest.fixture(scope="module")
def pair(checkpoint, tmp_path_factory):
    """A function that returns the directories of a quantised checkpoint and of its dequantised float32 copy.

    Its arguments are the key of the decoder in `DECODERS` and the name of the format.
    """
    made = {}

    def get(decoder: str, kind: str):
        if (decoder, kind) not in made:
            made[decoder, kind] = quantize(checkpoint(decoder), kind, tmp_path_factory.mktemp(kind), is_linear)
        return made[decoder, kind]

    return get


def is_linear(module: str) -> bool:
    """Whether a module is quantised: a projection or a matrix of Mixtral's experts, but not the router or the head."""
    return module.split(".")[-1].endswith(("proj", "w1", "w2", "w3"))


def is_query_or_value(module: str) -> bool:
    return module.endswith(("q_proj", "v_proj"))


def logits(loaded: LoadedModel) -> torch.Tensor:
    model = loaded.transformer
    hidden = Rows(model).feed(dict(enumerate(TEXTS)))
    with torch.inference_mode():
        return torch.cat([model.logits(part) for part in hidden])


CASES = [("llama", kind) for kind in FORMATS] + [
    (decoder, kind) for decoder in list(DECODERS)[1:] for kind in ("gptq", "compressed-int4", "fp8")
]


@pytest.mark.parametrize(("decoder", "kind"), CASES, ids=["-".join(case) for case in CASES])
def test_logits_are_those_of_the_dequantized_weights(pair, decoder, kind):
    quantized, plain = pair(decoder, kind)
    with choice.using("torch"):
        loaded, expected = load_model(quantized, torch.float32, CPU), load_model(plain, torch.float32, CPU)
        assert loaded.parameters == expected.parameters and loaded.checkpoint_format
        assert "no kernel" in loaded.notes[0] and "float32" in loaded.notes[0]
        torch.testing.assert_close(logits(loaded), logits(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", FORMATS)
def test_kernels_compute_with_the_stored_matrices_where_they_can(pair, kind):
    if not choice.kernels_are_built:
        pytest.skip("the compiled kernels were not built")
    quantized, plain = pair("llama", kind)
    loaded, expected = load_model(quantized, torch.float32, CPU), load_model(plain, torch.float32, CPU)
    found = logits(loaded)
    assert relative_error(found, logits(expected)) < 0.03
    if kind in KERNEL_FORMATS:
        assert loaded.weight_bytes < 0.7 * expected.weight_bytes and not loaded.notes
    # A text alone gives the same bits as in a batch.
    with torch.inference_mode():
        alone = loaded.transformer.logits(Rows(loaded.transformer).feed({0: TEXTS[1]})[0])
    assert torch.equal(alone, found[len(TEXTS[0]) :][: len(alone)])


@pytest.mark.parametrize("kind", KERNEL_FORMATS)
def test_experts_are_multiplied_as_they_are_stored(pair, kind):
    if not choice.kernels_are_built:
        pytest.skip("the compiled kernels were not built")
    quantized, plain = pair("mixtral, experts", kind)
    loaded, expected = load_model(quantized, torch.float32, CPU), load_model(plain, torch.float32, CPU)
    assert not loaded.notes and loaded.weight_bytes < 0.6 * expected.weight_bytes
    found = logits(loaded)
    assert relative_error(found, logits(expected)) < 0.03
    with torch.inference_mode():
        alone = loaded.transformer.logits(Rows(loaded.transformer).feed({0: TEXTS[1]})[0])
    assert torch.equal(alone, found[len(TEXTS[0]) :][: len(alone)])


def test_experts_of_different_layouts_are_dequantized(checkpoint, tmp_path):
    """If one expert's last matrix is not quantised, the last matrices of all experts are dequantised.

    The first matrices of the experts stay quantised.
    """
    if not choice.kernels_are_built:
        pytest.skip("the compiled kernels were not built")
    quantized, plain = quantize(
        checkpoint("mixtral, experts"), "gptq", tmp_path, lambda module: is_linear(module) and "0.w2" not in module
    )
    loaded, expected = load_model(quantized, torch.float32, CPU), load_model(plain, torch.float32, CPU)
    layers, experts, projections = 2, 3, 4
    dequantized, all_matrices = layers * (experts - 1), layers * (projections + 3 * experts - 1)
    assert loaded.notes[0].startswith(f"{dequantized} of {all_matrices} quantized matrices have no kernel")
    assert relative_error(logits(loaded), logits(expected)) < 0.03


def test_projections_of_different_kinds_are_separate_products(checkpoint, tmp_path):
    if not choice.kernels_are_built:
        pytest.skip("the compiled kernels were not built")
    quantized, plain = quantize(checkpoint("llama"), "gptq-8-bits", tmp_path, is_query_or_value)
    loaded, expected = load_model(quantized, torch.float32, CPU), load_model(plain, torch.float32, CPU)
    attention = loaded.transformer.decoder.layers[0].attention
    assert attention.merged is None and attention.query.packed is not None
    assert relative_error(logits(loaded), logits(expected)) < 0.03


@pytest.mark.parametrize("kind", ["gptq", "compressed-int8"])
def test_workers_share_the_packed_matrices(pair, kind):
    memory = WeightMemory([])
    spec = ModelSpec("m", str(pair("qwen2, with biases", kind)[0]), "float32")
    private = load(spec, CPU, lambda done, total: None)
    for _ in range(2):
        shared = map_weights(
            memory.current(), fingerprint([spec]), lambda writing: load(spec, CPU, lambda done, total: None, writing)
        )
        mapped = load(spec, CPU, lambda done, total: None, shared)
        assert torch.equal(logits(mapped.model), logits(private.model))
        assert mapped.model.notes == private.model.notes and mapped.model.parameters == private.model.parameters
    memory.close()


def test_quantize_rounds_the_dequantized_weights(pair):
    if not choice.kernels_are_built:
        pytest.skip("the compiled kernels were not built")
    quantized, plain = pair("llama", "fp8")
    loaded = load_model(quantized, torch.float32, CPU, quantization="int8")
    expected = load_model(plain, torch.float32, CPU, quantization="int8")
    assert torch.equal(logits(loaded), logits(expected)) and "rounded again, to int8" in loaded.notes[0]


def test_an_encoder(tmp_path):
    write_model(tmp_path / "bert", BertConfig(**SIZES), "BertForMaskedLM")
    inside = ("query", "key", "value", "dense")
    quantized, plain = quantize(
        tmp_path / "bert", "gptq", tmp_path, lambda module: ".layer." in module and module.endswith(inside)
    )
    batch = encoder_batch(TEXTS, CPU)
    with choice.using("torch"), torch.inference_mode():
        found, expected = (
            load_model(path, torch.float32, CPU).transformer.encode(batch) for path in (quantized, plain)
        )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_bias_that_the_model_lacks_must_be_zero(pair, tmp_path):
    quantized, _ = quantize_copy(pair, tmp_path)
    changed(quantized, lambda tensors: tensors.update({"model.layers.0.mlp.up_proj.bias": torch.zeros(96)}))
    load_model(quantized, torch.float32, CPU)
    changed(quantized, lambda tensors: tensors.update({"model.layers.0.mlp.up_proj.bias": torch.ones(96)}))
    with pytest.raises(WeightsError, match=r"1 unexpected \(model\.layers\.0\.mlp\.up_proj\.bias\)"):
        load_model(quantized, torch.float32, CPU)


def test_all_differences_are_in_one_error(pair, tmp_path):
    quantized, _ = quantize_copy(pair, tmp_path)

    def damage(tensors):
        del tensors["model.layers.0.self_attn.q_proj.scales"], tensors["model.layers.1.mlp.down_proj.qweight"]
        tensors["model.layers.0.mlp.up_proj.qzeros"] = torch.zeros(1, 1, dtype=torch.int32)
        tensors["model.layers.1.mlp.gate_proj.qweight"] = torch.zeros(8, 97, dtype=torch.int32)

    changed(quantized, damage)
    with pytest.raises(WeightsError) as error:
        load_model(quantized, torch.float32, CPU)
    message = str(error.value)
    assert "model.layers.0.self_attn.q_proj.weight: scales is missing" in message
    assert "model.layers.0.mlp.up_proj.weight: qzeros is [1, 1], not [2, 12]" in message
    assert "model.layers.1.mlp.gate_proj.weight: scales is [2, 96], not [2, 97]" in message
    assert "1 missing (model.layers.1.mlp.down_proj.weight)" in message
    assert "3 unexpected" in message and "model.layers.1.mlp.down_proj.scales" in message


def test_scales_that_are_not_finite_are_named(pair, tmp_path):
    quantized, _ = quantize_copy(pair, tmp_path)
    changed(quantized, lambda tensors: tensors["model.layers.1.mlp.up_proj.scales"][0, 5].fill_(float("nan")))
    with pytest.raises(
        WeightsError, match=r"1 tensors contain NaN or infinity \(model\.layers\.1\.mlp\.up_proj\.weight"
    ):
        load_model(quantized, torch.float32, CPU)


def test_tensors_without_settings_are_refused(pair, tmp_path):
    quantized, _ = quantize_copy(pair, tmp_path, "fp8")
    edit_config(quantized, quantization_config=None)
    with pytest.raises(WeightsError, match="dtype float8_e4m3fn is not supported for a tensor that is not quantized"):
        load_model(quantized, torch.float32, CPU)


def quantize_copy(pair, tmp_path, kind: str = "gptq"):
    """Copy the quantised LLaMA and its float32 copy, so that a test can change them. kind: name of the format."""
    return [shutil.copytree(directory, tmp_path / directory.name) for directory in pair("llama", kind)]
