"""The batched mode loses no speech: if the text of a window ends early, the rest of the window is decoded too.

Texts keep their order."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from server.ipc.wire.params import GenerationParams
from server.operations.speech import transcribe
from server.operations.speech.batched_windows import decode_windows
from server.operations.speech.speech_fallback import FallbackRules
from server.operations.speech.speech_windows import Window, WindowDecoder, WindowResult
from server.text.speech.speech import SpeechTokens
from tests.operations.speech_scripts import CONTEXT, END, FIRST_TIME, NO_TIMESTAMPS, START, VOCAB, WINDOW_FRAMES

TOKENS = SpeechTokens(START, {}, {}, None, NO_TIMESTAMPS, 50)
FRAMES = 2 * WINDOW_FRAMES + 1000


class Decoder(WindowDecoder):
    """A fake decoder.

    texts: the tokens of each window, by the index of the window's first frame.
    calls: the windows that were decoded together, one list per call.
    """

    def run(self, texts: dict[int, list[int]]) -> None:
        self.texts, self.calls = texts, list[list[tuple[int, int]]]()

    async def decode(self, windows, sink=None):
        self.calls.append([(window.start, window.end) for window in windows])
        return [WindowResult(self.texts[window.start], 0.0) for window in windows]


def time(frame: int) -> int:
    """The timestamp token for a frame. frame: index from the start of the window."""
    return FIRST_TIME + frame // 2


def batched(texts: dict[int, list[int]], speech: list[tuple[int, int]], **more: Any) -> tuple[Decoder, Any]:
    info = SimpleNamespace(source_tokens=WINDOW_FRAMES // 2, context_tokens=CONTEXT, vocab_size=VOCAB)
    frames = np.ones((FRAMES, 80), dtype=np.float32)
    for pause in (2900, 5800):
        frames[pause : pause + 60] = -1.0
    decoder = Decoder(
        SimpleNamespace(), SimpleNamespace(info=info), frames, FRAMES, GenerationParams(), FallbackRules(), 0, None
    )
    decoder.run(texts)
    found = transcribe._Transcription(decoder, TOKENS, [START], [], speech=speech, **more)
    asyncio.run(found.batched())
    return decoder, found


FIRST, SECOND, THIRD = 2928, 5828, FRAMES
"""Index of the frame at which each window ends."""
WHOLE = {
    0: [time(0), 11, time(FIRST)],
    FIRST: [time(0), 12, time(SECOND - FIRST)],
    SECOND: [time(0), 13, time(THIRD - SECOND)],
}


def parts(found: Any) -> list[tuple[float, float, list[int]]]:
    return [
        (round(part.start, 2), round(part.end, 2), [token for token in part.tokens if token < END])
        for part, _, _ in found.parts
    ]


def test_the_rest_of_a_window_is_decoded() -> None:
    texts = WHOLE | {0: [time(0), 11, time(2000)], 2000: [time(0), 21, time(928)]}
    decoder, found = batched(texts, [(0, FRAMES)])
    assert decoder.calls == [[(0, FIRST), (FIRST, SECOND), (SECOND, THIRD)], [(2000, FIRST)]]
    assert parts(found) == [(0.0, 20.0, [11]), (20.0, 29.28, [21]), (29.28, 58.28, [12]), (58.28, 70.0, [13])]
    assert [frame for _, frame, _ in found.parts] == [0, 2000, FIRST, SECOND]


def test_a_rest_may_have_a_rest() -> None:
    texts = WHOLE | {0: [time(0), 11, time(1000), time(1000)], 1000: [time(0), 21, time(900)], 1900: [time(0), 22]}
    decoder, found = batched(texts, [(0, FRAMES)])
    assert decoder.calls[1:] == [[(1000, FIRST)], [(1900, FIRST)]]
    assert [text for _, _, text in parts(found)] == [[11], [21], [22], [12], [13]]


@pytest.mark.parametrize(
    ("text", "speech"),
    [
        ([time(0), 11, time(2000)], [(0, 2000), (FIRST, FRAMES)]),  # silence after the text
        ([time(0), 11, time(2000)], [(0, 2099), (FIRST, FRAMES)]),  # less than a second of speech
        ([time(0), 11, time(2000), time(2000), 12], [(0, FRAMES)]),  # text without an end lasts to the window's end
        ([11, 12], [(0, FRAMES)]),  # no timestamps
        ([time(0), 11, time(60)], [(0, FRAMES)]),  # hardly any progress
        ([], [(0, FRAMES)]),
    ],
)
def test_there_is_no_rest(text: list[int], speech: list[tuple[int, int]]) -> None:
    decoder, _ = batched(WHOLE | {0: text}, speech)
    assert decoder.calls == [[(0, FIRST), (FIRST, SECOND), (SECOND, THIRD)]]


def test_memory_of_further_windows_is_reserved() -> None:
    reserved: list[int] = []
    texts = WHOLE | {0: [time(0), 11, time(2000)], 2000: [time(0), 21, time(900)]}
    batched(texts, [(0, FRAMES)], expected_windows=3, reserve=reserved.append)
    assert len(reserved) == 1 and reserved[0] > 0
    batched(WHOLE, [(0, FRAMES)], expected_windows=3, reserve=reserved.append)
    assert len(reserved) == 1


def test_windows_are_decoded_several_at_a_time_and_in_order() -> None:
    calls: list[list[int]] = []

    async def decode(windows):
        calls.append([window.start for window in windows])
        return [WindowResult([window.start], 0.0) for window in windows]

    def rest_of(window: Window, result: WindowResult) -> Window | None:
        return Window(window.start + 5, window.end, []) if window.start in (0, 20) else None

    async def main() -> list[int]:
        windows = [Window(start, start + 10, []) for start in range(0, 50, 10)]
        return [window.start async for window, _ in decode_windows(windows, 2, decode, rest_of)]

    assert asyncio.run(main()) == [0, 5, 10, 20, 25, 30, 40]
    assert calls == [[0, 10], [5, 20], [25, 30], [40]]
