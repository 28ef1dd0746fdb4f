"""Decode steps of beam searches as CUDA graphs. The device chooses the next beams and finds their earlier tokens.

Beams change their texts in each step. Without a device, block tables are forked and blocks are copied for this, which
needs the parents of the beams on the host. Here each row keeps its own blocks, its lane: it writes the keys and values
of its new token there, even if the row continues the text of another row. A table on the device names, for each row
and position, the cache slot of the token in the row's present text, in its own lane or in another lane. A step first
updates this table: each row gets the slots of the text that its beam continues (`follow_beams`). Then the step attends
to the slots that the table names. No keys or values are copied.

The layers read this cache as a paged cache with blocks of one slot, with the same attention kernel. Keys are read in
the order of positions, in the same chunks as from larger blocks, so attention gives the same bits.

The host reads the considered continuations of each search later, and repeats the choice of the beams from them.
Source of the indirection: the beam search of FasterTransformer and TensorRT-LLM ("cache indirection").
See docs/decisions/0183-beams-on-the-device.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.backends.choice import backend
from models.backends.cuda.graphs.captures import CaptureTime
from models.backends.cuda.graphs.graph_runner import DeviceEvent
from models.backends.cuda.graphs.step_graphs import ChosenTokens, StepGraphs
from models.backends.cuda.operations import with_uniforms
from models.backends.logits import DecoderOutput, LogitsTopK
from models.backends.torch.beams import MAX_CANDIDATES, NUM_SEARCH_COLUMNS, Beams, SearchResults, StepSearches
from models.backends.torch.sampling import Filters
from models.steps.batch import DecoderBatch

MAX_CONTEXT = 4096
"""Largest number of keys of a row, which is the width of the table with the slots of each row."""
_TOP_K_SIZES = (8, 16, 32, 64)
"""Values of k for which steps find the k largest logits. The kernels of each value are compiled in advance."""

FindCandidates = Callable[[Tensor, LogitsTopK], tuple[Tensor, Tensor]]
"""Finds the best continuations of each row, on the device: (logits [rows, vocab], their top k with log-sum-exp) to
log-probabilities and token ids, [rows, k] each. May overwrite the logits."""


class ChosenBeams(ChosenTokens):
    """Results of a launched step with beam searches. `read` returns the tokens of the rows without beams.

    host: [rows + searches * (1 + 2 * candidates)], int64, pinned memory: tokens, then results of `choose_beams`.
    """

    def __init__(
        self, host: Tensor, copied: DeviceEvent, num_rows: int, num_searches: int, draft_states: Tensor | None
    ) -> None:
        super().__init__(host[:num_rows], copied, draft_states)
        self._of_searches = host[num_rows:].view(num_searches, -1)

    def read_searches(self) -> SearchResults:
        """Wait for the step, and return the results of its searches."""
        self._copied.synchronize()
        return SearchResults.of(self._of_searches.numpy())


class BeamGraphs(StepGraphs):
    """The captured steps of a decoder whose rows may be beams. Rows without beams may join them.

    graphs: the captured steps without beams. Both use the same caches, memory for logits, and pool of memory.
    time: limits how many graphs are captured.
    """

    def __init__(self, graphs: StepGraphs, time: CaptureTime) -> None:
        decoder, rows = graphs._decoder, graphs._max_rows
        device = decoder.cache.device
        self._parents = torch.zeros(rows, dtype=torch.int64, device=device)
        self._own_rows = torch.arange(rows, device=device)
        self._chosen_scores, self._scores = torch.zeros(rows, device=device), torch.zeros(rows, device=device)
        limits = decoder.limits._replace(context=min(decoder.limits.context, MAX_CONTEXT))
        by_slot = decoder._replace(cache=decoder.cache.by_slot(), limits=limits)
        super().__init__(by_slot, graphs._runner, time, graphs._partials)
        self._beams = Beams(self._memory.chosen, self._parents, self._chosen_scores)
        most = rows // 2
        # A search considers at least two continuations for each end token and one more.
        self._search_host = graphs._runner.pinned(most * (NUM_SEARCH_COLUMNS + MAX_CANDIDATES // 2) + rows)
        self._search_memory = torch.zeros(len(self._search_host), dtype=torch.int64, device=device)
        self._search_copied = graphs._runner.event()
        size = rows + most * (1 + 2 * MAX_CANDIDATES)
        self._results = [(graphs._runner.pinned(size), event) for _, event in self._results]
        self._compile()

    @property
    def max_candidates(self) -> int:
        """Largest number of continuations that a search may consider."""
        return min(MAX_CANDIDATES, self._decoder.logits.shape[1])

    def launch_searches(
        self,
        batch: DecoderBatch,
        filters: Sequence[Filters],
        uniforms: NDArray[np.float64],
        searches: StepSearches,
        find_candidates: FindCandidates,
        scores: NDArray[np.float32] | None = None,
    ) -> ChosenBeams:
        """Replay a step, choose the next beams of its searches, and a token for each other row. Reads nothing.

        batch: the rows of the step, on the CPU. In the first step of some rows, the block tables have the cache slot of
            each token; in later steps they are empty, [rows, 0]. The token id `-1 - row` then stands for the token,
            text and score that the last launched step has chosen for a row.
        filters: settings of the rows; a temperature of 0 chooses the largest logit. Settings of beams have no effect.
        uniforms: [rows], float64, in [0, 1): the random number of each row. Numbers of beams have no effect.
        searches: the searches of the step, at least one.
        scores: [rows], float32, in the first step: the sum of log-probabilities of each row; None later.
        At most two launched steps may be unread: read the results of a step before the second step after it is
        launched.
        """
        rows, count = len(filters), max(searches.num_candidates)
        columns = self._write(searches, scores)
        settings = self._settings_of(filters)
        numbers = None if settings is None else with_uniforms(settings, uniforms)
        output, filters_on_device = self._replay(batch, numbers)
        logits = output.logits
        assert logits is not None
        size = next(size for size in _TOP_K_SIZES if size >= count)
        top_k = backend(logits).logits_top_k(logits, min(size, logits.shape[1]), True)
        chosen = self._choose(DecoderOutput(output.hidden, logits, top_k), filters_on_device)
        log_probs, token_ids = find_candidates(logits, top_k)
        self._parents[:rows].copy_(self._own_rows[:rows])
        results = backend(logits).choose_beams(
            log_probs, token_ids, top_k.is_finite, self._scores, columns, count, self._beams
        )
        host, copied = self._results[self._num_launched % 2]
        self._num_launched += 1
        end = rows + results.numel()
        host[:rows].copy_(chosen, non_blocking=True)
        host[rows:end].copy_(results.view(-1), non_blocking=True)
        copied.record()
        return ChosenBeams(host[:end], copied, rows, len(results), output.draft_states)

    def _write(self, searches: StepSearches, scores: NDArray[np.float32] | None) -> Tensor:
        """Copy searches, and the scores of rows if any, to the device. Returns the columns of `choose_beams`."""
        self._search_copied.synchronize()
        numbers, columns = self._search_host.numpy(), searches.columns()
        end = columns.size
        numbers[:end] = columns.ravel()
        if scores is not None:
            numbers[end : end + len(scores)] = scores.astype(np.float64).view(np.int64)
        size = end + (0 if scores is None else len(scores))
        self._search_memory[:size].copy_(self._search_host[:size], non_blocking=True)
        self._search_copied.record()
        if scores is not None:
            self._chosen_scores[: len(scores)].copy_(self._search_memory[end:size].view(torch.float64))
        return self._search_memory[:end].view(columns.shape)

    def _step_of(self, bucket: int) -> Callable[[], DecoderOutput]:
        inputs, run = self._memory.inputs(bucket), super()._step_of(bucket)
        tables, key_lens, _ = inputs.caches[0]
        beams = Beams(self._memory.chosen, self._parents, self._chosen_scores)

        def follow_and_run() -> DecoderOutput:
            own = backend(self._scores)
            own.follow_beams(tables, beams, self._scores[:bucket], inputs.token_places, inputs.slots, key_lens)
            return run()

        return follow_and_run

    def _compile(self) -> None:
        """Run the kernels of all sizes, so that none is compiled in a later step."""
        logits = self._decoder.logits[:1].zero_()
        for size in _TOP_K_SIZES:
            top_k = backend(logits).logits_top_k(logits, min(size, logits.shape[1]), True)
            count = min(size, self.max_candidates)
            columns = torch.tensor([[0], [1], [count]], device=logits.device)
            backend(logits).choose_beams(
                top_k.values, top_k.ids, top_k.is_finite, self._scores, columns, count, self._beams
            )
