"""Read from a checkpoint's files between which languages it translates, and the prompt parts of each language."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.text.languages.language_codes import Language, is_collective, parse_language
from server.text.tokenizers.fairseq import language_tokens
from server.text.tokenizers.fsmt import language_pair
from server.text.tokenizers.tokenizer_files import read_json, read_tokenizer_files
from server.text.tokens.tokenizer import Tokenizer

PAIR_FAMILIES = frozenset({"marian", "triptych"})
"""Values of `model_type` whose checkpoints may leave out their language pair, so that the operator can state it."""
_OPUS_NAME = re.compile(r"opus-mt-(?:tc-(?:[a-z]+-)*?(?:base|big|tiny)-|tc-)?([\w+]+)-([\w+]+)$")
_PAIR = re.compile(r"(\w+(?:\+\w+)*)-(\w+(?:\+\w+)*)")
_TARGET_TOKEN = re.compile(r"<2([A-Za-z_-]+)>")
MAX_OFFERS = 1024
"""Limit on the offers of a checkpoint, because each request searches them all. MADLAD has 419."""
_TASK = re.compile(r"translation_(\w+)_to_(\w+)")


class LanguagesError(ValueError):
    """The operator's language pair, or the languages of a checkpoint, cannot be used. The message is one line."""


@dataclass(frozen=True)
class Source:
    """A source language, and its part of the prompt.

    name: the checkpoint's code. language: the parsed code. Both are None for a group of languages, or any language.
    prefix: text before the source text.
    leading: token ids before the source text.
    trailing: token ids after the source text; None if the tokenizer adds its own special tokens.
    task: name of the translation in `task_specific_params`; None for a translation that another file offers.
    """

    name: str | None
    language: Language | None
    prefix: str = ""
    leading: tuple[int, ...] = ()
    trailing: tuple[int, ...] | None = None
    task: str | None = None


@dataclass(frozen=True)
class Target:
    """A target language, and its part of the prompt.

    name: the checkpoint's code. language: the parsed code.
    leading: token ids before the source text.
    forced_bos_id: first token of the translation, if that chooses the language; else None.
    decoder_start_ids: decoder prompt, if that chooses the language; else None.
    """

    name: str
    language: Language
    leading: tuple[int, ...] = ()
    forced_bos_id: int | None = None
    decoder_start_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Offer:
    """A set of translations: from each source language to each target language, except from a language to itself."""

    sources: tuple[Source, ...]
    targets: tuple[Target, ...]

    @property
    def is_all_to_all(self) -> bool:
        """Whether the model translates between any two of its languages: sources and targets have the same codes."""
        return len(self.targets) > 1 and [source.name for source in self.sources] == [
            target.name for target in self.targets
        ]

    def pairs(self) -> list[tuple[str, str]]:
        if self.is_all_to_all:
            names = [target.name for target in self.targets]
            return [*((name, "mul") for name in names), *(("mul", name) for name in names)]
        return [(source.name or "mul", target.name) for source in self.sources for target in self.targets]


def task_offers(config: Mapping[str, Any]) -> list[Offer]:
    """Return the translations that have a prefix in `task_specific_params`. config: contents of `config.json`."""
    tasks = config.get("task_specific_params")
    offers = []
    for task, settings in tasks.items() if isinstance(tasks, dict) else ():
        match = _TASK.fullmatch(task)
        prefix = settings.get("prefix") if isinstance(settings, dict) else None
        if match is None or not isinstance(prefix, str):
            continue
        source, target = parse_language(match[1]), parse_language(match[2])
        if source and target:
            offers.append(Offer((Source(match[1], source, prefix, task=task),), (Target(match[2], target),)))
    return offers


def target_token_offers(tokenizer: Tokenizer) -> list[Offer]:
    """Return the translations of MADLAD: from any language to each language that has a token such as `<2de>`.

    The token is written as text before the source text, as in the published examples.
    Source: Kudugunta et al. 2023, arXiv:2309.04662.
    """
    offers = []
    for token_id in range(tokenizer.vocab_size):
        match = _TARGET_TOKEN.fullmatch(tokenizer.id_to_token(token_id) or "")
        language = None if match is None else parse_language(match[1])
        if match is not None and language is not None:
            source = Source(None, None, prefix=f"{match[0]} ")
            offers.append(Offer((source,), (Target(match[1], language),)))
        if len(offers) > MAX_OFFERS:
            break
    return offers


def fairseq_offers(directory: Path, config: Mapping[str, Any], tokenizer: Tokenizer) -> list[Offer]:
    """Return the translations of mBART, NLLB and M2M100: from each language that has a token to every other language.

    The target language's token is the decoder prompt of mBART, and the first new token of the other families. If the
    checkpoint's configuration sets this token, the checkpoint translates to that language only.
    Empty for a tokenizer without language tokens.
    """
    tokens, end = language_tokens(tokenizer, read_tokenizer_files(directory)), tokenizer.special.eos
    if tokens is None or end is None:
        return []
    languages = {code: language for code in tokens.ids if (language := parse_language(code)) is not None}
    sources = []
    for code, language in languages.items():
        leading, trailing = tokens.around(code, end)
        sources.append(Source(code, language, "", leading, trailing))
    is_decoder_start = tokens.kind == "mbart"
    name = "decoder_start_token_id" if is_decoder_start else "forced_bos_token_id"
    generation = read_json(directory, "generation_config.json")
    configured = config.get(name) if generation.get(name) is None else generation[name]
    translates_to_one = configured in tokens.ids.values()
    targets = []
    for code, language in languages.items():
        token_id = tokens.ids[code]
        if configured == token_id or not translates_to_one:
            if is_decoder_start:
                targets.append(Target(code, language, decoder_start_ids=(token_id,)))
            else:
                targets.append(Target(code, language, forced_bos_id=token_id))
    return [Offer(tuple(sources), tuple(targets))]


def _stated_pair(stated: str) -> tuple[str, str]:
    """Split the operator's language pair (`en-de`, `en+fr-de`) into source and target.

    Each side is a code, or several codes joined by `+`. Raises LanguagesError for any other text.
    """
    match = _PAIR.fullmatch(stated)
    pair = (match[1], match[2]) if match else ("", "")
    if not all(parse_language(code) or is_collective(code) for side in pair for code in _codes(side)):
        raise LanguagesError(
            f"{stated!r} is not a pair of languages: write SOURCE-TARGET, for example en-de or en+fr-de"
        )
    return pair


def marian_offers(directory: Path, tokenizer: Tokenizer, operator: str = "") -> list[Offer]:
    """Return the translations of a Marian checkpoint; empty if no language pair is known.

    operator: language pair that overrides the pair in the checkpoint's files; empty if the operator states no pair.
        Raises LanguagesError if it is no pair of codes.
    """
    tokenizer_config = read_json(directory, "tokenizer_config.json")
    stated: Sequence[Any] = (
        _stated_pair(operator) if operator else [tokenizer_config.get(f"{side}_lang") for side in ("source", "target")]
    )
    if not all(isinstance(code, str) and code for code in stated):
        named = _opus_name(directory)
        if named is None:
            return []
        stated = [mine if isinstance(mine, str) and mine else other for mine, other in zip(stated, named, strict=True)]
    sources, targets = (str(code) for code in stated)
    return [
        Offer(
            tuple(Source(name, language) for name, language in _sources(sources)),
            tuple(Target(name, language, leading) for name, language, leading in _targets(targets, tokenizer)),
        )
    ]


def pair_offers(directory: Path) -> list[Offer]:
    """Return the translation of an FSMT checkpoint, whose files name one language pair (`langs`); empty without one."""
    names = language_pair(directory) or ("", "")
    source, target = map(parse_language, names)
    if source is None or target is None:
        return []
    return [Offer((Source(names[0], source),), (Target(names[1], target),))]


def _opus_name(directory: Path) -> tuple[str, str] | None:
    """Return the language pair in a name like `opus-mt-en-fr`; None if there is none.

    The name is that of the directory, or of the repository if the directory is a snapshot in the hub cache.
    """
    home = directory.resolve()
    for name in (home.name, home.parent.parent.name.rpartition("--")[2]):
        match = _OPUS_NAME.fullmatch(name)
        if match is not None:
            return match[1], match[2]
    return None


def _sources(stated: str) -> list[tuple[str | None, Language | None]]:
    found = [(code, parse_language(code)) for code in _codes(stated)]
    if any(language is None or is_collective(code) for code, language in found):
        return [(None, None)]
    return list(found)


def _targets(stated: str, tokenizer: Tokenizer) -> list[tuple[str, Language, tuple[int, ...]]]:
    """Return (code, language, token ids before the source text) for each target language of a Marian checkpoint.

    These are the languages with a token `>>code<<` in the vocabulary. Without such tokens, they are the stated ones.
    """
    tokens = ((tokenizer.id_to_token(token_id) or "", token_id) for token_id in range(tokenizer.vocab_size))
    found: list[tuple[str, Language, tuple[int, ...]]] = []
    for token, token_id in tokens:
        if token.startswith(">>") and token.endswith("<<"):
            language = parse_language(token[2:-2])
            if language is not None:
                found.append((token[2:-2], language, (token_id,)))
    if found:
        return found
    languages = ((code, parse_language(code)) for code in _codes(stated))
    return [(code, language, ()) for code, language in languages if language is not None and not is_collective(code)]


def _codes(stated: str) -> list[str]:
    """Split codes that are joined by `+` or `_`. A single code that contains `_`, such as `de_DE`, is not split."""
    if parse_language(stated) is not None or is_collective(stated):
        return [stated]
    return re.split(r"[+_]", stated)
