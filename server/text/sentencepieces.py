"""Backends from SentencePiece models that come without a `tokenizer.json`: LLaMA, XLM-R, CamemBERT, DeBERTa,
ALBERT, BigBird.

Kudo and Richardson 2018, arXiv:1808.06226; the file is a protocol buffer, sentencepiece_model.proto of
https://github.com/google/sentencepiece.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from server.text.protobuf import protobuf_fields
from server.text.tokenizer import TokenizerError
from server.text.tokenizer_files import TokenizerFiles

_BPE, _CONTROL, _USER_DEFINED = 2, 3, 4
_SPACE = "▁"


@dataclass(frozen=True)
class SentencePieces:
    """A model's vocabulary.

    pieces: text and score of each. charsmap: the normaliser's character map, empty for none. is_bpe: merges, not a
    unigram model. apart: pieces that stand for themselves in a text, control symbols (special) and the user's own.
    """

    pieces: Sequence[tuple[str, float]]
    charsmap: bytes
    is_bpe: bool
    apart: Sequence[AddedToken]

    @classmethod
    def read(cls, content: bytes, name: str) -> SentencePieces:
        """name: of the file. Raises TokenizerError for no pieces, ValueError or IndexError for a damaged file."""
        pieces: list[tuple[str, float]] = []
        apart: list[AddedToken] = []
        charsmap, kind = b"", 1
        for field, value in protobuf_fields(content):
            if isinstance(value, int):
                continue
            parts = dict(protobuf_fields(value))
            if field == 1:
                text, score = bytes(parts[1]).decode(), parts.get(2)
                pieces.append((text, struct.unpack("<f", score)[0] if isinstance(score, bytes) else 0.0))
                if parts.get(3) in (_CONTROL, _USER_DEFINED):
                    apart.append(AddedToken(text, normalized=False, special=parts[3] == _CONTROL))
            elif field == 2:
                kind = int(parts.get(3, 1))
            elif field == 3:
                charsmap = bytes(parts.get(2, b""))
        if not pieces:
            raise TokenizerError(f"{name} holds no pieces")
        return cls(pieces, charsmap, kind == _BPE, apart)

    def merges(self) -> list[tuple[str, str]]:
        """Every way to make a piece of two others, in the order of the pieces: a BPE model's own order."""
        rank = {text: index for index, (text, _) in enumerate(self.pieces)}
        found = []
        for text, index in rank.items():
            pairs = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
            for left, right in pairs:
                if left in rank and right in rank:
                    found.append((index, len(left), left, right))
        return [(left, right) for _, _, left, right in sorted(found)]


def llama(path: Path, files: TokenizerFiles) -> Backend:
    """BPE with a fall-back to bytes (Touvron et al. 2023, arXiv:2302.13971, section 2.1)."""
    if files.kind != "llama":
        raise TokenizerError("tokenizer.model without tokenizer.json is supported for LLaMA's tokenizer only")
    model = SentencePieces.read(path.read_bytes(), path.name)
    if not model.is_bpe:
        raise TokenizerError("tokenizer.model is not a BPE model")
    vocabulary = {text: index for index, (text, _) in enumerate(model.pieces)}
    backend = Backend(models.BPE(vocabulary, model.merges(), fuse_unk=True, byte_fallback=True))
    prefix = files.config.get("add_prefix_space") is not False
    scheme = ("always" if files.config.get("legacy") else "first") if prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, prepend_scheme=scheme, split=False)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    _add(backend, model, files)
    return backend


def xlm_roberta(path: Path, files: TokenizerFiles) -> Backend:
    """Unigram behind fairseq's dictionary, which puts its own four tokens first: XLM-R (Conneau et al. 2019,
    arXiv:1911.02116), and CamemBERT (Martin et al. 2019, arXiv:1911.03894), whose pieces keep theirs, too.
    """
    model = SentencePieces.read(path.read_bytes(), path.name)
    match files.kind:
        case "xlm-roberta":
            pieces = [*((token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")), *model.pieces[3:]]
        case "camembert":
            names = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>")
            pieces = [*((token, 0.0) for token in names), ("<unk>NOTUSED", -100.0), *model.pieces[1:]]
        case _:
            raise TokenizerError(f"{path.name} without tokenizer.json is supported for XLM-R and CamemBERT only")
    backend = Backend(models.Unigram([*pieces, ("<mask>", 0.0)], unk_id=3, byte_fallback=False))
    if model.charsmap:
        backend.normalizer = normalizers.Precompiled(model.charsmap)
    marks = pre_tokenizers.Metaspace(_SPACE, prepend_scheme="always", split=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marks])
    backend.decoder = decoders.Metaspace(_SPACE, prepend_scheme="always", split=True)
    _add(backend, model, files)
    begin, end = files.roles["bos"].content, files.roles["eos"].content
    backend.post_processor = processors.TemplateProcessing(
        single=[begin, "$A", end],
        pair=[begin, "$A", end, end, "$B", end],
        special_tokens=[(token, backend.token_to_id(token)) for token in (begin, end)],
    )
    return backend


def deberta_v2(path: Path, files: TokenizerFiles) -> Backend:
    """Unigram with BERT's special tokens among the pieces, a mask behind them (He et al. 2021, arXiv:2111.09543)."""
    if files.kind != "deberta":
        raise TokenizerError(f"{path.name} without tokenizer.json is supported for DeBERTa-v2 and v3 only")
    model = SentencePieces.read(path.read_bytes(), path.name)
    names = [text for text, _ in model.pieces]
    unk, cls, sep, mask = (files.roles[role].content for role in ("unk", "cls", "sep", "mask"))
    missing = [token for token in (unk, cls, sep) if token not in names]
    if missing:
        raise TokenizerError(f"{path.name} does not hold {', '.join(missing)}")
    backend = Backend(models.Unigram(list(model.pieces), unk_id=names.index(unk), byte_fallback=False))
    lower = [normalizers.Lowercase()] if files.config.get("do_lower_case") is True else []
    charsmap = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    one_space = normalizers.Replace(Regex(" {2,}"), " ")
    backend.normalizer = normalizers.Sequence([*lower, normalizers.Strip(), *charsmap, one_space])
    marks = pre_tokenizers.Metaspace(_SPACE, prepend_scheme="always", split=True)
    apart = [pre_tokenizers.Punctuation("isolated")] if files.config.get("split_by_punct") is True else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*apart, marks])
    backend.decoder = decoders.Metaspace(_SPACE, prepend_scheme="always", split=True)
    _add(backend, model, files)
    backend.add_special_tokens([mask])
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in (cls, sep)],
    )
    return backend


def boxed(path: Path, files: TokenizerFiles) -> Backend:
    """Unigram with BERT's template, all special tokens among the pieces: ALBERT (Lan et al. 2020, arXiv:1909.11942) and
    BigBird (Zaheer et al. 2020, arXiv:2007.14062)."""
    model = SentencePieces.read(path.read_bytes(), path.name)
    if model.is_bpe:
        raise TokenizerError(f"{path.name} is not a Unigram model")
    names = [text for text, _ in model.pieces]
    unk, cls, sep = (files.roles[role].content for role in ("unk", "cls", "sep"))
    missing = [token for token in (unk, cls, sep) if token not in names]
    if missing:
        raise TokenizerError(f"{path.name} does not hold {', '.join(missing)}")
    albert = files.kind == "albert"
    # ALBERT takes a comma behind a number for a piece of its own, whatever was trained.
    pieces = [(text, score - 100 * (albert and _numbered_comma(text))) for text, score in model.pieces]
    backend = Backend(models.Unigram(pieces, unk_id=names.index(unk), byte_fallback=False))
    charsmap = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    spaces = [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    backend.normalizer = normalizers.Sequence([*(_albert_normalizers(files) if albert else []), *charsmap, *spaces])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, prepend_scheme="always", split=True)
    backend.decoder = decoders.Metaspace(_SPACE, prepend_scheme="always", split=True)
    _add(backend, model, files)
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in (cls, sep)],
    )
    return backend


def _numbered_comma(piece: str) -> bool:
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def _albert_normalizers(files: TokenizerFiles) -> list[normalizers.Normalizer]:
    """Quotes in TeX's way become plain ones; accents and capitals go unless the files keep them."""
    quotes = [normalizers.Replace(pair, '"') for pair in ("``", "''")]
    accents = [] if files.config.get("keep_accents") is True else [normalizers.NFKD(), normalizers.StripAccents()]
    return [*quotes, *accents, *([] if files.config.get("do_lower_case") is False else [normalizers.Lowercase()])]


def _add(backend: Backend, model: SentencePieces, files: TokenizerFiles) -> None:
    """Tokens that are found in a text before it is cut at pieces, as the files describe them if they do."""
    described = {token.content: token for token in (*files.added.values(), *files.roles.values())}
    for token in (*files.roles.values(), *model.apart):
        if backend.token_to_id(token.content) is None:
            continue
        token = described.get(token.content, token)
        if token.special:
            backend.add_special_tokens([token])
        else:
            backend.add_tokens([token])
