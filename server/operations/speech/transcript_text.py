"""The text of decoded windows: as a whole, in lines with times, in words with times, and as a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from server.audio.frames import FRAMES_PER_SECOND
from server.operations.speech.speech_windows import WindowResult
from server.operations.speech.transcribe_spec import SpokenToken
from server.text.speech.speech import SpeechSegment, SpeechTokens
from server.text.speech.subtitles import SpokenWord, SubtitleLine
from server.text.speech.words import split_words
from server.text.tokens.detokenizer import IncrementalDetokenizer
from server.text.tokens.streams import byte_level
from server.text.tokens.tokenizer import Tokenizer

Part = tuple[SpeechSegment, int, WindowResult]
"""A segment, the first frame of the window that it was decoded from, and the result of that window."""


class TextStream:
    """Passes on text as soon as it is final. All parts together are `transcript_text`.

    emit: receives each part; no part is empty.
    """

    def __init__(self, tokenizer: Tokenizer, emit: Callable[[str], None]) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._emit = emit
        self._has_begun = False
        self._spaces = ""

    def push(self, token_ids: Sequence[int]) -> None:
        """Add text tokens, without timestamps."""
        self._pass_on(self._detokenizer.push(token_ids))

    def finish(self) -> None:
        """Pass on the text that was held back, without the white space at its end."""
        self._pass_on(self._detokenizer.finish())

    def _pass_on(self, text: str) -> None:
        text = self._spaces + text
        kept = text.rstrip()
        self._spaces = text[len(kept) :]
        if not self._has_begun:
            kept, self._spaces = kept.lstrip(), self._spaces if kept else ""
        if kept:
            self._has_begun = True
            self._emit(kept)


def transcript_text(parts: Sequence[Part], tokens: SpeechTokens, tokenizer: Tokenizer) -> str:
    """The text of all segments, without white space at both ends."""
    return text_of([token for part, _, _ in parts for token in part.tokens], tokens, tokenizer).strip()


def token_logprobs(parts: Sequence[Part], tokens: SpeechTokens, tokenizer: Tokenizer) -> list[SpokenToken]:
    """The text tokens of all segments with their log-probabilities."""
    return [
        SpokenToken(byte_level(tokenizer.id_to_token(token) or ""), window.token_logprobs[part.first + place])
        for part, _, window in parts
        for place, token in enumerate(part.tokens)
        if token < tokens.first_timestamp and token not in tokenizer.special_ids
    ]


def lines_of(
    parts: Sequence[Part],
    seconds: float,
    tokens: SpeechTokens,
    tokenizer: Tokenizer,
    language: str | None,
    with_words: bool,
) -> list[SubtitleLine]:
    """The segments with text.

    seconds: length of the recording, where all times end.
    language: code of the language of the text, or None if it is not known.
    with_words: compute the times of words.
    """
    lines = []
    for part, window_frame, window in parts:
        text = text_of(part.tokens, tokens, tokenizer)
        if not text.strip():
            continue
        offset = window_frame / FRAMES_PER_SECOND
        words = _words(part, window, offset, seconds, tokens, tokenizer, language) if with_words else []
        lines.append(
            SubtitleLine(
                min(part.start, seconds),
                min(part.end, seconds),
                text,
                part.tokens,
                window_frame,
                window.mean_logprob,
                window.no_speech_prob,
                window.temperature,
                words,
            )
        )
    return lines


def text_of(token_ids: Sequence[int], tokens: SpeechTokens, tokenizer: Tokenizer) -> str:
    """The text without timestamps and other special tokens."""
    return tokenizer.decode([token for token in token_ids if token < tokens.first_timestamp], skip_special_tokens=True)


def _words(
    part: SpeechSegment,
    window: WindowResult,
    offset: float,
    seconds: float,
    tokens: SpeechTokens,
    tokenizer: Tokenizer,
    language: str | None,
) -> list[SpokenWord]:
    """The words of a segment. Each lasts from the end of the token before it to the end of its last token.

    offset: start of the window in seconds.
    """
    hidden = tokenizer.special_ids
    places = [
        part.first + place
        for place, token in enumerate(part.tokens)
        if token < tokens.first_timestamp and token not in hidden
    ]
    ids = [part.tokens[place - part.first] for place in places]

    def time(place: int) -> float:
        """Time at which a token of the window ends. place: index of the token.

        Before the first token, it is the start of the window.
        """
        return min(max(round(offset + (window.token_times[place] if place >= 0 else 0.0), 2), 0.0), seconds)

    words = split_words(tokenizer, ids, language, tokens.start - 1)
    return [
        SpokenWord(word.text.strip(), time(places[word.first] - 1), time(places[word.end - 1]))
        for word in words
        if word.text.strip()
    ]
