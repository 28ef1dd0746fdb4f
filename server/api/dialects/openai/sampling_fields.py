"""Fields for sampling and decoding in the OpenAI dialect: those of OpenAI, of this server, and of other servers.

Clients that were written for vLLM, llama.cpp or OpenRouter send the fields of these servers.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from server.api.fields.field_kinds import Hint, Unsupported, only, wish
from server.api.fields.fields import Count, Finite, ForeignStops, SamplingFields, TopPOrZero, absent
from server.errors import InvalidRequest
from server.operations.generating.generation_options import GenerationOptions, SamplingDefaults

SAMPLING = SamplingDefaults(do_sample=True)
"""Sampling of a request without sampling fields, as OpenAI documents it: temperature 1."""


def _unsigned(seed: int | None) -> int | None:
    """Convert a seed to an unsigned 64-bit integer, because OpenAI allows negative seeds. None stays None."""
    return None if seed is None else seed % (1 << 64)


class OpenAISamplingFields(SamplingFields):
    """Base of the bodies in this dialect that ask for generated text: fields for sampling and decoding."""

    top_k: Annotated[Count | None, absent(-1)] = None
    top_p: TopPOrZero | None = None
    stop: ForeignStops | None = None
    seed: Annotated[int | None, Field(ge=-1 << 63, lt=1 << 64), AfterValidator(_unsigned), absent(-1)] = None
    store: Hint = None
    service_tier: Hint = None
    safety_identifier: Hint = None
    prompt_cache_key: Hint = None
    prompt_cache_retention: Hint = None
    prompt_cache_options: Hint = None

    # vLLM
    min_tokens: Annotated[Count | None, Field(description="the same as `min_new_tokens`")] = None
    include_stop_str_in_output: Annotated[bool | None, Field(description="the same as `include_stop`")] = None
    spaces_between_special_tokens: Annotated[Any, wish(True)] = None
    guided_decoding_backend: Hint = None
    guided_whitespace_pattern: Annotated[Any, wish()] = None
    priority: Hint = None
    request_id: Hint = None
    mm_processor_kwargs: Hint = None
    use_beam_search: Annotated[Any, only(False)] = None
    guided_json: Unsupported = None
    guided_regex: Unsupported = None
    guided_choice: Unsupported = None
    guided_grammar: Unsupported = None
    structured_outputs: Unsupported = None
    prompt_logprobs: Annotated[Any, only(False)] = None
    return_tokens_as_token_ids: Annotated[Any, only(False)] = None
    return_token_ids: Annotated[Any, only(False)] = None
    truncate_prompt_tokens: Annotated[Any, only(-1)] = None
    logits_processors: Annotated[Any, only([])] = None
    kv_transfer_params: Unsupported = None
    vllm_xargs: Annotated[Any, only({})] = None
    cache_salt: Unsupported = None

    # llama.cpp
    repeat_penalty: Annotated[
        Finite | None, Field(gt=0, le=100, description="the same as `repetition_penalty`, for the whole text")
    ] = None
    repeat_last_n: Annotated[Any, wish(-1)] = None
    samplers: Annotated[Any, wish([])] = None
    timings_per_token: Annotated[Any, wish(False)] = None
    return_progress: Annotated[Any, wish(False)] = None
    return_tokens: Annotated[Any, wish(False)] = None
    cache_prompt: Hint = None
    id_slot: Hint = None
    n_keep: Hint = None
    n_discard: Hint = None
    xtc_threshold: Hint = None
    dry_base: Hint = None
    dry_allowed_length: Hint = None
    dry_penalty_last_n: Hint = None
    dry_sequence_breakers: Hint = None
    dynatemp_exponent: Hint = None
    mirostat_tau: Hint = None
    mirostat_eta: Hint = None
    n_predict: Annotated[Any, only(-1)] = None
    n_probs: Annotated[Any, only(0)] = None
    min_keep: Annotated[Any, only(0)] = None
    post_sampling_probs: Annotated[Any, only(False)] = None
    xtc_probability: Annotated[Any, only(0, 0.0)] = None
    dry_multiplier: Annotated[Any, only(0, 0.0)] = None
    dynatemp_range: Annotated[Any, only(0, 0.0)] = None
    top_n_sigma: Annotated[Any, only(-1, -1.0)] = None
    mirostat: Annotated[Any, only(0)] = None
    t_max_predict_ms: Annotated[Any, only(0)] = None
    lora: Annotated[Any, only([])] = None
    grammar: Annotated[Any, only("")] = None
    json_schema: Unsupported = None

    # OpenRouter
    top_a: Annotated[Any, only(0, 0.0)] = None
    provider: Annotated[Any, wish({})] = None
    models: Annotated[Any, wish([])] = None
    transforms: Annotated[Any, wish([])] = None
    plugins: Annotated[Any, wish([])] = None
    route: Hint = None
    session_id: Hint = None
    trace: Hint = None
    preset: Unsupported = None

    def options(self, **renamed: Any) -> GenerationOptions:
        """The generation options of the body, with OpenAI's sampling defaults.

        renamed: further options, under the names of `GenerationOptions`.
        Raises InvalidRequest if two names of the same option have different values.
        """
        for ours, other in (("min_new_tokens", "min_tokens"), ("repetition_penalty", "repeat_penalty")):
            first, second = getattr(self, ours), getattr(self, other)
            if first is not None and second is not None and first != second:
                raise InvalidRequest(f"`{other}` and `{ours}` differ; send one of them", other)
        given = {
            "min_new_tokens": self.min_new_tokens if self.min_tokens is None else self.min_tokens,
            "include_stop": self.include_stop or (self.include_stop_str_in_output and self.has_stops),
            "repetition_penalty": self.repetition_penalty if self.repeat_penalty is None else self.repeat_penalty,
            "sampling_defaults": SAMPLING,
        }
        return super().options(**given, **renamed)

    @property
    def has_stops(self) -> bool:
        return bool(self.stop or self.stop_token_ids)

    def field_names(self) -> dict[str, str]:
        return {} if self.min_tokens is None else {"min_new_tokens": "min_tokens"}
