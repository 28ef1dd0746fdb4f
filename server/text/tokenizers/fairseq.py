"""Language tokens of the multilingual tokenizers from fairseq: mBART, mBART-50, NLLB and M2M100.

A token before a text names its language. In mBART and the first NLLB releases, this token follows the end token
instead. SentencePiece files do not contain the language tokens; their ids follow the ids of the pieces, in the order of
the lists in this file.
Sources: Liu et al. 2020, arXiv:2001.08210; Tang et al. 2020, arXiv:2008.00401; Fan et al. 2020, arXiv:2010.11125;
NLLB Team 2022, arXiv:2207.04672.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer as LibraryTokenizer

from server.text.tokenizers.templates import set_template
from server.text.tokenizers.tokenizer_files import TokenizerFiles
from server.text.tokens.tokenizer import Tokenizer

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
"""Code of the language that is assumed for a source text, by kind of tokenizer."""

_LANGUAGE_TOKEN = re.compile(
    r"__(?P<m2m100>[a-z]{2,3})__|(?P<nllb>[a-z]{3}_[A-Z][a-z]{3})|(?P<mbart>[a-z]{2}_[A-Z]{2})"
)


@dataclass(frozen=True)
class LanguageTokens:
    """The language tokens of a checkpoint.

    kind: `mbart`, `mbart50`, `nllb` or `m2m100`.
    ids: token id of each language, by the checkpoint's language code, in ascending order of the ids.
    is_suffix: whether the language token stands after the end token of a source text, and not before the text.
    """

    kind: str
    ids: Mapping[str, int]
    is_suffix: bool

    def around(self, code: str, end_id: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the token ids to add before and after a source text. code: language of the text."""
        return ((), (end_id, self.ids[code])) if self.is_suffix else ((self.ids[code],), (end_id,))


def language_tokens(tokenizer: Tokenizer, files: TokenizerFiles) -> LanguageTokens | None:
    """Find the language tokens in a vocabulary. None for a vocabulary without such tokens."""
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
    return LanguageTokens(kind, ids, _is_suffix(kind, files))


def _is_suffix(kind: str, files: TokenizerFiles) -> bool:
    return kind == "mbart" or (kind == "nllb" and files.config.get("legacy_behaviour") is True)


def set_source_language(backend: LibraryTokenizer, files: TokenizerFiles) -> None:
    """Make a tokenizer add the language token of `src_lang` in `tokenizer_config.json`, else of the default language.

    The template in `tokenizer.json` is replaced, because it has the language that was set when the file was saved.
    Does nothing if the vocabulary lacks the language token or the end token.
    """
    code, end = str(files.config.get("src_lang") or DEFAULT_SOURCE[files.kind]), files.roles["eos"].content
    code = f"__{code}__" if files.kind == "m2m100" else code
    if backend.token_to_id(code) is None or backend.token_to_id(end) is None:
        return  # the vocabulary was reduced and lacks a token of the template
    before, after = ([], [end, code]) if _is_suffix(files.kind, files) else ([code], [end])
    set_template(backend, [*before, "$A", *after], [*before, "$A", "$B", *after], (code, end))
