"""Remove the silent parts of a recording before transcription, and then convert times back to the whole recording."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from server.audio.frames import FRAMES_PER_SECOND, Frames
from server.audio.voice import Span, VoiceActivity, kept_spans
from server.text.speech.subtitles import SpokenWord, SubtitleLine


@dataclass(frozen=True)
class VoiceFilter:
    """Settings of voice activity detection. The defaults are those of faster-whisper.

    min_silence_ms: shorter silence remains. padding_ms: silence that remains before and after speech.
    """

    min_silence_ms: int = 2000
    padding_ms: int = 400

    def spans(self, activity: VoiceActivity) -> list[Span]:
        """The parts of a recording that remain."""
        per_ms = FRAMES_PER_SECOND / 1000
        return kept_spans(
            activity.speech, len(activity.rises), int(self.min_silence_ms * per_ms), int(self.padding_ms * per_ms)
        )


class KeptFrames:
    """The frames of a recording without its silent parts. Converts their times to times in the whole recording.

    frames: the frames that remain. They are moved to the beginning of the recording's own array.
    """

    def __init__(self, frames: Frames, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._starts: list[int] = []
        total = 0
        for start, end in spans:
            self._starts.append(total)
            frames[total : total + end - start] = frames[start:end]
            total += end - start
        self.frames = frames[:total]

    def restored(self, line: SubtitleLine) -> SubtitleLine:
        """A line of the transcript with its times converted to times in the whole recording."""
        return replace(
            line,
            start=self._start(line.start),
            end=self._end(line.end, line.start),
            window_frame=round(self._start(line.window_frame / FRAMES_PER_SECOND) * FRAMES_PER_SECOND),
            words=[
                SpokenWord(word.text, self._start(word.start), self._end(word.end, word.start)) for word in line.words
            ],
        )

    def _start(self, seconds: float) -> float:
        """Convert the time at which a line or a word begins. At a removed part, it begins after this part."""
        return self._restored(seconds, bisect_right(self._starts, seconds * FRAMES_PER_SECOND + 1e-6) - 1)

    def _end(self, seconds: float, start: float) -> float:
        """Convert the time at which a line or a word ends. At a removed part, it ends before this part.

        start: the time at which it begins. If it does not end after `start`, both are converted to the same time.
        """
        if seconds <= start:
            return self._start(seconds)
        return self._restored(seconds, max(bisect_left(self._starts, seconds * FRAMES_PER_SECOND - 1e-6) - 1, 0))

    def _restored(self, seconds: float, index: int) -> float:
        start, _ = self._spans[index]
        return seconds + (start - self._starts[index]) / FRAMES_PER_SECOND
