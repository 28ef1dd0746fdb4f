"""The benchmark of quality computes what its page says, and its GGUF files equal those of llama.cpp's converter."""

from __future__ import annotations

import json
import math
from pathlib import Path

import gguf
import pytest
import torch
from transformers import LlamaConfig, Qwen3MoeConfig

from benchmarks import llama_files
from benchmarks.quality import (
    contestants,
    copies,
    decoders,
    divergence,
    encoders,
    gguf_files,
    kept,
    page,
    texts,
)
from benchmarks.quality.chrf import chrf
from benchmarks.quality.formats import type_of
from benchmarks.quality.results import Results
from server.text.tokenizers.load import load_tokenizer
from tests.parity.checkpoints import write_model
from tests.weights.gguf_files import write_gguf
from weights.demo.train.training import HOME
from weights.quantized.gguf import stored_tensors

VOCAB = 11


class _Model:
    """A `divergence.Model` with given logits. slices: the slices of the text that were requested."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits, self.slices = logits, list[tuple[int, int]]()

    def read(self, text: list[int]):
        def of(first: int, last: int) -> torch.Tensor:
            self.slices.append((first, last))
            return self.logits[first:last]

        return of


def test_divergence_equals_its_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "LOGITS_TOGETHER", 100 * VOCAB)
    text = torch.randint(0, VOCAB, (250,)).tolist()
    expected, found = _Model(torch.randn(250, VOCAB)), _Model(torch.randn(250, VOCAB))
    same, measured = (
        divergence.summarize([one]) for one in divergence.measure(expected, [expected, found], text, VOCAB)
    )
    p, q = expected.logits.double().softmax(1), found.logits.double().softmax(1)
    kl = (p * (p / q).log()).sum(1)
    assert measured.mean_kl == pytest.approx(float(kl.mean()), rel=1e-5)
    assert measured.kl_error == pytest.approx(float(kl.std()) / 250**0.5, rel=1e-5)
    assert measured.p99_kl == pytest.approx(float(kl.quantile(0.99)), rel=1e-5)
    assert measured.same_top == float((p.argmax(1) == q.argmax(1)).double().mean())
    losses = [-math.log(q[at, token]) for at, token in enumerate(text[1:])]
    assert measured.perplexity == pytest.approx(math.exp(sum(losses) / 249), rel=1e-5)
    assert same.mean_kl == 0.0 and same.same_top == 1.0
    assert found.slices == [(0, 100), (100, 200), (200, 250)], "never all logits at once"


def test_measurements_of_a_text_are_kept(tmp_path: Path) -> None:
    measured, text = torch.rand(3, 4), [5, 6, 7, 8]
    kept.Kept(tmp_path).put("int8", text, measured)
    kept.Kept(tmp_path).describe("int8", {"by": "triptych", "bits": 8.5})
    again = kept.Kept(tmp_path)
    assert torch.equal(again.get("int8", text), measured) and again.facts("int8")["bits"] == 8.5
    assert again.get("int8", [5, 6, 7]) is None and again.get("int4", text) is None
    again.forget("int8")
    assert again.get("int8", text) is None


def test_a_stopped_comparison_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows, reads = [[1, 2, 3], [4, 5, 6]], list[tuple[str, list[int]]]()

    class Small(_Model):
        vocab_size, bits_per_weight = VOCAB, 8.5

        def __init__(self, file: Path, dtype: torch.dtype, quantization: str | None = None) -> None:
            super().__init__(torch.ones(3, VOCAB))
            self.name = quantization or "reference"

        def read(self, text: list[int]):
            reads.append((self.name, text))
            return super().read(text)

    monkeypatch.setattr(contestants, "Decoder", Small)
    store = kept.Kept(tmp_path)
    store.put("int8", windows[0], torch.full((3, 3), 0.5))
    (row,) = contestants.compare(tmp_path / "model.gguf", tmp_path, ["int8"], windows, store)
    assert [text for name, text in reads if name == "int8"] == windows[1:], "the first text was measured before"
    assert row["mean_kl"] == pytest.approx(0.25) and row["bits"] == 8.5 and row["by"] == "triptych"
    reads.clear()
    list(contestants.compare(tmp_path / "model.gguf", tmp_path, ["int8"], windows, store))
    assert not reads


def test_windows_are_of_one_length_and_of_all_kinds() -> None:
    windows = texts.windows(load_tokenizer(HOME / "story"), 8 * texts.WINDOW)
    assert [len(window) for window in windows] == [texts.WINDOW] * 8
    assert len({tuple(window) for window in windows}) == 8
    assert len(texts.sentences(300)) == 300


def test_dithered_weights_stay_within_half_a_step(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    write_model(tmp_path, config, "LlamaForCausalLM")

    def q4_1(name: str, matrix):
        kind = gguf.GGMLQuantizationType.Q4_1
        return gguf.quants.quantize(matrix, kind), kind

    source = write_gguf(tmp_path / "source.gguf", tmp_path, q4_1)
    made = [
        gguf_files.rewrite(source, tmp_path / f"{dither}.gguf", gguf_files.as_float32, dither)
        for dither in (False, True, True)
    ]
    plain, dithered, again = (stored_tensors(gguf_files.read_gguf(file)) for file in made)
    assert gguf_files.bits_per_weight(source) == 5.0 and gguf_files.bits_per_weight(made[1]) == 32.0
    for name, stored in stored_tensors(gguf_files.read_gguf(source)).items():
        assert torch.equal(dithered[name].read(), again[name].read())
        difference = (dithered[name].read() - plain[name].read()).abs()
        if len(plain[name].shape) == 1:
            assert not difference.any()
            continue
        matrix = stored.read()
        assert torch.equal(plain[name].read(), matrix.dequantized(torch.float32))
        steps = matrix.scales.repeat_interleave(32, 1)
        assert (difference <= 0.501 * steps).all() and float((difference / steps).mean()) == pytest.approx(
            0.25, abs=0.01
        )


@pytest.mark.parametrize(
    ("name", "tensor", "width", "expected"),
    [
        ("Q4_K_M", "blk.0.attn_q.weight", 1024, "Q4_K"),
        ("Q4_K_M", "blk.0.attn_v.weight", 1024, "Q6_K"),
        ("Q4_K_M", "blk.4.ffn_down.weight", 1024, "Q4_K"),
        ("Q4_K_M", "blk.5.ffn_down.weight", 1024, "Q6_K"),
        ("Q4_K_M", "blk.0.attn_q.weight", 576, "Q5_0"),
        ("Q4_K_M", "token_embd.weight", 576, "Q8_0"),
        ("Q5_K_M", "blk.0.attn_q.weight", 640, "Q5_1"),
        ("Q4_0", "token_embd.weight", 1024, "Q6_K"),
        ("Q4_0", "blk.0.attn_v.weight", 1024, "Q4_0"),
        ("Q8_0", "token_embd.weight", 1024, "Q8_0"),
    ],
)
def test_types_of_the_formats_of_llama_cpp(name: str, tensor: str, width: int, expected: str) -> None:
    assert type_of(name, tensor, width, 30, has_head=False).name == expected


def test_rankings_are_compared_in_order() -> None:
    vectors = torch.nn.functional.normalize(torch.randn(40, 8), dim=1)
    same = encoders.compare(vectors, vectors)
    assert same["same_order"] == same["shared"] == 1.0 and same["least_cosine"] == pytest.approx(1.0)
    other = encoders.compare(vectors, vectors + 0.2 * torch.randn(40, 8))
    assert other["same_order"] < 1.0 and other["least_cosine"] < other["median_cosine"] < 1.0


def test_the_page_is_written_from_kept_results(tmp_path: Path) -> None:
    results = Results(tmp_path / "quality" / "results.json")
    row = {"bits": 8.5, "mean_kl": 0.005, "p99_kl": 0.02, "same_top": 0.95, "perplexity": 9.0, "tokens": 1024}
    results.add("smollm2-135m", {"name": "int8", "by": "triptych", "types": "", **row})
    results.add("smollm2-135m", {"name": "Q8_0", "by": "llama.cpp", "types": "211 Q8_0", **row})
    again = Results(tmp_path / "quality" / "results.json")
    assert again.has("smollm2-135m", "int8", 1024) and not again.has("smollm2-135m", "int8", 2048)
    page.write(again, tmp_path / "quality.md")
    text = (tmp_path / "quality.md").read_text()
    assert "| `int8` | 8.50 | 0.00500 | 0.0200 | 95.0% | 9.000 |" in text and "- Q8_0: 211 Q8_0" in text
    assert (tmp_path / "quality" / "smollm2-135m.svg").exists()
    results.add(
        "smollm2-135m", {"name": "int4", "by": "triptych", "types": "", "kl_error": 0.0004, **row, "tokens": 512}
    )
    page.write(results, tmp_path / "quality.md")
    text = (tmp_path / "quality.md").read_text()
    assert "| `int8` | 8.50 | 0.00500 | 0.0200 | 95.0% | 9.000 | 1,024 |" in text
    assert "| `int4` | 8.50 | 0.00500 ± 0.00040 | 0.0200 | 95.0% | 9.000 | 512 |" in text
    assert (
        json.loads((tmp_path / "quality" / "results.json").read_text())["smollm2-135m"]["Q8_0"]["types"] == "211 Q8_0"
    )


def test_chrf_equals_its_definition() -> None:
    """Computed by hand: "abcd" and "abxd" share three of four letters, one of three pairs, and no longer n-gram."""
    assert chrf([("a b c", "abc")]) == pytest.approx(100), "white space does not count"
    assert chrf([("abc", "xyz")]) == chrf([]) == 0.0
    precision = (3 / 4 + 1 / 3) / 4
    assert chrf([("abcd", "abxd")]) == pytest.approx(100 * precision)
    # Only n-grams that both texts are long enough for count: "ab" has full precision, and a recall of 1/2 and 1/3.
    recall = (2 / 4 + 1 / 3) / 2
    assert chrf([("ab", "abxd")]) == pytest.approx(100 * 5 * recall / (4 + recall))


def test_texts_that_calibrate_are_not_compared() -> None:
    tokenizer = load_tokenizer(HOME / "story")
    calibrating = texts.calibration(tokenizer, 4 * 512)
    compared = texts.windows(tokenizer, 20 * 512)
    assert len(calibrating) >= 4 and {len(text) for text in calibrating} == {512}
    assert not {tuple(text) for text in calibrating} & {tuple(text) for text in compared}


def test_an_int8_cache_changes_results_a_little() -> None:
    text = texts.windows(load_tokenizer(HOME / "story"), 512)
    exact, cached = (
        decoders.Decoder(HOME / "story", torch.float32),
        decoders.CachedDecoder(HOME / "story", torch.float32),
    )
    found = decoders.compare(exact, cached, text)
    assert 0 < found.mean_kl < 1e-3 and found.same_top > 0.98
    assert contestants.split("int8 with an int8 cache") == ("int8", "int8")
    assert contestants.split("int8") == ("int8", "auto")


def test_a_checkpoint_of_a_gguf_file_has_its_weights(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False,
    )  # fmt: skip
    write_model(tmp_path / "in", config, "LlamaForCausalLM")
    file = _float_gguf(tmp_path / "in", tmp_path / "model.gguf")
    made = copies.checkpoint(file)
    ids = torch.randint(0, 64, (30,)).tolist()
    ours, theirs, gguf_file = (decoders.Decoder(path, torch.float32) for path in (made, tmp_path / "in", file))
    assert decoders.compare(theirs, ours, [ids]).mean_kl < 1e-9
    assert decoders.compare(theirs, gguf_file, [ids]).mean_kl < 1e-9
    assert copies.checkpoint(file) == made


def _float_gguf(directory: Path, out: Path) -> Path:
    """Write a checkpoint as a GGUF file with float32 matrices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama_files, "type_of", lambda *arguments: gguf.GGMLQuantizationType.F32)
        patch.setattr(llama_files.llama_library, "quantize", lambda folder, weights, kind: weights)
        return llama_files.write(directory, out, "Q8_0", Path())


@pytest.mark.parametrize("name", ["llama", "moe"])
def test_files_for_llama_cpp_have_the_weights_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    if name == "llama":
        write_model(tmp_path / "in", LlamaConfig(**sizes), "LlamaForCausalLM")
    else:
        write_model(tmp_path / "in", Qwen3MoeConfig(**sizes, **experts, norm_topk_prob=True), "Qwen3MoeForCausalLM")
    file = _float_gguf(tmp_path / "in", tmp_path / "model.gguf")
    exact, found = decoders.Decoder(tmp_path / "in", torch.float32), decoders.Decoder(file, torch.float32)
    assert decoders.compare(exact, found, [torch.randint(0, 64, (40,)).tolist()]).mean_kl < 1e-9
