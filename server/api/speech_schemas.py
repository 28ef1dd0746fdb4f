"""What clients may send with a recording, field by field. API.md section 6, as the OpenAI API names them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from server.api.schemas import Finite, Language, Model


class TranslationForm(BaseModel):
    """Fields of a form with a recording: all of them come as text, and are read as what they stand for."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: Model = None
    prompt: Annotated[str | None, Field(max_length=16_384, description="what was said before")] = None
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] = "json"
    temperature: Annotated[Finite | None, Field(ge=0, le=1, description="0, the default: the likeliest text")] = None
    stream: bool | None = None
    seed: Annotated[int | None, Field(ge=0, lt=1 << 64)] = None
    num_beams: Annotated[int | None, Field(ge=1, le=16)] = None
    timeout_ms: Annotated[int | None, Field(ge=1, description="milliseconds; default 60000")] = None


class TranscriptionForm(TranslationForm):
    language: Annotated[Language | None, Field(description="code or English name; default: heard")] = None
    timestamp_granularities: list[Literal["segment", "word"]] | None = None
