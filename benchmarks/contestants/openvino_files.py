"""Convert models to the format of OpenVINO, and choose its settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.checkpoints import SHAPES
from benchmarks.contestants.contract import Refused, Subject

EXPORTER = "export/bin/optimum-cli"
"""Path of the conversion tool inside the environment of the peers. The tool has a separate environment, `export`."""
COMPRESSION = {
    "int8": (),
    "int4": ("--sym", "--group-size", "128", "--ratio", "1.0", "--group-size-fallback", "adjust"),
}
"""Options of the conversion tool for quantized weights, by precision.

int4 is the format of `--quantize int4-128`: symmetric, in groups of 128 inputs, or of 64 or 32 if the number of inputs
is no multiple of 128. By default the tool writes the token table and the output head in int8.
Source: https://docs.openvino.ai, "Weight Compression".
"""


def exported(subject: Subject) -> Path:
    """Directory of the model in OpenVINO's format. The first call converts it.

    Raises Refused if the conversion tool is not installed, and RuntimeError if it fails.
    """
    weights = subject.precision if subject.precision in COMPRESSION else "fp32"
    directory = Path(subject.made) / f"openvino-{weights}"
    if (directory / "openvino_model.xml").exists():
        return directory
    tool = Path(subject.program or Path(sys.prefix) / EXPORTER)
    if not tool.exists():
        raise Refused("optimum-cli, which converts the model, is not installed")
    decoder = SHAPES[subject.shape].kind == "decoder"
    task = "text-generation-with-past" if decoder else "feature-extraction"
    command = [str(tool), "export", "openvino", "-m", subject.directory, "--task", task, "--weight-format", weights]
    command += COMPRESSION.get(weights, ())
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*command, str(directory)], capture_output=True, text=True, env=environment)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise RuntimeError(f"optimum-cli: {lines[-1]}")
    return directory


def properties(subject: Subject) -> dict[str, Any]:
    """Settings of OpenVINO for low latency and the subject's precision.

    For int8 and int4, OpenVINO chooses the dtypes of activations and of the KV cache.
    """
    settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": subject.threads, "PERFORMANCE_HINT": "LATENCY"}
    precision = {"float32": "f32", "bfloat16": "bf16"}.get(subject.precision)
    if precision is None:
        return settings
    return settings | {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision}
