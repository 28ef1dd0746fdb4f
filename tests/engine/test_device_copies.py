"""A step reads its results from the device with one copy, however many groups it has."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from models.backends.logits import DecoderOutput
from server.engine.choosing import selection
from server.engine.device import device_copies
from server.engine.device.device_copies import packed, read_together, to_device, unpacked
from server.engine.sequences.sequence import SequenceGroup
from tests.cuda.graph_runner import HOST_READ_METHODS
from tests.engine.stored_logits import StoredLogits
from tests.engine.test_selection import BEAMS, VOCAB, group_with_tokens
from tests.ipc.one_row import one_row

TENSORS = (
    torch.arange(12).view(3, 4)[:, :3],
    torch.randn(3, 2, generator=torch.Generator().manual_seed(1)),
    torch.tensor([True, False, True]),
    torch.tensor([], dtype=torch.float32),
    torch.tensor([[-(1 << 40)], [3], [5]]),
    # One element with a stride of 5.
    torch.arange(20).view(4, 5)[1:2, 3],
)


def test_packed_tensors_are_unpacked_as_they_were() -> None:
    arrays = unpacked(packed(TENSORS), TENSORS)
    for array, tensor in zip(arrays, TENSORS, strict=True):
        assert array.dtype == tensor.numpy().dtype and np.array_equal(array, tensor.numpy())
    for array, tensor in zip(read_together(*TENSORS), TENSORS, strict=True):
        assert np.array_equal(array, tensor.numpy())


@pytest.mark.parametrize("values", [[], [3, 1], [[1, 2], [3, 4]]])
def test_integers_are_int64_on_the_device(values: list) -> None:
    tensor = to_device(values, torch.device("cpu"))
    assert tensor.dtype == torch.int64 and tensor.tolist() == values


class CountedReads(TorchFunctionMode):
    """Counts calls of `read_together`, and forbids other ways to read a tensor on the host."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.count, self._is_reading = 0, False
        for module in (selection, device_copies):
            monkeypatch.setattr(module, "read_together", self._read)

    def _read(self, *tensors: torch.Tensor) -> list[np.ndarray]:
        self.count, self._is_reading = self.count + 1, True
        arrays = read_together(*tensors)
        self._is_reading = False
        return arrays

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        assert self._is_reading or name not in (*HOST_READ_METHODS, "numpy"), f"{name} reads a tensor on the host"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("settings", "reads"),
    [
        ({}, 1),
        ({"bad_words_ids": [[5]], "renormalize_logits": True}, 1),
        ({"logprobs": True, "top_logprobs": 2}, 1),
        ({"num_beams": 1}, 1),
        ({"num_beams": 1, "repetition_penalty": 1.5}, 2),
    ],
)
@pytest.mark.parametrize("num_groups", [1, 9])
def test_one_copy_for_all_groups(monkeypatch: pytest.MonkeyPatch, settings: dict, reads: int, num_groups: int) -> None:
    """The number of copies does not depend on the number of groups.

    Rows with processors and without beams need a second copy, because rows with NaN or infinite logits must be found
    before sampling.
    """
    if settings.get("num_beams") == 1:
        groups = [single(number, settings) for number in range(num_groups)]
    else:
        groups = [group_with_tokens(number, settings) for number in range(num_groups)]
    rows = sum(len(group.sequences) for group in groups)
    logits = torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(2))
    output = DecoderOutput(logits, *StoredLogits().logits_top_k(logits, selection.logits_request(groups)))
    counted = CountedReads(monkeypatch)
    with counted:
        selections = selection.select(output, StoredLogits(), groups)
    assert len(selections) == num_groups and counted.count == reads
    assert all(chosen.tokens or len(chosen.parents) == BEAMS for chosen in selections)


def single(number: int, settings: dict) -> SequenceGroup:
    """A group without beams, with one token."""
    message = one_row(number, "m", [5, 6], [1], max_new_tokens=20, end_token_ids=[2], **settings)
    return SequenceGroup(message, message.rows[0], True, 0.0)


def test_a_row_that_is_not_finite_fails_alone_among_processed_beams() -> None:
    groups = [group_with_tokens(number, {"repetition_penalty": 1.5, "renormalize_logits": True}) for number in range(3)]
    logits = torch.randn(3 * BEAMS, VOCAB, generator=torch.Generator().manual_seed(2))
    logits[BEAMS + 1, 7] = torch.nan
    selections = {chosen.group: chosen for chosen in selection.select(DecoderOutput(logits), StoredLogits(), groups)}
    assert [selections[group].failed for group in groups] == [False, True, False]
    assert [selections[group].parents is None for group in groups] == [False, True, False]
