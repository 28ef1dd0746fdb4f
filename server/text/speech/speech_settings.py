"""Settings of a Whisper checkpoint besides its tokens: attention heads for word times, defaults for long recordings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.text.tokenizers.tokenizer_files import read_json
from server.text.tokens.tokenizer import TokenizerError

_DEFAULT_LAYERS, _DEFAULT_HEADS, _DEFAULT_MEDIAN_WIDTH = 4, 6, 7
_MAX_HEADS = 1 << 14
"""Limit on the attention heads of all decoder layers together. The largest published decoder has 640."""
_MAX_MEDIAN_WIDTH = 1499
"""Largest odd number of frames in a window of 30 seconds."""


@dataclass(frozen=True)
class SpeechSettings:
    """Settings that transformers reads from `generation_config.json` and `config.json`.

    alignment_heads: (layer, head) of the cross-attention heads whose weights give the times of tokens. If a checkpoint
        names none, or heads that its decoder lacks (distil-whisper), these are all heads in the second half of the
        layers, as in the code published with Radford et al. 2022.
    median_width: width, in frames, of the median filter that smooths the weights of these heads.
    compression_ratio_threshold: a window whose tokens have a higher compression ratio is decoded again.
    logprob_threshold: a window whose tokens have a lower mean log-probability is decoded again.
    no_speech_threshold: a window with a higher probability of no speech, and a low mean log-probability, is silent.
        A threshold is None if the checkpoint states none; the published default then applies.
    condition_on_previous_text: whether the text so far precedes the decoder prompt of each window.
    """

    alignment_heads: tuple[tuple[int, int], ...] = ()
    median_width: int = _DEFAULT_MEDIAN_WIDTH
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None
    condition_on_previous_text: bool = False

    @classmethod
    def from_checkpoint(cls, directory: Path) -> SpeechSettings:
        """Read the settings of a checkpoint. Raises TokenizerError for a value of a wrong type or out of range."""
        generation, config = read_json(directory, "generation_config.json"), read_json(directory, "config.json")
        thresholds = {name: _number(generation.get(name), name) for name in _THRESHOLDS}
        condition = generation.get("condition_on_prev_tokens")
        if condition not in (None, True, False):
            raise TokenizerError("generation_config.json: 'condition_on_prev_tokens' must be true or false")
        width = config.get("median_filter_width", _DEFAULT_MEDIAN_WIDTH)
        if not _is_integer(width) or not 1 <= width <= _MAX_MEDIAN_WIDTH or width % 2 == 0:
            raise TokenizerError(
                f"config.json: 'median_filter_width' must be an odd number up to {_MAX_MEDIAN_WIDTH:,}"
            )
        return cls(
            _alignment_heads(
                generation.get("alignment_heads"),
                _count(config.get("decoder_layers", _DEFAULT_LAYERS), "decoder_layers"),
                _count(config.get("decoder_attention_heads", _DEFAULT_HEADS), "decoder_attention_heads"),
            ),
            width,
            condition_on_previous_text=bool(condition),
            **thresholds,
        )


_THRESHOLDS = ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold")


def _number(value: Any, name: str) -> float | None:
    if value is None:
        return None
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer of hundreds of digits
        pass
    raise TokenizerError(f"generation_config.json: {name!r} must be a finite number")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _count(value: Any, name: str) -> int:
    if not _is_integer(value) or not 0 <= value <= _MAX_HEADS:
        raise TokenizerError(f"config.json: {name!r} must be an integer from 0 to {_MAX_HEADS:,}")
    found: int = value
    return found


def _alignment_heads(value: Any, layers: int, heads: int) -> tuple[tuple[int, int], ...]:
    if value is None:
        value = []
    try:
        found = tuple((int(layer), int(head)) for layer, head in value)
    except (TypeError, ValueError, OverflowError):
        raise TokenizerError("generation_config.json: 'alignment_heads' must be pairs of layer and head") from None
    if found and all(0 <= layer < layers and 0 <= head < heads for layer, head in found):
        return found
    if layers * heads > _MAX_HEADS:
        raise TokenizerError(f"config.json: its decoder has {layers * heads:,} heads; the limit is {_MAX_HEADS:,}")
    return tuple((layer, head) for layer in range(layers // 2, layers) for head in range(heads))
