"""Checkpoints that `triptych quantize` writes: other programs read the same weights, and results equal `--quantize`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    BartConfig,
    BertConfig,
    DeepseekV3Config,
    GPT2Config,
    LlamaConfig,
    Qwen3_5TextConfig,
    Qwen3MoeConfig,
    T5Config,
)

from models.backends import choice
from models.checkpoint.loader import load_model
from models.checkpoint.quantize_checkpoint import quantize_checkpoint
from models.config import ConfigError
from server.cli import main
from tests.parity.checkpoints import edit_config, random_ids, write_model
from tests.parity.paged import Rows, encoder_batch
from tests.parity.quantized_checkpoints import relative_error
from weights.errors import WeightsError
from weights.quantized.formats import quantized_format
from weights.quantized.write_compressed_tensors import module_patterns
from weights.quantized_matrix import QuantizedMatrix
from weights.read import open_checkpoint

CPU = torch.device("cpu")
PRECISIONS = ("int8", "int6", "int4", "int8-fast", "int4-128", "fp8")
SAME_AS_SETTING = ("int8", "int6", "int8-fast", "int4-128")
SIZES = {"vocab_size": 70, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "dtype": "bfloat16"}
SIZES |= {
    "tie_word_embeddings": False,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "head_dim": 32}
T5_SIZES = {"vocab_size": 70, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 1, "num_heads": 4}
T5_SIZES |= {"feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0}
LLAMA = LlamaConfig(**SIZES)
"""Configuration of a small LLaMA. Its matrices allow groups of 128 inputs, except those that need groups of 64."""
TEXTS = random_ids(70, (5, 9, 2))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a checkpoint with two weight files and several other files."""
    directory = tmp_path_factory.mktemp("llama") / "llama"
    write_model(directory, LLAMA, "LlamaForCausalLM", change=lambda model: model.bfloat16())
    tensors = load_file(directory / "model.safetensors")
    names, index = list(tensors), {}
    (directory / "model.safetensors").unlink()
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, directory / file, {"format": "pt"})
        index |= dict.fromkeys(part, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    for name in ("tokenizer.json", "chat_template.jinja", "LICENSE.txt", "model.onnx"):
        (directory / name).write_text(name)
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text("{}")
    return directory


@pytest.fixture(scope="module")
def written(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns the directory of the LLaMA quantised to a precision."""
    root, made = tmp_path_factory.mktemp("written"), set[str]()

    def get(precision: Any) -> Path:
        if precision not in made:
            quantize_checkpoint(llama, root / precision, precision)
            made.add(precision)
        return root / precision

    return get


def matrices(directory: Path) -> dict[str, QuantizedMatrix]:
    """The quantised matrices of a checkpoint by name, as our reader returns them."""
    settings = quantized_format(json.loads((directory / "config.json").read_text()))
    with open_checkpoint(directory, matrix_format=settings) as stored:
        return {name: one for name, entry in stored.items() if isinstance(one := entry.read(), QuantizedMatrix)}


def all_tensors(directory: Path) -> dict[str, Tensor]:
    return {name: tensor for file in directory.glob("*.safetensors") for name, tensor in load_file(file).items()}


def schemes(directory: Path) -> QuantizationConfig:
    return QuantizationConfig(**json.loads((directory / "config.json").read_text())["quantization_config"])


def scheme_of(config: QuantizationConfig, module: str) -> QuantizationScheme:
    (found,) = (
        scheme
        for scheme in config.config_groups.values()
        if any(re.match(target.removeprefix("re:"), module) for target in scheme.targets)
    )
    return found


@pytest.mark.parametrize("precision", PRECISIONS)
def test_compressed_tensors_reads_the_weights_that_we_read(written: Callable[[str], Path], precision: str) -> None:
    directory = written(precision)
    stored, config, ours = all_tensors(directory), schemes(directory), matrices(directory)
    assert len(ours) == 2 * 7 and config.quantization_status == "compressed"
    for name, matrix in ours.items():
        module, scheme = name.removesuffix(".weight"), scheme_of(config, name.removesuffix(".weight"))
        parts = {
            key.removeprefix(f"{module}."): tensor for key, tensor in stored.items() if key.startswith(f"{module}.")
        }
        compressor = BaseCompressor.get_value_from_registry(scheme.format)
        theirs = compressor.decompress(parts, scheme)["weight"]
        assert torch.equal(theirs, matrix.dequantized(theirs.dtype)), name
        exact = compressor.decompress(parts | {"weight_scale": parts["weight_scale"].float()}, scheme)["weight"]
        assert torch.equal(exact, matrix.dequantized(torch.float32)), name


def test_rounded_numbers_are_those_that_compressed_tensors_rounds_with_the_same_scales(
    llama: Path, written: Callable[[str], Path]
) -> None:
    """The rounded fp8 values equal those of the package compressed-tensors with the same scales.

    Unlike other precisions, fp8 cannot be compared with `--quantize` at load.
    """
    original, stored, config = all_tensors(llama), all_tensors(written("fp8")), schemes(written("fp8"))
    for name in matrices(written("fp8")):
        module, scheme = name.removesuffix(".weight"), scheme_of(config, name.removesuffix(".weight"))
        scale, weight = stored[f"{module}.weight_scale"], original[name].float()
        assert torch.equal(scale[:, 0], weight.abs().amax(1) / 448)
        compressor = BaseCompressor.get_value_from_registry("float-quantized")
        theirs = compressor.compress({"weight": weight, "weight_scale": scale}, scheme)["weight"]
        assert torch.equal(theirs.view(torch.uint8), stored[name].view(torch.uint8)), name


@pytest.mark.parametrize("precision", PRECISIONS)
def test_transformers_loads_what_was_written(written: Callable[[str], Path], precision: str, tmp_path: Path) -> None:
    """transformers loads a written checkpoint, and its logits equal those of the dequantised weights."""
    plain = shutil.copytree(written(precision), tmp_path / "plain")
    for file in plain.glob("model*"):
        file.unlink()
    tensors = {
        name: tensor for name, tensor in all_tensors(written(precision)).items() if tensor.dtype == torch.bfloat16
    }
    tensors |= {name: matrix.dequantized(torch.float32) for name, matrix in matrices(written(precision)).items()}
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    edit_config(plain, quantization_config=None)
    ids = torch.tensor([TEXTS[1]])
    with torch.inference_mode():
        found, expected = (
            AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()(ids).logits
            for path in (written(precision), plain)
        )
    # transformers rounds the activations of int8 too.
    assert relative_error(found, expected) < (0.06 if precision == "int8-fast" else 1e-4)


def test_other_tensors_and_files_are_copied(llama: Path, written: Callable[[str], Path]) -> None:
    directory = written("int8")
    before, after, rounded = all_tensors(llama), all_tensors(directory), matrices(directory)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items() if name not in rounded)
    files = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    assert {"tokenizer.json", "chat_template.jinja", "LICENSE.txt", "1_Pooling/config.json"} < files
    assert "model.onnx" not in files and len(list(directory.glob("model-*.safetensors"))) == 2
    config = json.loads((directory / "config.json").read_text())
    del config["quantization_config"]
    assert config == json.loads((llama / "config.json").read_text())
    index = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    assert all(name in load_file(directory / file) for name, file in index.items()) and len(index) == len(after)


def test_report_counts_what_was_written(llama: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = quantize_checkpoint(llama, tmp_path / "out", "int4-128", lambda done, total: seen.append((done, total)))
    assert (report.family, report.architecture) == ("llama", "LlamaForCausalLM")
    assert report.matrices == 14 and report.others == 2, "the token table and the output head keep their dtype"
    assert report.weights == sum(matrix.numel() for matrix in matrices(tmp_path / "out").values())
    assert {matrix.group for matrix in matrices(tmp_path / "out").values()} == {128, 64}
    assert "groups of 128" in report.description and "groups of 64" in report.description
    size = sum(file.stat().st_size for file in (tmp_path / "out").glob("*.safetensors"))
    assert report.bytes_after == size < report.bytes_before
    assert seen[-1] == (report.bytes_before, report.bytes_before) and seen == sorted(seen)


# -------------------------------------------------------------------------------------------- serving what was written

MODELS: dict[str, tuple[Any, str]] = {
    "llama": (LLAMA, "LlamaForCausalLM"),
    "qwen3_moe": (Qwen3MoeConfig(**SIZES, **EXPERTS), "Qwen3MoeForCausalLM"),
    "bert": (BertConfig(**SIZES, num_labels=3), "BertForSequenceClassification"),
    "t5": (T5Config(**T5_SIZES, tie_word_embeddings=False, dtype="bfloat16"), "T5ForConditionalGeneration"),
    "qwen3_5": (
        Qwen3_5TextConfig(
            **SIZES,
            head_dim=32,
            layer_types=["linear_attention", "full_attention"],
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=32,
            linear_value_head_dim=32,
        ),
        "Qwen3_5ForCausalLM",
    ),
    "deepseek_v3": (
        DeepseekV3Config(
            **{**SIZES, "num_key_value_heads": 4},
            kv_lora_rank=32,
            q_lora_rank=64,
            qk_rope_head_dim=16,
            qk_nope_head_dim=32,
            v_head_dim=32,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            moe_intermediate_size=96,
            first_k_dense_replace=1,
        ),
        "DeepseekV3ForCausalLM",
    ),
}
"""Models to write, by name. None has tied embeddings, because `--quantize` would round their token table too."""


def outputs(directory: Path, quantization: Any = None) -> list[Tensor]:
    """Results of a model in bfloat16: hidden states before the output head, or the logits of a classifier."""
    model = load_model(directory, torch.bfloat16, CPU, quantization=quantization).transformer
    with torch.inference_mode():
        if model.decoder is None:
            batch = encoder_batch(TEXTS, CPU)
            return [model.classify(model.encode(batch), batch)]
        return Rows(model, None if model.encoder is None else TEXTS).feed(dict(enumerate(TEXTS)))


@pytest.mark.parametrize("precision", SAME_AS_SETTING)
@pytest.mark.parametrize("name", MODELS)
def test_serving_equals_quantize_at_load_bit_for_bit(name: str, precision: Any, tmp_path: Path) -> None:
    if not choice.kernels_are_built:
        pytest.skip("the compiled kernels were not built")
    config, architecture = MODELS[name]
    write_model(tmp_path / "in", config, architecture, std=0.1, change=lambda model: model.bfloat16())
    quantize_checkpoint(tmp_path / "in", tmp_path / "out", precision)
    found, expected = outputs(tmp_path / "out"), outputs(tmp_path / "in", precision)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    plain = outputs(tmp_path / "in")
    assert not all(torch.equal(one, other) for one, other in zip(found, plain, strict=True))


def test_an_encoder_decoder_of_tied_tables(tmp_path: Path) -> None:
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    config = BartConfig(vocab_size=70, d_model=64, **layers, encoder_ffn_dim=96, decoder_ffn_dim=96)
    write_model(tmp_path / "in", config, "BartForConditionalGeneration")
    report = quantize_checkpoint(tmp_path / "in", tmp_path / "out", "int8")
    assert report.matrices == 6 + 10, "six matrices in a layer of the encoder, ten in one of the decoder"
    loaded = load_model(tmp_path / "out", torch.float32, CPU)
    assert loaded.checkpoint_format == "compressed-tensors, 8 bits, groups of 32" and not loaded.notes


def test_a_pickled_checkpoint(llama: Path, written: Callable[[str], Path], tmp_path: Path) -> None:
    source = shutil.copytree(llama, tmp_path / "in", ignore=shutil.ignore_patterns("model*"))
    torch.save(all_tensors(llama), source / "pytorch_model.bin")
    quantize_checkpoint(source, tmp_path / "out", "int8")
    found, expected = load_file(tmp_path / "out" / "model.safetensors"), all_tensors(written("int8"))
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


# ------------------------------------------------------------------------------------------------------------ refusals


def refused(source: Path, out: Path, precision: Any = "int4") -> str:
    """The error message for a checkpoint that is refused. Asserts that no file is left."""
    before = set(out.parent.iterdir())
    with pytest.raises((ConfigError, WeightsError)) as error:
        quantize_checkpoint(source, out, precision)
    assert set(out.parent.iterdir()) == before and "\n" not in str(error.value)
    return str(error.value)


def test_existing_and_quantised_checkpoints_are_refused(
    llama: Path, written: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    assert refused(llama, tmp_path / "out") == "'out' exists already; remove it or choose another name"
    assert "quantized already" in refused(written("int8"), tmp_path / "again")
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert "llama.cpp quantizes GGUF files" in refused(tmp_path / "a.gguf", tmp_path / "other")


def test_linears_that_are_no_matrix_of_the_format_are_refused_by_name(tmp_path: Path) -> None:
    write_model(tmp_path / "gpt2", GPT2Config(vocab_size=70, n_embd=32, n_layer=1, n_head=4), "GPT2LMHeadModel")
    message = refused(tmp_path / "gpt2", tmp_path / "out", "int8")
    assert message.startswith("gpt2: 'transformer.h.0.attn.c_attn.weight' cannot be quantized: it is stored transposed")
    config = LlamaConfig(**{**SIZES, "intermediate_size": 72})
    write_model(tmp_path / "odd", config, "LlamaForCausalLM")
    message = refused(tmp_path / "odd", tmp_path / "out")
    assert "'model.layers.0.mlp.down_proj.weight'" in message and "72 inputs are no multiple of 32" in message
    assert "72 inputs are no multiple of 32" in refused(tmp_path / "odd", tmp_path / "out", "int8")
    quantize_checkpoint(tmp_path / "odd", tmp_path / "out", "int8-fast")


def test_damaged_checkpoints_are_refused_by_name(llama: Path, tmp_path: Path) -> None:
    source = shutil.copytree(llama, tmp_path / "in", ignore=shutil.ignore_patterns("model*"))
    tensors = all_tensors(llama)
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][3, 5] = float("inf")
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    for precision in PRECISIONS:
        assert f"{name!r} contains NaN or infinity" in refused(source, tmp_path / "out", precision)
    del tensors[name]
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    assert f"1 missing ({name})" in refused(source, tmp_path / "out")


def test_patterns_match_their_modules_and_no_others() -> None:
    modules = [f"model.layers.{layer}.mlp.{part}_proj" for layer in range(12) for part in ("up", "gate")]
    others = ["lm_head", "model.layers.3.mlp.down_proj"]
    patterns = module_patterns(modules, others)
    assert len(patterns) == 2 and all(pattern.startswith("re:") for pattern in patterns)
    matching = [re.compile(pattern.removeprefix("re:")) for pattern in patterns]
    assert all(
        any(pattern.match(prefix + module) for pattern in matching) for module in modules for prefix in ("", "base.")
    )
    assert not any(pattern.match(other) for pattern in matching for other in others)
    assert sorted(module_patterns(modules[:4], modules[4:])) == sorted(modules[:4]), "only some layers"


# -------------------------------------------------------------------------------------------------------- command line


def test_the_command_writes_a_checkpoint(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["quantize", str(llama), str(tmp_path / "out"), "--to", "int8"])
    rows: Mapping[str, str] = dict(re.split(r"  +", line, maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["family"] == "llama (LlamaForCausalLM)" and rows["written"] == str(tmp_path / "out")
    assert rows["rounded"] == "14 matrices with 245,760 weights" and "MiB before" in rows["weights"]
    assert rows["rounded as"] == "serve --quantize int8"
    load_model(tmp_path / "out", torch.float32, CPU)


def test_the_command_reports_errors_in_one_line(
    llama: Path, written: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    cases = {
        ("nowhere/at/all", str(tmp_path / "out")): 1,
        (str(written("int8")), str(tmp_path / "out")): 1,
        (str(llama), str(tmp_path / "file" / "out")): 2,
    }
    for (source, out), status in cases.items():
        with pytest.raises(SystemExit) as ended:
            main(["quantize", source, out, "--to", "fp8", "--quiet"])
        assert ended.value.code == status
        assert re.fullmatch(r"triptych: [^\n]+\n", capsys.readouterr().err)
