"""A model from a GGUF file equals the model from the Hugging Face checkpoint that was converted to this file."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from benchmarks.checkpoints import write_pooling
from models.backends import choice
from models.checkpoint.loader import load_model
from models.config import ConfigError
from models.families import FAMILIES
from tests.models.gguf_cases import FURTHER
from tests.parity.checkpoints import edit_config, random_ids, write_model
from tests.parity.paged import Rows, encoder_batch
from tests.parity.published_code import LLAMAS, write_exaone, write_jina, write_nomic
from tests.weights.gguf_files import add_value, q4_k, q6_k, write_gguf
from weights.errors import WeightsError
from weights.gguf.container import read_gguf
from weights.gguf.metadata import Metadata

_WIDE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.5, 2.0, 4.0],
    "long_factor": [2.0, 3.0, 5.0, 9.0],
    "attention_factor": 1.25,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_FALCON = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "bias": False}
_BERT = {key: _WIDE[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")}

CASES = {
    "llama-3": (
        "LlamaForCausalLM",
        transformers.LlamaConfig(**_WIDE, rope_parameters=_LLAMA3, tie_word_embeddings=True),
    ),
    "llama-head-dim": ("LlamaForCausalLM", transformers.LlamaConfig(**_WIDE, head_dim=12)),
    "mistral": ("MistralForCausalLM", transformers.MistralConfig(**_WIDE, sliding_window=None)),
    "mixtral": (
        "MixtralForCausalLM",
        transformers.MixtralConfig(**_WIDE, num_local_experts=5, num_experts_per_tok=2, sliding_window=None),
    ),
    "qwen2-yarn": ("Qwen2ForCausalLM", transformers.Qwen2Config(**_WIDE, rope_parameters=_YARN)),
    "qwen2-moe": (
        "Qwen2MoeForCausalLM",
        transformers.Qwen2MoeConfig(**_WIDE, **_EXPERTS, shared_expert_intermediate_size=40, norm_topk_prob=False),
    ),
    "qwen3": ("Qwen3ForCausalLM", transformers.Qwen3Config(**_WIDE, head_dim=12, tie_word_embeddings=True)),
    "qwen3-moe": (
        "Qwen3MoeForCausalLM",
        transformers.Qwen3MoeConfig(**_WIDE, **_EXPERTS, head_dim=12, norm_topk_prob=True),
    ),
    "gemma": ("GemmaForCausalLM", transformers.GemmaConfig(**_WIDE, head_dim=12)),
    "gemma-2": (
        "Gemma2ForCausalLM",
        transformers.Gemma2Config(**_WIDE, head_dim=12, query_pre_attn_scalar=12, sliding_window=6),
    ),
    "gemma-3": (
        "Gemma3ForCausalLM",
        transformers.Gemma3TextConfig(
            **{**_WIDE, "num_hidden_layers": 7}, head_dim=12, query_pre_attn_scalar=12, sliding_window=6
        ),
    ),
    "phi-2": (
        "PhiForCausalLM",
        transformers.PhiConfig(**{**_WIDE, "num_key_value_heads": 4}, partial_rotary_factor=0.5),
    ),
    "phi-3": (
        "Phi3ForCausalLM",
        transformers.Phi3Config(**_WIDE, rope_parameters=_LONG, original_max_position_embeddings=48),
    ),
    "starcoder-2": ("Starcoder2ForCausalLM", transformers.Starcoder2Config(**_WIDE, sliding_window=6)),
    "gpt-2": (
        "GPT2LMHeadModel",
        transformers.GPT2Config(vocab_size=97, n_positions=64, n_embd=32, n_layer=2, n_head=4, n_inner=56),
    ),
    "gpt-neox": (
        "GPTNeoXForCausalLM",
        transformers.GPTNeoXConfig(
            **{**_WIDE, "num_key_value_heads": 4}, rope_parameters={"rope_theta": 10000.0, "partial_rotary_factor": 0.5}
        ),
    ),
    "falcon-7b": ("FalconForCausalLM", transformers.FalconConfig(**_FALCON, new_decoder_architecture=False)),
    "falcon-40b": (
        "FalconForCausalLM",
        transformers.FalconConfig(**_FALCON, new_decoder_architecture=True, num_kv_heads=2),
    ),
    "stablelm": ("StableLmForCausalLM", transformers.StableLmConfig(**_WIDE, use_qkv_bias=True)),
    "stablelm-2-12b": (
        "StableLmForCausalLM",
        transformers.StableLmConfig(**_WIDE, qk_layernorm=True, use_parallel_residual=True),
    ),
    "smollm-3": ("SmolLM3ForCausalLM", transformers.SmolLM3Config(**{**_WIDE, "num_hidden_layers": 4})),
    "bert": (
        "BertModel",
        transformers.BertConfig(**_BERT, num_attention_heads=4, max_position_embeddings=64, layer_norm_eps=1e-5),
    ),
    "nomic-bert": (
        "NomicBertModel",
        transformers.NomicBertConfig(**_BERT, num_attention_heads=4, max_position_embeddings=64),
    ),
    **FURTHER,
}

SERVED_AS = {"mistral": "LlamaForCausalLM", "glm4-moe-lite": "DeepseekV3ForCausalLM"}
"""Case → architecture that is loaded from its GGUF file, where the file has the name of an equivalent family."""


@pytest.mark.parametrize("case", CASES)
def test_a_gguf_file_is_the_checkpoint_it_was_converted_from(tmp_path, case):
    architecture, config = CASES[case]
    write_model(tmp_path, config, architecture)
    file = write_gguf(tmp_path / "model.gguf", tmp_path)
    theirs = load_model(tmp_path, torch.float32, torch.device("cpu"))
    ours = load_model(file, torch.float32, torch.device("cpu"))
    assert ours.config == theirs.config
    assert ours.tasks == theirs.tasks
    assert ours.architecture == SERVED_AS.get(case, theirs.architecture)
    assert (ours.parameters, ours.weight_bytes) == (theirs.parameters, theirs.weight_bytes)
    expected = weights_of(theirs.transformer)
    found = weights_of(ours.transformer)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        # Some files store norm weights plus one, and exponentials of logarithms, which are rounded.
        tolerance = 1e-6 if "norm" in name or name.endswith("log_decay") else 0.0
        assert torch.allclose(found[name], tensor, rtol=0, atol=tolerance), name


@pytest.mark.parametrize("case", CASES)
def test_one_tensor_may_have_the_queries_keys_and_values(tmp_path, case):
    """A tensor in the file may contain queries, keys and values together.

    The converter writes it with `--fuse-qkv`, and always for some families.
    """
    architecture, config = CASES[case]
    write_model(tmp_path, config, architecture)
    apart = load_model(write_gguf(tmp_path / "apart.gguf", tmp_path), torch.float32, torch.device("cpu"))
    file = write_gguf(tmp_path / "fused.gguf", tmp_path, fuse_qkv=True)
    if not any(".attn_qkv." in name for name in read_gguf(file).tensors):
        pytest.skip("its layers have no separate queries, keys and values")
    fused = load_model(file, torch.float32, torch.device("cpu"))
    assert fused.config == apart.config
    expected, found = weights_of(apart.transformer), weights_of(fused.transformer)
    assert found.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)] == []


def _without_bias(directory):
    """Set the biases of experts in a checkpoint to zero, because GGUF files do not contain them."""
    tensors = load_file(directory / "model.safetensors")
    save_file(
        {name: tensor * (not name.endswith("experts.bias")) for name, tensor in tensors.items()},
        directory / "model.safetensors",
    )


def _with_split_gate(directory):
    """Store the gate and the up matrix of a checkpoint separately, under the names that older converters use."""
    tensors = load_file(directory / "model.safetensors")
    for name in [name for name in tensors if "gated_layers" in name]:
        stem, fused = name.removesuffix(".weight"), tensors.pop(name)
        for part, matrix in zip("wv", fused.chunk(2), strict=True):
            tensors[f"{stem}_{part}.weight"] = matrix.contiguous()
    save_file(tensors, directory / "model.safetensors")


@pytest.mark.parametrize(
    ("write", "before", "older"),
    [
        (write_nomic, _without_bias, lambda directory: None),
        (write_jina, lambda directory: None, lambda directory: None),
        (write_jina, lambda directory: None, _with_split_gate),
    ],
    ids=["nomic-bert-moe", "jina-bert-v2", "jina-bert-v2-split"],
)
def test_encoders_whose_code_is_published_with_them(tmp_path, write, before, older):
    write(tmp_path)
    before(tmp_path)
    texts = random_ids(97, (9, 1, 17))
    batch = encoder_batch(texts, torch.device("cpu"))
    expected = load_model(tmp_path, torch.float32, torch.device("cpu")).transformer.encode(batch)
    older(tmp_path)
    ours = load_model(write_gguf(tmp_path / "model.gguf", tmp_path), torch.float32, torch.device("cpu"))
    torch.testing.assert_close(ours.transformer.encode(batch), expected, atol=1e-5, rtol=0)
    assert ours.tasks == ("embed",)


@pytest.mark.parametrize("shape", LLAMAS)
def test_exaone(tmp_path, shape):
    write_exaone(tmp_path, shape)
    edit_config(tmp_path, rope_parameters={**_LLAMA3} if shape == "grouped" else None)
    theirs = load_model(tmp_path, torch.float32, torch.device("cpu"))
    ours = load_model(write_gguf(tmp_path / "model.gguf", tmp_path), torch.float32, torch.device("cpu"))
    assert (ours.config, ours.tasks) == (theirs.config, theirs.tasks)
    found = weights_of(ours.transformer)
    assert all(torch.equal(found[name], tensor) for name, tensor in weights_of(theirs.transformer).items())


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("LlamaModel", transformers.LlamaConfig(**_WIDE, rope_parameters=_LLAMA3, is_causal=False)),
        ("Qwen3Model", transformers.Qwen3Config(**_WIDE, head_dim=12, is_causal=False)),
        ("MistralModel", transformers.MistralConfig(**_WIDE, sliding_window=None, is_causal=False)),
        ("Phi3Model", transformers.Phi3Config(**_WIDE, is_causal=False)),
        ("Qwen3MoeModel", transformers.Qwen3MoeConfig(**_WIDE, **_EXPERTS, norm_topk_prob=True, is_causal=False)),
    ],
    ids=["llama-embed", "qwen3", "llama", "phi3", "qwen3_moe"],
)
def test_a_decoder_that_reads_both_ways_is_an_encoder(tmp_path, architecture, config):
    write_model(tmp_path, config, architecture)
    batch = encoder_batch(random_ids(97, (9, 1, 17)), torch.device("cpu"))
    theirs = load_model(tmp_path, torch.float32, torch.device("cpu"))
    ours = load_model(write_gguf(tmp_path / "model.gguf", tmp_path), torch.float32, torch.device("cpu"))
    assert ours.tasks == theirs.tasks == ("embed",)
    assert torch.equal(ours.transformer.encode(batch), theirs.transformer.encode(batch))


@pytest.mark.parametrize(
    ("kind", "mode"), [("MEAN", "mean_tokens"), ("CLS", "cls_token"), ("LAST", "lasttoken")], ids=str.lower
)
def test_an_embedder_pools_as_its_file_states(tmp_path, kind, mode):
    write_model(tmp_path, CASES["bert"][1], "BertModel")
    write_pooling(tmp_path, 32)
    chosen = {f"pooling_mode_{each}": each == mode for each in ("mean_tokens", "cls_token", "lasttoken")}
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 32} | chosen))

    def change(writer):
        writer.add_pooling_type(gguf.PoolingType[kind])
        writer.add_tokenizer_model("bert")
        writer.add_token_list([f"word{index}" for index in range(97)])

    file = write_gguf(tmp_path / "model.gguf", tmp_path, change=change)
    theirs = load_model(tmp_path, torch.float32, torch.device("cpu"))
    ours = load_model(file, torch.float32, torch.device("cpu"))
    assert ours.sentence.config.pooling == theirs.sentence.config.pooling
    assert ours.sentence.config.normalize and theirs.sentence.config.normalize
    assert ours.tasks == theirs.tasks == ("embed",)


def test_layers_that_only_predict_further_tokens_are_left_out(tmp_path):
    def change(writer):
        add_value(writer, "qwen35.block_count", 5)
        add_value(writer, "qwen35.nextn_predict_layers", 1)
        for name in ("blk.4.nextn.eh_proj.weight", "blk.4.attn_q.weight", "blk.4.nextn.enorm.weight"):
            writer.add_tensor(name, np.ones((4, 4), np.float32))

    architecture, config = CASES["qwen3_5"]
    write_model(tmp_path, config, architecture)
    file = write_gguf(tmp_path / "model.gguf", tmp_path, change=change)
    ours = load_model(file, torch.float32, torch.device("cpu"))
    theirs = load_model(tmp_path, torch.float32, torch.device("cpu"))
    assert ours.config == theirs.config and ours.parameters == theirs.parameters


def test_adapters_are_refused(tmp_path):
    write_model(tmp_path, CASES["llama-3"][1], "LlamaForCausalLM")
    file = write_gguf(tmp_path / "model.gguf", tmp_path)
    with pytest.raises(ConfigError, match="adapter 'small': adapters of models in GGUF files are not supported"):
        load_model(file, torch.float32, torch.device("cpu"), adapters={"small": tmp_path})


def test_a_missing_tensor_is_named_as_in_the_file(tmp_path):
    write_model(tmp_path, CASES["llama-head-dim"][1], "LlamaForCausalLM")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    file = write_gguf(tmp_path / "model.gguf", tmp_path)
    with pytest.raises(WeightsError, match=r"1 missing \(blk\.1\.ffn_up\.weight\)"):
        load_model(file, torch.float32, torch.device("cpu"))


def weights_of(transformer):
    """All tensors of a model by name, packed or not. The name of a packed tensor says where it is stored."""
    found = dict(transformer.named_parameters())
    for name, module in transformer.named_modules():
        for kind in ("packed", "merged"):
            for attribute, value in _tensors_in(getattr(module, kind, None)):
                found[f"{name}.{kind}{attribute}"] = value
    return found


def _tensors_in(value):
    """Yield each tensor in an object, its attributes and the elements of its lists, with the path to it."""
    if isinstance(value, torch.Tensor):
        yield "", value
    parts = enumerate(value) if isinstance(value, list | tuple) else getattr(value, "__dict__", {}).items()
    for name, part in parts if not isinstance(value, torch.Tensor) else ():
        for place, tensor in _tensors_in(part):
            yield f".{name}{place}", tensor


def _quantized(name, matrix):
    """Quantize a matrix as a Q4_K_M file does; None for a router, which stays in floats.

    The token table, value projections and last products of feed-forwards have Q6_K, all others Q4_K.
    """
    if name.endswith((".ffn_gate_inp.weight", ".mlp.gate.weight")):
        return None
    is_q6 = name.startswith(("token_embd", "model.embed_tokens")) or "v_proj" in name or "down_proj" in name
    return q6_k(matrix) if is_q6 or ".attn_v." in name or ".ffn_down" in name else q4_k(matrix)


@pytest.fixture(scope="module", params=["llama", "qwen3-moe"])
def quantized(request, tmp_path_factory):
    """Path of a GGUF file with quantised matrices, and directory of a checkpoint with the dequantised matrices."""
    directory = tmp_path_factory.mktemp("quantized")
    wide = {**_WIDE, "hidden_size": 256, "intermediate_size": 512, "tie_word_embeddings": True}
    configs = {
        "llama": ("LlamaForCausalLM", transformers.LlamaConfig(**wide)),
        "qwen3-moe": (
            "Qwen3MoeForCausalLM",
            transformers.Qwen3MoeConfig(
                **wide,
                head_dim=64,
                num_experts=3,
                num_experts_per_tok=2,
                moe_intermediate_size=256,
                norm_topk_prob=True,
            ),
        ),
    }
    architecture, config = configs[request.param]
    write_model(directory, config, architecture, std=0.05)
    file = write_gguf(directory / "model.gguf", directory, _quantized)
    tensors = load_file(directory / "model.safetensors")
    for name, tensor in tensors.items():
        stored = None if tensor.dim() == 1 else _quantized(name, tensor.float().numpy())
        if stored is not None:
            tensors[name] = torch.from_numpy(gguf.quants.dequantize(*stored))
    save_file(tensors, directory / "model.safetensors")
    return file, directory


def logits_of(model, texts):
    rows = Rows(model.transformer)
    with torch.inference_mode():
        hidden = rows.feed(dict(enumerate(texts)))
        return [model.transformer.logits(states) for states in hidden]


def test_matrices_without_a_kernel_are_dequantised_and_reported(quantized):
    file, directory = quantized
    with choice.using("torch"):
        ours = load_model(file, torch.float32, torch.device("cpu"))
        theirs = load_model(directory, torch.float32, torch.device("cpu"))
    expected, found = weights_of(theirs.transformer), weights_of(ours.transformer)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    assert re.fullmatch("GGUF (F32, )?Q4_K, Q6_K", ours.checkpoint_format)
    (note,) = ours.notes
    assert re.fullmatch(
        r"(\d+) of \1 quantized matrices have no kernel: they are dequantized to float32 and take .*", note
    )


@pytest.mark.skipif(not choice.kernels_are_built, reason="the kernels are not built")
def test_matrices_run_in_kernels_as_they_are_stored(quantized):
    file, directory = quantized
    ours = load_model(file, torch.float32, torch.device("cpu"))
    theirs = load_model(directory, torch.float32, torch.device("cpu"))
    assert ours.notes == () and ours.weight_bytes < 1.15 * file.stat().st_size
    index = torch.arange(97)
    assert torch.equal(ours.transformer.decoder.tokens(index), theirs.transformer.decoder.tokens(index))
    texts = random_ids(97, (9, 1, 17))
    together, expected = logits_of(ours, texts), logits_of(theirs, texts)
    for text, logits, other in zip(texts, together, expected, strict=True):
        assert (logits - other).norm() < 0.05 * other.norm()
        assert torch.equal(logits_of(ours, [text])[0], logits)


def test_the_page_names_the_architectures_of_each_family():
    page = (Path(__file__).parents[2] / "docs" / "gguf.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (`.*`) \|$", page.partition("## Architectures")[2], re.MULTILINE))
    families = {family.name: family.gguf for family in FAMILIES.values() if family.gguf is not None}
    assert rows == {name: ", ".join(f"`{setting}`" for setting in sorted(of.settings)) for name, of in families.items()}


class _Stated(Metadata):
    """Fake metadata of a GGUF file, with a few values and names of tensors."""

    def __init__(self, architecture, tensors, **values):
        self.architecture, self._tensors, self._values = architecture, tensors, values

    def optional(self, key):
        return self._values.get(key.removeprefix("attention."))

    def has(self, tensor):
        return tensor in self._tensors


def test_exactly_one_family_reads_a_file():
    """Exactly one family accepts a file, although several families share a GGUF architecture such as `llama`."""
    families = {family.name: family.gguf for family in FAMILIES.values() if family.gguf is not None}
    for architecture in {name for family in families.values() for name in family.settings}:
        options = (None, 0, 8), (None, 0, 6), (None, 0.1), ("", "blk.1.exp_probs_b.bias", "enc.blk.1.attn_rel_b.weight")
        for experts, window, scale, tensor in itertools.product(*options):
            values = {"expert_count": experts, "sliding_window": window, "temperature_scale": scale, "block_count": 2}
            of = _Stated(architecture, {tensor}, **values)
            readers = [
                name for name, family in families.items() if architecture in family.settings and family.applies(of)
            ]
            assert len(readers) == 1, (architecture, values, tensor, readers)
