"""Build a tokenizer of the `tokenizers` library from vocabulary files older than `tokenizer.json`.

- `vocab.txt`: WordPiece (Devlin et al. 2019, arXiv:1810.04805; Wu et al. 2016, arXiv:1609.08144).
- `vocab.json` and `merges.txt`: byte-level BPE (Radford et al. 2019).
- `vocab.json` alone: the characters of a speech model with a CTC head (Baevski et al. 2020, arXiv:2006.11477).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as LibraryTokenizer

from server.text.tokenizers import short_holds
from server.text.tokenizers.bounds import MAX_ENTRIES, MAX_MERGES, check, check_lines, read_bounded
from server.text.tokenizers.templates import require_tokens, set_bert_template, set_configured_template, set_template
from server.text.tokenizers.tokenizer_files import TokenizerFiles
from server.text.tokens.tokenizer import TokenizerError
from weights.resolve import file_in

_WORD_PIECE_KINDS = ("bert", "mpnet")
_BYTE_LEVEL_KINDS = ("gpt2", "roberta", "deberta", "blenderbot")


def build_word_piece(path: Path, files: TokenizerFiles) -> LibraryTokenizer:
    """Build a WordPiece tokenizer from `vocab.txt`. It adds special tokens like MPNet for its kind, else like BERT.

    Raises TokenizerError for another kind of tokenizer, too many lines, or missing special tokens.
    """
    refuse_other_kinds("vocab.txt", _WORD_PIECE_KINDS, files)
    check_lines(read_bounded(path), "vocab.txt")
    vocabulary, config = models.WordPiece.read_file(str(path)), files.config
    lower_case, strip_accents = bool(config.get("do_lower_case", True)), config.get("strip_accents")
    backend = word_piece(vocabulary, files, "vocab.txt", lower_case=lower_case, strip_accents=strip_accents)
    cls, sep = (files.roles[role].content for role in ("cls", "sep"))
    if files.kind == "mpnet":
        backend.post_processor = processors.RobertaProcessing(
            (sep, vocabulary[sep]), (cls, vocabulary[cls]), trim_offsets=True, add_prefix_space=False
        )
    else:
        set_bert_template(backend, files)
    return backend


def word_piece(
    vocabulary: dict[str, int], files: TokenizerFiles, file: str, *, lower_case: bool, strip_accents: bool | None
) -> LibraryTokenizer:
    """Build a WordPiece tokenizer that adds no special tokens around texts.

    vocabulary: id of each token.
    file: name of the file with the vocabulary, for error messages.
    lower_case: whether texts are lower-cased.
    strip_accents: whether accents are removed; None for the same as `lower_case`.
    Raises TokenizerError if the vocabulary lacks special tokens, or the files name none.
    """
    missing = [role for role in ("unk", "cls", "sep") if role not in files.roles]
    if missing:
        raise TokenizerError(f"{file} needs tokens for {', '.join(missing)} in tokenizer_config.json")
    unk, cls, sep = (files.roles[role].content for role in ("unk", "cls", "sep"))
    require_tokens(vocabulary, (cls, sep), file)
    backend = LibraryTokenizer(short_holds.word_piece(vocabulary, unk_token=unk))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(files.config.get("tokenize_chinese_chars", True)),
        strip_accents=strip_accents,
        lowercase=lower_case,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return backend


def build_byte_level(directory: Path, merges_path: Path, files: TokenizerFiles) -> LibraryTokenizer:
    """Build a byte-level BPE tokenizer from `vocab.json` and `merges.txt`.

    It adds special tokens around texts as RoBERTa, DeBERTa or Blenderbot does, by its kind. For GPT-2, it adds the
    tokens for which `tokenizer_config.json` asks.
    Raises TokenizerError for another kind, missing or too large files, wrong merges, and missing special tokens.
    """
    refuse_other_kinds("merges.txt", _BYTE_LEVEL_KINDS, files)
    vocabulary, merges = read_byte_pairs(directory, merges_path)
    model = byte_pairs(vocabulary, merges, "merges.txt", continuing_subword_prefix="", end_of_word_suffix="")
    backend = LibraryTokenizer(model)
    prefix_space = bool(files.config.get("add_prefix_space", files.kind == "blenderbot"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    backend.decoder = decoders.ByteLevel()
    match files.kind:
        case "roberta" | "deberta":
            sep, cls = (files.roles[role].content for role in ("sep", "cls"))
            require_tokens(vocabulary, (sep, cls), "vocab.json")
            if files.kind == "deberta":
                set_bert_template(backend, files)
            else:
                trim = bool(files.config.get("trim_offsets", True))
                backend.post_processor = processors.RobertaProcessing(
                    (sep, vocabulary[sep]), (cls, vocabulary[cls]), trim, prefix_space
                )
        case "blenderbot":
            end, mask = files.roles["eos"].content, files.roles["mask"].content
            require_tokens(vocabulary, (end,), "vocab.json")
            if mask in vocabulary:
                backend.add_special_tokens([AddedToken(mask, lstrip=True)])
            set_template(backend, ["$A", end], ["$A", "$B", end], (end,))
        case _:
            set_configured_template(backend, files)
    return backend


def build_characters(path: Path, files: TokenizerFiles) -> LibraryTokenizer:
    """Build a character tokenizer from `vocab.json`, for a speech model with a CTC head.

    The token `word_delimiter_token` stands for a space. With `do_lower_case`, the vocabulary has upper-case letters,
    and texts are lower case.
    Raises TokenizerError for another kind of tokenizer, a damaged file, and settings that are not supported.
    """
    refuse_other_kinds("vocab.json", ("ctc",), files)
    try:
        vocabulary = json.loads(read_bounded(path))
    except ValueError as error:
        raise TokenizerError(f"vocab.json is damaged: {type(error).__name__}") from None
    if isinstance(vocabulary, dict) and any(isinstance(entry, dict) for entry in vocabulary.values()):
        raise TokenizerError("vocab.json has a vocabulary for each language (MMS), which is not supported")
    if not isinstance(vocabulary, dict) or not all(type(index) is int and index >= 0 for index in vocabulary.values()):
        raise TokenizerError("vocab.json is damaged: not a table of tokens and their ids")
    check(len(vocabulary), MAX_ENTRIES, "entries", "vocab.json")
    space = files.config.get("word_delimiter_token", "|")
    if files.config.get("replace_word_delimiter_char", " ") != " ":
        raise TokenizerError("tokenizer_config.json: 'replace_word_delimiter_char' must be a space")
    steps: list[normalizers.Normalizer] = []
    if files.config.get("do_lower_case") is True:
        special = {token.content for token in files.roles.values()}
        vocabulary = {entry if entry in special else entry.lower(): index for entry, index in vocabulary.items()}
        steps.append(normalizers.Lowercase())
    if isinstance(space, str) and space:
        steps.append(normalizers.Replace(" ", space))
    unknown = files.roles["unk"].content if "unk" in files.roles else None
    backend = LibraryTokenizer(models.WordLevel(vocabulary, unknown))
    backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    parts: list[decoders.Decoder] = [decoders.Replace(space, " ")] if isinstance(space, str) and space else []
    backend.decoder = decoders.Sequence([*parts, decoders.Fuse()])
    return backend


def read_byte_pairs(directory: Path, merges_path: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Read `vocab.json` and `merges.txt`: the id of each piece, and the merges in their order.

    Raises TokenizerError for a missing `vocab.json`, and for too many entries or merges.
    """
    vocab_path = file_in(directory, "vocab.json")
    if vocab_path is None:
        raise TokenizerError("merges.txt is there, but vocab.json is missing")
    check_lines(read_bounded(merges_path), "merges.txt", MAX_MERGES)
    check(read_bounded(vocab_path).count(b'":'), MAX_ENTRIES, "entries", "vocab.json")
    vocabulary, merges = models.BPE.read_file(str(vocab_path), str(merges_path))
    return vocabulary, merges


def byte_pairs(vocabulary: dict[str, int], merges: Sequence[tuple[str, ...]], file: str, **settings: Any) -> models.BPE:
    """Build a BPE model of the `tokenizers` library.

    vocabulary: id of each token. merges: pairs of tokens in the order of their ranks.
    file: name of the file with the merges, for error messages. settings: further arguments of the library's model.
    Raises TokenizerError for a merge that is not a pair of tokens, or whose result is not a token.
    """
    # The library has an error without the place, or panics and prints a backtrace.
    for place, pair in enumerate(merges, 1):
        if len(pair) != 2 or not (pair[0] in vocabulary and pair[1] in vocabulary and pair[0] + pair[1] in vocabulary):
            raise TokenizerError(
                f"{file}: merge {place:,} of {len(merges):,} does not join two tokens of the vocabulary to a third"
            )
    return short_holds.bpe(vocabulary, cast(Sequence[tuple[str, str]], merges), **settings)


def refuse_other_kinds(file: str, kinds: Sequence[str], files: TokenizerFiles) -> None:
    """Raise TokenizerError unless the tokenizer's kind is in `kinds`; other kinds split texts by other rules.

    file: name of the vocabulary file, for the message.
    """
    if files.kind not in kinds:
        raise TokenizerError(
            f"{file} without tokenizer.json is supported for {', '.join(kinds)}, but not for "
            f"{files.class_name or 'a checkpoint that names no tokenizer_class'}"
        )
