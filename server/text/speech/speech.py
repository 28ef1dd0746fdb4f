"""Special tokens of speech recognition models (Whisper): decoder prompt, languages, tasks, and timestamps.

Works on token ids and frame indices only. Long recordings are decoded window by window with the same tokens as the
sequential decoding of transformers 5. Source: Radford et al. 2022, arXiv:2212.04356, section 2.3.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from server.text.languages.language_codes import english_name, parse_language
from server.text.tokenizers.tokenizer_files import read_json
from server.text.tokens.tokenizer import Tokenizer, TokenizerError

SECONDS_PER_TIMESTAMP = 0.02
"""Time between two consecutive timestamp tokens."""
FRAMES_PER_TIMESTAMP = 2
_MIN_MULTILINGUAL_VOCABULARY = 51865
"""Vocabulary size from which a model counts as multilingual. Published English-only models have fewer tokens."""
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")

SpeechTask = Literal["transcribe", "translate"]


@dataclass(frozen=True)
class SpeechTokens:
    """Token ids of the special tokens for speech recognition.

    start: first token of every decoder prompt.
    languages: language tokens by code (`en`). Empty for an English-only model, whose prompt has no language or task.
    tasks: task tokens by name, `transcribe` and `translate`. Empty for an English-only model.
    previous: token before the text of an earlier window; None for a model without such a token.
    no_timestamps: token that turns timestamps off. All higher ids are timestamp tokens.
    max_initial: latest timestamp with which a window may begin, as an index from `first_timestamp`; None for no limit.
    """

    start: int
    languages: Mapping[str, int]
    tasks: Mapping[str, int]
    previous: int | None
    no_timestamps: int
    max_initial: int | None

    @property
    def first_timestamp(self) -> int:
        return self.no_timestamps + 1

    @property
    def no_speech(self) -> int:
        """Token id whose probability right after the start token is the probability that a window has no speech."""
        return self.no_timestamps - 1

    @property
    def translates(self) -> bool:
        """Whether the model can translate speech to English."""
        return "translate" in self.tasks

    @classmethod
    def from_checkpoint(cls, directory: Path, tokenizer: Tokenizer) -> SpeechTokens:
        """Read the tokens from `generation_config.json`. Tokens that it does not name come from the vocabulary.

        Raises TokenizerError for a missing token, and for a value that is not a token id of the model.
        """
        generation, config = read_json(directory, "generation_config.json"), read_json(directory, "config.json")
        vocab = _count(config.get("vocab_size", _MIN_MULTILINGUAL_VOCABULARY), "vocab_size")

        def token(name: str, text: str) -> int | None:
            found = generation.get(name, tokenizer.token_to_id(text))
            return None if found is None else _id(found, name, vocab)

        start = generation.get("decoder_start_token_id", config.get("decoder_start_token_id"))
        no_timestamps = token("no_timestamps_token_id", "<|notimestamps|>")
        if start is None or no_timestamps is None:
            raise TokenizerError("generation_config.json: decoder_start_token_id or no_timestamps_token_id is missing")
        start = _id(start, "decoder_start_token_id", vocab)
        latest = generation.get("max_initial_timestamp_index")
        languages: dict[str, int] = {}
        tasks: dict[str, int] = {}
        if generation.get("is_multilingual", vocab >= _MIN_MULTILINGUAL_VOCABULARY):
            languages = _languages(generation.get("lang_to_id"), tokenizer, start, vocab)
            table = generation.get("task_to_id")
            tasks = {task: _task(table, task, tokenizer, vocab) for task in get_args(SpeechTask)}
        return cls(
            start,
            languages,
            tasks,
            token("prev_sot_token_id", "<|startofprev|>"),
            no_timestamps,
            None if latest is None else _count(latest, "max_initial_timestamp_index"),
        )

    def language(self, name: str) -> str | None:
        """The model's code for a language code or an English language name; None for an unsupported language."""
        return code_of(name, self.languages or ("en",))

    def prefix(
        self, language: str | None, task: SpeechTask, with_timestamps: bool, prompt: Sequence[int] = ()
    ) -> list[int]:
        """Return the token ids of the decoder prompt.

        language: one of the codes in `languages`; None for an English-only model.
        with_timestamps: whether the model shall write timestamps.
        prompt: token ids of an earlier text; ignored for a model without the token `previous`.
        """
        before = [self.previous, *prompt] if prompt and self.previous is not None else []
        request = [self.languages[language], self.tasks[task]] if self.languages and language is not None else []
        return [*before, self.start, *request, *([] if with_timestamps else [self.no_timestamps])]


@dataclass(frozen=True)
class SpeechSegment:
    """A part of a transcript between two timestamps.

    start, end: seconds from the beginning of the recording.
    tokens: token ids, including the timestamps around the text.
    first: index of the segment's first token in the tokens of its window.
    """

    start: float
    end: float
    tokens: list[int]
    first: int = 0


def split_window(
    tokens: Sequence[int], first_timestamp: int, first_frame: int, num_frames: int
) -> tuple[list[SpeechSegment], int]:
    """Split the tokens of a window into segments.

    Two timestamps in a row end one segment and begin the next. If the text after the last such pair has no timestamp
    at its end, it may be incomplete: it is dropped, and the next window begins at that pair. Otherwise the next window
    begins at the end of this one.

    tokens: token ids of the window without the end token.
    first_timestamp: id of the first timestamp token.
    first_frame: index of the window's first frame (10 ms) in the recording.
    num_frames: number of frames of the window that belong to the recording.
    Returns the segments, and the number of frames from the start of this window to the start of the next one.
    """
    offset = first_frame / FRAMES_PER_TIMESTAMP * SECONDS_PER_TIMESTAMP
    is_timestamp = [token >= first_timestamp for token in tokens]
    ends = [at + 1 for at in range(len(tokens) - 1) if is_timestamp[at] and is_timestamp[at + 1]]

    def seconds(token: int) -> float:
        return offset + (token - first_timestamp) * SECONDS_PER_TIMESTAMP

    if not ends:
        times = [token for token in tokens if token >= first_timestamp]
        last = offset + num_frames / FRAMES_PER_TIMESTAMP * SECONDS_PER_TIMESTAMP
        if times and times[-1] != first_timestamp:
            last = seconds(times[-1])
        return [SpeechSegment(offset, last, list(tokens))], num_frames
    is_complete = is_timestamp[-2:] == [False, True]
    if is_complete:
        ends.append(len(tokens))
    starts = [0, *ends[:-1]]
    segments = []
    for begin, end in zip(starts, ends, strict=True):
        segments.append(SpeechSegment(seconds(tokens[begin]), seconds(tokens[end - 1]), list(tokens[begin:end]), begin))
    if is_complete:
        return segments, num_frames
    final = segments[-1]
    segments[-1] = replace(final, tokens=[*final.tokens, tokens[ends[-1]]])
    return segments, max((tokens[ends[-1] - 1] - first_timestamp) * FRAMES_PER_TIMESTAMP, FRAMES_PER_TIMESTAMP)


def split_whole_window(
    tokens: Sequence[int], first_timestamp: int, first_frame: int, num_frames: int
) -> list[SpeechSegment]:
    """Split the tokens of the last window into segments, and keep incomplete text at its end as a segment.

    Such text lasts until the end of the window. Times after the end of the window, which a model may predict because
    a short window is padded with silence, are set to the end.
    The arguments are those of `split_window`.
    """
    segments, _ = split_window(tokens, first_timestamp, first_frame, num_frames)
    offset = first_frame / FRAMES_PER_TIMESTAMP * SECONDS_PER_TIMESTAMP
    last = offset + num_frames / FRAMES_PER_TIMESTAMP * SECONDS_PER_TIMESTAMP
    end = segments[-1].first + len(segments[-1].tokens) - 1
    if end + 1 < len(tokens):
        # The last segment holds the timestamp that begins the text after it.
        segments[-1] = replace(segments[-1], tokens=segments[-1].tokens[:-1])
        start = offset + (tokens[end] - first_timestamp) * SECONDS_PER_TIMESTAMP
        segments.append(SpeechSegment(start, last, list(tokens[end:]), end))
    return [replace(segment, start=min(segment.start, last), end=min(segment.end, last)) for segment in segments]


def text_end(tokens: Sequence[int], first_timestamp: int) -> int | None:
    """The last timestamp of a window, in frames from its start. None if the tokens do not end with a timestamp.

    tokens: token ids of the window without the end token. first_timestamp: id of the first timestamp token.
    """
    if not tokens or tokens[-1] < first_timestamp:
        return None
    return (tokens[-1] - first_timestamp) * FRAMES_PER_TIMESTAMP


def certain_tokens(tokens: Sequence[int], first_timestamp: int, with_timestamps: bool) -> int:
    """Number of tokens, from the start of a window that is still being decoded, that `split_window` will keep.

    first_timestamp: id of the first timestamp token.
    with_timestamps: whether the window has timestamps; without them, all tokens are kept.
    """
    if not with_timestamps:
        return len(tokens)
    pairs = (at for at in range(len(tokens) - 1, 0, -1) if min(tokens[at], tokens[at - 1]) >= first_timestamp)
    return next(pairs, 0)


def code_of(name: str, known: Collection[str]) -> str | None:
    """Return the code in `known` that a language code or an English language name stands for; None if there is none."""
    name = name.strip().lower()
    if name in known:
        return name
    by_name = {language_name(code): code for code in known}
    if name in by_name:
        return by_name[name]
    parsed = parse_language(name)
    return parsed.language if parsed is not None and parsed.language in known else None


def language_name(code: str) -> str:
    """The English name of a language in lower case; the code itself where it has no name."""
    language = parse_language(code)
    return ((language and english_name(language)) or code).lower()


def _languages(table: Any, tokenizer: Tokenizer, start: int, vocab: int) -> dict[str, int]:
    if table is None:
        # In published vocabularies the language tokens follow the start token.
        table = {}
        while (match := _LANGUAGE.fullmatch(tokenizer.id_to_token(start + 1 + len(table)) or "")) is not None:
            table[match[0]] = start + 1 + len(table)
    matches = {name: _LANGUAGE.fullmatch(str(name)) for name in table} if isinstance(table, dict) else {}
    if not matches or not all(matches.values()):
        raise TokenizerError("generation_config.json: 'lang_to_id' must have keys such as `<|en|>`")
    return {match[1]: _id(table[name], "lang_to_id", vocab) for name, match in matches.items() if match is not None}


def _task(table: Any, task: str, tokenizer: Tokenizer, vocab: int) -> int:
    found = table.get(task) if isinstance(table, dict) else tokenizer.token_to_id(f"<|{task}|>")
    return _id(found, f"task_to_id.{task}", vocab)


def _count(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TokenizerError(f"{name!r} must be an integer of at least 0")
    return value


def _id(value: Any, name: str, vocab: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab:
        raise TokenizerError(f"generation_config.json: {name!r} must be a token id below {vocab}")
    return value
