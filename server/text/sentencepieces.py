"""Backends from SentencePiece models that come without a `tokenizer.json`: LLaMA, T5, and what fairseq published.

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

_MBART_LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX "
    "ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
_MBART_50_LANGUAGES = (
    f"{_MBART_LANGUAGES} af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF "
    "pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
"""Languages in the order of their tokens (Liu et al. 2020, arXiv:2001.08210; Tang et al. 2020, arXiv:2008.00401)."""
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
    def read(cls, path: Path) -> SentencePieces:
        """Raises TokenizerError for a file without pieces, ValueError or IndexError for one that is damaged."""
        pieces: list[tuple[str, float]] = []
        apart: list[AddedToken] = []
        charsmap, kind = b"", 1
        for field, value in protobuf_fields(path.read_bytes()):
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
            raise TokenizerError(f"{path.name} holds no pieces")
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
    model = SentencePieces.read(path)
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
    backend.post_processor = asked_ends(backend, files)
    return backend


def t5(path: Path, files: TokenizerFiles) -> Backend:
    """Unigram, with sentinels `<extra_id_0>`... behind the pieces (Raffel et al. 2020, arXiv:1910.10683, 3.1.4)."""
    if files.kind != "t5":
        raise TokenizerError("spiece.model without tokenizer.json is supported for T5 only")
    model = SentencePieces.read(path)
    extra_ids = int(files.config.get("extra_ids", 100))
    sentinels = [f"<extra_id_{index}>" for index in range(extra_ids)]
    backend = _unigram([*model.pieces, *((text, 0.0) for text in reversed(sentinels))], 2, model.charsmap)
    backend.add_special_tokens(sentinels)
    end = files.roles["eos"].content
    backend.post_processor = processors.TemplateProcessing(
        single=["$A", end], pair=["$A", end, "$B", end], special_tokens=[(end, backend.token_to_id(end))]
    )
    return backend


def fairseq(path: Path, files: TokenizerFiles) -> Backend:
    """Unigram behind fairseq's dictionary, which puts its own four tokens first (XLM-R, CamemBERT, mBART)."""
    model = SentencePieces.read(path)
    first = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    codes: list[str] = []
    match files.kind:
        case "xlm-roberta":
            pieces = [*first, *model.pieces[3:]]
        case "camembert":
            unused = [
                ("<s>NOTUSED", 0.0),
                ("<pad>", 0.0),
                ("</s>NOTUSED", 0.0),
                ("<unk>", 0.0),
                ("<unk>NOTUSED", -100.0),
            ]
            pieces = [*unused, *model.pieces[1:]]
        case "mbart" | "mbart50":
            codes = (_MBART_LANGUAGES if files.kind == "mbart" else _MBART_50_LANGUAGES).split()
            pieces = [*first, *model.pieces[3:], *((code, 0.0) for code in codes)]
        case _:
            raise TokenizerError(
                "sentencepiece.bpe.model without tokenizer.json is supported for XLM-R, CamemBERT and mBART only"
            )
    backend = _unigram([*pieces, ("<mask>", 0.0)], 3, model.charsmap, whole_text=files.kind == "mbart50")
    _add(backend, model, files, codes)
    if not codes:
        begin, end = files.roles["bos"].content, files.roles["eos"].content
        backend.post_processor = processors.TemplateProcessing(
            single=[begin, "$A", end],
            pair=[begin, "$A", end, end, "$B", end],
            special_tokens=[(token, backend.token_to_id(token)) for token in (begin, end)],
        )
        return backend
    language = files.config.get("src_lang") or "en_XX"
    if language not in codes:
        raise TokenizerError(f"tokenizer_config.json: src_lang is not one of {', '.join(codes)}")
    end = files.roles["eos"].content
    around = ([], [end, language]) if files.kind == "mbart" else ([language], [end])
    backend.post_processor = processors.TemplateProcessing(
        single=[*around[0], "$A", *around[1]],
        pair=[*around[0], "$A", "$B", *around[1]],
        special_tokens=[(token, backend.token_to_id(token)) for token in (end, language)],
    )
    return backend


def _unigram(pieces: Sequence[tuple[str, float]], unknown: int, charsmap: bytes, whole_text: bool = False) -> Backend:
    """whole_text: runs of spaces count as one, other white space is text; else any white space parts words."""
    backend = Backend(models.Unigram(list(pieces), unk_id=unknown, byte_fallback=False))
    steps = [normalizers.Precompiled(charsmap)] if charsmap else []
    words = pre_tokenizers.Metaspace(_SPACE, prepend_scheme="always", split=True)
    if whole_text:
        backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(Regex(" {2,}"), " ")])
        backend.pre_tokenizer = words
    else:
        if steps:
            backend.normalizer = steps[0]
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), words])
    backend.decoder = decoders.Metaspace(_SPACE, prepend_scheme="always", split=True)
    return backend


def _add(backend: Backend, model: SentencePieces, files: TokenizerFiles, codes: Sequence[str] = ()) -> None:
    """Tokens that are found in a text before it is cut at pieces, as the files describe them if they do."""
    described = {token.content: token for token in (*files.added.values(), *files.roles.values())}
    for token in (*files.roles.values(), *model.apart, *(AddedToken(code, normalized=False) for code in codes)):
        if backend.token_to_id(token.content) is None:
            continue
        token = described.get(token.content, token)
        if token.special or token.content in codes:
            backend.add_special_tokens([token])
        else:
            backend.add_tokens([token])


def asked_ends(backend: Backend, files: TokenizerFiles) -> processors.TemplateProcessing:
    """Begin and end tokens around a text as far as `tokenizer_config.json` asks for them."""
    bos, eos = (
        files.roles[role].content if files.config.get(f"add_{role}_token") and role in files.roles else None
        for role in ("bos", "eos")
    )

    def around(text: str, segment: int) -> list[str]:
        return [f"{token}:{segment}" for token in (bos, text, eos) if token]

    used = {token: backend.token_to_id(token) for token in (bos, eos) if token}
    return processors.TemplateProcessing(
        single=around("$A", 0), pair=[*around("$A", 0), *around("$B", 1)], special_tokens=list(used.items())
    )
