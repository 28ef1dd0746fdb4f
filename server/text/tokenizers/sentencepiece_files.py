"""Build a tokenizer of the `tokenizers` library from a SentencePiece model without `tokenizer.json`.

Source: Kudo and Richardson 2018, arXiv:1808.06226. The file is a protocol buffer, described by
sentencepiece_model.proto of https://github.com/google/sentencepiece.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from server.text.tokenizers.fairseq import LANGUAGES
from server.text.tokenizers.protobuf import protobuf_fields
from server.text.tokenizers.templates import require_tokens, set_bert_template, set_configured_template, set_template
from server.text.tokenizers.tokenizer_files import TokenizerFiles
from server.text.tokenizers.vocabulary_files import refuse_other_kinds
from server.text.tokens.tokenizer import TokenizerError

_BPE, _CONTROL, _USER_DEFINED = 2, 3, 4
_SPACE = "▁"
_ONE_SPACE = normalizers.Replace(Regex(" {2,}"), " ")

Pieces = Sequence[tuple[str, float]]
"""Vocabulary in the order of the ids: text and log-probability of each piece."""


@dataclass(frozen=True)
class SentencePieceModel:
    """The content of a SentencePiece model file.

    file: name of the file.
    pieces: text and score of each piece.
    charsmap: character map of the normaliser; empty for none.
    is_bpe: True for a BPE model, False for a Unigram model.
    added: pieces that are not split in a text: control symbols (special) and user-defined symbols.
    """

    file: str
    pieces: Pieces
    charsmap: bytes
    is_bpe: bool
    added: Sequence[AddedToken]

    @classmethod
    def read(cls, content: bytes, file: str) -> SentencePieceModel:
        """Read a file. Raises TokenizerError for a file without pieces, ValueError or IndexError for a damaged one."""
        pieces: list[tuple[str, float]] = []
        added: list[AddedToken] = []
        charsmap, model_type = b"", 1
        for field, value in protobuf_fields(content):
            if isinstance(value, int):
                continue
            parts = dict(protobuf_fields(value))
            if field == 1:
                text, score = bytes(parts[1]).decode(), parts.get(2)
                pieces.append((text, struct.unpack("<f", score)[0] if isinstance(score, bytes) else 0.0))
                if parts.get(3) in (_CONTROL, _USER_DEFINED):
                    added.append(AddedToken(text, normalized=False, special=parts[3] == _CONTROL))
            elif field == 2:
                model_type = int(parts.get(3, 1))
            elif field == 3:
                charsmap = bytes(parts.get(2, b""))
        if not pieces:
            raise TokenizerError(f"{file} contains no pieces")
        return cls(file, pieces, charsmap, model_type == _BPE, added)

    @property
    def texts(self) -> list[str]:
        return [text for text, _ in self.pieces]

    def merges(self) -> list[tuple[str, str]]:
        """All pairs of pieces that form a piece, in the order in which a BPE model merges them: highest score first."""
        by_score = sorted(self.pieces, key=lambda piece: -piece[1])
        rank = {text: index for index, (text, _) in enumerate(by_score)}
        found = []
        for text, index in rank.items():
            pairs = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
            for left, right in pairs:
                if left in rank and right in rank:
                    found.append((index, len(left), left, right))
        return [(left, right) for _, _, left, right in sorted(found)]

    def normalizers(self) -> list[normalizers.Normalizer]:
        return [normalizers.Precompiled(self.charsmap)] if self.charsmap else []


def build_sentencepiece(content: bytes, file: str, files: TokenizerFiles) -> LibraryTokenizer:
    """The tokenizer of a SentencePiece model.

    content: the bytes of the model file.
    file: name of the model file; it decides, with the kind of the tokenizer, which pieces and templates are added.
    Raises TokenizerError for a combination that is not supported and for a model without the family's special tokens.
    """
    refuse_other_kinds(file, [kind for name, kind in _BUILDERS if name == file], files)
    return _BUILDERS[file, files.kind](SentencePieceModel.read(content, file), files)


def _llama(model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    """A BPE model with byte fallback (Touvron et al. 2023, arXiv:2302.13971, section 2.1)."""
    if not model.is_bpe:
        raise TokenizerError(f"{model.file} is not a BPE model")
    vocabulary = {text: index for index, text in enumerate(model.texts)}
    backend = LibraryTokenizer(models.BPE(vocabulary, model.merges(), fuse_unk=True, byte_fallback=True))
    prefix = files.config.get("add_prefix_space") is not False
    scheme = ("always" if files.config.get("legacy") else "first") if prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, prepend_scheme=scheme, split=False)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    _add_tokens(backend, model, files)
    set_configured_template(backend, files)
    return backend


def _t5(model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    """A Unigram model (Kudo 2018, arXiv:1804.10959). Vocabulary: the pieces, then the sentinels in descending order."""
    sentinels = [f"<extra_id_{index}>" for index in range(int(files.config.get("extra_ids", 100)))]
    backend = unigram([*model.pieces, *_scored(reversed(sentinels))], 2, model.normalizers(), split_first=True)
    backend.add_special_tokens(sentinels)
    end = files.roles["eos"].content
    set_template(backend, ["$A", end], ["$A", end, "$B", end], (end,))
    return backend


def _pegasus(model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    """A Unigram model (Zhang et al. 2020, arXiv:1912.08777).

    Vocabulary: pad and end token, the mask tokens and unused tokens of the training, then the pieces.
    """
    end, offset = files.roles["eos"].content, int(files.config.get("offset", 103))
    masks = [files.config.get("mask_token_sent", "<mask_1>"), files.roles["mask"].content] if offset else []
    unused = [f"<unk_{index}>" for index in range(2, offset)]
    first = [files.roles["pad"].content, end, *(token for token in masks if token)]
    pieces = [*_scored(first), *_scored(unused, -100.0), *model.pieces[2:]]
    unk = next(index for index, (token, _) in enumerate(pieces) if token == files.roles["unk"].content)
    cleaned = model.normalizers() or [normalizers.Replace("\n", " ")]
    backend = unigram(pieces, unk, [*cleaned, _ONE_SPACE])
    backend.add_special_tokens([*first, *unused])
    set_template(backend, ["$A", end], ["$A", "$B", end], (end,))
    return backend


def _xlm_roberta(model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    """A Unigram model (Conneau et al. 2019, arXiv:1911.02116). Vocabulary: four special tokens, pieces, mask."""
    pieces = [*_scored(("<s>", "<pad>", "</s>", "<unk>")), *model.pieces[3:]]
    return _roberta_unigram(pieces, model, files)


def _camembert(model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    """Like XLM-R, but the special tokens of the model keep ids of their own (Martin et al. 2019, arXiv:1911.03894)."""
    first = [*_scored(("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>")), ("<unk>NOTUSED", -100.0)]
    return _roberta_unigram([*first, *model.pieces[1:]], model, files)


def _roberta_unigram(pieces: Pieces, model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    backend = unigram([*pieces, ("<mask>", 0.0)], 3, model.normalizers(), split_first=True)
    _add_tokens(backend, model, files)
    begin, end = files.roles["bos"].content, files.roles["eos"].content
    set_template(backend, [begin, "$A", end], [begin, "$A", end, end, "$B", end], (begin, end))
    return backend


def _mbart(model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    """A Unigram model. Vocabulary: four special tokens, the pieces, a token per language, the mask.

    mBART splits a text at white space first; mBART-50 replaces runs of spaces by one space instead.
    """
    first = [files.roles[role].content for role in ("bos", "pad", "eos", "unk")]
    mask, codes = files.roles["mask"].content, LANGUAGES[files.kind]
    pieces = [*_scored(first), *model.pieces[3:], *_scored((*codes, mask))]
    if files.kind == "mbart":
        backend = unigram(pieces, 3, model.normalizers(), split_first=True)
    else:
        backend = unigram(pieces, 3, [*model.normalizers(), _ONE_SPACE])
    backend.add_special_tokens([*first, *codes, AddedToken(mask, lstrip=True)])
    return backend


def _deberta_v2(model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    """A Unigram model (He et al. 2021, arXiv:2111.09543). Vocabulary: pieces with special tokens, then the mask."""
    unk, mask = files.roles["unk"].content, files.roles["mask"].content
    require_tokens(model.texts, (files.roles[role].content for role in ("unk", "cls", "sep")), model.file)
    lower = [normalizers.Lowercase()] if files.config.get("do_lower_case") is True else []
    steps = [*lower, normalizers.Strip(), *model.normalizers(), _ONE_SPACE]
    backend = unigram(model.pieces, model.texts.index(unk), steps)
    if files.config.get("split_by_punct") is True:
        punctuation = pre_tokenizers.Punctuation("isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([punctuation, backend.pre_tokenizer])
    _add_tokens(backend, model, files)
    backend.add_special_tokens([mask])
    set_bert_template(backend, files)
    return backend


def _albert(model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    """Like BigBird (Lan et al. 2020, arXiv:1909.11942), with normalisation of quotes, accents and upper case.

    A comma after a digit is always a piece of its own, even if the model has a piece with both.
    """
    quotes = [normalizers.Replace(pair, '"') for pair in ("``", "''")]
    accents = [] if files.config.get("keep_accents") is True else [normalizers.NFKD(), normalizers.StripAccents()]
    lower = [] if files.config.get("do_lower_case") is False else [normalizers.Lowercase()]
    pieces = [(text, score - 100 * _is_digit_and_comma(text)) for text, score in model.pieces]
    return _bert_unigram(pieces, [*quotes, *accents, *lower], model, files)


def _is_digit_and_comma(piece: str) -> bool:
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def _big_bird(model: SentencePieceModel, files: TokenizerFiles) -> LibraryTokenizer:
    """A Unigram model whose pieces include all special tokens (Zaheer et al. 2020, arXiv:2007.14062)."""
    return _bert_unigram(model.pieces, [], model, files)


def _bert_unigram(
    pieces: Pieces, steps: list[normalizers.Normalizer], model: SentencePieceModel, files: TokenizerFiles
) -> LibraryTokenizer:
    if model.is_bpe:
        raise TokenizerError(f"{model.file} is not a Unigram model")
    unk = files.roles["unk"].content
    require_tokens(model.texts, (files.roles[role].content for role in ("unk", "cls", "sep")), model.file)
    spaces = [normalizers.Replace(Regex(r"\A +| +\z"), ""), _ONE_SPACE]
    backend = unigram(pieces, model.texts.index(unk), [*steps, *model.normalizers(), *spaces])
    _add_tokens(backend, model, files)
    set_bert_template(backend, files)
    return backend


_BUILDERS: Mapping[tuple[str, str], Callable[[SentencePieceModel, TokenizerFiles], LibraryTokenizer]] = {
    ("tokenizer.model", "llama"): _llama,
    ("spiece.model", "t5"): _t5,
    ("spiece.model", "pegasus"): _pegasus,
    ("spiece.model", "albert"): _albert,
    ("spiece.model", "big_bird"): _big_bird,
    ("spm.model", "deberta"): _deberta_v2,
    ("sentencepiece.bpe.model", "xlm-roberta"): _xlm_roberta,
    ("sentencepiece.bpe.model", "camembert"): _camembert,
    ("sentencepiece.bpe.model", "mbart"): _mbart,
    ("sentencepiece.bpe.model", "mbart50"): _mbart,
}


def unigram(
    pieces: Pieces, unk_id: int, steps: list[normalizers.Normalizer], split_first: bool = False
) -> LibraryTokenizer:
    """A Unigram model that writes spaces as `▁` and puts one before the text.

    steps: normalisers, in order.
    split_first: whether to split the text at white space of any kind first. Each run of it then counts as one space.
    """
    backend = LibraryTokenizer(models.Unigram(list(pieces), unk_id=unk_id, byte_fallback=False))
    backend.normalizer = normalizers.Sequence(steps)
    marks = pre_tokenizers.Metaspace(_SPACE, prepend_scheme="always", split=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marks]) if split_first else marks
    backend.decoder = decoders.Metaspace(_SPACE, prepend_scheme="always", split=True)
    return backend


def _scored(tokens: Iterable[str], score: float = 0.0) -> list[tuple[str, float]]:
    return [(token, score) for token in tokens]


def _add_tokens(backend: LibraryTokenizer, model: SentencePieceModel, files: TokenizerFiles) -> None:
    """Add the tokens that are matched in a text before the text is split into pieces.

    Settings of a token in the JSON files take precedence over those in the SentencePiece file.
    """
    described = {token.content: token for token in (*files.added.values(), *files.roles.values())}
    for token in (*files.roles.values(), *model.added):
        if backend.token_to_id(token.content) is None:
            continue
        token = described.get(token.content, token)
        if token.special:
            backend.add_special_tokens([token])
        else:
            backend.add_tokens([token])
