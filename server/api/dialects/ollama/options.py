"""The object `options` of the Ollama dialect, and its conversion to `GenerationOptions`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from server.api.fields.chat_fields import ChatObject
from server.api.fields.field_kinds import Hint, only, wish
from server.api.fields.fields import Finite, ForeignStops, TopPOrZero


def _whole(value: object) -> object:
    """Convert a float such as 64.0 to an integer: some clients write all numbers with a decimal point.

    Any other value is returned unchanged.
    """
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


class OllamaOptions(ChatObject):
    """Options of text generation. Unknown options are dropped, as in Ollama.

    Options for hardware, memory or batches are accepted without effect.
    """

    model_config = ConfigDict(extra="allow")

    num_predict: Annotated[Whole | None, Field(ge=-2, le=1 << 20, description="0, -1 or -2: fill the context")] = None
    temperature: Annotated[Finite | None, Field(ge=0, le=100)] = None
    top_k: Annotated[Whole | None, Field(ge=-1, le=1 << 20)] = None
    top_p: TopPOrZero | None = None
    min_p: Annotated[Finite | None, Field(ge=0, le=1)] = None
    typical_p: Annotated[Finite | None, Field(gt=0, le=1)] = None
    repeat_penalty: Annotated[Finite | None, Field(gt=0, le=100)] = None
    repeat_last_n: Annotated[
        Whole | None,
        wish(-1, 0),
        Field(ge=-1, description="0: no repeat penalty; -1: for the whole text; other numbers are dropped, and named"),
    ] = None
    presence_penalty: Annotated[Finite | None, Field(ge=-2, le=2)] = None
    frequency_penalty: Annotated[Finite | None, Field(ge=-2, le=2)] = None
    seed: Annotated[Whole | None, Field(ge=-1, lt=1 << 64)] = None
    stop: ForeignStops | None = None
    num_ctx: Annotated[
        Whole | None, Field(ge=-1, description="no effect; named if it is more than the model's context")
    ] = None
    mirostat: Annotated[Whole | None, only(0)] = None
    mirostat_tau: Hint = None
    mirostat_eta: Hint = None
    tfs_z: Annotated[Finite | None, only(1.0)] = None
    penalize_newline: Annotated[bool | None, only(True)] = None
    num_keep: Hint = None
    num_batch: Hint = None
    num_gpu: Hint = None
    num_gqa: Hint = None
    num_thread: Hint = None
    main_gpu: Hint = None
    numa: Hint = None
    low_vram: Hint = None
    f16_kv: Hint = None
    use_mmap: Hint = None
    use_mlock: Hint = None
    logits_all: Annotated[bool | None, only(False)] = None
    vocab_only: Annotated[bool | None, only(False)] = None
    embedding_only: Annotated[bool | None, only(False)] = None

    @property
    def has_unknown(self) -> bool:
        """Whether the client sent an unknown option with a value other than null."""
        return any(value is not None for value in (self.model_extra or {}).values())

    def sampling(self) -> dict[str, Any]:
        """Convert the options to fields of `GenerationOptions`."""
        limited = self.num_predict is not None and self.num_predict > 0
        return {
            "max_new_tokens": self.num_predict if limited else None,
            "fill_context": not limited,
            "temperature": self.temperature,
            "top_k": None if self.top_k is None else max(self.top_k, 0),
            "top_p": self.top_p,
            "min_p": self.min_p,
            "typical_p": self.typical_p,
            "repetition_penalty": 1.0 if self.repeat_last_n == 0 else self.repeat_penalty,
            "presence_penalty": self.presence_penalty or 0.0,
            "frequency_penalty": self.frequency_penalty or 0.0,
            "seed": None if self.seed == -1 else self.seed,
            "stop": self.stop or (),
        }
