"""Write checkpoint directories with a tokenizer and a configuration, but without weights.

Tests with a fake worker need no weights, because only real workers read them.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors


def byte_alphabet() -> list[str]:
    """The printable character that GPT-2 uses for each byte, in the order of the bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_ins = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(stand_ins)) for byte in range(256)]


def write_checkpoint(directory: Path, *, ends: bool = False, mask: bool = False) -> Path:
    """Write a byte-level tokenizer (ids 3..258 are the bytes) and an empty config.

    ends: put `</s>` after every text. mask: add the token `<mask>`, id 259.
    """
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = {"<s>": 0, "</s>": 1, "<pad>": 2}
    vocabulary |= {character: index + 3 for index, character in enumerate(byte_alphabet())}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", "<pad>"])
    if mask:
        tokenizer.add_special_tokens(["<mask>"])
    if ends:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B:1 </s>:1", special_tokens=[("</s>", 1)]
        )
    tokenizer.save(str(directory / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    special |= {"mask_token": "<mask>"} if mask else {}
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | special)
    )
    (directory / "config.json").write_text("{}")
    return directory


def write_translator(directory: Path, source: str, target: str) -> Path:
    """Write a translation checkpoint for one language pair."""
    write_checkpoint(directory, ends=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "marian"}))
    config = json.loads((directory / "tokenizer_config.json").read_text())
    config |= {"source_lang": source, "target_lang": target}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def write_all(root: Path) -> list[str]:
    """Write one checkpoint for each kind of model of the fake worker. Returns the arguments of `serve` for them."""
    for name in ("decoder", "embedder"):
        write_checkpoint(root / name)
    (root / "embedder" / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": "query: ", "passage": "passage: "}})
    )
    for name in ("classifier", "judge", "reranker", "tagger", "answerer"):
        write_checkpoint(root / name, ends=True)
    write_checkpoint(root / "masker", ends=True, mask=True)
    write_translator(root / "translator", "en", "de")
    write_translator(root / "translator-fr", "en", "fr")
    names = (
        "decoder",
        "embedder",
        "classifier",
        "judge",
        "reranker",
        "masker",
        "tagger",
        "answerer",
        "translator",
        "translator-fr",
    )
    return [f"{name}={root / name}" for name in names]
