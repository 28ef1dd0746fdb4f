"""How a speech model is asked, and how its answer is read: start tokens, languages, tasks, and tokens that are times.

Follows Radford et al. 2022, arXiv:2212.04356, section 2.3, and for long recordings the sequential decoding of
`transformers` 5, token for token. Knows token ids and frames; no sound, no requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from server.text.language_codes import english_name, parse_language
from server.text.tokenizer import Tokenizer, TokenizerError
from server.text.tokenizer_files import read_json

SECONDS_PER_TIME = 0.02
"""Between a token that is a time and the next one."""
FRAMES_PER_TIME = 2
_MULTILINGUAL_VOCABULARY = 51865
"""What published models of English alone have less than."""
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")

SpeechTask = Literal["transcribe", "translate"]


@dataclass(frozen=True)
class SpeechTokens:
    """Ids of the tokens with a meaning.

    start: what every text starts from. languages: by code (`en`); empty for a model of English alone, which is told
    neither language nor task. previous: what an earlier text comes after, None where there is no such token. no_times:
    says that no token will be a time; those that are follow it, from `first_time` on. max_initial: of these, counted
    from `first_time`, the latest that may come first; None for any.
    """

    start: int
    languages: Mapping[str, int]
    tasks: Mapping[str, int]
    previous: int | None
    no_times: int
    max_initial: int | None

    @property
    def first_time(self) -> int:
        return self.no_times + 1

    @property
    def translates(self) -> bool:
        return "translate" in self.tasks

    @classmethod
    def from_checkpoint(cls, directory: Path, tokenizer: Tokenizer) -> SpeechTokens:
        """From `generation_config.json`; what that does not say, from the vocabulary.

        Raises TokenizerError for a token that is missing or is not a token id of the model.
        """
        said, config = read_json(directory, "generation_config.json"), read_json(directory, "config.json")
        vocab = _count(config.get("vocab_size", _MULTILINGUAL_VOCABULARY), "vocab_size")

        def token(name: str, spelling: str) -> int | None:
            found = said.get(name, tokenizer.token_to_id(spelling))
            return None if found is None else _id(found, name, vocab)

        start = said.get("decoder_start_token_id", config.get("decoder_start_token_id"))
        no_times = token("no_timestamps_token_id", "<|notimestamps|>")
        if start is None or no_times is None:
            raise TokenizerError(
                "generation_config.json does not say decoder_start_token_id and no_timestamps_token_id"
            )
        start = _id(start, "decoder_start_token_id", vocab)
        latest = said.get("max_initial_timestamp_index")
        languages: dict[str, int] = {}
        tasks: dict[str, int] = {}
        if said.get("is_multilingual", vocab >= _MULTILINGUAL_VOCABULARY):
            languages = _languages(said.get("lang_to_id"), tokenizer, start, vocab)
            tasks = {
                task: _task(said.get("task_to_id"), task, tokenizer, vocab) for task in ("transcribe", "translate")
            }
        return cls(
            start,
            languages,
            tasks,
            token("prev_sot_token_id", "<|startofprev|>"),
            no_times,
            None if latest is None else _count(latest, "max_initial_timestamp_index"),
        )

    def language(self, name: str) -> str | None:
        """The code of a language by its code or its English name; None for one that the model does not know."""
        wanted = name.strip().lower()
        known = self.languages or {"en": 0}
        if wanted in known:
            return wanted
        named = {english(code): code for code in known}
        if wanted in named:
            return named[wanted]
        parsed = parse_language(wanted)
        return parsed.language if parsed is not None and parsed.language in known else None

    def prefix(self, language: str | None, task: SpeechTask, with_times: bool, prompt: Sequence[int] = ()) -> list[int]:
        """What the decoder starts from. prompt: tokens of an earlier text, for which `previous` is needed."""
        before = [self.previous, *prompt] if prompt and self.previous is not None else []
        asked = [self.languages[language], self.tasks[task]] if self.languages and language is not None else []
        return [*before, self.start, *asked, *([] if with_times else [self.no_times])]


@dataclass(frozen=True)
class SpokenPart:
    """A piece of a text, and when it was said. Seconds of the recording. tokens: with the times around them."""

    start: float
    end: float
    tokens: list[int]


def cut(tokens: Sequence[int], first_time: int, first_frame: int, num_frames: int) -> tuple[list[SpokenPart], int]:
    """The parts of what was heard in a window, and by how many frames the next window begins later.

    tokens: without the end of text. first_frame, num_frames: where the window begins, and how many of its frames are
    of the recording. Two times in a row end one part and begin another. Where they are the last of the text, what
    follows them was not heard to its end: the next window begins there. Else it begins after this one.
    """
    offset = first_frame / FRAMES_PER_TIME * SECONDS_PER_TIME
    is_time = [token >= first_time for token in tokens]
    ends = [at + 1 for at in range(len(tokens) - 1) if is_time[at] and is_time[at + 1]]

    def seconds(token: int) -> float:
        return offset + (token - first_time) * SECONDS_PER_TIME

    if not ends:
        times = [token for token, timed in zip(tokens, is_time, strict=True) if timed]
        last = offset + num_frames / FRAMES_PER_TIME * SECONDS_PER_TIME
        if times and times[-1] != first_time:
            last = seconds(times[-1])
        return [SpokenPart(offset, last, list(tokens))], num_frames
    whole = is_time[-2:] == [False, True]
    if whole:
        ends.append(len(tokens))
    starts = [0, *ends[:-1]]
    parts = []
    for begin, end in zip(starts, ends, strict=True):
        parts.append(SpokenPart(seconds(tokens[begin]), seconds(tokens[end - 1]), list(tokens[begin:end])))
    if whole:
        return parts, num_frames
    final = parts[-1]
    parts[-1] = SpokenPart(final.start, final.end, [*final.tokens, tokens[ends[-1]]])
    return parts, max((tokens[ends[-1] - 1] - first_time) * FRAMES_PER_TIME, FRAMES_PER_TIME)


def english(code: str) -> str:
    """The English name of a language, in small letters; the code itself where it has none."""
    language = parse_language(code)
    return ((language and english_name(language)) or code).lower()


def _languages(table: Any, tokenizer: Tokenizer, start: int, vocab: int) -> dict[str, int]:
    if table is None:
        # Published vocabularies have the languages right behind the start token.
        table = {}
        while (match := _LANGUAGE.fullmatch(tokenizer.id_to_token(start + 1 + len(table)) or "")) is not None:
            table[match[0]] = start + 1 + len(table)
    matches = {name: _LANGUAGE.fullmatch(str(name)) for name in table} if isinstance(table, dict) else {}
    if not matches or not all(matches.values()):
        raise TokenizerError("generation_config.json: 'lang_to_id' has to name languages as `<|en|>`")
    return {match[1]: _id(table[name], "lang_to_id", vocab) for name, match in matches.items() if match is not None}


def _task(table: Any, task: str, tokenizer: Tokenizer, vocab: int) -> int:
    found = table.get(task) if isinstance(table, dict) else tokenizer.token_to_id(f"<|{task}|>")
    return _id(found, f"task_to_id.{task}", vocab)


def _count(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TokenizerError(f"{name!r} has to be an integer that is not negative")
    return value


def _id(value: Any, name: str, vocab: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab:
        raise TokenizerError(f"generation_config.json: {name!r} has to be a token id below {vocab}")
    return value
