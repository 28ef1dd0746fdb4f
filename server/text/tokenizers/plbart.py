"""The tokenizer of PLBART: `sentencepiece.bpe.model` splits texts, and language tokens have the ids after its pieces.

The first four ids are the special tokens of fairseq. A text is encoded as its pieces, `</s>`, and the token of its
language if `tokenizer_config.json` names one.
Source: Ahmad et al. 2021, arXiv:2103.06333.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tokenizers import AddedToken

from server.text.tokenizers.marian import PieceTokenizer, load_pieces
from server.text.tokenizers.tokenizer_files import TokenizerFiles
from server.text.tokens.streams import DecoderChain, MapTokens, StripWhitespace, VocabularyStream, clean_up_steps
from server.text.tokens.tokenizer import TokenizerError

_FIRST = ("<s>", "<pad>", "</s>", "<unk>")
_PIECES_BEFORE = 3
"""Number of pieces at the beginning of the SentencePiece model that are special tokens: unknown, begin and end."""
_BASE = ("__java__", "__python__", "__en_XX__")
_LANGUAGES = {"base": _BASE, "multi": (*_BASE, "__javascript__", "__php__", "__ruby__", "__go__")}
"""Language tokens by `language_codes` of `tokenizer_config.json`."""


class PLBartTokenizer(PieceTokenizer):
    """Tokenizer whose texts end with the language token of `src_lang` in `tokenizer_config.json`.

    Without this setting, `multi` tokenizers use English, and `base` tokenizers add no language token.
    Raises TokenizerError for an unknown language, and for a missing or damaged file.
    """

    def __init__(self, directory: Path, files: TokenizerFiles) -> None:
        codes = str(files.config.get("language_codes") or "base")
        if codes not in _LANGUAGES:
            raise TokenizerError(f"tokenizer_config.json: language_codes is {codes[:20]!r}, not base or multi")
        languages = _LANGUAGES[codes]
        source = files.config.get("src_lang") or ("en_XX" if codes == "multi" else None)
        self._language = None if source is None else f"__{str(source).strip('_')}__"
        if self._language is not None and self._language not in languages:
            raise TokenizerError(f"tokenizer_config.json: src_lang {str(source)[:20]!r} is not a language of {codes}")
        pieces = load_pieces(directory, "sentencepiece.bpe.model")
        texts = [pieces.IdToPiece(index) for index in range(_PIECES_BEFORE, pieces.GetPieceSize())]
        mask = ("<mask>",) if codes == "base" else ()
        vocabulary = {token: index for index, token in enumerate((*_FIRST, *texts, *languages, *mask))}
        special = tuple(AddedToken(token, special=True, normalized=False) for token in languages)
        roles = {role: token for role, token in files.roles.items() if token.content in vocabulary}
        files = replace(
            files,
            roles=roles,
            extra_special=(*files.extra_special, *special),
            clean_up=bool(files.config.get("clean_up_tokenization_spaces", True)),
        )
        super().__init__(pieces, pieces, vocabulary, vocabulary, files, gap="")

    def _around(self) -> tuple[list[str], list[str]]:
        before, after = super()._around()
        return before, after if self._language is None else [*after, self._language]

    def join(self, tokens: Sequence[str]) -> str:
        return "".join(tokens).replace("▁", " ").strip()

    def stream(self, skip_special_tokens: bool = True) -> VocabularyStream:
        spaces = MapTokens(lambda token: token.replace("▁", " "))
        chain = DecoderChain([spaces], [StripWhitespace(), *(clean_up_steps() if self._clean_up else ())])
        return VocabularyStream(self._tokens.get, chain, self.special_ids if skip_special_tokens else frozenset())
