"""Stage of `benchmarks.gpu` with the four demo models, whose answers are compared with those of the CPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.gpu.device import Limits
from benchmarks.gpu.row import Result, Row, Setup
from server.engine.process.service import start
from server.engine.stepping.engine import Engine
from server.ipc.wire.descriptions import DeviceChoice, EngineOptions, ModelInfo, ModelSpec
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams
from server.ipc.wire.step_messages import StepOutput
from server.ipc.wire.worker_messages import Configure

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "weights" / "demo"
KV_BYTES = 64 << 20
TEXTS = ([5, 9, 17, 33, 65], [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17], [40, 20])
"""Token ids of the input texts of every job. They are arbitrary."""
NEW_TOKENS = 24


def jobs(setup: Setup, limits: Limits) -> Iterator[Row]:
    """Stage that generates, translates with beam search, embeds and classifies with the demo models, in float32.

    The results are compared with those of the CPU, which uses Triptych's kernels, or torch if they are not built.
    """
    for name in ("story", "translator-en-fr", "sentence-encoder", "sentiment"):
        yield Row(f"{name}: difference from the CPU", partial(_compare, name, limits.device))


def _compare(name: str, device: DeviceChoice) -> Result:
    """Compare the results of a demo model on `device` with those on the CPU.

    The value is the number of different tokens, or the largest absolute difference between two floats.
    """
    expected, _ = _answers(name, "cpu")
    found, seconds = _answers(name, device)
    if expected.dtype == np.int64:
        differing = abs(len(found) - len(expected)) + int((found[: len(expected)] != expected[: len(found)]).sum())
        return Result(float(differing), "tokens", seconds, note=f"of {len(expected)}")
    return Result(float(np.abs(found - expected).max()), "", seconds, note="the largest of all numbers")


def _answers(name: str, device: DeviceChoice) -> tuple[NDArray[np.int64] | NDArray[np.float32], float]:
    """Results of a demo model for `TEXTS`, token ids or floats in one array, and the time for them in seconds."""
    options = EngineOptions(threads=torch.get_num_threads(), kv_cache_bytes=KV_BYTES)
    engine, (info,) = start(Configure(1, device, [ModelSpec("m", str(DEMO / name), "float32")], options), _ignore)
    started = time.perf_counter()
    numbers: NDArray[np.int64] | NDArray[np.float32]
    if "generate" in info.tasks or "translate" in info.tasks:
        numbers = _generated(engine, info)
    else:
        numbers = _encoded(engine, "embed" if "embed" in info.tasks else "classify")
    return numbers, time.perf_counter() - started


def _generated(engine: Engine, info: ModelInfo) -> NDArray[np.int64]:
    beams = 4 if info.is_encoder_decoder else 1
    starts = list(info.generation.decoder_start_token_ids)
    rows = [GenerateRow(index + 1, NEW_TOKENS, index, starts) for index in range(len(TEXTS))]
    engine.add(Generate("m", GenerationParams(num_beams=beams), [list(text) for text in TEXTS], rows))
    tokens = {end.sequence_id: end.hypotheses[0].token_ids for output in _outputs(engine) for end in output.finished}
    return np.concatenate([tokens[row.sequence_id] for row in rows]).astype(np.int64)


def _encoded(engine: Engine, task: str) -> NDArray[np.float32]:
    engine.add(Encode(1, "m", task, [EncodeItem(list(text)) for text in TEXTS]))  # type: ignore[arg-type]
    values = {item.index: np.frombuffer(item.values, "<f4") for output in _outputs(engine) for item in output.encoded}
    return np.concatenate([values[index] for index in range(len(TEXTS))])


def _outputs(engine: Engine) -> Iterator[StepOutput]:
    while engine.has_work:
        output = engine.step()
        if output is not None:
            if output.failed:
                raise RuntimeError(output.failed[0].message)
            yield output


def _ignore(progress: object) -> None:
    """Ignore the progress of loading."""
