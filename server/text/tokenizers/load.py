"""Load the tokenizer of a checkpoint directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer as LibraryTokenizer

from server.text.tokenizers import short_holds
from server.text.tokenizers.biogpt import BioGptTokenizer
from server.text.tokenizers.blenderbot_small import BlenderbotSmallTokenizer
from server.text.tokenizers.bounds import read_bounded
from server.text.tokenizers.byt5 import ByT5Tokenizer
from server.text.tokenizers.clip import ClipTokenizer, build_clip
from server.text.tokenizers.components import check_built, check_tokenizer_json
from server.text.tokenizers.fast import FastTokenizer
from server.text.tokenizers.fsmt import FsmtTokenizer
from server.text.tokenizers.gguf import build_tokenizer
from server.text.tokenizers.m2m_100 import M2M100Tokenizer
from server.text.tokenizers.marian import MarianTokenizer
from server.text.tokenizers.plbart import PLBartTokenizer
from server.text.tokenizers.sentencepiece_files import build_sentencepiece
from server.text.tokenizers.static import static_tokenizer
from server.text.tokenizers.tokenizer_files import TokenizerFiles, read_tokenizer_files
from server.text.tokenizers.vocabulary_files import build_byte_level, build_characters, build_word_piece
from server.text.tokens.library_calls import panic_of
from server.text.tokens.tokenizer import Tokenizer, TokenizerError
from weights.errors import ResolveError
from weights.gguf.choose import is_gguf
from weights.gguf.container import read_gguf
from weights.resolve import file_in
from weights.sentence_modules import static_vectors


def load_tokenizer(directory: Path) -> Tokenizer:
    """Load a tokenizer from `tokenizer.json`, from the older files of its family, or from a GGUF file.

    Raises TokenizerError if there are no tokenizer files, a file is damaged or exceeds a limit, or the tokenizer's kind
    is not supported.
    """
    try:
        files = read_tokenizer_files(directory)
        if is_gguf(directory):
            return FastTokenizer(build_tokenizer(read_gguf(directory), files), files)
        if file_in(directory, "source.spm") is not None:
            return MarianTokenizer(directory, files)
        if files.kind == "biogpt":
            # transformers never reads a `tokenizer.json` for this class.
            return BioGptTokenizer(directory, files)
        if file_in(directory, "tokenizer.json") is None:
            match files.kind:
                case "m2m100":
                    return M2M100Tokenizer(directory, files)
                case "byt5":
                    return ByT5Tokenizer(files)
                case "blenderbot-small":
                    return BlenderbotSmallTokenizer(directory, files)
                case "fsmt":
                    return FsmtTokenizer(directory, files)
                case "plbart":
                    return PLBartTokenizer(directory, files)
        if kind := static_vectors(directory):
            return static_tokenizer(_build(directory, files)[0], files, drops_unknown=kind == "model2vec")
        backend, size = _build(directory, files)
        if files.kind == "clip":
            return ClipTokenizer(backend, files, size)
        return FastTokenizer(backend, files, size)
    except ResolveError as error:
        raise TokenizerError(str(error)) from None
    except TokenizerError:
        raise
    except BaseException as error:  # of damaged files, for which the libraries raise plain exceptions, and panic
        if not isinstance(error, Exception) and panic_of(error) is None:
            raise
        raise TokenizerError(
            f"the tokenizer's files are damaged or contradict each other: {type(error).__name__}"
        ) from None


Built = tuple[LibraryTokenizer, int | None]
"""A tokenizer, and the size of its vocabulary if the length of the vocabulary's entries is checked; else None."""


def _from_json(path: Path) -> Built:
    content = read_bounded(path)
    size = check_tokenizer_json(content)
    backend = short_holds.from_json(content)
    check_built(backend)
    return backend, size


def _build(directory: Path, files: TokenizerFiles) -> Built:
    """Build a tokenizer of the `tokenizers` library from the first known tokenizer file in a directory.

    Raises TokenizerError for a damaged file, and if there is no such file.
    """
    from_merges = build_clip if files.kind == "clip" else build_byte_level
    builders: dict[str, Callable[[Path, str], Built]] = {
        "tokenizer.json": lambda path, _: _from_json(path),
        "vocab.txt": lambda path, _: (build_word_piece(path, files), None),
        "merges.txt": lambda path, _: (from_merges(directory, path, files), None),
    }
    for name in ("tokenizer.model", "spiece.model", "spm.model", "sentencepiece.bpe.model"):
        builders[name] = lambda path, name: (build_sentencepiece(read_bounded(path), name, files), None)
    builders["vocab.json"] = lambda path, _: (build_characters(path, files), None)
    for name, build in builders.items():
        path = file_in(directory, name)
        if path is None:
            continue
        try:
            return build(path, name)
        except TokenizerError:
            raise
        except Exception as error:  # the library raises plain exceptions for damaged files
            reason = " ".join(str(error).split())[:120]
            raise TokenizerError(f"{name} is damaged or of a newer format: {reason}") from None
    raise TokenizerError(f"the checkpoint has no tokenizer: none of {', '.join(builders)}, source.spm was found")
