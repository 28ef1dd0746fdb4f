"""The fields of request bodies that can be given as flags of a command, one table row each.

The server checks their values. `tests/client/test_options.py` compares the tables with the server's request bodies.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from server.client.errors import CommandError

Group = Literal["length", "sampling", "repetition", "beam search", "format", "answer", "languages", "inputs"]


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"write token ids separated by commas, not {text!r}") from None


def _bias(text: str) -> dict[str, float]:
    token, _, bias = text.partition("=")
    try:
        return {str(int(token)): float(bias)}
    except ValueError:
        raise argparse.ArgumentTypeError(f"write TOKEN_ID=BIAS, for example 42=-1.5, not {text!r}") from None


def _term(text: str) -> dict[str, str]:
    source, found, target = text.partition("=")
    if not (source.strip() and found and target.strip()):
        raise argparse.ArgumentTypeError(f"write TERM=TRANSLATION, for example house=maison, not {text!r}")
    return {source: target}


def _early_stopping(text: str) -> bool | str:
    values: dict[str, bool | str] = {"true": True, "false": False, "never": "never"}
    if text not in values:
        raise argparse.ArgumentTypeError(f"write true, false or never, not {text!r}")
    return values[text]


def _protected(text: str) -> bool | list[str]:
    return {"true": True, "false": False}.get(text, [kind.strip() for kind in text.split(",") if kind.strip()])


def _token(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def json_object(text: str) -> dict[str, Any]:
    """Parse the JSON object in the value of a flag. Raises ArgumentTypeError for any other text."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"write a JSON object, not {text!r}")
    return value


@dataclass(frozen=True)
class Option:
    """One field of a request body that is a flag of a command.

    name: name of the field; the flag has `-` in place of `_`.
    group: heading of the flag in the help text. help: the help text.
    convert: turns the text of the flag into the value of the field. bool stands for two flags, `--x` and `--no-x`.
    metavar: name of the value in the help text; empty for a default.
    choices: the possible values, if there are few; else empty.
    repeated: whether the flag may be given several times; the values are then joined.
    """

    name: str
    group: Group
    convert: Callable[[str], Any] | type[bool]
    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    repeated: bool = False

    def add(self, parser: argparse._ActionsContainer) -> None:
        """Add the flag to a parser. The value of a flag that is not given is None."""
        flag = "--" + self.name.replace("_", "-")
        if self.convert is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=self.help)
        elif self.choices:
            parser.add_argument(flag, choices=self.choices, help=self.help)
        else:
            metavar = self.metavar or {float: "X", int: "N"}.get(self.convert, "TEXT")  # type: ignore[call-overload]
            action = "append" if self.repeated else "store"
            parser.add_argument(flag, type=self.convert, metavar=metavar, help=self.help, action=action)


GENERATION = (
    Option("max_new_tokens", "length", int, "maximum number of new tokens"),
    Option("min_new_tokens", "length", int, "fewest tokens to generate"),
    Option("truncate", "length", int, "keep at most this many tokens of the prompt"),
    Option("stop", "length", str, "text that ends the answer; repeatable", repeated=True),
    Option("stop_token_ids", "length", _ids, "tokens that end the answer, separated by commas", "IDS", repeated=True),
    Option("include_stop", "length", bool, "keep the stop text in the answer"),
    Option("ignore_eos", "length", bool, "continue after the end-of-text token"),
    Option("do_sample", "sampling", bool, "draw tokens at random; implied by the flags below"),
    Option("temperature", "sampling", float, "divides the logits; 0 is greedy search"),
    Option("top_k", "sampling", int, "draw from the N most likely tokens"),
    Option("top_p", "sampling", float, "draw from the most likely tokens with this total probability"),
    Option("min_p", "sampling", float, "draw from tokens at least X times as likely as the most likely one"),
    Option("typical_p", "sampling", float, "locally typical sampling with this total probability"),
    Option("seed", "sampling", int, "makes the random choices repeatable"),
    Option("n", "sampling", int, "number of answers"),
    Option("best_of", "sampling", int, "generate N answers and return the most likely ones"),
    Option("repetition_penalty", "repetition", float, "above 1: lowers tokens that occurred before"),
    Option("presence_penalty", "repetition", float, "subtracted from tokens that occurred before"),
    Option("frequency_penalty", "repetition", float, "subtracted from tokens once per occurrence"),
    Option("no_repeat_ngram_size", "repetition", int, "no N tokens in a row occur twice"),
    Option("encoder_no_repeat_ngram_size", "repetition", int, "no N tokens in a row of the source occur"),
    Option("logit_bias", "repetition", _bias, "number to add to a token's logit; repeatable", "ID=X", repeated=True),
    Option("bad_words", "repetition", str, "text that must not occur; repeatable", repeated=True),
    Option("allowed_token_ids", "repetition", _ids, "the only tokens, separated by commas", "IDS", repeated=True),
    Option("allowed_sequences", "repetition", str, "text that may be the answer; repeatable", "TEXT", repeated=True),
    Option("suppress_tokens", "repetition", _ids, "tokens not allowed, separated by commas", "IDS", repeated=True),
    Option("num_beams", "beam search", int, "number of beams"),
    Option("num_return_sequences", "beam search", int, "number of beams to return"),
    Option("length_penalty", "beam search", float, "exponent of the length that divides a beam's score"),
    Option("early_stopping", "beam search", _early_stopping, "when beam search ends", "true|false|never"),
    Option("num_beam_groups", "beam search", int, "groups of beams that differ from each other"),
    Option("diversity_penalty", "beam search", float, "how much the groups differ"),
    Option("echo", "answer", bool, "put the prompt before the answer"),
    Option("skip_special_tokens", "answer", bool, "leave special tokens out of the text"),
    Option("logprobs", "answer", bool, "log-probability of every token; see --json"),
    Option("top_logprobs", "answer", int, "also of the N most likely tokens at each position"),
    Option("prompt_logprobs", "answer", bool, "also of the tokens of the prompt"),
    Option("return_token_ids", "answer", bool, "also return token ids; see --json"),
    Option("return_attention", "answer", bool, "also return cross-attention; see --json"),
    Option("source_lang", "languages", str, "language of the source text", "CODE"),
    Option("target_lang", "languages", str, "language of the answer", "CODE"),
    Option("forced_bos_token", "languages", _token, "first token of the answer, or its id", "TOKEN"),
    Option("decoder_prefix", "languages", str, "text with which the answer begins"),
)  # fmt: skip
"""Fields of `/generate` and `/translate`, except `response_format`, which has separate flags."""

CHAT = tuple(
    row
    for row in GENERATION
    if row.group in ("length", "sampling", "repetition", "beam search")
    and row.name not in ("truncate", "n", "best_of", "num_return_sequences", "allowed_sequences")
)
"""Fields of `/v1/chat/completions`; `max_new_tokens` is `max_completion_tokens` there."""

TRANSLATION = (
    Option("num_alternatives", "answer", int, "number of further translations"),
    Option("split_sentences", "inputs", bool, "translate sentence by sentence (default: yes)"),
    Option("protect", "inputs", _protected, "false, true (default), or terms to keep, separated by commas", "TERMS"),
    Option("context", "inputs", str, "text around the inputs, for language models whose prompt has a place for it"),
    Option(
        "formality",
        "languages",
        str,
        "how formal the translation is, for models that know it",
        choices=("more", "less", "prefer_more", "prefer_less"),
    ),
    Option("quality", "answer", bool, "score and flags of each sentence; see --json"),
    Option("glossary", "languages", _term, "translation of a term; repeatable", "TERM=TRANSLATION", repeated=True),
    Option("format", "inputs", str, "html and xml: the tags stay in place", choices=("text", "html", "xml")),
)

_TRUNCATION = (
    Option("truncate", "inputs", bool, "shorten texts that do not fit the model (default: yes)"),
    Option("truncation_direction", "inputs", str, "side that is cut", choices=("left", "right")),
)

EMBEDDING = (
    Option("normalize", "answer", bool, "scale vectors to length 1 (default: yes)"),
    Option("pooling", "answer", str, "how token vectors become one", choices=("mean", "cls", "last", "max")),
    Option("dimensions", "answer", int, "keep the first N numbers of each vector"),
    Option("prompt_name", "inputs", str, "prompt of the checkpoint to put before each text", "NAME"),
    Option(
        "late_interaction", "inputs", str, "a vector per token, of texts of this kind", choices=("query", "document")
    ),
    *_TRUNCATION,
)

RERANKING = (
    Option("instruction", "inputs", str, "what makes a text fit, for models that read an instruction"),
    Option("raw_scores", "answer", bool, "logits instead of numbers from 0 to 1"),
    *_TRUNCATION,
)

TRANSCRIPTION = (
    Option("language", "languages", str, "language of the speech (default: detected)", "CODE"),
    Option("prompt", "inputs", str, "text before the recording, such as names and their spelling"),
    Option("temperature", "sampling", float, "0, the default: the likeliest text"),
    Option("seed", "sampling", int, "makes the random choices repeatable"),
    Option("num_beams", "beam search", int, "number of beams"),
)
"""The most useful form fields of `/v1/audio/transcriptions` and `/v1/audio/translations`."""

CLASSIFICATION = (
    Option("top_k", "answer", int, "number of labels per text (default: 1, with --json all)"),
    Option("function_to_apply", "answer", str, "turns logits into scores", choices=("softmax", "sigmoid", "none")),
    Option("raw_scores", "answer", bool, "logits instead of scores"),
    *_TRUNCATION,
)


def add_flags(parser: argparse.ArgumentParser, options: Sequence[Option]) -> None:
    """Add options to a parser as flags, under one heading for each group of options."""
    groups: dict[str, argparse._ActionsContainer] = {}
    for option in options:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        option.add(groups[option.group])


def add_format_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that set `response_format`: `--schema`, `--regex` and `--choice`."""
    group = parser.add_argument_group("format of the answer").add_mutually_exclusive_group()
    group.add_argument("--schema", type=Path, metavar="FILE", help="JSON that matches the JSON schema in a file")
    group.add_argument("--regex", metavar="PATTERN", help="text that matches a regular expression")
    group.add_argument("--choice", action="append", metavar="TEXT", help="one of these texts; repeat the flag")


def fields(arguments: argparse.Namespace, options: Sequence[Option]) -> dict[str, Any]:
    """Return the request fields for the flags that were given, by the names of the fields."""
    sent: dict[str, Any] = {}
    for option in options:
        value = getattr(arguments, option.name)
        if value is None:
            continue
        if option.repeated and isinstance(value[0], list):
            value = [item for part in value for item in part]
        elif option.repeated and isinstance(value[0], dict):
            value = {name: entry for part in value for name, entry in part.items()}
        sent[option.name] = value
    return sent


def response_format(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the field `response_format` in a dict; an empty dict if no flag sets it.

    Raises CommandError for a schema file that cannot be read or is not JSON.
    """
    if arguments.schema is not None:
        try:
            schema = json.loads(arguments.schema.read_text(encoding="utf-8"))
        except OSError as error:
            raise CommandError(f"--schema: cannot read {arguments.schema}: {error.strerror}") from None
        except ValueError:
            raise CommandError(f"--schema: {arguments.schema} is not JSON") from None
        return {"response_format": {"type": "json_schema", "schema": schema}}
    if arguments.regex is not None:
        return {"response_format": {"type": "regex", "pattern": arguments.regex}}
    if arguments.choice is not None:
        return {"response_format": {"type": "choice", "choices": arguments.choice}}
    return {}
