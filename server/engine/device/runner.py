"""Runs a step on the device: builds the batches of a schedule and calls the transformer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from models.backends.cuda.graphs.captures import CaptureTime
from models.backends.cuda.graphs.graph_sizes import EncoderSizes, GraphSizes
from models.backends.logits import DecoderOutput, LogitsRequest
from models.steps.alignment import normalise_alignment
from models.steps.batch import EncoderBatch, SourceBatch
from models.steps.kv_cache import KVCache
from models.steps.state_memory import StateMemory
from models.steps.step_inputs.ragged import SourceStates
from server.engine.cache.lane_blocks import SlotCopies
from server.engine.device.captured_parts import Part, capture_parts
from server.engine.device.captured_searches import CapturedSearches
from server.engine.device.captured_steps import CapturedSteps
from server.engine.device.decoder_batches import BatchBuilder, BatchRows
from server.engine.device.slots import Ids, slots_of
from server.engine.device.state_rows import divide_rows
from server.engine.device.transformer_protocol import TransformerProtocol
from server.engine.scheduling.schedule import Schedule
from server.engine.sequences.sequence import SequenceGroup
from server.ipc.wire.params import SpeechAlignment

if TYPE_CHECKING:
    from server.engine.device.captured_parts import CapturedEncoder


_COPIED_SLOTS = 8192
"""Smallest number of slots that are copied at once. Meanwhile, their keys or values are in memory twice."""


class Runner:
    """Runs the steps of one model on its device, with its KV caches and states.

    self_cache: keys and values of self-attention; None for an encoder.
    cross_cache: keys and values of cross-attention; None if the model is not an encoder-decoder.
    state_memory: states of the mixers; None without mixers.
    captured, captured_searches, captured_encoder: decoder steps, decoder steps with beam searches, and encoder steps as
        CUDA graphs; None before `capture_steps`, and for steps that could not be captured.
    """

    def __init__(
        self,
        model: TransformerProtocol,
        device: torch.device,
        self_cache: KVCache | None,
        cross_cache: KVCache | None,
        state_memory: StateMemory | None = None,
    ) -> None:
        self.model = model
        self.device = device
        self.self_cache = self_cache
        self.cross_cache = cross_cache
        self.state_memory = state_memory
        self._batches = BatchBuilder(
            device,
            0 if self_cache is None else self_cache.block_size,
            has_sources=cross_cache is not None,
            needs_rope_lengths=model.keys_depend_on_length,
        )
        self.captured: CapturedSteps | None = None
        self.captured_searches: CapturedSearches | None = None
        self.captured_encoder: CapturedEncoder | None = None
        # Encoder output of the groups whose attention weights are computed at their end: [source tokens, hidden].
        self._encoded: WeakKeyDictionary[SequenceGroup, Tensor] = WeakKeyDictionary()

    @torch.inference_mode()
    def capture_steps(
        self, decoder: GraphSizes | None, encoder: EncoderSizes | None = None, time: CaptureTime | None = None
    ) -> dict[Part, str]:
        """Capture steps as CUDA graphs, if the device and the model allow it.

        decoder: limits of decoder steps, None to capture none. encoder: limits of encoder steps, None to capture none.
        time: limits how many graphs are captured; None for the default limit.
        Returns the reason for each part of the steps that should have been captured and runs eagerly.
        """
        found = capture_parts(self.model, self.device, (self.self_cache, self.cross_cache), decoder, encoder, time)
        self.captured, self.captured_searches, self.captured_encoder = found.decoder, found.searches, found.encoder
        return found.reasons

    def encode(self, batch: SourceBatch) -> Tensor:
        """Compute the hidden states of whole inputs, as `Transformer.encode` does.

        The hidden states may be in memory that the next encoder step overwrites.
        """
        graphs = self.captured_encoder
        return self.model.encode(batch) if graphs is None or not graphs.takes(batch) else graphs.run(batch)

    def run(self, schedule: Schedule, logits: LogitsRequest | None = None) -> tuple[DecoderOutput, Tensor | None]:
        """Compute a step.

        schedule: sources to encode, blocks to copy, rows to compute.
        logits: asks for logits and their top-k in the same step; None if logits are not needed. Must be None if the
            schedule scores prompts. An eager step that returns the hidden states computes no logits.
        Returns the decoder output and the hidden states. The output has one row for the last token of each row that
            needs logits, and one for each token of its draft, in order. The hidden states are those of all tokens,
            [tokens, hidden], model dtype, if a draft head or `score_prompts` reads them and the step ran eagerly; else
            None.
        """
        assert self.self_cache is not None
        if schedule.sources:
            self._encode_sources(schedule)
        self.self_cache.copy_blocks(schedule.copies)
        if self.captured is not None and not schedule.scores_prompts:
            output = self.captured.run(schedule, logits)
            if output is not None:
                return output, None
        batch = self._batches.build(BatchRows.of(schedule))
        if self.state_memory is not None:
            batch = divide_rows(batch, schedule.rows)
        caches = self.self_cache, self.cross_cache
        if not (schedule.keeps_hidden or schedule.scores_prompts):
            return self.model.decode(batch, *caches, logits, self.state_memory), None
        assert not (schedule.scores_prompts and logits), "the logits of the prompt would overwrite those of the step"
        output = self.model.decode(replace(batch, output_lens=None), *caches, state_memory=self.state_memory)
        hidden = output.hidden
        return output._replace(hidden=hidden if batch.output_rows is None else hidden[batch.output_rows]), hidden

    @torch.inference_mode()
    def align(
        self, groups: Sequence[SequenceGroup], texts: Sequence[Sequence[int]], num_new: Sequence[int]
    ) -> list[bytes | None]:
        """Cross-attention weights of the last tokens of some texts, averaged over the heads of the last layer.

        groups: the group that generated each text. All have the same adapter.
        texts: token ids of the decoder, start tokens included.
        num_new: number of generated tokens at the end of each text.
        Returns bytes for each text: float32, little-endian, [new tokens, source tokens]; None for a text with a weight
        that is not finite. Runs the whole decoder once, so that beams and drafts do not change the result.
        """
        lengths = tuple(group.num_source_tokens for group in groups)
        known = [self._encoded[group] for group in groups if group in self._encoded]
        complete = len(known) == len(groups)
        source = SourceStates(torch.cat(known) if complete else self.encode(self.source_batch(groups)), lengths)
        adapters = [group.adapter for group in groups]
        target = self.encoder_batch([text[:-1] for text in texts], [None] * len(texts), adapters)
        weights = [own[-count:] for own, count in zip(self.model.align(source, target), num_new, strict=True)]
        # One check and one copy for all texts, because these have a fixed cost.
        joined = torch.cat([own.flatten() for own in weights])
        all_finite = bool(torch.isfinite(joined).all())
        numbers = joined.cpu().numpy().astype("<f4", copy=False)
        parts = np.split(numbers, np.cumsum([own.numel() for own in weights])[:-1])
        return [part.tobytes() if all_finite or bool(np.isfinite(part).all()) else None for part in parts]

    @torch.inference_mode()
    def align_speech(
        self,
        source_blocks: Sequence[int],
        num_source_tokens: int,
        recorded_tokens: int,
        decoder_ids: Sequence[int],
        num_rows: int,
        alignment: SpeechAlignment,
        adapter: str,
    ) -> bytes:
        """Cross-attention weights of the heads that a speech model uses for times, normalized and averaged over heads.

        The keys of the source are read from the cache. See `models.steps.alignment`.

        source_blocks: cross-attention blocks of the source, which is encoded.
        num_source_tokens: length of the source in the cache.
        recorded_tokens: number of leading source positions that belong to the recording.
        decoder_ids: token ids of the decoder, start tokens included.
        num_rows: weights are returned for this number of tokens at the end of `decoder_ids`, the last token excluded.
        alignment: attention heads, and width of the median filter.
        adapter: name of the adapter, or empty.
        Returns bytes: float32, little-endian, [num_rows, recorded_tokens]; empty for no rows.
        Raises FloatingPointError if a weight is not finite.
        """
        assert self.cross_cache is not None
        if num_rows <= 0:
            return b""
        slots = self._tensor(slots_of(source_blocks, 0, num_source_tokens, self.cross_cache.block_size))
        target = self.encoder_batch([decoder_ids[:-1]], [None], [adapter])
        weights = self.model.align_cached(target, self.cross_cache, slots, alignment.heads)[:, -num_rows:]
        if not torch.isfinite(weights).all():
            raise FloatingPointError("attention is not finite")
        matrix = normalise_alignment(weights[:, :, :recorded_tokens], alignment.median_width)
        return matrix.cpu().numpy().astype("<f4").tobytes()

    def encoder_batch(
        self, texts: Sequence[Sequence[int]], types: Sequence[Sequence[int] | None], adapters: Sequence[str]
    ) -> EncoderBatch:
        """Ragged batch of whole texts.

        texts: token ids of each text.
        types: token types of each text; None means all zero.
        adapters: adapter name of each text; empty for a text without adapter.
        """
        lengths = tuple(len(text) for text in texts)
        type_ids = None
        if any(given is not None for given in types):
            columns = [given or [0] * length for given, length in zip(types, lengths, strict=True)]
            type_ids = self._tensor(list(chain.from_iterable(columns)))
        return EncoderBatch(self._tensor(list(chain.from_iterable(texts))), lengths, type_ids, named(adapters))

    def source_batch(self, groups: Sequence[SequenceGroup]) -> SourceBatch:
        """Put the source texts of groups one after the other into one batch for the encoder."""
        texts = [group.source_token_ids for group in groups]
        return self.encoder_batch(texts, [None] * len(texts), [group.adapter for group in groups])

    def clear(self, self_blocks: Sequence[int], cross_blocks: Sequence[int]) -> None:
        """Set all keys and values of some blocks to zero. Freed blocks may hold NaN, and 0 * NaN is NaN."""
        if self.self_cache is not None:
            self.self_cache.clear(self_blocks)
        if self.cross_cache is not None:
            self.cross_cache.clear(cross_blocks)

    def copy_blocks(self, copies: Sequence[tuple[int, int, int, int]]) -> None:
        """Copy slots between blocks of the `self` pool.

        copies: (source block, destination block, first slot, end slot) of each copy.
        """
        assert self.self_cache is not None
        self.self_cache.copy_blocks(copies)

    def copy_slots(self, copies: Sequence[SlotCopies]) -> None:
        """Copy slots of the `self` pool, some thousand slots at a time.

        A slot may occur only once in all of `copies`.
        """
        assert self.self_cache is not None
        waiting = list(copies)
        while waiting:
            part = [waiting.pop()]
            while waiting and sum(len(own.sources) for own in part) < _COPIED_SLOTS:
                part.append(waiting.pop())
            sources, destinations = (np.concatenate(columns) for columns in zip(*part, strict=True))
            self.self_cache.copy_slots(self._tensor(sources), self._tensor(destinations))

    def give_back_caches(self) -> None:
        """Return the memory of KV caches and states to the system. No block and no slot may be in use."""
        for cache in (self.self_cache, self.cross_cache, self.state_memory):
            if cache is not None:
                cache.give_back()

    def _encode_sources(self, schedule: Schedule) -> None:
        assert self.cross_cache is not None
        batch = self.source_batch(schedule.sources)
        size = self.cross_cache.block_size
        slots: list[int] = []
        for group in schedule.sources:
            slots += slots_of(group.cross_block_table, 0, group.num_source_tokens, size)
        graphs = self.captured_encoder
        if graphs is not None and graphs.takes(batch):
            graphs.run(batch, slots)
            return
        hidden = self.model.encode(batch)
        if self.device.type == "cpu":  # the memory of a CUDA device is measured without these tensors
            for group, own in zip(schedule.sources, torch.split(hidden, list(batch.lengths)), strict=True):
                if group.has_attention:
                    self._encoded[group] = own.clone()
        self.model.write_cross(hidden, self._tensor(slots), self.cross_cache, batch)

    def _tensor(self, values: Ids | Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        array = np.asarray(values, dtype=np.int64)
        return torch.from_numpy(array).to(self.device, non_blocking=True)


def named(adapters: Sequence[str]) -> tuple[str, ...]:
    """Adapter names of a batch, one per row; an empty tuple if no row uses an adapter."""
    return tuple(adapters) if any(adapters) else ()
