"""Hostile files that the HTTP process reads besides the tokenizer: settings of speech, chat templates, languages."""

from __future__ import annotations

import itertools
import os
import string
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.hostile import gguf_cases
from tests.hostile.base import CONFIG, change_json, tokenizer, write_json
from tests.hostile.pieces import pieces
from tests.hostile.weight_cases import Case

_SPEECH = {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "is_encoder_decoder": True}
_TOKENS = {"decoder_start_token_id": 256, "no_timestamps_token_id": 259, "is_multilingual": False}
_TRANSLATOR = {"model_type": "m2m_100", "architectures": ["M2M100ForConditionalGeneration"], "is_encoder_decoder": True}
_MADLAD = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}


def _speech(generation: dict[str, Any] | None = None, **settings: Any) -> Case:
    def apply(directory: Path) -> None:
        write_json(directory, "config.json", {**CONFIG, **_SPEECH, **settings})
        write_json(directory, "generation_config.json", {**_TOKENS, **(generation or {})})

    return apply


def _many_templates(directory: Path) -> None:
    """A folder of chat templates with 5,000 links to a template of one megabyte."""
    folder = directory / "chat_templates"
    folder.mkdir()
    (folder / "a.jinja").write_bytes(b"x" * (1 << 20))
    for number in range(5000):
        os.symlink("a.jinja", folder / f"t{number}.jinja")


def _listed_templates(directory: Path) -> None:
    templates = [{"name": f"t{number}", "template": "x"} for number in range(50_000)]
    write_json(directory, "tokenizer_config.json", {"chat_template": templates})


def _added(directory: Path, texts: Iterable[str]) -> None:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    tokens = [{"id": 260 + index, "content": text, **flags} for index, text in enumerate(texts)]
    change_json(directory, "tokenizer.json", lambda content: content["added_tokens"].extend(tokens))


def _languages(count: int) -> list[str]:
    """`count` different codes that look like a language and a region, such as `aa_AB`."""
    letters = itertools.product(*[string.ascii_lowercase] * 2, *[string.ascii_uppercase] * 2)
    return [f"{a}{b}_{c}{d}" for a, b, c, d in itertools.islice(letters, count)]


def _all_to_all(directory: Path) -> None:
    write_json(directory, "config.json", {**CONFIG, **_TRANSLATOR})
    write_json(directory, "tokenizer_config.json", {"tokenizer_class": "NllbTokenizer", "eos_token": "</s>"})
    _added(directory, _languages(20_000))


def _to_any(directory: Path) -> None:
    write_json(directory, "config.json", {**CONFIG, **_MADLAD})
    _added(directory, (f"<2{code}>" for code in _languages(20_000)))


def _texts_of_gguf(directory: Path) -> Path:
    """A sparse GGUF file with ten texts of 200 MB in its metadata, which take no space on the disk."""
    content = bytearray(b"GGUF" + struct.pack("<IQQ", 3, 0, len(gguf_cases.LLAMA) + 10))
    for key, (kind, value) in gguf_cases.LLAMA.items():
        content += gguf_cases.text(key) + struct.pack("<I", kind) + gguf_cases.value(kind, value)
    path = directory / "m.gguf"
    with path.open("wb") as file:
        file.write(content)
        for number in range(10):
            file.write(gguf_cases.text(f"general.x{number}") + struct.pack("<IQ", gguf_cases.STRING, 200 << 20))
            file.seek(200 << 20, os.SEEK_CUR)
        file.truncate(file.tell() + (1 << 16))
    return path


def _marian(vocabulary: dict[str, Any], **files: Any) -> Case:
    """Return a case with a tokenizer of Marian. vocabulary: content of `vocab.json`. files: further JSON files."""

    def apply(directory: Path) -> None:
        (directory / "tokenizer.json").unlink()
        write_json(directory, "tokenizer_config.json", {"tokenizer_class": "MarianTokenizer"})
        write_json(directory, "vocab.json", vocabulary)
        for name, content in files.items():
            write_json(directory, f"{name}.json", content)
        for name in ("source.spm", "target.spm"):
            (directory / name).write_bytes(pieces(["<unk>", "a"]))

    return apply


def _prefix(content: dict[str, Any]) -> None:
    """A merge from whose second part the library cuts more bytes than it has, and panics."""
    content["model"].update(continuing_subword_prefix="###", merges=[["a", "b"]])


_IDS = {"<unk>": 0, "</s>": 1, "<pad>": 2, "a": 3}

TEXTS: dict[str, Case] = {
    "Marian, id 4e9": _marian({**_IDS, "b": 4 * 10**9}),
    "Marian, id 1e30": _marian({**_IDS, "b": 10**30}),
    "Marian, id -1": _marian({**_IDS, "b": -1}),
    "Marian, ids that are not integers": _marian({**_IDS, "a": 1.5}),
    "Marian, ids NaN": _marian({**_IDS, "a": float("nan")}),
    "Marian, id of an added token 1e12": _marian(_IDS, added_tokens={"<x>": 10**12}),
    "id of an added token -5": lambda directory: write_json(
        directory, "tokenizer_config.json", {"added_tokens_decoder": {"-5": {"content": "x"}}}
    ),
    "merge that is shorter than the prefix": tokenizer(_prefix),
    "speech, decoder_layers 1e9": _speech(decoder_layers=10**9),
    "speech, decoder_layers 10,000 of 10,000 heads": _speech(decoder_layers=10_000, decoder_attention_heads=10_000),
    "speech, decoder_attention_heads is a text": _speech(decoder_attention_heads="x"),
    "speech, median_filter_width 1e9": _speech(median_filter_width=10**9 + 1),
    "speech, threshold of 400 digits": _speech({"logprob_threshold": 10**400}),
    "speech, threshold NaN": _speech({"no_speech_threshold": float("nan")}),
    "speech, alignment head at infinity": _speech({"alignment_heads": [[float("inf"), 0]]}),
    "added tokens of 3 MB": lambda directory: _added(directory, (f"{n:05}" * 6 for n in range(100_000))),
    "character map of three bytes": tokenizer(
        lambda content: content.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})
    ),
    "5,000 chat templates in a folder": _many_templates,
    "50,000 chat templates in a list": _listed_templates,
    "translations between 20,000 languages": _all_to_all,
    "translations to 20,000 languages": _to_any,
    "GGUF, texts of 2 GB": _texts_of_gguf,
}
