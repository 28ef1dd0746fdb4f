"""The multilingual tokenizers that fairseq left: mBART, mBART-50, NLLB and M2M100.

Their texts carry a token that names the language: before the text, or in mBART (and NLLB's first releases) behind its
end token. SentencePiece files lack those tokens; they stand behind the pieces, in the order of the lists below.
Liu et al. 2020, arXiv:2001.08210; Tang et al. 2020, arXiv:2008.00401; Fan et al. 2020, arXiv:2010.11125; NLLB Team
2022, arXiv:2207.04672.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from server.text.tokenizer import Tokenizer
from server.text.tokenizer_files import TokenizerFiles

_MBART = """
ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP
nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN
"""
_ADDED_IN_MBART_50 = """
af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE
ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI
"""
_M2M_100 = """
af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht
hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps
pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu
"""
_WMT_21 = "en ha is ja cs ru zh de"
LANGUAGES: Mapping[str, tuple[str, ...]] = {
    "mbart": tuple(_MBART.split()),
    "mbart50": tuple((_MBART + _ADDED_IN_MBART_50).split()),
    "m2m100": tuple(_M2M_100.split()),
    "wmt21": tuple(_WMT_21.split()),
}
DEFAULT_SOURCE: Mapping[str, str] = {"mbart": "en_XX", "mbart50": "en_XX", "nllb": "eng_Latn", "m2m100": "en"}
"""The language of a source text until something else is said, by the kind of tokenizer."""

_LANGUAGE_TOKEN = re.compile(
    r"__(?P<m2m100>[a-z]{2,3})__|(?P<nllb>[a-z]{3}_[A-Z][a-z]{3})|(?P<mbart>[a-z]{2}_[A-Z]{2})"
)


@dataclass(frozen=True)
class LanguageTokens:
    """The tokens by which a checkpoint tells languages apart.

    kind: `mbart`, `mbart50`, `nllb` or `m2m100`. ids: token ids by the checkpoint's own codes, in the order of the ids.
    behind: whether a source text has the token behind its end rather than before its beginning.
    """

    kind: str
    ids: Mapping[str, int]
    behind: bool

    def around(self, code: str, end_id: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Token ids before and after those of a source text in that language."""
        return ((), (end_id, self.ids[code])) if self.behind else ((self.ids[code],), (end_id,))


def language_tokens(tokenizer: Tokenizer, files: TokenizerFiles) -> LanguageTokens | None:
    """The language tokens of a vocabulary; None where there are none."""
    found: dict[str, dict[str, int]] = {}
    for token_id in range(tokenizer.vocab_size):
        match = _LANGUAGE_TOKEN.fullmatch(tokenizer.id_to_token(token_id) or "")
        if match is not None and match.lastgroup is not None:
            found.setdefault(match.lastgroup, {})[match[match.lastgroup]] = token_id
    if not found:
        return None
    kind, ids = max(found.items(), key=lambda item: len(item[1]))
    if kind == "mbart" and (files.kind == "mbart50" or (files.kind != "mbart" and "sl_SI" in ids)):
        kind = "mbart50"
    return LanguageTokens(kind, ids, _is_behind(kind, files))


def _is_behind(kind: str, files: TokenizerFiles) -> bool:
    return kind == "mbart" or (kind == "nllb" and files.config.get("legacy_behaviour") is True)


def set_source_language(backend: Backend, files: TokenizerFiles) -> None:
    """Put the source language of `tokenizer_config.json`, or the kind's own, around texts: what a `tokenizer.json` says
    is the language it was saved with."""
    code, end = str(files.config.get("src_lang") or DEFAULT_SOURCE[files.kind]), files.roles["eos"].content
    code = f"__{code}__" if files.kind == "m2m100" else code
    ids = [backend.token_to_id(code), backend.token_to_id(end)]
    if None in ids:
        return  # a vocabulary that was cut to some languages, and not to this one
    before, after = ([], [end, code]) if _is_behind(files.kind, files) else ([code], [end])
    backend.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", "$B", *after],
        special_tokens=list(zip((code, end), ids, strict=True)),
    )


def build_unigram(pieces: list[tuple[str, float]], charsmap: bytes, files: TokenizerFiles) -> Backend:
    """mBART's backend from the pieces of `sentencepiece.bpe.model` (`<unk>`, `<s>`, `</s>` and what follows)."""
    first = [(files.roles[role].content, 0.0) for role in ("bos", "pad", "eos", "unk")]
    mask = files.roles["mask"].content
    codes = LANGUAGES[files.kind]
    vocabulary = [*first, *pieces[3:], *((code, 0.0) for code in codes), (mask, 0.0)]
    backend = Backend(models.Unigram(vocabulary, unk_id=3, byte_fallback=False))
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(charsmap)] if charsmap else []
    marks = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=True)
    if files.kind == "mbart":
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marks])
    else:
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
        backend.pre_tokenizer = marks
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Metaspace("▁", prepend_scheme="always", split=True)
    backend.add_special_tokens([*(content for content, _ in first), *codes, AddedToken(mask, lstrip=True)])
    return backend
