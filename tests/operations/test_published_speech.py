"""The sequential mode of transcription decides as OpenAI's published code does, where that agrees with transformers.

`whisper_oracle.py` wrote the decisions of OpenAI's code. Both programs get the same decoded windows (`speech_scripts`).
Two differences are intended. If every attempt to decode a window is rejected, OpenAI's code uses the last attempt and
ours the best one; and ours does not call a window silent if one of its earlier attempts was likely. Decisions are
compared up to the first window with such a difference.
"""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from server.ipc.wire.generate_messages import Finished, Hypothesis
from server.ipc.wire.logprobs import Logprobs, TokenLogprob
from server.ipc.wire.params import GenerationParams
from server.operations.speech import transcribe
from server.operations.speech.speech_fallback import FallbackRules, Verdict
from server.operations.speech.speech_windows import WindowDecoder
from server.text.speech.speech import SpeechTokens
from tests.operations.speech_scripts import (
    CONTEXT,
    COUNT,
    END,
    ENGLISH,
    FIRST_TIME,
    NO_TIMESTAMPS,
    PREVIOUS,
    START,
    TRANSCRIBE,
    TRANSLATE,
    VOCAB,
    WINDOW_FRAMES,
    Script,
    script,
)

ORACLE = json.loads((Path(__file__).parent / "whisper_oracle.json").read_text())
TOKENS = SpeechTokens(
    START, {"en": ENGLISH}, {"translate": TRANSLATE, "transcribe": TRANSCRIBE}, PREVIOUS, NO_TIMESTAMPS, 50
)
PREFIX = [START, ENGLISH, TRANSCRIBE]


class ScriptedDecoder(WindowDecoder):
    """A decoder whose results a script determines.

    calls: first frame, temperature and prompt of each attempt to decode a window.
    departure: number of calls up to the first intended difference to OpenAI's code, and the first frame of its window.
    """

    def run(self, script: Script) -> None:
        self.script, self.calls, self.window = script, list[list[Any]](), -1
        self.departure: tuple[int, int] | None = None

    def _depart(self) -> None:
        self.departure = self.departure or (len(self.calls), self.calls[-1][0])

    async def decode(self, windows, sink=None):
        (result,) = await super().decode(windows, sink)
        if result.temperature != result.last_temperature:
            self._depart()
        return [result]

    async def _judge(self, window, event, temperature, earlier_logprobs):
        _, alone = await super()._judge(window, event, temperature, ())
        result, verdict = await super()._judge(window, event, temperature, earlier_logprobs)
        if verdict.kind != alone.kind:
            self._depart()
        return result, verdict

    async def _generate(self, windows, attempt, temperature, sink):
        (window,) = windows
        self.window += attempt == 0
        found = self.script.attempt(self.window, attempt)
        assert window.prefix[-len(PREFIX) :] == PREFIX
        before = window.prefix[: -len(PREFIX)]
        assert not before or (before[0], window.start_index) == (PREVIOUS, len(before))
        self.calls.append([window.start, temperature, before[1:] if self.script.conditions else None])
        ids = [*found.token_ids, END]
        logprobs = Logprobs(TokenLogprob(token, found.logprob) for token in ids).packed()
        best = Hypothesis(ids, "stop", END, logprobs=logprobs)
        return [Finished(0, [best], 0.0, 0.0, 0.0, probe_logprob=math.log(found.no_speech))]


def decisions(one: Script) -> tuple[dict[str, Any], tuple[int, int] | None]:
    """Our decisions for a script, and `ScriptedDecoder.departure`."""
    info = SimpleNamespace(source_tokens=WINDOW_FRAMES // 2, context_tokens=CONTEXT, vocab_size=VOCAB)
    rules = FallbackRules(one.temperatures, one.compression_ratio, one.logprob, one.no_speech)
    decoder = ScriptedDecoder(
        SimpleNamespace(), SimpleNamespace(info=info), None, one.total_frames, GenerationParams(), rules, 0, None
    )
    decoder.run(one)
    prompt = ORACLE["prompt"] if one.prompted else []
    transcription = transcribe._Transcription(
        decoder, TOKENS, PREFIX, prompt, with_times=True, conditions=one.conditions
    )
    asyncio.run(transcription.sequential(streams_tokens=False))
    segments = []
    for segment, start, _ in transcription.parts:
        text = [token for token in segment.tokens if token < FIRST_TIME]
        if text and segment.start != segment.end:
            segments.append([round(segment.start, 4), round(segment.end, 4), text, start])
    return {"calls": decoder.calls, "segments": segments}, decoder.departure


def is_equal(number: int) -> bool:
    """Whether our decisions for script `number` equal OpenAI's, up to the first intended difference."""
    (ours, departure), theirs = decisions(script(number)), ORACLE["decisions"][number]
    if departure is None:
        return ours == theirs
    calls, frame = departure
    before = [[segment for segment in found["segments"] if segment[3] < frame] for found in (ours, theirs)]
    return ours["calls"][:calls] == theirs["calls"][:calls] and before[0] == before[1]


@pytest.mark.parametrize("number", range(COUNT))
def test_decisions_equal_the_published_code(number: int) -> None:
    assert is_equal(number)


def test_most_decisions_are_compared() -> None:
    found = [decisions(script(number)) for number in range(COUNT)]
    compared = sum(len(ours["calls"]) if departure is None else departure[0] for ours, departure in found)
    assert compared >= 0.5 * sum(len(theirs["calls"]) for theirs in ORACLE["decisions"])
    assert sum(departure is None for _, departure in found) >= COUNT // 3


def test_the_scripts_cover_all_decisions() -> None:
    """Windows are silent, rejected, cut at a timestamp or read to the end, and every temperature occurs."""
    scripts = [script(number) for number in range(COUNT)]
    windows = [call for found in ORACLE["decisions"] for call in found["calls"]]
    assert {call[1] for call in windows} == {0.0, 0.2, 0.4, 0.8, 1.0}
    assert sum(bool(call[2]) for call in windows) > 20
    steps = [
        after[0] - before[0]
        for found in ORACLE["decisions"]
        for before, after in zip(found["calls"], found["calls"][1:], strict=False)
    ]
    assert (
        steps.count(0) > 20 and steps.count(WINDOW_FRAMES) > 20 and sum(0 < step < WINDOW_FRAMES for step in steps) > 20
    )
    kept = [{segment[3] for segment in found["segments"]} for found in ORACLE["decisions"]]
    decoded = [{call[0] for call in found["calls"]} for found in ORACLE["decisions"]]
    assert any(starts < all_starts for starts, all_starts in zip(kept, decoded, strict=True))
    assert sum(spoken.prompted for spoken in scripts) > 5


def test_a_wrong_verdict_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: windows without speech are kept."""
    monkeypatch.setattr(FallbackRules, "verdict", lambda self, *_: Verdict("accepted"))
    assert sum(not is_equal(number) for number in range(COUNT)) > COUNT // 4
