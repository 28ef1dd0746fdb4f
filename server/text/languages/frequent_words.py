"""The most frequent words of common languages. In short texts, they show the language better than letters do."""

from __future__ import annotations

import re
from collections.abc import Mapping

MAX_WORDS = 12
"""Most words of a text whose language is corrected by its words. In longer texts, the letters suffice."""
_FACTOR = 4.0
"""Factor on the probability of a language for each of its frequent words in the text.

At most `_MAX_HITS` words count.
"""
_MAX_HITS = 3
_WORD = re.compile(r"[^\W\d_]+")
_TEXT = {
    "en": "the a an and is are was of to in it that this for with on not you he she we they i have has be my your his",
    "fr": "le la les l un une des et est sont de du d à en il elle nous vous ils je j ne n pas que qui dans ce c au",
    "de": "der die das ein eine und ist sind war nicht ich du er sie wir ihr es zu in den dem mit auf für von im sehr",
    "es": "el la los las un una y es son de en no que por con para su mi yo él ella está muy lo se al del hay",
    "it": "il lo la i gli le l un una e è sono di a in non che per con su mio mia io lui lei noi molto del della nel",
    "pt": "o a os as um uma e é são de em não que por com para seu meu minha eu ele ela está muito do da no na se",
    "nl": "de het een en is zijn van in niet ik je hij zij we wij dat die met op voor mijn heel er heeft heb ook te",
    "ca": "el la els les l un una i és són de en no que per amb meu meva jo ell ella molt està del al",
    "sv": "och en ett den det är var inte jag du han hon vi de i på av med för som min mitt mycket har att",
    "da": "og en et den det er var ikke jeg du han hun vi de i på af med for som min mit meget har at til",
    "no": "og en et den det er var ikke jeg du han hun vi de i på av med for som min mitt veldig har å til",
    "pl": "i w na nie się jest są to z do że jak ja ty on ona my po o mój moja bardzo dla ma",
    "cs": "a v na je jsou to se ne z do že jak já ty on ona my po o můj moje velmi pro má",
    "sk": "a v na je sú to sa nie z do že ako ja ty on ona my po o môj moje veľmi pre má",
    "ro": "și un o este sunt de în nu că la cu pe pentru eu tu el ea noi meu mea foarte are",
    "fi": "ja on ei se hän minä sinä me he en oli että tämä mutta ovat hyvin minun",
    "et": "ja on ei see ta mina sina me nad oli et aga väga minu",
    "hu": "a az és egy nem van is hogy ő én te mi ez de nagyon meg",
    "tr": "ve bir bu da de için çok ben sen o biz ile var değil",
    "id": "dan yang di ini itu tidak saya dia kami untuk dengan ada adalah sangat",
    "ru": "и в не на я он она мы вы что это с по как был его её очень у",
    "uk": "і в не на я він вона ми ви що це з по як був його її дуже у є",
    "bg": "и в не на аз той тя ние вие че това с по как беше е да са много",
}
_WORDS: Mapping[str, frozenset[str]] = {code: frozenset(words.split()) for code, words in _TEXT.items()}


def word_weights(text: str, languages: Mapping[str, float]) -> dict[str, float]:
    """Return the probabilities of languages, corrected by the frequent words of each language in a short text.

    languages: probability of each language, by its ISO 639-1 code. The result has the same sum. A text of one word, or
        of more than `MAX_WORDS`, changes nothing.
    """
    words = _WORD.findall(text.lower()) if len(text) <= 20 * MAX_WORDS else []
    if not 1 < len(words) <= MAX_WORDS:
        return dict(languages)
    factors = {
        code: _FACTOR ** min(_MAX_HITS, sum(word in _WORDS.get(_written(code), ()) for word in words))
        for code in languages
    }
    weighted = {code: share * factors[code] for code, share in languages.items()}
    total, before = sum(weighted.values()), sum(languages.values())
    return {code: weight * before / total for code, weight in weighted.items()} if total else dict(languages)


def frequent_word_counts(text: str) -> dict[str, int]:
    """Count the different words of a text that are frequent in each language, by the code of the language."""
    words = frozenset(_WORD.findall(text.lower()))
    return {code: len(words & frequent) for code, frequent in _WORDS.items()}


def is_frequent(word: str, language: str) -> bool:
    """Whether a word is frequent in a language, or in any language if `language` is empty."""
    if not language:
        return any(word in words for words in _WORDS.values())
    return word in _WORDS.get(_written(language), ())


def _written(code: str) -> str:
    """Return the code under which a language's frequent words are listed: `no` for Bokmål and Nynorsk."""
    return "no" if code in ("nb", "nn") else code
