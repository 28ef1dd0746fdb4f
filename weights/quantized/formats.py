"""Choose the reader of a quantised checkpoint by `quant_method` in `config.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from weights.errors import WeightsError, shown
from weights.quantized.awq import Awq
from weights.quantized.bitsandbytes import BitsAndBytes
from weights.quantized.compressed_tensors import CompressedTensors
from weights.quantized.fp8 import Fp8
from weights.quantized.gptq import Gptq
from weights.quantized.mxfp4 import Mxfp4
from weights.quantized.nvfp4 import ModelOpt
from weights.quantized.settings import QuantizationSettings
from weights.stored import MatrixFormat


class QuantizedFormat(MatrixFormat, Protocol):
    """A format of quantised checkpoints, with its settings.

    description: text for users with the format's name, bits and group size.
    unused: text for users that names the parts of the checkpoint that the server does not use; empty if it uses all.
    """

    description: str
    unused: str


FORMATS: Mapping[str, Callable[[QuantizationSettings], QuantizedFormat]] = {
    "gptq": Gptq,
    "awq": Awq,
    "compressed-tensors": CompressedTensors,
    "fp8": Fp8,
    "fbgemm_fp8": Fp8,
    "mxfp4": Mxfp4,
    "modelopt": ModelOpt,
    "bitsandbytes": BitsAndBytes,
}


def quantized_format(hf: Mapping[str, Any]) -> QuantizedFormat | None:
    """The format of a checkpoint's quantised matrices; None for a checkpoint without quantised matrices.

    hf: contents of `config.json`.
    Raises WeightsError for a format or a setting that is not supported.
    """
    found = _settings(hf)
    return None if found is None else _read(*found)


def is_quantized(hf: Mapping[str, Any]) -> bool:
    """Whether a checkpoint has quantised matrices, in any format. hf: contents of `config.json`."""
    return _settings(hf) is not None


def _settings(hf: Mapping[str, Any]) -> tuple[Any, str] | None:
    """The settings of quantisation and their name; None if `config.json` has none.

    The name is `quantization_config` or `compression_config`, at the top level or in `text_config`.
    """
    text = hf.get("text_config")
    for values in (hf, text if isinstance(text, Mapping) else {}):
        for name in ("quantization_config", "compression_config"):
            if values.get(name):
                return values[name], name
    return None


def _read(values: Any, name: str) -> QuantizedFormat:
    if not isinstance(values, Mapping):
        raise WeightsError(f"{name!r} must be an object")
    settings = QuantizationSettings(values, name)
    method = settings.get("quant_method")
    if method is None and name == "compression_config":
        method = "compressed-tensors"
    if isinstance(method, str) and method in FORMATS:
        return FORMATS[method](settings)
    settings.refuse("quant_method", f"{shown(repr(method))} is not supported, only {', '.join(FORMATS)}")
