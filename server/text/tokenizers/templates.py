"""Templates that add special tokens around a text or a pair of texts, for tokenizers of the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import processors

from server.text.tokenizers.tokenizer_files import TokenizerFiles
from server.text.tokens.tokenizer import TokenizerError


def set_template(backend: LibraryTokenizer, single: list[str], pair: list[str], special: Iterable[str]) -> None:
    """Set the special tokens that a tokenizer adds around texts.

    single: template for one text: special tokens, and `$A` for the text. `:1` after a part sets its token type to 1.
    pair: template for a pair of texts, `$A` and `$B`.
    special: the special tokens in both templates; the vocabulary must contain them.
    """
    ids = [(token, backend.token_to_id(token)) for token in special]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def set_bert_template(backend: LibraryTokenizer, files: TokenizerFiles) -> None:
    """Set BERT's templates, `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`. `B [SEP]` has token type 1."""
    cls, sep = files.roles["cls"].content, files.roles["sep"].content
    pair = [f"{cls}:0", "$A:0", f"{sep}:0", "$B:1", f"{sep}:1"]
    set_template(backend, pair[:3], pair, (cls, sep))


def set_configured_template(backend: LibraryTokenizer, files: TokenizerFiles) -> None:
    """Set templates with the begin and end tokens for which `tokenizer_config.json` asks.

    `add_bos_token` and `add_eos_token` decide. The second text of a pair has its own begin and end tokens, and token
    type 1.
    """
    bos, eos = (
        files.roles[role].content if files.config.get(f"add_{role}_token") and role in files.roles else None
        for role in ("bos", "eos")
    )

    def around(text: str, type_id: int) -> list[str]:
        return [f"{token}:{type_id}" for token in (bos, text, eos) if token]

    special = dict.fromkeys(token for token in (bos, eos) if token)
    set_template(backend, around("$A", 0), [*around("$A", 0), *around("$B", 1)], special)


def require_tokens(vocabulary: Iterable[str], tokens: Iterable[str], file: str) -> None:
    """Raise TokenizerError unless the vocabulary contains all tokens. file: name of the file, for the message."""
    known = set(vocabulary)
    missing = [token for token in tokens if token not in known]
    if missing:
        raise TokenizerError(f"{file} does not contain {', '.join(map(repr, missing))}")
