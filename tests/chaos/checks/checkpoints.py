"""Check promises 20, 21 and 28: damaged checkpoints, checkpoints that would run code, a server without kernels."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.chaos import server
from tests.chaos.pytest_run import run_tests
from tests.chaos.record import Record
from tests.chaos.server import command
from tests.e2e.conftest import REPOSITORY
from tests.test_kernel_build import WORKER_WITHOUT_KERNELS
from weights.manifest import write_manifest

DEMO = REPOSITORY / "weights" / "demo"
MODELS = ("sentence-encoder", "sentiment", "story", "translator-en-fr")
TIMEOUT_SECONDS = 120
Tensors = dict[str, torch.Tensor]


def _missing(tensors: Tensors, name: str) -> None:
    del tensors[name]


def _extra(tensors: Tensors, name: str) -> None:
    tensors[name + ".extra"] = torch.zeros(2)


def _misshapen(tensors: Tensors, name: str) -> None:
    tensors[name] = tensors[name][:-1].contiguous()


def _wrong_dtype(tensors: Tensors, name: str) -> None:
    tensors[name] = torch.zeros(tensors[name].shape, dtype=torch.int64)


def _not_finite(tensors: Tensors, name: str) -> None:
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1)[-1] = torch.nan


DAMAGES: tuple[Callable[[Tensors, str], None], ...] = (_missing, _extra, _misshapen, _wrong_dtype, _not_finite)


def _check(directory: Path) -> tuple[int, str]:
    """Run `triptych check` on a checkpoint. Returns the exit status and the error output."""
    done = subprocess.run(
        [*command(), "check", str(directory)], cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    return done.returncode, done.stderr


def damaged(flips: int, damages: int = len(DAMAGES), models: int = len(MODELS)) -> Record:
    """Promise 20: damaged checkpoints are refused with an error that names the tensor or the file.

    The damages are those in `DAMAGES`, a truncated file, and flipped bits in a file with a manifest.

    flips: bits to flip in each model, one after the other.
    damages: number of kinds of damage to check. models: number of models to check.
    """
    record = Record("damaged checkpoint")
    rng = random.Random(20)

    def refused(directory: Path, damage: str, *words: str) -> None:
        status, text = _check(directory)
        record.runs += 1
        record.must(status != 0, f"{directory.name}, {damage}: accepted")
        record.must(all(word in text for word in words), f"{directory.name}, {damage}: the error names no {words}")
        record.must("Traceback" not in text, f"{directory.name}, {damage}: a stack trace")

    with tempfile.TemporaryDirectory() as root:
        for number, model in enumerate(MODELS[:models]):
            whole = Path(root) / model
            shutil.copytree(DEMO / model, whole)
            file = whole / "model.safetensors"
            content, tensors = file.read_bytes(), load_file(file)
            for damage in DAMAGES[:damages]:
                changed = dict(tensors)
                # The damaged tensor must be one that the model needs, so that the error has to name it.
                name = rng.choice(
                    [tensor_name for tensor_name in tensors if "weight" in tensor_name and "pooler" not in tensor_name]
                )
                damage(changed, name)
                save_file(changed, file, {"format": "pt"})
                refused(whole, damage.__name__[1:].replace("_", " "), name)
            file.write_bytes(content[: len(content) * (number + 1) // 5])
            refused(whole, "truncated", file.name)
            file.write_bytes(content)
            write_manifest(whole, [path.name for path in whole.iterdir() if path.is_file()])
            for _ in range(flips):
                bit = rng.randrange(len(content) * 8)
                flipped = bytearray(content)
                flipped[bit // 8] ^= 1 << bit % 8
                file.write_bytes(flipped)
                refused(whole, f"bit {bit} flipped", file.name)
    return record


def no_code() -> Record:
    """Promise 21: no checkpoint can run code or read other files.

    Tests with pickles, links out of the directory, `auto_map` and hostile chat templates.
    """
    return run_tests(
        Record("test"),
        "tests/weights/test_read.py",
        "tests/weights/test_resolve.py",
        "tests/models/test_published_code.py",
        "tests/text/test_chat.py",
    )


def silent_installation() -> Record:
    """Promise 28: without compiled kernels, `serve` and `check` print one line. Every possible reason has a message."""
    record = Record("test")
    if server.planted is None:
        run_tests(record, "tests/test_kernel_build.py")
    plant = f"from tests.chaos import bugs; bugs.install({server.planted!r}, 'worker')\n" if server.planted else ""
    with tempfile.TemporaryDirectory() as directory:
        worker = Path(directory) / "worker.py"
        worker.write_text(WORKER_WITHOUT_KERNELS.replace("sys.exit", f"{plant}sys.exit"))
        for arguments in (["check", str(DEMO / "story")], ["serve", f"story={DEMO / 'story'}", "--port", "0"]):
            script = f"from server.cli import main; main({arguments!r}, [{sys.executable!r}, {str(worker)!r}])"
            with subprocess.Popen(
                [sys.executable, "-c", script],
                cwd=REPOSITORY,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            ) as process:
                assert process.stdout is not None
                lines = []
                for line in process.stdout:
                    lines.append(line)
                    if "ready on" in line:
                        process.terminate()
            found = [line for line in lines if "computes with torch alone, slower: g++ 9.4 is too old." in line]
            record.must(len(found) == 1, f"{arguments[0]} says it in {len(found)} lines")
            record.runs += 1
    return record
