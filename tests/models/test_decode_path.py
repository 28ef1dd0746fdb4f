"""Count the files and classes whose code a decode step of LLaMA runs, between `Transformer.decode` and the kernels.

`pytest -s` prints the counts. They are information only: no file should be divided or joined to change them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from models.backends.cpu import operations as cpu_operations
from models.backends.logits import LogitsRequest
from models.checkpoint.loader import load_model
from models.transformer import Transformer
from tests.engine.tiny_checkpoints import DECODERS
from tests.parity.paged import Rows

ROOT = Path(__file__).parents[2]


class DecodePath:
    """Records the files and classes of this repository whose code runs inside `Transformer.decode`.

    A class counts if one of its methods or properties runs, or if an instance of it is created.
    """

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.classes: set[str] = set()
        self._depth = 0

    def __call__(self, frame, event: str, argument) -> None:
        code = frame.f_code
        if code is Transformer.decode.__code__:
            self._depth += {"call": 1, "return": -1}.get(event, 0)
        if not self._depth or event != "call":
            return
        if code.co_filename.startswith(str(ROOT / "models")):
            self.files.add(str(Path(code.co_filename).relative_to(ROOT)))
            owner = code.co_qualname.split(".")[0] if "." in code.co_qualname else ""
            if isinstance(frame.f_globals.get(owner), type):
                self.classes.add(owner)
        # Generated methods of data classes and inherited methods are recorded for the class of the instance.
        instance = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        kind = instance if isinstance(instance, type) else type(instance)
        is_own = kind.__module__.startswith("models.")
        if is_own and (code.co_filename == "<string>" or code.co_name in kind.__dict__):
            self.classes.add(kind.__name__)

    def __enter__(self):
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


@pytest.mark.skipif(not cpu_operations.available(), reason="programs need the compiled kernels")
@torch.inference_mode()
def test_files_and_classes_of_a_decode_step(saved):
    architecture, config = DECODERS["llama"]
    model = load_model(saved(config, architecture), torch.float32, torch.device("cpu")).transformer
    rows, request = Rows(model), LogitsRequest(top_k=1)
    steps = []
    for tokens in ({0: [5, 6], 1: [7]}, {0: [8], 1: [9]}, {0: [10], 1: [11]}):
        with DecodePath() as path:
            rows.decode(tokens, None, request)
        steps.append(path)
    for name, path in zip(("recording", "first", "steady"), steps, strict=True):
        print(f"{name} step: {len(path.files)} files, {len(path.classes)} classes")
        print("  ", *sorted(path.files), "\n  ", *sorted(path.classes))
    recording, _, steady = steps
    assert "models/backends/cpu/programs/trace.py" in recording.files - steady.files
    assert "models/backends/cpu/programs/program.py" in steady.files
    assert {"Transformer", "Executor", "Program", "PagedStepInputs"} <= steady.classes
