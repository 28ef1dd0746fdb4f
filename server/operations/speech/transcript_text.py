"""Convert the tokens of decoded windows to text: as a whole, as lines and words with times, or as a stream."""

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
"""A segment, the first frame of its window, and the result of this window."""


class TextStream:
    """Converts tokens to text, and passes it on as soon as it is final.

    emit: called with each part, never with an empty one. All parts, joined, equal the result of `transcript_text`.
    """

    def __init__(self, tokenizer: Tokenizer, emit: Callable[[str], None]) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._emit = emit
        self._has_begun = False
        self._spaces = ""

    def push(self, token_ids: Sequence[int]) -> None:
        """Add text tokens, and pass on the text that is final. token_ids: tokens without timestamps."""
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
    """Join the text of all segments, without white space at both ends."""
    return text_of([token for part, _, _ in parts for token in part.tokens], tokens, tokenizer).strip()


def token_logprobs(parts: Sequence[Part], tokens: SpeechTokens, tokenizer: Tokenizer) -> list[SpokenToken]:
    """The bytes and log-probability of each text token of all segments. Timestamps and special tokens are left out."""
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
    """Convert the segments that have text to lines with times in seconds.

    seconds: length of the recording; later times are set to it.
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
    """Convert token ids to text, without timestamps and other special tokens."""
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
    """The words of a segment with their times. A word begins where the token before it ends.

    offset: start of the window, in seconds. seconds: length of the recording; later times are set to it.
    """
    hidden = tokenizer.special_ids
    places = [
        part.first + place
        for place, token in enumerate(part.tokens)
        if token < tokens.first_timestamp and token not in hidden
    ]
    ids = [part.tokens[place - part.first] for place in places]

    def time(place: int) -> float:
        """Time at which a token ends, in seconds of the recording, rounded to hundredths.

        place: index of the token in the window; -1 for the start of the window.
        """
        return min(max(round(offset + (window.token_times[place] if place >= 0 else 0.0), 2), 0.0), seconds)

    words = split_words(tokenizer, ids, language, tokens.start - 1)
    return [
        SpokenWord(word.text.strip(), time(places[word.first] - 1), time(places[word.end - 1]))
        for word in words
        if word.text.strip()
    ]
