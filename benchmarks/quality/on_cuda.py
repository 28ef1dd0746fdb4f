"""Measure the quality of CUDA settings on a CPU, with the same rounding of weights, activations, keys and values.

  python -m benchmarks.quality.on_cuda --packages build/quality/packages --files build/quality/files

Prints a table of the divergence from float32. All sums are in float32, so the table shows the cost of rounding to fewer
bits, but not that of a device's bfloat16. The results are in docs/decisions/0180-low-bits-on-cuda.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.quality import contestants, sources
from benchmarks.quality.decoders import CachedDecoder, Decoder
from benchmarks.quality.divergence import measure, summarize
from models.backends import choice
from models.backends.linear_weights import DenseWeight
from models.backends.rounded_slots import FP8
from models.backends.torch.quantization import quantize_fp8, quantize_int8, round_rows
from models.backends.torch.two_levels import quantize_two_levels
from models.checkpoint.kept_quantized import rounded_linears
from models.config import Activation
from models.layers.linear import Linear
from weights.quantized_matrix import QuantizedMatrix

ROW_GROUP = 128
"""Inputs of a row that share a scale, as in `models.backends.cuda.kernels.rounded_rows`."""
_BLOCK = 128
"""Number of inputs, and of outputs, of a weight block of an fp8 checkpoint."""

Rounding = Callable[[Tensor], Tensor]


def _exact(x: Tensor) -> Tensor:
    return x


def _int8(weight: Tensor) -> Tensor:
    codes, scales = quantize_int8(weight)
    return codes.float() * scales[:, None]


def _int4(weight: Tensor) -> Tensor:
    return quantize_two_levels(weight).dequantized(torch.float32)


def _fp8(weight: Tensor) -> Tensor:
    """Round a weight matrix to fp8 with one scale per block of 128 by 128, as in published fp8 checkpoints.

    Returns the rounded values in float32.
    """
    out, inputs = weight.shape
    padded = F.pad(weight, (0, -inputs % _BLOCK, 0, -out % _BLOCK))
    blocks = padded.unflatten(0, (-1, _BLOCK)).unflatten(2, (-1, _BLOCK)).transpose(1, 2)  # type: ignore[no-untyped-call]
    codes, scales = quantize_fp8(blocks.flatten(2).flatten(0, 1))
    numbers = codes.view(torch.float8_e4m3fn).float() * scales[:, None]
    return numbers.view_as(blocks).transpose(1, 2).flatten(2, 3).flatten(0, 1)[:out, :inputs]


def _rows(kind: str, terms: int) -> Rounding:
    return lambda x: round_rows(x, "fp8" if kind == "fp8" else "int8", terms, ROW_GROUP)


SETTINGS: Mapping[str, tuple[Rounding, Rounding, Rounding]] = {
    "int8, few rows": (_int8, _int8, _exact),
    "int8, many rows (15 bits)": (_int8, _int8, _rows("int8", 2)),
    "int8-fast, many rows (8 bits)": (_int8, _int8, _rows("int8", 1)),
    "int4, few rows": (_int4, _int8, _exact),
    "int4, many rows (15 bits)": (_int4, _int8, _rows("int8", 2)),
    "fp8 checkpoint, few rows": (_fp8, _exact, _exact),
    "fp8 checkpoint, many rows (fp8)": (_fp8, _exact, _rows("fp8", 1)),
}
"""For each setting: how it rounds the weights of linear layers, the output head, and the rows of activations.

Only those linear layers are rounded that `--quantize` would round."""
CACHES = {"int8 cache": torch.int8, "fp8 cache": FP8}


class RoundedWeight(DenseWeight):
    """A dense weight that rounds the activations before it multiplies them. rounding: function that rounds them."""

    def __init__(self, weight: Tensor, bias: Tensor | None, rounding: Rounding) -> None:
        super().__init__(weight, bias)
        self._rounding = rounding

    def multiply(
        self,
        x: Tensor,
        activation: Activation | None = None,
        multiplier: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        return super().multiply(self._rounding(x), activation, multiplier, out)


class Packer:
    """A `LinearPacker` that rounds the weight once, and the activations before each product."""

    out_dtype = torch.float32

    def __init__(self, of_weight: Rounding, of_rows: Rounding) -> None:
        self._of_weight, self._of_rows = of_weight, of_rows

    def __call__(self, weight: Tensor | QuantizedMatrix, bias: Tensor | None) -> RoundedWeight:
        assert isinstance(weight, Tensor), "the reference is in float32"
        return RoundedWeight(self._of_weight(weight), bias, self._of_rows)


def emulated(file: Path, setting: str) -> Decoder:
    """Load a decoder with the rounding of a setting.

    file: GGUF file in float32. setting: key of `SETTINGS` or `CACHES`.
    """
    if setting in CACHES:
        return CachedDecoder(file, torch.float32, cache=CACHES[setting])
    of_linears, of_head, of_rows = SETTINGS[setting]
    decoder = Decoder(file, torch.float32)
    transformer = decoder.loaded.transformer
    names = rounded_linears(transformer)
    with torch.inference_mode():
        for path, module in list(transformer.named_modules()):
            if isinstance(module, Linear) and f"{path}.weight" in names:
                module.pack(Packer(of_linears, of_rows))
        head = Packer(of_head, of_rows)
        transformer.pack_head(head, head)
    return decoder


def compare(file: Path, settings: Sequence[str], windows: Sequence[list[int]]) -> None:
    """Print a row of the table for each setting. file: GGUF file in float32. windows: token ids of each text."""
    print("| setting | mean KL | 99% | same top token | perplexity |\n|---|---|---|---|---|")
    with choice.using("torch"):
        reference = Decoder(file, torch.float32)
        for setting in settings:
            decoder = emulated(file, setting)
            found = summarize([measure(reference, [decoder], window, reference.vocab_size)[0] for window in windows])
            print(
                f"| {setting} | {found.mean_kl:.5f} | {found.p99_kl:.4f} | {found.same_top:.1%} "
                f"| {found.perplexity:.3f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    settings = [*SETTINGS, *CACHES]
    parser.add_argument("--model", default="smollm2-135m", choices=list(sources.DECODERS))
    parser.add_argument("--settings", nargs="+", default=settings, choices=settings)
    parser.add_argument("--tokens", type=int, default=3584)
    parser.add_argument("--packages", type=Path, required=True, help="folder of the installed packages")
    parser.add_argument("--files", type=Path, required=True, help="folder for the files that are made")
    given = parser.parse_args()
    given.files.mkdir(parents=True, exist_ok=True)
    file = sources.reference(given.packages, given.files, given.model, dither=True)
    compare(file, given.settings, contestants.tokenize(file, given.tokens))


if __name__ == "__main__":
    main()
