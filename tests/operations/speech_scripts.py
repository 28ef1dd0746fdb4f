"""Scripted recordings, to compare the published sequential algorithm of Whisper with ours.

A script determines the tokens to which each window is decoded. This module imports only the standard library, because
the published code runs in a separate environment.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

END, START, ENGLISH, TRANSLATE, TRANSCRIBE = 50257, 50258, 50259, 50358, 50359
PREVIOUS, NO_TIMESTAMPS, FIRST_TIME = 50361, 50363, 50364
VOCAB, CONTEXT, WINDOW_FRAMES = 51865, 448, 3000
PROMPT = "The garden"
COUNT = 60
"""Number of scripts that are compared."""


@dataclass(frozen=True)
class Attempt:
    """The result of decoding a window once.

    token_ids: new tokens without the end token. logprob: mean log-probability. no_speech: probability of no speech.
    """

    token_ids: list[int]
    logprob: float
    no_speech: float


@dataclass(frozen=True)
class Script:
    """A recording: its length, its settings, and the results of decoding its windows, which depend on `number`.

    temperatures: temperatures of the attempts. compression_ratio, logprob, no_speech: thresholds, or None.
    conditions: whether earlier text precedes each window. prompted: whether `PROMPT` precedes the first window.
    """

    number: int
    total_frames: int
    temperatures: tuple[float, ...]
    compression_ratio: float | None
    logprob: float | None
    no_speech: float | None
    conditions: bool
    prompted: bool

    def attempt(self, window: int, attempt: int) -> Attempt:
        rng = random.Random(f"{self.number} {window} {attempt}")
        return Attempt(_tokens(rng), rng.choice([-0.3, -0.7, -1.2, -2.0]), rng.choice([0.1, 0.5, 0.7, 0.95]))


def script(number: int) -> Script:
    """A recording with random settings. number: index of the script, used as seed.

    If earlier text precedes the windows, temperatures are at most 0.4. Above 0.5, implementations differ: OpenAI's code
    drops the earlier text for all later windows, but transformers and Triptych drop it for one window only.
    """
    rng = random.Random(number)
    conditions = number % 2 == 0
    temperatures = [(0.0,), (0.0, 0.2, 0.4), (0.0, 0.2, 0.4) if conditions else (0.0, 0.4, 0.8, 1.0)][number % 3]
    has_logprob = rng.random() < 0.8
    return Script(
        number,
        rng.randint(500, 14_000),
        temperatures,
        rng.choice([2.4, 1.5, None]),
        -1.0 if has_logprob else None,
        0.6 if has_logprob and rng.random() < 0.8 else None,
        conditions,
        prompted=conditions and rng.random() < 0.5,
    )


def _tokens(rng: random.Random) -> list[int]:
    """Random tokens of a window that obey the rules for timestamps."""
    place = rng.randint(0, 40)
    tokens = [] if rng.random() < 0.1 else [FIRST_TIME + (0 if rng.random() < 0.3 else place)]
    if rng.random() < 0.2:
        return [*tokens, *_text(rng)]
    for _ in range(rng.randint(0, 3)):
        place += rng.randint(20, 300)
        tokens += [*_text(rng), FIRST_TIME + place]
        place += rng.choice([0, 0, 15])
        tokens.append(FIRST_TIME + place)
    match rng.randint(0, 2):
        case 0:
            tokens += [*_text(rng), FIRST_TIME + place + rng.randint(20, 200)]
        case 1:
            tokens += _text(rng)
    return tokens if any(token < END for token in tokens) else [*tokens, *_text(rng)]


def _text(rng: random.Random) -> list[int]:
    if rng.random() < 0.15:
        return [rng.randint(1000, 20_000)] * 60
    return [rng.randint(1000, 20_000) for _ in range(rng.randint(1, 7))]
