"""Write `bitsandbytes_oracle.json`: matrices as bitsandbytes stores them, and their dequantised values.

    pip install --no-deps bitsandbytes==0.50.2 && python -m tests.weights.bitsandbytes_oracle

The package is not a dependency of the tests, so its results are kept. Blocks of 64 numbers end within the rows of 96.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import torch
from torch import Tensor

FILE = Path(__file__).with_suffix(".json")
SHAPE = (6, 96)


def encoded(tensor: Tensor) -> dict[str, object]:
    data = base64.b64encode(tensor.contiguous().view(torch.uint8).numpy().tobytes()).decode()
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "data": data}


def decoded(entry: dict[str, object]) -> Tensor:
    data = bytearray(base64.b64decode(str(entry["data"])))
    dtype = getattr(torch, str(entry["dtype"]))
    return torch.frombuffer(data, dtype=dtype).view(entry["shape"])  # type: ignore[call-overload, no-any-return]


def load() -> dict[str, tuple[dict[str, Tensor], Tensor]]:
    """By case: the stored tensors of a module, by the ending of their names, and the matrix that they stand for."""
    cases = json.loads(FILE.read_text())
    return {
        name: ({ending: decoded(entry) for ending, entry in case["stored"].items()}, decoded(case["matrix"]))
        for name, case in cases.items()
    }


def main() -> None:
    from bitsandbytes import functional

    cases = {}
    weight = (torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)) * 0.05).bfloat16()
    for kind in ("nf4", "fp4"):
        for nested in (False, True):
            codes, state = functional.quantize_4bit(weight, blocksize=64, compress_statistics=nested, quant_type=kind)
            stored = {"weight": codes} | {f"weight.{name}": part for name, part in state.as_dict(packed=True).items()}
            state.dtype = torch.float32
            matrix = functional.dequantize_4bit(codes, state)
            name = f"{kind} nested" if nested else kind
            cases[name] = {"stored": {key: encoded(part) for key, part in stored.items()}, "matrix": encoded(matrix)}
    codes, largest, _ = functional.int8_vectorwise_quant(weight.half())
    stored = {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    matrix = functional.int8_vectorwise_dequant(codes, largest)
    cases["int8"] = {"stored": {key: encoded(part) for key, part in stored.items()}, "matrix": encoded(matrix)}
    FILE.write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
