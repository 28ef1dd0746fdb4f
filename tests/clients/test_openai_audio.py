"""Transcriptions with the `openai` package."""

from __future__ import annotations

import openai
import pytest
from openai import OpenAI

from tests.audio.compressed import encode
from tests.clients.openai_story import client
from tests.parity.speech import recording

__all__ = ["client"]


class TestAudio:
    """Formats and streams of transcriptions.

    `tests/e2e/speech/test_transcribe.py` compares the texts with transformers.
    """

    def test_words_segments_and_subtitles(self, client: OpenAI) -> None:
        file = ("talk.flac", encode("flac", recording(1.8, seed=2)))
        answer = client.audio.transcriptions.create(
            model="whisper",
            file=file,
            language="en",
            response_format="verbose_json",
            timestamp_granularities=["word", "segment"],
        )
        assert answer.segments and answer.words and answer.duration == pytest.approx(1.8)
        assert all(0 <= segment.no_speech_prob <= 1 and segment.avg_logprob < 0 for segment in answer.segments)
        assert all(word.start <= word.end <= 1.8 for word in answer.words)
        plain = client.audio.transcriptions.create(model="whisper", file=file, language="en")
        assert plain.text and plain.usage is not None and plain.usage.type == "duration"
        pages = client.audio.transcriptions.create(model="whisper", file=file, language="en", response_format="vtt")
        assert pages.startswith("WEBVTT")

    def test_a_stream(self, client: OpenAI) -> None:
        file = ("talk.webm", encode("webm", recording(1.8, seed=2, rate=48_000), 48_000))
        fields = {"model": "whisper", "file": file, "language": "en", "chunking_strategy": "auto"}
        *deltas, done = client.audio.transcriptions.create(**fields, stream=True)
        assert {delta.type for delta in deltas} == {"transcript.text.delta"} and done.type == "transcript.text.done"
        assert "".join(delta.delta for delta in deltas) == done.text
        assert done.text == client.audio.transcriptions.create(**fields).text

    def test_a_damaged_file(self, client: OpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match="MP3"):
            client.audio.translations.create(model="whisper", file=("talk.mp3", b"ID3" + bytes(99)))
