"""Checks `Generate` messages and makes the sequence groups of their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from models.config import AttentionConfig
from server.engine.beams.beam_groups import make_search
from server.engine.beams.required_terms import RequiredTerms
from server.engine.beams.stop_texts import StopTexts
from server.engine.scheduling.message_checks import MessageChecks
from server.engine.scheduling.model_limits import ModelLimits
from server.engine.scheduling.scheduler import Scheduler
from server.engine.sequences.events import EngineEvents
from server.engine.sequences.sequence import SequenceGroup
from server.engine.sequences.stored_sequences import StoredSequences
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.step_messages import Failed


class NewGroups:
    """Makes the sequence groups of one model. They are not queued yet.

    name: name of the model. limits: limits of the model.
    scheduler: refuses groups that can never run.
    cross_attention_layers: returns the cross-attention configuration of each decoder layer.
    stored_sequences: the stored sets of allowed sequences.
    token_bytes: bytes of each token, by id; empty until they are known.
    """

    def __init__(
        self,
        name: str,
        limits: ModelLimits,
        scheduler: Scheduler,
        cross_attention_layers: Callable[[], Sequence[AttentionConfig]],
    ) -> None:
        self._name, self._limits, self._scheduler = name, limits, scheduler
        self._is_encoder_decoder = scheduler.blocks.cross_pool is not None
        self.stored_sequences = StoredSequences(limits.vocab_size)
        self._checks = MessageChecks(limits, self._is_encoder_decoder, cross_attention_layers, self.stored_sequences)
        self.token_bytes: list[bytes] = []

    def accepts(self, message: Generate, has_vocabulary: bool, events: EngineEvents) -> bool:
        """Whether a message is valid. If it is not, a failure of each of its rows is added to `events`.

        has_vocabulary: whether the bytes of the tokens are known.
        """
        invalid = self._checks.invalid_reason(message, has_vocabulary)
        if invalid is not None:
            events.failed += [Failed(row.sequence_id, "engine_error", invalid) for row in message.rows]
        return invalid is None

    def make(self, message: Generate, row: GenerateRow, now: float, events: EngineEvents) -> SequenceGroup | None:
        """The sequence group of a row of a valid message. If the row exceeds a limit, adds its failure, returns None.

        now: seconds of `time.monotonic()`.
        """
        frames = message.frames[row.prompt] if message.frames else None
        num_source_tokens = None if frames is None else self._limits.recording_tokens(len(frames))
        adapter = message.model if message.model != self._name else ""
        variant = self._limits.key_variant
        stored = self.stored_sequences.get(message.params_of(row).sequence_set)
        group = SequenceGroup(message, row, self._is_encoder_decoder, now, num_source_tokens, adapter, variant, stored)
        too_large = self._over_limit(group) or self._scheduler.refusal(group)
        if too_large is not None:
            events.failed.append(Failed(group.sequence_id, "request_too_large", too_large))
            return None
        if row.terms:
            terms = RequiredTerms([message.terms[i] for i in row.terms], self.token_bytes, row.decoder_token_ids)
            group.beams = make_search(group.params, group.max_new_tokens, group.end_ids, terms)
        if group.beams is not None and group.params.stop_texts:
            group.beams.stop_texts = StopTexts(self.token_bytes, group.params.stop_texts, row.text_drops_space)
        return group

    def _over_limit(self, group: SequenceGroup) -> str | None:
        tokens = group.num_prompt_tokens + group.max_new_tokens
        if tokens > self._limits.context_tokens:
            return f"{tokens} tokens (prompt and new ones) exceed the context of {self._limits.context_tokens}"
        source = group.num_source_tokens
        if source > self._limits.source_tokens:
            return f"a source of {source} tokens exceeds the limit of {self._limits.source_tokens}"
        return None
