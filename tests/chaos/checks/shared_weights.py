"""Check that several workers on a CPU share the memory of the weights."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import transformers

from server.ipc.wire.descriptions import ModelSpec
from server.ipc.wire.step_messages import StepOutput
from server.ipc.wire.worker_messages import Ready
from server.ipc.workers.weight_memory import WeightMemory
from tests.chaos.record import Record
from tests.engine.worker_process import Worker
from tests.ipc.one_row import one_row
from tests.parity.checkpoints import write_model

MOST_ADDED_BYTES = 350e6
"""Largest memory that a second worker may add, besides its KV pool."""


def memory_of_workers(layers: int, hidden_size: int, kv_cache_bytes: int, share: bool = True) -> Record:
    """Compare the proportional set size of two workers with that of one, after each has answered a request.

    layers, hidden_size: shape of a random decoder; 12 and 1024 make 184 million parameters (740 MB).
    kv_cache_bytes: KV pool of each worker.
    share: whether workers share the weights. False plants the bug: each worker packs its own copy.
    """
    record = Record("pair of workers")
    config = transformers.LlamaConfig(
        vocab_size=8192,
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=hidden_size // 64,
        tie_word_embeddings=True,
    )
    with tempfile.TemporaryDirectory() as directory:
        torch.manual_seed(0)
        write_model(Path(directory), config, "LlamaForCausalLM")
        spec = ModelSpec("m", directory, "float32")
        memory = WeightMemory([spec])
        workers: list[Worker] = []
        try:
            texts = []
            for _ in range(2):
                worker = Worker(memory if share else None)
                workers.append(worker)
                worker.configure_specs([spec], threads=1, kv_cache_bytes=kv_cache_bytes)
                info = worker.until(Ready).models[0]
                texts.append(_answer(worker))
                if len(workers) == 1:
                    alone = proportional_bytes(worker.process.pid)
            together = sum(proportional_bytes(worker.process.pid) for worker in workers)
            record.must(texts[0] == texts[1], "two workers gave different tokens")
            record.must(info.weight_bytes > MOST_ADDED_BYTES + info.kv_bytes, "the model is too small for the check")
            limit = (MOST_ADDED_BYTES + info.kv_bytes) / 1e6
            record.most("memory that a second worker adds", (together - alone) / 1e6, limit, "MB")
            record.runs += 1
        finally:
            for worker in workers:
                worker.end()
            memory.close()
    return record


def proportional_bytes(pid: int) -> int:
    """Memory of a process in bytes. A page that n processes map counts as 1/n (`Pss` of Linux)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def _answer(worker: Worker) -> list[int]:
    """Send a request to a worker and return the new tokens."""
    worker.send(one_row(1, "m", [5, 6, 7, 8] * 16, max_new_tokens=16, end_token_ids=[]))
    while True:
        message = worker.receive()
        assert message is not None, "the worker closed"
        if isinstance(message, StepOutput) and message.finished:
            return message.finished[0].hypotheses[0].token_ids
