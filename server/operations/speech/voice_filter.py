"""Remove silence from a recording before transcription, and convert the transcript's times to the whole recording."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from server.audio.frames import FRAMES_PER_SECOND, Frames
from server.audio.voice import Span, VoiceActivity, kept_spans
from server.text.speech.subtitles import SpokenWord, SubtitleLine


@dataclass(frozen=True)
class VoiceFilter:
    """Settings for the removal of silence. The defaults are those of faster-whisper.

    min_silence_ms: shorter silences are kept. padding_ms: silence that is kept before and after speech.
    """

    min_silence_ms: int = 2000
    padding_ms: int = 400

    def spans(self, activity: VoiceActivity) -> list[Span]:
        """The parts of a recording that are kept, as (first frame, frame after the last one)."""
        per_ms = FRAMES_PER_SECOND / 1000
        return kept_spans(
            activity.speech, len(activity.rises), int(self.min_silence_ms * per_ms), int(self.padding_ms * per_ms)
        )


class KeptFrames:
    """The frames of a recording without its silent parts, and the conversion of times to the whole recording.

    frames: all frames of the recording; overwritten, because the kept frames are moved to the beginning of this array.
    spans: (first frame, frame after the last one) of each part to keep.
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

    def moved(self, spans: Sequence[Span]) -> list[Span]:
        """The places among the kept frames of some parts of the recording. Removed frames are left out."""
        return [
            (max(first, start) - start + offset, min(last, end) - start + offset)
            for (start, end), offset in zip(self._spans, self._starts, strict=True)
            for first, last in spans
            if first < end and last > start
        ]

    def restored(self, line: SubtitleLine) -> SubtitleLine:
        """Convert the times of a line from the kept frames to the whole recording, including the times of its words."""
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
        """Convert the start of a line or word, in seconds. Where silence was removed, the start is put after it."""
        return self._restored(seconds, bisect_right(self._starts, seconds * FRAMES_PER_SECOND + 1e-6) - 1)

    def _end(self, seconds: float, start: float) -> float:
        """Convert the end of a line or word, in seconds. An end where silence was removed is put before the silence.

        start: start of the line or word. If the end is not after `start`, both are converted to the same time.
        """
        if seconds <= start:
            return self._start(seconds)
        return self._restored(seconds, max(bisect_left(self._starts, seconds * FRAMES_PER_SECOND - 1e-6) - 1, 0))

    def _restored(self, seconds: float, index: int) -> float:
        start, _ = self._spans[index]
        return seconds + (start - self._starts[index]) / FRAMES_PER_SECOND
