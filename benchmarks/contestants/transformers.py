"""`generate` of transformers with padded static batches, eager mode, and torch's scaled dot product attention."""

from __future__ import annotations

import time
from typing import Any

import torch
import transformers

from benchmarks import vocabulary
from benchmarks.checkpoints import SHAPES
from benchmarks.contestants.batches import static_batches, text_batches
from benchmarks.contestants.contract import Outcome, Refused, Subject
from benchmarks.workloads import Job


class Entry:
    """A model of transformers in float32 or bfloat16. int8 is refused."""

    def load(self, subject: Subject) -> dict[str, Any]:
        if subject.precision == "int8":
            raise Refused("no int8 on a CPU without further packages")
        torch.set_num_threads(subject.threads)
        transformers.utils.logging.set_verbosity_error()
        shape = SHAPES[subject.shape]
        cls = getattr(transformers, shape.architecture)
        self._model = cls.from_pretrained(subject.directory, dtype=getattr(torch, subject.precision)).eval()
        self._kind = shape.kind
        return {"version": transformers.__version__}

    @torch.inference_mode()
    def run(self, job: Job) -> Outcome:
        started = time.perf_counter()
        outcome = self._embed(job) if job.kind == "embed" else self._generate(job)
        outcome.seconds = time.perf_counter() - started
        return outcome

    def _generate(self, job: Job) -> Outcome:
        outcome = Outcome(0.0)
        for indices in static_batches(job):
            ids, mask = padded([job.inputs[index] for index in indices], left=self._kind == "decoder")
            length = max(job.new_tokens[index] for index in indices)
            settings = {"do_sample": False, "num_beams": job.beams}
            made = self._model.generate(
                ids, attention_mask=mask, min_new_tokens=length, max_new_tokens=length, **settings
            )
            new = made.shape[1] - (ids.shape[1] if self._kind == "decoder" else 1)
            outcome.tokens += sum(min(new, job.new_tokens[index]) for index in indices)
        return outcome

    def _embed(self, job: Job) -> Outcome:
        outcome = Outcome(0.0)
        for indices in text_batches(job):
            ids, mask = padded([job.inputs[index] for index in indices], left=False)
            hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            weight = mask[..., None].float()
            vectors = torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1))
            assert bool(vectors.isfinite().all())
            outcome.texts += len(vectors)
        return outcome

    def close(self) -> None:
        """Does nothing, because this contestant starts no other process."""


def padded(texts: list[list[int]], left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad texts to the longest one. Returns token ids and mask (1 for tokens), both [batch, seq], int64.

    left: whether padding precedes the text instead of following it.
    """
    longest = max(map(len, texts))
    ids = torch.full((len(texts), longest), vocabulary.PAD)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        where = slice(longest - len(text), longest) if left else slice(0, len(text))
        ids[row, where] = torch.tensor(text)
        mask[row, where] = 1
    return ids, mask
