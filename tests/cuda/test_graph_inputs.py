"""Numbers of a captured step in the memory of its inputs."""

from __future__ import annotations

import random

import pytest
import torch

from models.backends.cuda.graphs.graph_inputs import StepInputMemory
from models.backends.cuda.kernels.decode_attention import partial_starts
from models.steps.batch import DecoderBatch
from tests.cuda.graph_runner import FakeGraphRunner


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_lengths_of_rows_and_the_places_of_their_partial_results(rows: int) -> None:
    chance, bucket = random.Random(rows), 8
    memory = StepInputMemory(FakeGraphRunner(), torch.device("cpu"), bucket, (4, 4))
    inputs = memory.inputs(bucket)
    key_lens, source_lens = (tuple(chance.choice([1, 255, 256, 257, 1000]) for _ in range(rows)) for _ in range(2))
    numbers, tables = torch.arange(3 * rows).view(3, rows), torch.zeros(rows, 2, dtype=torch.int64)
    batch = DecoderBatch(*numbers[:2], (1,) * rows, key_lens, numbers[2], tables, source_lens, tables)
    memory.write(batch, bucket)
    for cache, lens in zip(inputs.caches, (key_lens, source_lens), strict=True):
        assert cache.key_lens.tolist() == [*lens, *[0] * (bucket - rows)]
        assert cache.partial_starts[:rows].tolist() == partial_starts(lens)[:-1]
