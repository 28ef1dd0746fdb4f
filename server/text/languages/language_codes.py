"""Parse language codes of ISO 639 (`de`, `deu`), BCP 47 (`de-AT`), FLORES-200 (`deu_Latn`) and mBART (`de_DE`)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

ARGOS_CODES = {"zt": "zh-Hant", "pb": "pt-BR"}
"""Codes that only the models of Argos use, and the usual codes."""
_CODE = re.compile(r"([a-z]{2,3})(?:[-_]([a-z]{4}))?(?:[-_]([a-z]{2}|\d{3}))?", re.IGNORECASE)


@dataclass(frozen=True)
class Language:
    """A language, with a script and a region where its code names them.

    language: ISO 639-1 code where the language has one, else ISO 639-3.
    script: ISO 15924 code (`Latn`).
    region: ISO 3166 code (`AT`).
    """

    language: str
    script: str | None = None
    region: str | None = None

    def __str__(self) -> str:
        return "-".join(part for part in (self.language, self.script, self.region) if part)

    @property
    def likely_script(self) -> str | None:
        """The stated script, else the usual script of the region (traditional for Chinese in Taiwan); else None."""
        return self.script or _SCRIPT_OF_REGION.get((self.language, self.region or ""))

    @property
    def default_script(self) -> str | None:
        """The script that the code states, else the usual script of its region if that is known.

        Without both: `Hans` for Chinese, `Cyrl` for Serbian, None for every other language.
        """
        return self.likely_script or _USUAL_SCRIPTS.get(self.language)

    def equals(self, other: Language) -> bool:
        """Whether two codes mean the same written language. A region or script that only one code states is ignored."""
        same_region = not self.region or not other.region or self.region == other.region
        return self.language == other.language and same_region and self.has_script_of(other)

    def has_script_of(self, other: Language) -> bool:
        """Whether two languages have the same script. True also if the script of one of them is not known."""
        own, its = self.default_script, other.default_script
        return own is None or its is None or own == its

    def fits(self, offered: Language) -> int:
        """Score how well an offered language answers a request for this language: 0 for no match, higher is better.

        Different languages or scripts do not match. Different regions match, with a lower score than equal ones.
        """
        if self.language != offered.language:
            return 0
        script, offered_script = self.likely_script, offered.likely_script
        if script and offered_script and script != offered_script:
            return 0
        same = (script == offered_script) + (self.region == offered.region)
        is_usual = script is None and offered_script is not None and offered_script == self.default_script
        return 1 + 2 * same + (is_usual or (offered.script is None and offered.region is None))


def parse_language(code: str) -> Language | None:
    """Parse a language code of ISO 639, BCP 47, FLORES-200, mBART or Argos (`zt`, `pb`).

    None for a string without the form of a code.
    """
    code = code.strip()
    match = _CODE.fullmatch(ARGOS_CODES.get(code.lower(), code))
    if match is None:
        return None
    language, script, region = match.groups()
    language = language.lower()
    return Language(
        _aliases().get(language, language),
        script.title() if script else None,
        region.upper() if region else None,
    )


def plain_codes(languages: Iterable[Language]) -> dict[Language, str]:
    """Return the short code that clients use for each language of a checkpoint: `de`, `zh`, `zh-Hant`, `pt-BR`.

    The code has a region only if the checkpoint has the language in several regions. It has a script only if that is
    not the usual script of Chinese or Serbian, or, for other languages, not the first script that the checkpoint has.
    """
    scripts: dict[str, list[str | None]] = {}
    regions: dict[tuple[str, str | None], list[str | None]] = {}
    every = list(languages)
    for language in every:
        scripts.setdefault(language.language, []).append(language.default_script)
        regions.setdefault((language.language, language.default_script), []).append(language.region)
    found = {}
    for language in every:
        script = language.default_script
        usual = _USUAL_SCRIPTS.get(language.language) or scripts[language.language][0]
        same = set(regions[language.language, script])
        shows_region = language.region if len(same) > 1 else None
        found[language] = str(Language(language.language, script if script != usual else None, shows_region))
    return found


def english_name(language: Language) -> str | None:
    """The English name of a language; None for a language without a two-letter code."""
    return _names().get(language.language)


def named_languages() -> list[str]:
    """ISO 639-1 codes of the languages for which `english_name` has a name."""
    return list(_names())


def is_collective(code: str) -> bool:
    """Whether a code stands for a group of languages: an ISO 639-5 code, or a name of OPUS-MT such as `ROMANCE`."""
    return code in _OPUS_GROUPS or code.lower() in _ISO_639_5.split()


@cache
def _aliases() -> dict[str, str]:
    aliases = {three: two for two, three, _ in _rows()}
    aliases |= dict(pair.split(":") for pair in _OTHER_CODES.split())
    return aliases


@cache
def _names() -> dict[str, str]:
    return {two: name for two, _, name in _rows()}


def _rows() -> list[tuple[str, str, str]]:
    return [(row[:2], row[3:6], row[7:]) for row in _ISO_639.strip().splitlines()]


# Unicode CLDR, likely subtags.
_SCRIPT_OF_REGION = {
    **{("zh", region): "Hans" for region in ("CN", "SG", "MY")},
    **{("zh", region): "Hant" for region in ("TW", "HK", "MO")},
    ("sr", "ME"): "Latn",
    ("pa", "PK"): "Arab",
}
_USUAL_SCRIPTS = {"zh": "Hans", "sr": "Cyrl"}
_OPUS_GROUPS = ("ROMANCE", "NORTH_EU", "SCANDINAVIA", "CELTIC", "NORWAY", "SAMI", "FINNIC", "WESTERN_SAAMI")
_ISO_639_5 = """
aav afa alg alv apa aqa aql art ath auf aus awd azc bad bai bat ber bih bnt btk cai cau cba ccn ccs cdc cdd cel cmc
cpe cpf cpp crp csu cus day dmn dra egx esx euq fiu fox gem gme gmq gmw grk hmx hok hyx iir ijo inc ine ira iro itc
jpx kar kdo khi kro map mkh mno mul mun myn nah nai ngf nic nub omq omv oto paa phi plf poz pqe pqw pra qwe roa sai
sal sdv sem sgn sio sit sla smi son sqj ssa syd tai tbq trk tup tut tuw urj wak wen xgn xnd ypk zhx zle zls zlw znd
"""
# ISO 639-2's bibliographic codes, withdrawn codes, and the members by which FLORES names a macrolanguage.
_OTHER_CODES = """
alb:sq arm:hy baq:eu bur:my chi:zh cze:cs dut:nl fre:fr geo:ka ger:de gre:el ice:is mac:mk mao:mi may:ms per:fa rum:ro
slo:sk tib:bo wel:cy iw:he in:id ji:yi jw:jv mo:ro sh:hbs scc:sr scr:hr nb:no nob:no cmn:zh arb:ar pes:fa swh:sw lvs:lv
ekk:et khk:mn npi:ne ory:or uzn:uz ydd:yi zsm:ms als:sq azj:az plt:mg pbt:ps quy:qu gaz:om kmr:ku fil:tl ayr:ay dik:din
fuv:ff knc:kr nso:ns
"""
_ISO_639 = """
aa aar Afar
ab abk Abkhazian
af afr Afrikaans
ak aka Akan
am amh Amharic
an arg Aragonese
ar ara Arabic
as asm Assamese
av ava Avaric
ay aym Aymara
az aze Azerbaijani
ba bak Bashkir
be bel Belarusian
bg bul Bulgarian
bi bis Bislama
bm bam Bambara
bn ben Bengali
bo bod Tibetan
br bre Breton
bs bos Bosnian
ca cat Catalan
ce che Chechen
ch cha Chamorro
co cos Corsican
cr cre Cree
cs ces Czech
cu chu Church Slavic
cv chv Chuvash
cy cym Welsh
da dan Danish
de deu German
dv div Divehi
dz dzo Dzongkha
ee ewe Ewe
el ell Greek
en eng English
eo epo Esperanto
es spa Spanish
et est Estonian
eu eus Basque
fa fas Persian
ff ful Fulah
fi fin Finnish
fj fij Fijian
fo fao Faroese
fr fra French
fy fry Western Frisian
ga gle Irish
gd gla Scottish Gaelic
gl glg Galician
gn grn Guarani
gu guj Gujarati
gv glv Manx
ha hau Hausa
he heb Hebrew
hi hin Hindi
ho hmo Hiri Motu
hr hrv Croatian
ht hat Haitian Creole
hu hun Hungarian
hy hye Armenian
hz her Herero
ia ina Interlingua
id ind Indonesian
ie ile Interlingue
ig ibo Igbo
ii iii Sichuan Yi
ik ipk Inupiaq
io ido Ido
is isl Icelandic
it ita Italian
iu iku Inuktitut
ja jpn Japanese
jv jav Javanese
ka kat Georgian
kg kon Kongo
ki kik Kikuyu
kj kua Kuanyama
kk kaz Kazakh
kl kal Kalaallisut
km khm Khmer
kn kan Kannada
ko kor Korean
kr kau Kanuri
ks kas Kashmiri
ku kur Kurdish
kv kom Komi
kw cor Cornish
ky kir Kyrgyz
la lat Latin
lb ltz Luxembourgish
lg lug Ganda
li lim Limburgish
ln lin Lingala
lo lao Lao
lt lit Lithuanian
lu lub Luba-Katanga
lv lav Latvian
mg mlg Malagasy
mh mah Marshallese
mi mri Maori
mk mkd Macedonian
ml mal Malayalam
mn mon Mongolian
mr mar Marathi
ms msa Malay
mt mlt Maltese
my mya Burmese
na nau Nauru
nd nde North Ndebele
ne nep Nepali
ng ndo Ndonga
nl nld Dutch
nn nno Norwegian Nynorsk
no nor Norwegian
nr nbl South Ndebele
nv nav Navajo
ny nya Chichewa
oc oci Occitan
oj oji Ojibwa
om orm Oromo
or ori Odia
os oss Ossetian
pa pan Punjabi
pi pli Pali
pl pol Polish
ps pus Pashto
pt por Portuguese
qu que Quechua
rm roh Romansh
rn run Rundi
ro ron Romanian
ru rus Russian
rw kin Kinyarwanda
sa san Sanskrit
sc srd Sardinian
sd snd Sindhi
se sme Northern Sami
sg sag Sango
si sin Sinhala
sk slk Slovak
sl slv Slovenian
sm smo Samoan
sn sna Shona
so som Somali
sq sqi Albanian
sr srp Serbian
ss ssw Swati
st sot Southern Sotho
su sun Sundanese
sv swe Swedish
sw swa Swahili
ta tam Tamil
te tel Telugu
tg tgk Tajik
th tha Thai
ti tir Tigrinya
tk tuk Turkmen
tl tgl Tagalog
tn tsn Tswana
to ton Tonga
tr tur Turkish
ts tso Tsonga
tt tat Tatar
tw twi Twi
ty tah Tahitian
ug uig Uyghur
uk ukr Ukrainian
ur urd Urdu
uz uzb Uzbek
ve ven Venda
vi vie Vietnamese
vo vol Volapük
wa wln Walloon
wo wol Wolof
xh xho Xhosa
yi yid Yiddish
yo yor Yoruba
za zha Zhuang
zh zho Chinese
zu zul Zulu
"""
