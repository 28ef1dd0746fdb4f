"""The stages of `benchmarks.gpu`, in order of priority."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple, NoReturn

from benchmarks.gpu.device import Limits
from benchmarks.gpu.row import Row, Setup, Stage


class StageEntry(NamedTuple):
    """Where the code of a stage is, and how its rows are shown.

    group: title of the table that has its rows.
    module, function: name of its module in this package, and of a function there.
    arguments: arguments of this function, which then returns the stage. If empty, the function itself is the stage.
    row_seconds: longest duration of one row, the time to build its model included.
    is_listed: whether rows that no device has measured are listed on the page although they have no goal.
    """

    group: str
    module: str
    function: str
    arguments: tuple[str, ...] = ()
    row_seconds: float = 60.0
    is_listed: bool = False


ENGINE = "Engine and HTTP"
ENCODERS = "Encoders"
SEQ2SEQ = "Encoder-decoders"
LOW_BITS = "Low bits"
STEPS = "Steps of the model alone"
SETTINGS = "Settings: equal results, caches of 8 bits, drafts"
PARITY = "Parity"
FIRST_RUN = "The first run on a machine"
KERNELS = "Kernels"

STAGES: Mapping[str, StageEntry] = {
    "engine-1b": StageEntry(ENGINE, "engine", "streams", ("llama-1b",), 90),
    "engine-8b": StageEntry(ENGINE, "engine", "streams", ("llama-8b",), 150),
    "peers-1b": StageEntry(ENGINE, "peers", "decoders", ("llama-1b",), 90, True),
    "peers-8b": StageEntry(ENGINE, "peers", "decoders", ("llama-8b",), 120, True),
    "bert-base": StageEntry(ENCODERS, "encoders", "texts", ("bert-base",)),
    "bert-base-step": StageEntry(ENCODERS, "steps", "encode", ("bert-base",), 30),
    "beside-streams": StageEntry(ENCODERS, "encoders", "beside_streams", ("llama-1b", "bert-base"), 90),
    "peers-bert": StageEntry(ENCODERS, "peers", "encoders", ("bert-base",), 90, True),
    "opus-mt": StageEntry(SEQ2SEQ, "beams", "translate", ("opus-mt",)),
    "t5-large": StageEntry(SEQ2SEQ, "steps", "decode", ("t5-large",)),
    "nllb-600m": StageEntry(SEQ2SEQ, "steps", "decode", ("nllb-600m",)),
    "whisper-small": StageEntry(SEQ2SEQ, "steps", "encode_recordings", ("whisper-small",)),
    "whisper-large-v3": StageEntry(SEQ2SEQ, "steps", "encode_recordings", ("whisper-large-v3",)),
    "peers-opus-mt": StageEntry(SEQ2SEQ, "peers", "translators", ("opus-mt",), 90, True),
    "decode-8b": StageEntry(STEPS, "steps", "decode", ("llama-8b",)),
    "decode-8b-int8": StageEntry(LOW_BITS, "steps", "decode", ("llama-8b", "int8"), 90),
    "decode-8b-int4": StageEntry(LOW_BITS, "steps", "decode", ("llama-8b", "int4"), 90),
    "decode-1b": StageEntry(STEPS, "steps", "decode", ("llama-1b",)),
    "attention": StageEntry(STEPS, "steps", "attention", row_seconds=40),
    "prefill-8b": StageEntry(STEPS, "steps", "prefill", ("llama-8b",)),
    "prefill-1b": StageEntry(STEPS, "steps", "prefill", ("llama-1b",), 40),
    "decode-gpt2": StageEntry(STEPS, "steps", "decode", ("gpt2",), 40),
    "jobs": StageEntry(PARITY, "jobs", "jobs", is_listed=True),
    "parity": StageEntry(PARITY, "parity", "parity", row_seconds=240, is_listed=True),
    "first-run": StageEntry(FIRST_RUN, "first_run", "first_run", ("llama-1b",), 240, True),
    "decode-moe": StageEntry(LOW_BITS, "steps", "decode", ("moe-7b",), 90),
    "decode-moe-int8": StageEntry(LOW_BITS, "steps", "decode", ("moe-7b", "int8"), 120),
    "settings-8b": StageEntry(SETTINGS, "settings", "settings", ("llama-8b",), 150),
    "kernels-1b": StageEntry(KERNELS, "profile", "kernels", ("llama-1b",), 40),
    "kernels-8b": StageEntry(KERNELS, "profile", "kernels", ("llama-8b",)),
    "kernels-bert-base": StageEntry(KERNELS, "profile", "kernels", ("bert-base",), 30),
}
"""Stages by name, in order of priority. Stages whose settings are newer than the last measured run stand at the end."""


def stage_of(name: str) -> Stage:
    """Return the stage with this name.

    Its module is imported only when the rows are listed. If the import fails, the stage has a single row, which fails.
    """
    entry = STAGES[name]

    def run(setup: Setup, limits: Limits) -> Iterator[Row]:
        try:
            module = importlib.import_module(f"benchmarks.gpu.{entry.module}")
        except ImportError as error:
            yield Row(name, partial(_raise, error))
            return
        found = getattr(module, entry.function)
        stage: Stage = found(*entry.arguments) if entry.arguments else found
        yield from stage(setup, limits)

    return run


def _raise(error: Exception) -> NoReturn:
    raise error
