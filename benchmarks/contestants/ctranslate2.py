"""CTranslate2 with static batches, sorted by length.

A static batch runs until its longest answer is complete. Only requested tokens are counted.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np

from benchmarks import vocabulary
from benchmarks.checkpoints import SHAPES
from benchmarks.contestants.batches import static_batches, text_batches
from benchmarks.contestants.contract import Outcome, Refused, Subject
from benchmarks.workloads import Job


class Entry:
    """CTranslate2's Generator, Encoder or Translator, by the kind of model. A Translator has one thread per worker."""

    def load(self, subject: Subject) -> dict[str, Any]:
        shape = SHAPES[subject.shape]
        if subject.precision not in ctranslate2.get_supported_compute_types("cpu"):
            raise Refused(f"no {subject.precision} on this processor")
        directory = Path(subject.made) / "ctranslate2"
        if not (directory / "model.bin").exists():
            converter = ctranslate2.converters.TransformersConverter(subject.directory)
            converter.convert(str(directory), force=True)
        self._vocabulary = vocabulary.tokens(shape.vocab_size, pad_last=shape.kind == "seq2seq")
        self._kind = shape.kind
        settings: dict[str, Any] = {"device": "cpu", "compute_type": subject.precision}
        if self._kind == "seq2seq":
            settings |= {"inter_threads": subject.threads, "intra_threads": 1}
        else:
            settings |= {"inter_threads": 1, "intra_threads": subject.threads}
        made = {"decoder": ctranslate2.Generator, "seq2seq": ctranslate2.Translator, "encoder": ctranslate2.Encoder}
        self._model = made[self._kind](str(directory), **settings)
        return {
            "version": ctranslate2.__version__,
            "setting": "2 workers of 1 thread" if shape.kind == "seq2seq" else "",
        }

    def run(self, job: Job) -> Outcome:
        started = time.perf_counter()
        outcome = self._embed(job) if job.kind == "embed" else self._generate(job)
        outcome.seconds = time.perf_counter() - started
        return outcome

    def _generate(self, job: Job) -> Outcome:
        outcome = Outcome(0.0)
        for indices in static_batches(job):
            begun = time.perf_counter()
            texts = [[self._vocabulary[token] for token in job.inputs[index]] for index in indices]
            length = max(job.new_tokens[index] for index in indices)
            settings = {"min_length": length, "max_length": length, "beam_size": job.beams}
            if self._kind == "decoder":
                found = self._model.generate_batch(texts, include_prompt_in_result=False, **settings)
                made = [result.sequences_ids[0] for result in found]
            else:
                settings["min_decoding_length"] = settings.pop("min_length")
                settings["max_decoding_length"] = settings.pop("max_length")
                found = self._model.translate_batch(texts, max_batch_size=-(-len(texts) // 2), **settings)
                made = [result.hypotheses[0] for result in found]
            outcome.tokens += sum(
                min(len(ids), job.new_tokens[index]) for ids, index in zip(made, indices, strict=True)
            )
            if job.in_flight == 1:
                outcome.latencies.append(time.perf_counter() - begun)
        return outcome

    def _embed(self, job: Job) -> Outcome:
        outcome = Outcome(0.0)
        for indices in text_batches(job):
            begun = time.perf_counter()
            texts = [job.inputs[index] for index in indices]
            hidden = np.array(self._model.forward_batch(texts).last_hidden_state)
            for row, text in zip(hidden, texts, strict=True):
                mean = row[: len(text)].mean(0)
                assert np.isfinite(mean / np.linalg.norm(mean)).all()
                outcome.texts += 1
            outcome.latencies.append(time.perf_counter() - begun)
        return outcome

    def close(self) -> None:
        """Does nothing, because this contestant starts no other process."""
