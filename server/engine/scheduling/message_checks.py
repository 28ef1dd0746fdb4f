"""Checks `Generate` messages against the limits of the model.

The HTTP process has made the same checks. They are repeated here because an invalid token id would crash a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from models.config import AttentionConfig
from server.engine.beams.allowed_sequences import is_valid
from server.engine.scheduling.model_limits import ModelLimits
from server.engine.sequences.stored_sequences import StoredSequences
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams, SpeechAlignment


class MessageChecks:
    """Checks the `Generate` messages of one model.

    limits: limits of the model.
    cross_attention_layers: returns the cross-attention configuration of each decoder layer.
    stored_sequences: the stored sets of allowed sequences that settings may name.
    """

    def __init__(
        self,
        limits: ModelLimits,
        is_encoder_decoder: bool,
        cross_attention_layers: Callable[[], Sequence[AttentionConfig]],
        stored_sequences: StoredSequences,
    ) -> None:
        self._limits, self._is_encoder_decoder = limits, is_encoder_decoder
        self._stored_sequences = stored_sequences
        self._cross_attention_layers = cross_attention_layers

    def invalid_reason(self, message: Generate, has_vocabulary: bool) -> str | None:
        """Why a message is invalid; None if it is valid. has_vocabulary: whether the bytes of the tokens are known."""
        wrong = self._limits.wrong_source(message.frames)
        if wrong is not None:
            return wrong
        sources = message.frames or message.prompts
        if not all(0 <= row.prompt < len(sources) for row in message.rows):
            return f"a row refers to a prompt that is not among the {len(sources)} prompts"
        if not all(message.prompts) or (
            self._is_encoder_decoder and not all(r.decoder_token_ids for r in message.rows)
        ):
            return "a prompt or decoder start is empty"
        vocab = self._limits.source_vocab_size if self._is_encoder_decoder else self._limits.vocab_size
        if any(min(prompt) < 0 or max(prompt) >= vocab for prompt in message.prompts):
            return f"a token id is outside the vocabulary of {vocab}"
        ids = [token for row in message.rows for token in row.decoder_token_ids]
        ids += [token for term in message.terms for _, spelling in term.spellings for token in spelling]
        if ids and (min(ids) < 0 or max(ids) >= self._limits.vocab_size):
            return f"a token id is outside the vocabulary of {self._limits.vocab_size}"
        found = self._invalid_params(message, message.params, has_vocabulary)
        if found is None and any(row.terms for row in message.rows):
            found = self._invalid_terms(message, has_vocabulary)
        return found

    def _invalid_terms(self, message: Generate, has_vocabulary: bool) -> str | None:
        """Why the required terms of a message, or their settings, are invalid; None if terms and settings are valid."""
        params = message.term_params
        if params is None or params.num_beams == 1 or params.num_beam_groups > 1 or params.sections:
            return "terms need a beam search without groups and without a grammar"
        if not has_vocabulary:
            return "terms were sent before the vocabulary"
        if not all(0 <= index < len(message.terms) for row in message.rows for index in row.terms):
            return f"a row refers to a term that is not among the {len(message.terms)} terms"
        spellings = [spelling for term in message.terms for spelling in (term.spellings or [("", [])])]
        if not all(text and tokens for text, tokens in spellings):
            return "a term is empty"
        return self._invalid_params(message, params, has_vocabulary)

    def _invalid_params(self, message: Generate, params: GenerationParams, has_vocabulary: bool) -> str | None:
        """Why the generation settings `params` are invalid for a message; None if they are valid."""
        ids = [*params.suppress_token_ids, *params.end_token_ids, *params.stop_token_ids]
        ids += [*params.allowed_token_ids, *params.logit_bias, *params.begin_suppress_token_ids]
        if params.probe is not None:
            ids.append(params.probe.token_id)
        if params.timestamps is not None:
            ids += [params.timestamps.first_id - 1, params.timestamps.first_id]
            if not params.end_token_ids:
                return "timestamps need an end token"
        ids += [token for token in (params.forced_bos_token_id, params.forced_eos_token_id) if token is not None]
        ids += [token for word in params.bad_words_ids for token in word]
        if ids and (min(ids) < 0 or max(ids) >= self._limits.vocab_size):
            return f"a token id is outside the vocabulary of {self._limits.vocab_size}"
        if params.num_beams > 1 and params.do_sample:
            return "beam search cannot be sampled"
        if params.num_beams % params.num_beam_groups:
            return "num_beams is not a multiple of num_beam_groups"
        if params.attention and (not self._is_encoder_decoder or message.frames):
            return "attention needs a source text"
        if params.alignment is not None and not (message.frames and self._can_align(params.alignment, message.rows)):
            return "alignment needs audio, and heads and source positions that the model has"
        if params.probe is not None:
            position = params.probe.position
            if not all(0 <= position < len(row.decoder_token_ids) for row in message.rows):
                return "the probed position is not in the decoder's prompt"
        if params.processed_logprobs and params.top_logprobs:
            return "log-probabilities after masks have no alternatives"
        if self._is_encoder_decoder and any(row.prompt_logprobs for row in message.rows):
            return "log-probabilities of a source text are not available; they need a decoder-only model"
        if (params.sections or params.stop_texts) and not has_vocabulary:
            return "a grammar or stop string was sent before the vocabulary"
        if params.stop_texts and params.num_beams == 1:
            return "stop strings are for beam search"
        if params.has_sequences:
            if params.sections or params.stop_texts or params.stop_token_ids or message.terms:
                return "allowed sequences cannot be combined with a grammar, stop texts, stop tokens or terms"
            if not params.end_token_ids:
                return "allowed sequences need an end token"
            if params.allowed_sequences is None and self._stored_sequences.get(params.sequence_set) is None:
                return "the worker has no such set of allowed sequences"
            if params.allowed_sequences is not None and not is_valid(params.allowed_sequences, self._limits.vocab_size):
                return "the trie of allowed sequences is malformed, or has a token outside the vocabulary"
        if not all(params.bad_words_ids):
            return "a bad word is empty"
        return None

    def _can_align(self, alignment: SpeechAlignment, rows: list[GenerateRow]) -> bool:
        """Whether the settings for token times are valid.

        `alignment` must name existing attention heads and an odd filter width, and each recording must fit the source
        length.
        """
        layers = self._cross_attention_layers()
        heads_exist = all(
            0 <= layer < len(layers) and 0 <= head < layers[layer].num_heads for layer, head in alignment.heads
        )
        width_is_odd = alignment.median_width > 0 and alignment.median_width % 2 == 1
        fits = all(1 <= row.recorded_tokens <= self._limits.source_tokens for row in rows)
        return bool(alignment.heads) and heads_exist and width_is_odd and fits
