"""The tokenizer of CLIP: byte-level pieces of lower-case words. The last piece of a word ends in `</w>`.

The embedding of a text is the hidden state of its first end token, which does not attend to later tokens. The tokens
after it are therefore dropped. Source: Radford et al. 2021, arXiv:2103.00020; `CLIPTokenizer` of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as LibraryTokenizer

from server.text.tokenizers.fast import FastTokenizer
from server.text.tokenizers.templates import require_tokens
from server.text.tokenizers.tokenizer_files import TokenizerFiles
from server.text.tokenizers.vocabulary_files import byte_pairs, read_byte_pairs
from server.text.tokens.streams import StripWhitespace, VocabularyStream, decoder_chain
from server.text.tokens.tokenizer import Encoding

_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_WORD_END = "</w>"


def build_clip(directory: Path, merges_path: Path, files: TokenizerFiles) -> LibraryTokenizer:
    """Build the tokenizer from `vocab.json` and `merges.txt`.

    Raises TokenizerError for a missing `vocab.json`, for too many entries, and for missing special tokens.
    """
    vocabulary, merges = read_byte_pairs(directory, merges_path)
    start, end = (files.roles[role].content for role in ("bos", "eos"))
    require_tokens(vocabulary, (start, end), "vocab.json")
    unknown = files.roles["unk"].content
    backend = LibraryTokenizer(
        byte_pairs(
            vocabulary,
            merges,
            "merges.txt",
            continuing_subword_prefix="",
            end_of_word_suffix=_WORD_END,
            unk_token=unknown,
        )
    )
    spaces = normalizers.Replace(Regex(r"\s+"), " ")
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), spaces, normalizers.Lowercase()])
    words = pre_tokenizers.Split(Regex(_WORDS), behavior="removed", invert=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.RobertaProcessing(
        (end, vocabulary[end]), (start, vocabulary[start]), trim_offsets=False, add_prefix_space=False
    )
    return backend


class ClipTokenizer(FastTokenizer):
    """A tokenizer of the `tokenizers` library that drops the tokens after the first end token of a text."""

    def __init__(self, backend: LibraryTokenizer, files: TokenizerFiles, checked_size: int | None = None) -> None:
        backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse(), decoders.Replace(_WORD_END, " ")])
        super().__init__(backend, files, checked_size)

    def encode(
        self,
        texts: Sequence[str],
        *,
        pairs: Sequence[str] | None = None,
        add_special_tokens: bool = True,
        offsets: bool = True,
    ) -> list[Encoding]:
        encodings = super().encode(texts, pairs=pairs, add_special_tokens=add_special_tokens, offsets=offsets)
        return encodings if pairs is not None else [self._cut(encoding) for encoding in encodings]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return super().decode(ids, skip_special_tokens).strip()

    def stream(self, skip_special_tokens: bool = True) -> VocabularyStream:
        skipped = self.special_ids if skip_special_tokens else frozenset[int]()
        return VocabularyStream(self.id_to_token, decoder_chain(self._decoder, [StripWhitespace()]), skipped)

    def _cut(self, encoding: Encoding) -> Encoding:
        if self.special.eos not in encoding.ids[:-1]:
            return encoding
        size = encoding.ids.index(self.special.eos) + 1
        return Encoding(
            encoding.ids[:size],
            encoding.type_ids[:size],
            encoding.special[:size],
            [encoding.offsets[index] for index in range(size)] if encoding.offsets else [],
            encoding.words[:size],
            encoding.sides[:size],
        )
