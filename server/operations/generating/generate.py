"""Text generation with a decoder, or with an encoder-decoder whose prompt is the source text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from server.errors import InvalidRequest, RequestError
from server.ipc.client.call import Call
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams
from server.ipc.wire.sections import AnswerSection
from server.operations.cost import MAX_ADDED_TOKENS, Cost, characters_of, most_tokens
from server.operations.encode import check_ids
from server.operations.generating import grammar, prompts
from server.operations.generating.generated_text import (
    AttentionMatrix,
    GeneratedText,
    ScoredToken,
    SpelledToken,
    TextOptions,
    load_token_bytes,
)
from server.operations.generating.generation_options import GenerationOptions
from server.operations.generating.generation_params import max_tokens_of, resolve, with_beam_answers
from server.operations.generating.generation_run import PhaseSeconds, TextRun, TokenUsage
from server.operations.generating.logprob_memory import logprob_memory
from server.operations.generating.sequence_tries import allowed_trie, sequence_characters
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.system.loop_iterations import next_iteration
from server.text.languages.languages import TranslationPrompt
from server.text.tokens.computed import Computed
from server.text.tokens.token_bytes import TokenBytes

SEED_LIMIT = 1 << 64
MAX_SEQUENCES = 4096
"""Maximum number of sequences of one request: number of inputs, times answers per input, times beams."""


@dataclass(frozen=True)
class GenerateSpec:
    """Request for texts that continue prompts, or that an encoder-decoder generates from source texts.

    prompts: texts, or lists of token ids.
    model: name of the model, or None for the first model that generates text.
    sections: sections of the answer. If there are any, they replace `options.text_format`.
    marker_ids: ids of special tokens to report in `TextDelta.marks`.
    fails_alone: whether a failed sequence only fails its part of the answer, unless all fail. Otherwise one failure
        fails the whole request.
    task: name of a task of the checkpoint, such as `summarization`, whose prefix and decoding settings apply.
    """

    prompts: Sequence[str] | Sequence[list[int]]
    options: GenerationOptions = field(default_factory=GenerationOptions)
    model: str | None = None
    sections: Sequence[AnswerSection] = ()
    marker_ids: frozenset[int] = frozenset()
    fails_alone: bool = False
    task: str | None = None

    @property
    def stream(self) -> bool:
        return self.options.stream

    def cost(self, model: ServedModel) -> Cost:
        """The largest cost that this request can have on a model; admission reserves it.

        Raises InvalidRequest for too many sequences.
        """
        language_prompt = prompts.task_prompt(self.options, model, self.task)
        model = model.for_task(language_prompt.task)
        options = with_beam_answers(self.options, model.info)
        prefix = language_prompt.prefix
        limit = model.max_input_tokens
        texts = [prompt for prompt in self.prompts if isinstance(prompt, str)]
        tokens = [min(most_tokens(model.tokenizer, prefix, text), limit) for text in texts]
        tokens += [min(len(prompt) + MAX_ADDED_TOKENS, limit) for prompt in self.prompts if not isinstance(prompt, str)]
        characters = characters_of(texts) + len(texts) * len(prefix)
        if options.echo:
            characters += characters_of(texts) * options.candidates
        return generation_cost(options, model, characters, tokens, options.candidates)


@dataclass(frozen=True)
class GeneratedChoice:
    """One answer.

    prompt_index: index of its prompt in the request.
    index: index of the answer among all generated answers, the same as `TextDelta.answer.index`.
    stop_reason: the stop string or stop token that ended it; None if it ended for another reason.
    score: length-penalized sum of log-probabilities, with beam search.
    logprobs: one entry per generated token, if requested.
    prompt_logprobs: one entry per prompt token, if requested. The first entry is None.
    first_prompt_token: the first token of the prompt, if `prompt_logprobs` are requested.
    error: reason of the failure, if the answer failed; otherwise None.
    """

    prompt_index: int
    index: int
    text: str
    token_ids: list[int]
    finish_reason: str
    stop_reason: str | int | None
    score: float | None
    logprobs: Sequence[ScoredToken] | None
    prompt_logprobs: Sequence[ScoredToken | None] | None
    first_prompt_token: SpelledToken | None
    attention: AttentionMatrix | None
    error: RequestError | None = None


@dataclass(frozen=True)
class GenerateResult:
    """Answers in the order of the prompts. seed: seed of each prompt's first sequence."""

    model: str
    choices: list[GeneratedChoice]
    usage: TokenUsage
    seed: int
    timings: PhaseSeconds


@dataclass(kw_only=True)
class GenerateRun(TextRun):
    """A submitted `GenerateSpec`. The sequences of a prompt have the indices `prompt * candidates + candidate`."""

    spec: GenerateSpec
    model: ServedModel
    seed: int
    prompts: list[list[int]]

    @property
    def model_name(self) -> str:
        return self.model.name

    def result(self) -> GenerateResult:
        options = self.spec.options
        flat = [text for row in self.texts for text in row]
        kept = best(flat, options.candidates, options.n) if options.is_ranked else flat
        return GenerateResult(
            self.model.name,
            [self._choice(text) for text in kept],
            self.usage(),
            self.seed,
            self.timings(),
        )

    def usage(self) -> TokenUsage:
        """Token counts so far. The number of cached tokens is known when the first deltas have arrived."""
        cached = self.cached_prompt_tokens(self.spec.options.candidates)
        return TokenUsage(sum(map(len, self.prompts)), self.completion_tokens(), cached)

    def _choice(self, text: GeneratedText) -> GeneratedChoice:
        options = self.spec.options
        prompt_index = text.row // options.candidates
        error = self.failure_of(text.row)
        assert text.finish_reason is not None, "the run has ended"
        prompt_logprobs: Sequence[ScoredToken | None] | None = None
        first_prompt_token: SpelledToken | None = None
        if options.prompt_logprobs and error is None:
            first_prompt_token = text.spelled(self.prompts[prompt_index][0])
            entries = self.prompt_logprobs[prompt_index * options.candidates]
            prompt_logprobs = Computed(
                1 + len(entries), lambda index: text.scored(entries[index - 1]) if index else None
            )
        return GeneratedChoice(
            prompt_index,
            text.index,
            text.text,
            text.token_ids,
            text.finish_reason,
            text.stop_reason,
            text.score,
            text.scored_tokens() if options.logprobs else None,
            prompt_logprobs,
            first_prompt_token,
            text.alignment(self.prompts[prompt_index]) if options.return_attention else None,
            error,
        )


async def generate(runtime: Runtime, call: Call, spec: GenerateSpec) -> GenerateRun:
    """Validate the options, tokenize the prompts, and submit them to the engine.

    Raises InvalidRequest, which names the wrong option, ContextLengthExceeded, and the errors of `Admission.admit`.
    """
    model = runtime.candidates(spec.model, "generate")[0]
    language_prompt = prompts.task_prompt(spec.options, model, spec.task)
    model = model.for_task(language_prompt.task)
    options = with_beam_answers(spec.options, model.info)
    spec = replace(spec, options=options)
    is_seq2seq = model.info.is_encoder_decoder
    continues = not is_seq2seq or options.decoder_prefix is not None
    runtime.admission.admit(call, model, spec.cost(model), "prompt")
    sections, token_bytes = await _sections(runtime, call, model, spec, continues)
    sequences = await allowed_trie(runtime, call, model, options)
    resolved = resolve(options, model, language_prompt, sections=sections, sequences=sequences)
    params = resolved.params
    if params.stop_texts and token_bytes is None:
        token_bytes = await grammar.token_bytes_for_stops(runtime, call, model)
    if options.logprobs or options.prompt_logprobs:
        await runtime.pools.tokenize.run(lambda: load_token_bytes(model.tokenizer), call)
    prompt_ids = await _prompt_ids(runtime, call, model, spec, language_prompt)
    echoes = _echoes(model, spec, prompt_ids)
    prefix = prompts.decoder_prefix(options, model)
    start = prompts.decoder_start(model, language_prompt) + prefix
    shown = replace(text_options(options, token_bytes), marker_ids=spec.marker_ids)
    rows: list[GenerateRow] = []
    texts: list[list[GeneratedText]] = []
    for origin, (prompt, echo) in enumerate(zip(prompt_ids, echoes, strict=True)):
        await next_iteration()
        room = prompts.max_new_tokens(model.info, prompt, start, "prompt")
        before, param = (start, "decoder_prefix") if is_seq2seq else (prompt, "prompt")
        left = prompts.tokens_left_in_pool(model.info, before, params.num_beams, param)
        room = min(room, left) if options.fill_context else room
        continued = prefix if is_seq2seq else prompt
        for index in range(options.candidates):
            texts.append(hypotheses(model, params, len(rows), shown, continued, echo, not resolved.max_new_tokens))
            rows.append(
                GenerateRow(
                    call.next_id(),
                    max(1, min(resolved.max_new_tokens, room)),
                    origin,
                    start,
                    seed=(resolved.seed + index) % SEED_LIMIT,
                    # All rows of a prompt read the same text, so only the first one reports its log-probabilities.
                    prompt_logprobs=options.prompt_logprobs and index == 0,
                    text_drops_space=shown.drops_space and not continued,
                )
            )
    message = Generate(model.name, params, prompt_ids, rows, cache_salt=call.cache_salt)
    prompts.check_attention_size(message)
    memory = logprob_memory(runtime.admission, call, options)
    await next_iteration()
    call.submit(message)
    items: Sequence[int] | None = None
    if spec.fails_alone:
        # Only the first row of a prompt reads its log-probabilities, so the others fail with it.
        items = [row.prompt if options.prompt_logprobs else index for index, row in enumerate(rows)]
    return GenerateRun(
        call,
        texts,
        items=items,
        logprob_memory=memory,
        spec=spec,
        model=model,
        seed=resolved.seed,
        prompts=prompt_ids,
    )


async def _sections(
    runtime: Runtime, call: Call, model: ServedModel, spec: GenerateSpec, continues: bool
) -> tuple[Sequence[AnswerSection], TokenBytes | None]:
    """Create the sections for the engine, and the token bytes for decoding the answer.

    There are no sections if none of them has a grammar. The token bytes are None if the answer begins without a
    grammar: it is then decoded as ordinary text.

    continues: whether the answer continues a text.
    """
    if not spec.sections:
        return await grammar.prepare(runtime, call, model, spec.options.text_format, continues=continues)
    if not any(section.grammar for section in spec.sections):
        return (), None
    problem = f"`tools` and `response_format` are not supported for `{model.name}`"
    token_bytes = await grammar.send_token_bytes(runtime, call, model, problem, "tools")
    return spec.sections, token_bytes if spec.sections[0].grammar else None


def text_options(options: GenerationOptions, token_bytes: TokenBytes | None) -> TextOptions:
    """The `TextOptions` of a request.

    token_bytes: bytes of each token, if the answer is decoded from them; else None.
    """
    return TextOptions(options.skip_special_tokens, tuple(options.stop), options.include_stop, token_bytes)


def hypotheses(
    model: ServedModel,
    params: GenerationParams,
    row: int,
    options: TextOptions,
    continues: Sequence[int],
    echo: str = "",
    is_empty: bool = False,
) -> list[GeneratedText]:
    """Create a `GeneratedText` for each answer that a sequence returns, best first.

    row: index of the sequence in the call. The other arguments are those of `GeneratedText`.
    """
    return [
        GeneratedText(model.tokenizer, params, row, rank, options, continues, echo, is_empty)
        for rank in range(params.num_return_sequences)
    ]


def best(texts: Sequence[GeneratedText], candidates: int, count: int) -> list[GeneratedText]:
    """Select from each prompt's candidates the `count` with the highest mean log-probability per token, best first.

    Failed candidates come last. Candidates with equal values keep their order.
    Source: OpenAI API reference, completions, `best_of`.
    """
    starts = range(0, len(texts), candidates)
    ranked = [
        sorted(texts[i : i + candidates], key=lambda text: (text.finish_reason == "error", -text.mean_logprob()))
        for i in starts
    ]
    return [text for group in ranked for text in group[:count]]


def generation_cost(
    options: GenerationOptions,
    model: ServedModel,
    characters: int,
    input_tokens: Sequence[int],
    candidates: int,
    max_sequences: int | None = MAX_SEQUENCES,
) -> Cost:
    """Cost of generating text. Log-probabilities of generated tokens are not included (see `logprob_memory`).

    characters: number of characters to tokenize.
    input_tokens: maximum number of tokens of each input.
    candidates: number of sequences per input.
    max_sequences: maximum number of sequences; None if the operation checks their number itself.
    Raises InvalidRequest for more than `max_sequences` sequences.
    """
    defaults = model.info.generation
    new_tokens = min(max_tokens_of(options, model.info), model.info.context_tokens)
    beams = options.num_beams or max(defaults.num_beams or 1, options.num_return_sequences)
    sequences = len(input_tokens) * candidates * beams
    if max_sequences is not None and sequences > max_sequences:
        raise InvalidRequest(
            f"{len(input_tokens):,} inputs with {candidates} answers and {beams} beams each are "
            f"{sequences:,} sequences; the limit is {max_sequences:,}",
            ("best_of" if options.best_of else "n") if candidates > 1 else "num_beams",
        )
    scored = sum(input_tokens) * (1 + options.top_logprobs) if options.prompt_logprobs else 0
    numbers = 0
    if options.return_attention:
        numbers = sum(input_tokens) * candidates * options.num_return_sequences * new_tokens
    prefix = options.decoder_prefix or ""
    start_tokens = min(most_tokens(model.tokenizer, prefix), model.info.context_tokens)
    starts = len(input_tokens) * start_tokens if model.info.is_encoder_decoder else 0
    return Cost(
        characters
        + len(prefix)
        + 2 * characters_of(options.bad_words)
        + len(options.bad_words)
        + sequence_characters(options),
        (sum(input_tokens) + starts) * candidates,
        sequences,
        sequences * new_tokens,
        min(numbers, prompts.MAX_ATTENTION_NUMBERS),
        scored,
        scored_param="prompt_logprobs",
    )


def _echoes(model: ServedModel, spec: GenerateSpec, prompt_ids: list[list[int]]) -> list[str]:
    """The prompt that each answer repeats at its start, for the option `echo`; empty texts without it.

    With it, the text is the prompt as it was sent, or its decoded tokens if it was truncated or sent as token ids.
    """
    options = spec.options
    if not options.echo:
        return [""] * len(prompt_ids)
    if options.truncate is None and isinstance(spec.prompts[0], str):
        return [prompt for prompt in spec.prompts if isinstance(prompt, str)]
    return [model.tokenizer.decode(ids, skip_special_tokens=options.skip_special_tokens) for ids in prompt_ids]


async def _prompt_ids(
    runtime: Runtime, call: Call, model: ServedModel, spec: GenerateSpec, language_prompt: TranslationPrompt
) -> list[list[int]]:
    """Token ids of every prompt, truncated to `options.truncate` tokens if that is set."""
    texts = [prompt for prompt in spec.prompts if isinstance(prompt, str)]
    if texts:
        read = await prompts.encode_texts(runtime, call, model, texts, language_prompt, spec.options, "prompt")
        return [tokens.ids for tokens in read]
    if language_prompt.prefix or language_prompt.trailing_source_ids is not None:
        raise InvalidRequest(
            f"`target_lang` requires text with `{model.name}`; it cannot be combined with token ids", "target_lang"
        )
    found = [check_ids(ids, model.info, "prompt") for ids in spec.prompts if not isinstance(ids, str)]
    limit = spec.options.truncate
    if limit is not None:
        side = prompts.truncation_side(model)
        found = [ids[:limit] if side == "right" else ids[-limit:] for ids in found]
    return [[*language_prompt.leading_source_ids, *ids] for ids in found]
