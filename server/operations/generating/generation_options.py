"""Options for text generation in a request, and the check for options that contradict each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from server.errors import InvalidRequest
from server.operations.generating.grammar import TextFormat

SAMPLER_NEUTRAL: Mapping[str, tuple[float, ...]] = {
    "temperature": (0, 1),
    "top_k": (0,),
    "top_p": (1,),
    "min_p": (0,),
    "typical_p": (1,),
}
"""Name of each sampling option to its neutral values, which do not change the distribution. Temperature 0 means greedy
search."""


@dataclass(frozen=True)
class SamplingDefaults:
    """Values for sampling options of a decoder that neither the request nor the checkpoint sets.

    Each dialect has values from the documentation of the API that it follows. With the default values, which native
    routes use, the likeliest token is always chosen.

    do_sample: whether tokens are sampled if neither the request nor the checkpoint decides it.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0


@dataclass(frozen=True)
class GenerationOptions:
    """Options for text generation of one request, as in docs/decoding.md. None: the checkpoint's default applies.

    stream: whether deltas will be read before the result. With beam search, tokens are then reported as soon as all
        beams agree on them.
    max_new_tokens: 0 for an answer without tokens, which is useful for log-probabilities of the prompt.
    fill_context: without `max_new_tokens`, the answer may fill the context or the KV pool.
    logit_bias: token id to the number that is added to its logit.
    allowed_sequences: texts or lists of token ids, of which the answer is one; or the name of a stored set of them.
    n, best_of: number of answers to return, and to generate, per prompt. Without `best_of`, `n` are generated. With
        beam search, `with_beam_answers` converts them to `num_return_sequences`.
    stop: strings that end an answer. stop_token_ids: tokens that end an answer. include_stop: keep them in the text.
    prompt_logprobs: also return log-probabilities of the prompt's tokens.
    echo: put the prompt before the answer's text.
    return_attention: also return cross-attention weights (encoder-decoder models).
    truncate: maximum number of prompt tokens to keep.
    forced_bos_token: first token of the answer, as a token or its id.
    decoder_prefix: text with which the answer must begin.
    text_format: format that the answer must match.
    sampling_defaults: sampling options of the dialect, used if neither request nor checkpoint has a value.
    """

    stream: bool = False
    max_new_tokens: int | None = None
    fill_context: bool = False
    min_new_tokens: int | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int | None = None
    encoder_no_repeat_ngram_size: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: Sequence[str] = ()
    allowed_token_ids: Sequence[int] = ()
    allowed_sequences: str | Sequence[str | Sequence[int]] = ()
    suppress_tokens: Sequence[int] = ()
    seed: int | None = None
    n: int = 1
    best_of: int | None = None
    num_beams: int | None = None
    num_return_sequences: int = 1
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: bool = False
    echo: bool = False
    return_attention: bool = False
    truncate: int | None = None
    forced_bos_token: str | int | None = None
    decoder_prefix: str | None = None
    source_lang: str | None = None
    target_lang: str | None = None
    text_format: TextFormat | None = None
    sampling_defaults: SamplingDefaults = SamplingDefaults()

    def sampler(self, neutral: bool = False) -> str | None:
        """Name of the first sampling option in the request that changes the distribution; None if there is none.

        neutral: also count options that are set to a neutral value.
        """
        for name, values in SAMPLER_NEUTRAL.items():
            value = getattr(self, name)
            if value is not None and (neutral or value not in values):
                return name
        return None

    @property
    def candidates(self) -> int:
        """Number of sequences to generate per prompt."""
        return self.best_of or self.n

    @property
    def is_ranked(self) -> bool:
        """Whether more candidates are generated than returned."""
        return self.candidates > self.n


def check_combinations(options: GenerationOptions, num_beams: int) -> None:
    """Raise InvalidRequest for options that exclude each other.

    num_beams: number of beams, after the checkpoint's default was applied.
    """
    beams = num_beams > 1
    if options.num_return_sequences > num_beams:
        raise InvalidRequest(
            f"`num_return_sequences` {options.num_return_sequences} is more than `num_beams` {num_beams}",
            "num_return_sequences",
        )
    check_best_of(options)
    if options.is_ranked and options.stream:
        raise InvalidRequest(
            "`best_of` above `n` cannot be combined with `stream`: the best answers are known only at the end",
            "best_of",
        )
    if beams and options.stop and not options.skip_special_tokens:
        raise InvalidRequest("`stop` with beam search requires `skip_special_tokens`", "skip_special_tokens")
    if beams and any("\ufffd" in stop for stop in options.stop):
        raise InvalidRequest(
            "`stop` with beam search is compared with bytes; U+FFFD stands for invalid bytes and cannot match", "stop"
        )
    _check_sampling(options, num_beams)
    if not beams and options.length_penalty not in (None, 1.0):
        raise InvalidRequest("`length_penalty` requires beam search (`num_beams` above 1)", "length_penalty")
    if not beams and options.early_stopping:
        raise InvalidRequest("`early_stopping` requires beam search (`num_beams` above 1)", "early_stopping")
    _check_groups(options, num_beams)
    for name, given in (("stream", options.stream), ("stop", options.stop and not beams)):
        if options.return_attention and given:
            raise InvalidRequest(f"`return_attention` cannot be combined with `{name}`", "return_attention")
    if options.top_logprobs and not (options.logprobs or options.prompt_logprobs):
        raise InvalidRequest("`top_logprobs` requires `logprobs` or `prompt_logprobs` to be true", "top_logprobs")
    if options.ignore_eos and options.text_format is not None:
        raise InvalidRequest(
            "`ignore_eos` cannot be combined with `response_format`, which decides where the text ends", "ignore_eos"
        )
    _check_sequences(options)
    if options.include_stop and not (options.stop or options.stop_token_ids):
        raise InvalidRequest("`include_stop` requires `stop` or `stop_token_ids`", "include_stop")


def check_best_of(options: GenerationOptions) -> None:
    """Raise InvalidRequest if fewer answers are generated than returned."""
    if options.candidates < options.n:
        raise InvalidRequest(f"`best_of` {options.best_of} is less than `n` {options.n}", "best_of")


def _check_sampling(options: GenerationOptions, num_beams: int) -> None:
    if num_beams > 1 and options.do_sample:
        raise InvalidRequest(
            f"`do_sample` cannot be combined with beam search (`num_beams` is {num_beams})", "do_sample"
        )
    sampler = options.sampler()
    if sampler is not None and num_beams > 1:
        raise InvalidRequest(f"`{sampler}` cannot be combined with beam search (`num_beams` is {num_beams})", sampler)
    if sampler is not None and options.do_sample is False:
        raise InvalidRequest(f"`{sampler}` has no effect because `do_sample` is false", sampler)


def _check_sequences(options: GenerationOptions) -> None:
    """Raise InvalidRequest if `allowed_sequences` is combined with another option that ends or restricts the answer."""
    others: Mapping[str, object] = {
        "response_format": options.text_format,
        "stop": options.stop,
        "stop_token_ids": options.stop_token_ids,
        "ignore_eos": options.ignore_eos,
    }
    for name, value in others.items():
        if options.allowed_sequences and value:
            raise InvalidRequest(
                f"`allowed_sequences` cannot be combined with `{name}`: the answer ends where a sequence ends",
                "allowed_sequences",
            )


def _check_groups(options: GenerationOptions, num_beams: int) -> None:
    groups = options.num_beam_groups
    if num_beams % groups:
        raise InvalidRequest(f"`num_beam_groups` {groups} does not divide `num_beams` {num_beams}", "num_beam_groups")
    if groups > 1 and not options.diversity_penalty:
        raise InvalidRequest(
            f"`num_beam_groups` {groups} requires a `diversity_penalty` above 0; without it all groups are equal",
            "num_beam_groups",
        )
    if options.diversity_penalty and groups == 1:
        raise InvalidRequest("`diversity_penalty` requires `num_beam_groups` above 1", "diversity_penalty")
