"""sentence-transformers with its own pipeline from texts to vectors."""

from __future__ import annotations

import time
from typing import Any

import sentence_transformers
import torch

from benchmarks import vocabulary
from benchmarks.checkpoints import SHAPES
from benchmarks.contestants.contract import Outcome, Refused, Subject
from benchmarks.workloads import Job


class Entry:
    """A SentenceTransformer model. It takes texts, and converting the token ids to texts is not timed."""

    def load(self, subject: Subject) -> dict[str, Any]:
        if SHAPES[subject.shape].kind != "encoder":
            raise Refused("used for encoders")
        if subject.precision == "int8":
            raise Refused("int8 is not supported")
        torch.set_num_threads(subject.threads)
        settings = {"dtype": getattr(torch, subject.precision)}
        self._model = sentence_transformers.SentenceTransformer(subject.directory, device="cpu", model_kwargs=settings)
        return {"version": sentence_transformers.__version__}

    def run(self, job: Job) -> Outcome:
        texts = [vocabulary.text(ids[1:-1]) for ids in job.inputs]
        started = time.perf_counter()
        vectors = self._model.encode(texts, batch_size=job.batch, convert_to_tensor=True)
        assert bool(vectors.isfinite().all())
        return Outcome(time.perf_counter() - started, texts=len(vectors))

    def close(self) -> None:
        """Does nothing, because this contestant starts no other process."""
