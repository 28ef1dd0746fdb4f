"""onnxruntime with padded batches, for encoders. int8 is its dynamic quantization with one scale per channel."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import onnxruntime

from benchmarks.checkpoints import SHAPES
from benchmarks.contestants.batches import text_batches
from benchmarks.contestants.contract import Outcome, Refused, Subject
from benchmarks.contestants.pooling import padded, vectors
from benchmarks.workloads import Job


class Entry:
    """An inference session of onnxruntime with all graph optimizations, for encoders."""

    def load(self, subject: Subject) -> dict[str, Any]:
        if SHAPES[subject.shape].kind != "encoder":
            raise Refused("used for encoders")
        if subject.precision == "bfloat16":
            raise Refused("no bfloat16 on a CPU")
        path = _exported(subject)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = subject.threads, 1
        # Threads that spin between calls would slow down the other contestants.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return {"version": onnxruntime.__version__}

    def run(self, job: Job) -> Outcome:
        outcome, started = Outcome(0.0), time.perf_counter()
        for indices in text_batches(job):
            begun = time.perf_counter()
            ids, mask = padded([job.inputs[index] for index in indices])
            (hidden,) = self._session.run(None, {"input_ids": ids, "attention_mask": mask})
            outcome.texts += len(vectors(hidden, mask))
            outcome.latencies.append(time.perf_counter() - begun)
        outcome.seconds = time.perf_counter() - started
        return outcome

    def close(self) -> None:
        """Does nothing, because this contestant starts no other process."""


def _exported(subject: Subject) -> Path:
    """Path of the ONNX graph, which is quantized for int8. The first call exports it from transformers."""
    made = Path(subject.made)
    plain, rounded = made / "model.onnx", made / "model-int8.onnx"
    if not plain.exists():
        _export(subject, plain)
    if subject.precision == "float32":
        return plain
    if not rounded.exists():
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(plain, rounded, weight_type=QuantType.QInt8, per_channel=True)
    return rounded


def _export(subject: Subject, path: Path) -> None:
    import torch
    import transformers

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            cls = getattr(transformers, SHAPES[subject.shape].architecture)
            self.model = cls.from_pretrained(subject.directory, attn_implementation="eager").eval()

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            # This is the bias that the model itself computes from a mask and adds to the scores.
            bias = (1.0 - attention_mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
            return self.model(input_ids=input_ids, attention_mask=bias).last_hidden_state  # type: ignore[no-any-return]

    example = torch.randint(300, 399, (2, 7)), torch.ones(2, 7, dtype=torch.long)
    axes = {name: {0: "batch", 1: "seq"} for name in ("input_ids", "attention_mask", "hidden")}
    partial = path.with_suffix(".partial")
    torch.onnx.export(
        Hidden(),
        example,
        str(partial),
        input_names=["input_ids", "attention_mask"],
        output_names=["hidden"],
        dynamic_axes=axes,
        opset_version=17,
        dynamo=False,
    )
    partial.rename(path)
