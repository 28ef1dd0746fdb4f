"""A `tokenizers` backend for a checkpoint: from `tokenizer.json`, or from the vocabulary files that came before it.

- `vocab.txt`: WordPiece (Devlin et al. 2019, arXiv:1810.04805; Wu et al. 2016, arXiv:1609.08144).
- `vocab.json` and `merges.txt`: byte-level BPE (Radford et al. 2019), with RoBERTa's or no template.
- `tokenizer.model`, `spiece.model`, `sentencepiece.bpe.model`: see `sentencepieces`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from server.text import sentencepieces
from server.text.sentencepieces import asked_ends
from server.text.tokenizer import TokenizerError
from server.text.tokenizer_files import TokenizerFiles
from weights.resolve import file_in


def build_backend(directory: Path, files: TokenizerFiles) -> Backend:
    """The backend for a directory. Raises TokenizerError where there is none, or where its files are damaged."""
    builders: dict[str, Callable[[Path], Backend]] = {
        "tokenizer.json": lambda path: Backend.from_file(str(path)),
        "vocab.txt": lambda path: _word_piece(path, files),
        "merges.txt": lambda path: _byte_level(directory, path, files),
        "tokenizer.model": lambda path: sentencepieces.llama(path, files),
        "spiece.model": lambda path: sentencepieces.t5(path, files),
        "sentencepiece.bpe.model": lambda path: sentencepieces.fairseq(path, files),
    }
    for name, build in builders.items():
        path = file_in(directory, name)
        if path is None:
            continue
        try:
            return build(path)
        except TokenizerError:
            raise
        except Exception as error:  # the library raises bare exceptions for damaged files
            raise TokenizerError(
                f"{name} is damaged or of a newer format: {' '.join(str(error).split())[:120]}"
            ) from None
    raise TokenizerError(
        f"the checkpoint has no tokenizer that can be used (none of {', '.join(builders)}, source.spm)"
    )


def _word_piece(path: Path, files: TokenizerFiles) -> Backend:
    config, roles = files.config, {role: token.content for role, token in files.roles.items()}
    missing = [role for role in ("unk", "cls", "sep") if role not in roles]
    if missing:
        raise TokenizerError(f"vocab.txt needs tokens for {', '.join(missing)} in tokenizer_config.json")
    vocabulary = models.WordPiece.read_file(str(path))
    backend = Backend(models.WordPiece(vocabulary, unk_token=roles["unk"]))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
        strip_accents=config.get("strip_accents"),
        lowercase=bool(config.get("do_lower_case", True)),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    cls, sep = roles["cls"], roles["sep"]
    if cls not in vocabulary or sep not in vocabulary:
        raise TokenizerError(f"vocab.txt does not hold {cls!r} and {sep!r}")
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])],
    )
    return backend


def _byte_level(directory: Path, merges_path: Path, files: TokenizerFiles) -> Backend:
    vocab_path = file_in(directory, "vocab.json")
    if vocab_path is None:
        raise TokenizerError("merges.txt is there, but vocab.json is missing")
    vocabulary, merges = models.BPE.read_file(str(vocab_path), str(merges_path))
    backend = Backend(models.BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix=""))
    prefix_space = bool(files.config.get("add_prefix_space", False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    backend.decoder = decoders.ByteLevel()
    if files.kind == "roberta":
        ends = [files.roles[role].content for role in ("sep", "cls")]
        if not all(end in vocabulary for end in ends):
            raise TokenizerError(f"vocab.json does not hold {ends[0]!r} and {ends[1]!r}")
        sep, cls = ((end, vocabulary[end]) for end in ends)
        trim = bool(files.config.get("trim_offsets", True))
        backend.post_processor = processors.RobertaProcessing(sep, cls, trim, prefix_space)
    else:
        backend.post_processor = asked_ends(backend, files)
    return backend
