"""One generating model in the engine: its requests, from admission to the one place where they all end, `finish`.

Knows scheduler, runner, grammars and selection; not other models, sockets or processes. Times are seconds of
time.monotonic().
"""

from __future__ import annotations

import logging
import time
from typing import Literal

import torch
from msgspec.structs import replace

from server.engine.beam_search import Beam
from server.engine.constraint import Formats, Masking, fork
from server.engine.drafts import Drafter
from server.engine.events import NOT_FINITE, STEP_FAILED, TIMED_OUT, Events, StepFailed
from server.engine.limits import Limits
from server.engine.prompt_scores import score_prompts
from server.engine.runner import Runner
from server.engine.scheduler import Schedule, Scheduler
from server.engine.selection import Choice, scoring, select
from server.engine.sequence import Request, State
from server.engine.stop_texts import StopTexts
from server.ipc.messages import (
    Failed,
    Finished,
    FinishReason,
    Generate,
    GenerateRow,
    Hypothesis,
    PromptScored,
    StepTiming,
    Tokens,
)

log = logging.getLogger("triptych.engine")

NOT_ALIGNED = "what the answer looked at in its source could not be computed"


class Generation:
    """The `Generate` requests of one model. drafter: guesses their next tokens, or None."""

    def __init__(
        self, name: str, scheduler: Scheduler, runner: Runner, limits: Limits, drafter: Drafter | None = None
    ) -> None:
        self.name = name
        self.scheduler = scheduler
        self.runner = runner
        self.limits = limits
        self.drafter = drafter
        self.num_drafted_tokens = 0
        self.num_accepted_tokens = 0
        self.is_encoder_decoder = scheduler.blocks.cross_pool is not None
        self.formats: Formats | None = None
        self.spelled: list[bytes] = []
        self._beam_lags: list[int] = []

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.running)

    def teach(self, tokens: list[bytes]) -> None:
        """Learn how the vocabulary is spelled, which grammars and beams with stop strings need to know."""
        self.formats = Formats(tokens, self.limits.vocab_size)
        self.spelled = tokens

    def add(self, message: Generate, events: Events, now: float) -> list[Request]:
        """Queue the rows of a request. Returns those that wait; rows that can never run have failed already."""
        wrong = self._wrong(message)
        if wrong is not None:
            events.failed += [Failed(row.request_id, "engine_error", wrong) for row in message.rows]
            return []
        requests = [self._add_row(message, row, events, now) for row in message.rows]
        return [request for request in requests if request is not None]

    def _add_row(self, message: Generate, row: GenerateRow, events: Events, now: float) -> Request | None:
        heard = self.limits.source_tokens if message.frames else None
        adapter = message.model if message.model != self.name else ""
        request = Request(message, row, self.is_encoder_decoder, now, heard, adapter)
        too_large = self._too_large(request) or self.scheduler.refusal(request)
        if too_large is not None:
            events.failed.append(Failed(request.request_id, "request_too_large", too_large))
            return None
        if request.beams is not None and message.params.stop_texts:
            request.beams.stop_texts = StopTexts(self.spelled, message.params.stop_texts, row.text_drops_space)
        self.scheduler.add(request)
        if row.max_new_tokens == 0:
            self.finish(request, "length", events)
            return None
        return request

    def _wrong(self, message: Generate) -> str | None:
        """What the HTTP side should never have let through: an id beyond the table would take the device down."""
        params = message.params
        if len(message.frames) != self.limits.frame_bytes:
            return f"a source of {len(message.frames)} bytes of sound; the model hears {self.limits.frame_bytes}"
        if not message.frames and not all(0 <= row.prompt < len(message.prompts) for row in message.rows):
            return f"a row refers to a prompt that is not among the {len(message.prompts)} prompts"
        if not all(message.prompts) or (self.is_encoder_decoder and not all(r.decoder_token_ids for r in message.rows)):
            return "there are no tokens to start from"
        vocab = self.limits.source_vocab_size if self.is_encoder_decoder else self.limits.vocab_size
        if any(min(prompt) < 0 or max(prompt) >= vocab for prompt in message.prompts):
            return f"a token id lies outside the vocabulary of {vocab}"
        ids = [token for row in message.rows for token in row.decoder_token_ids]
        ids += [*params.suppress_token_ids, *params.end_token_ids, *params.stop_token_ids]
        ids += [*params.allowed_token_ids, *params.logit_bias, *params.begin_suppress_token_ids]
        if params.timestamps is not None:
            ids += [params.timestamps.first_id - 1, params.timestamps.first_id]
            if not params.end_token_ids:
                return "times can only be said by a text that can end"
        ids += [token for token in (params.forced_bos_token_id, params.forced_eos_token_id) if token is not None]
        ids += [token for word in params.bad_words_ids for token in word]
        if ids and (min(ids) < 0 or max(ids) >= self.limits.vocab_size):
            return f"a token id lies outside the vocabulary of {self.limits.vocab_size}"
        if params.num_beams > 1 and params.do_sample:
            return "beams cannot be sampled"
        if params.num_beams % params.num_beam_groups:
            return "beam groups of unequal size"
        if params.attention and (not self.is_encoder_decoder or message.frames):
            return "without a source text there is nothing to look at"
        if self.is_encoder_decoder and any(row.prompt_logprobs for row in message.rows):
            return "a source text has no log-probabilities"
        if (params.grammar or params.stop_texts) and self.formats is None:
            return "a grammar or a stop string came before the vocabulary"
        if params.stop_texts and params.num_beams == 1:
            return "stop strings without beams"
        if not all(params.bad_words_ids):
            return "a bad word has no tokens"
        return None

    def _too_large(self, request: Request) -> str | None:
        tokens = request.num_prompt_tokens + request.max_new_tokens
        if tokens > self.limits.context_tokens:
            return f"{tokens} tokens, prompt and new ones, exceed the context of {self.limits.context_tokens}"
        source = request.num_source_tokens
        if source > self.limits.source_tokens:
            return f"a source of {source} tokens exceeds the limit of {self.limits.source_tokens}"
        return None

    # --------------------------------------------------------------------------------------------------- a step

    @torch.inference_mode()
    def step(self, events: Events) -> StepTiming | None:
        """Run one step if there is one. Raises StepFailed, its requests already told."""
        started = time.monotonic()
        if self.drafter is not None:
            self._draft(self.drafter)
        schedule = self.scheduler.schedule()
        if schedule is None:
            return None
        phase, num_rows, num_tokens = schedule.phase, len(schedule.rows), schedule.num_tokens
        num_decoding, num_added = schedule.num_decode_tokens, schedule.num_added_tokens
        requests = schedule.requests
        for request in requests:
            if request.first_scheduled is None:
                request.first_scheduled = started
        try:
            mask_wait_seconds = self._run(schedule, events)
        except Exception as error:
            for request in requests:
                self.finish(request, "engine_error", events, STEP_FAILED)
            raise StepFailed from error
        seconds = time.monotonic() - started
        self.scheduler.pace.observe(num_decoding, num_added, seconds)
        lags, self._beam_lags = self._beam_lags, []
        return StepTiming(
            self.name,
            phase,
            seconds,
            num_rows,
            num_tokens,
            mask_wait_seconds=mask_wait_seconds,
            beam_lag_tokens=lags,
        )

    def _draft(self, drafter: Drafter) -> None:
        """Let the tokens be guessed of requests that decode next. Without guesses the step is a plain one."""
        ready = [request for request in self.scheduler.running if request.takes_drafts and request.wants_next_token]
        try:
            drafter.propose(ready)
        except Exception:
            log.exception("drafts for %s failed; these requests go on without", self.name)
            for request in ready:
                request.takes_drafts = False
                request.rows[0].draft = []
                drafter.forget(request)

    def _run(self, schedule: Schedule, events: Events) -> float | None:
        """Compute, choose, tell. Returns the seconds that masks took beyond the forward pass, if there were any."""
        self.runner.clear(*self.scheduler.blocks.take_suspects())
        ready = list(dict.fromkeys(row.request for row in schedule.rows if row.needs_logits))
        masking = self._start_masks(ready)
        scored = None if schedule.scores_prompts else scoring(self.runner.logits, ready)
        needed, hidden = self.runner.run(schedule, scored)
        told, failed = score_prompts(schedule.rows, hidden, self.runner.logits)
        self.scheduler.computed(schedule)
        events.prompts += [PromptScored(request.request_id, request.prompt_logprobs) for request in told]
        for request in failed:
            self.finish(request, "engine_error", events, NOT_FINITE)
        mask_wait_seconds = None
        if masking is not None:
            mask_wait_seconds = masking.wait()
            self._fail_unfollowable(ready, events)
        if not ready:
            return mask_wait_seconds
        choices = select(needed, self.runner.logits, ready, scored)
        now = time.monotonic()
        for choice in choices:
            if choice.request.state is State.FINISHED:
                continue
            if choice.failed:
                self.finish(choice.request, "engine_error", events, NOT_FINITE)
                continue
            if choice.spoiled:
                self.scheduler.undraft(choice.request)
            elif choice.exhausted:
                self.finish(choice.request, "stop" if choice.request.is_complete else "length", events)
            else:
                if choice.request.first_token is None:
                    choice.request.first_token = now
                if choice.parents is None:
                    self._append(choice, events)
                else:
                    self.scheduler.blocks.publish(choice.request)
                    self._advance(choice.request, choice.parents, events)
        return mask_wait_seconds

    def _start_masks(self, ready: list[Request]) -> Masking | None:
        """Begin to make the masks of the rows that get a token in this step, where a grammar has a say in it."""
        rows = [
            (constraint, row.tokens, request.params.end_token_ids, request.params.stop_token_ids)
            for request in ready
            if request.constraints
            for row, constraint in zip(request.rows, request.constraints, strict=True)
            if len(row.tokens) >= constraint.num_consumed
        ]
        return self.formats.start(rows) if self.formats is not None and rows else None

    def _fail_unfollowable(self, ready: list[Request], events: Events) -> None:
        """A grammar with no way on, or too complex to find one, is the end of its own request only."""
        for request in ready:
            finished = request.beams is not None and bool(request.beams.finished)
            failures = [constraint.failure for constraint in request.constraints]
            if failures and all(failures) and not finished:
                self.finish(request, "invalid_format", events, failures[0])

    def _append(self, choice: Choice, events: Events) -> None:
        request = choice.request
        ends = (index + 1 for index, token in enumerate(choice.tokens) if token in request.end_ids)
        count = next(ends, len(choice.tokens))
        tokens, logprobs = choice.tokens[:count], choice.logprobs[:count]
        self.num_drafted_tokens += len(request.rows[0].draft)
        self.num_accepted_tokens += count - 1
        self.scheduler.append(request, tokens)
        request.logprobs += logprobs
        events.tokens.append(Tokens(request.request_id, tokens, logprobs or None, request.cached_tokens or 0))
        if tokens[-1] in request.end_ids:
            self.finish(request, "stop", events)
        elif request.num_generated >= request.max_new_tokens:
            self.finish(request, "length", events)
        else:
            self._outgrow(request)

    def _advance(self, request: Request, parents: list[int], events: Events) -> None:
        beams = request.beams
        assert beams is not None
        if request.params.stream:
            agreed = beams.agreed_prefix()
            fresh = agreed[request.num_reported_tokens :]
            if fresh:
                logprobs = beams.agreed_logprobs()[request.num_reported_tokens :] if request.params.logprobs else None
                events.tokens.append(Tokens(request.request_id, fresh, logprobs, request.cached_tokens or 0))
                request.num_reported_tokens = len(agreed)
            if not beams.done:
                self._beam_lags.append(beams.length - len(agreed))
        if beams.done:
            self.finish(request, "length", events)
        else:
            self.scheduler.blocks.fork(request, parents)
            if request.constraints:
                possible = [beam.is_possible for beam in beams.running]
                request.constraints = fork(request.constraints, parents, possible)
            self._outgrow(request)

    def _outgrow(self, request: Request) -> None:
        """Restart a request whose text has just become longer than what its keys were made for."""
        limit = self.limits.restart_tokens
        if limit is not None and request.rope_tokens <= limit < request.num_tokens:
            self.scheduler.restart(request)

    # --------------------------------------------------------------------------------------------------- the end

    def finish(
        self,
        request: Request,
        reason: FinishReason | Literal["abort", "engine_error", "invalid_format"],
        events: Events,
        message: str = "",
    ) -> None:
        """The one end of every request, however it comes; what comes second does nothing.

        reason: why nothing follows the last token; `abort` says nothing to anybody, `engine_error` and
        `invalid_format` say `message`.
        """
        if request.state is State.FINISHED:
            return
        self.scheduler.remove(request, spoiled=reason == "engine_error")
        if self.drafter is not None:
            self.drafter.forget(request)
        if reason == "abort":
            return
        if reason == "engine_error" or reason == "invalid_format":
            events.failed.append(Failed(request.request_id, reason, message))
        elif reason == "timeout" and request.first_token is None:
            events.failed.append(Failed(request.request_id, "timeout", TIMED_OUT))
        else:
            self._tell(request, reason, events)

    def _tell(self, request: Request, reason: FinishReason, events: Events) -> None:
        """The answer, with what it looked at if that was asked for; if that fails, it fails for this request alone."""
        hypotheses = _hypotheses(request, reason)
        if request.params.attention:
            try:
                hypotheses = [self._aligned(request, one) if one.token_ids else one for one in hypotheses]
            except Exception:
                log.exception("attention of a request to %s cannot be told", self.name)
                events.failed.append(Failed(request.request_id, "engine_error", NOT_ALIGNED))
                return
        events.finished.append(self._finished(request, hypotheses))

    def _aligned(self, request: Request, hypothesis: Hypothesis) -> Hypothesis:
        start, made = request.rows[0].tokens[: request.num_prompt_tokens], hypothesis.token_ids
        return replace(
            hypothesis, attention=self.runner.align(request.source_token_ids, start + made, len(made), request.adapter)
        )

    def _finished(self, request: Request, hypotheses: list[Hypothesis]) -> Finished:
        now = time.monotonic()
        scheduled = request.first_scheduled if request.first_scheduled is not None else now
        first_token = request.first_token if request.first_token is not None else now
        return Finished(
            request.request_id,
            hypotheses,
            queue_seconds=scheduled - request.arrival,
            prefill_seconds=first_token - scheduled,
            decode_seconds=now - first_token,
            cached_tokens=request.cached_tokens or 0,
        )


def _hypotheses(request: Request, reason: FinishReason) -> list[Hypothesis]:
    if request.beams is None:
        tokens = request.rows[0].tokens[request.num_prompt_tokens :]
        return [_hypothesis(request, Beam(tokens, logprobs=request.logprobs), None, reason)]
    beams = request.beams.hypotheses(request.params.num_return_sequences)
    return [_hypothesis(request, beam, float(beam.score), reason) for beam in beams]


def _hypothesis(request: Request, beam: Beam, score: float | None, reason: FinishReason) -> Hypothesis:
    logprobs = beam.logprobs if request.params.logprobs else None
    if beam.tokens and beam.tokens[-1] in request.end_ids:
        return Hypothesis(beam.tokens, "stop", beam.tokens[-1], score, logprobs)
    if beam.tokens and request.beams is not None and request.beams.ends(beam.tokens[:-1], beam.tokens[-1]):
        return Hypothesis(beam.tokens, "stop", None, score, logprobs)
    return Hypothesis(beam.tokens, reason, None, score, logprobs)
