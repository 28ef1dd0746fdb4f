"""French morphology: conjugation, agreement, elision and contraction.

Sentences are lists of words. `write` joins them and applies elision, so that no other part of the grammar depends on
the first letter of the next word.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

# The grammatical persons, in the order in which every table below lists its forms.
JE, TU, IL, NOUS, VOUS, ILS = range(6)

_PRESENT = {
    "être": "suis es est sommes êtes sont",
    "avoir": "ai as a avons avez ont",
    "aller": "vais vas va allons allez vont",
    "faire": "fais fais fait faisons faites font",
    "dire": "dis dis dit disons dites disent",
    "pouvoir": "peux peux peut pouvons pouvez peuvent",
    "vouloir": "veux veux veut voulons voulez veulent",
    "devoir": "dois dois doit devons devez doivent",
    "savoir": "sais sais sait savons savez savent",
    "voir": "vois vois voit voyons voyez voient",
    "recevoir": "reçois reçois reçoit recevons recevez reçoivent",
    "boire": "bois bois boit buvons buvez boivent",
    "croire": "crois crois croit croyons croyez croient",
    "lire": "lis lis lit lisons lisez lisent",
    "écrire": "écris écris écrit écrivons écrivez écrivent",
    "conduire": "conduis conduis conduit conduisons conduisez conduisent",
    "connaître": "connais connais connaît connaissons connaissez connaissent",
    "prendre": "prends prends prend prenons prenez prennent",
    "mettre": "mets mets met mettons mettez mettent",
    "suivre": "suis suis suit suivons suivez suivent",
    "vivre": "vis vis vit vivons vivez vivent",
    "rire": "ris ris rit rions riez rient",
    "courir": "cours cours court courons courez courent",
    "venir": "viens viens vient venons venez viennent",
    "tenir": "tiens tiens tient tenons tenez tiennent",
    "partir": "pars pars part partons partez partent",
    "sortir": "sors sors sort sortons sortez sortent",
    "dormir": "dors dors dort dormons dormez dorment",
    "servir": "sers sers sert servons servez servent",
    "ouvrir": "ouvre ouvres ouvre ouvrons ouvrez ouvrent",
    "offrir": "offre offres offre offrons offrez offrent",
    "peindre": "peins peins peint peignons peignez peignent",
}
_PARTICIPLE = {
    "être": "été", "avoir": "eu", "faire": "fait", "dire": "dit", "pouvoir": "pu", "vouloir": "voulu",
    "devoir": "dû", "savoir": "su", "voir": "vu", "recevoir": "reçu", "boire": "bu", "croire": "cru",
    "lire": "lu", "écrire": "écrit", "conduire": "conduit", "connaître": "connu", "prendre": "pris",
    "mettre": "mis", "suivre": "suivi", "vivre": "vécu", "rire": "ri", "courir": "couru", "venir": "venu",
    "tenir": "tenu", "ouvrir": "ouvert", "offrir": "offert", "peindre": "peint",
}  # fmt: skip
_FUTURE = {
    "être": "ser", "avoir": "aur", "aller": "ir", "faire": "fer", "pouvoir": "pourr", "vouloir": "voudr",
    "devoir": "devr", "savoir": "saur", "voir": "verr", "recevoir": "recevr", "courir": "courr",
    "venir": "viendr", "tenir": "tiendr", "envoyer": "enverr",
}  # fmt: skip
# Prefixed verbs conjugate like the verb inside them.
_PREFIXED = {
    "comprendre": ("com", "prendre"), "apprendre": ("ap", "prendre"), "revenir": ("re", "venir"),
    "devenir": ("de", "venir"), "sourire": ("sou", "rire"), "découvrir": ("déc", "ouvrir"),
    "promettre": ("pro", "mettre"), "endormir": ("en", "dormir"), "retenir": ("re", "tenir"),
    "traduire": ("tra", "duire"), "construire": ("cons", "truire"),
}  # fmt: skip
for _name in ("duire", "truire"):
    _PRESENT[_name] = " ".join(_name[:-2] + e for e in ("s", "s", "t", "sons", "sez", "sent"))
    _PARTICIPLE[_name] = _name[:-2] + "t"

_WITH_ETRE = {
    "aller", "venir", "arriver", "partir", "rester", "tomber", "entrer", "sortir", "monter", "descendre",
    "rentrer", "retourner", "revenir", "devenir",
}  # fmt: skip
_DOUBLING = {"appeler", "jeter", "rappeler"}
_IMPERFECT_ENDINGS = ("ais", "ais", "ait", "ions", "iez", "aient")
_FUTURE_ENDINGS = ("ai", "as", "a", "ons", "ez", "ont")


def uses_etre(verb: str) -> bool:
    """Whether the compound past is formed with "être", as for verbs of movement. Callers handle reflexive verbs."""
    return verb in _WITH_ETRE


def _strong_stem(verb: str) -> str:
    """The stem of an -er verb before a silent ending. For example, "achet-" becomes "achèt-", "nettoy-" "nettoi-"."""
    stem = verb[:-2]
    if verb in _DOUBLING:
        return stem + stem[-1]
    if stem.endswith(("oy", "uy", "ay")):
        return stem[:-1] + "i"
    if len(stem) > 2 and stem[-2] in "eé" and stem[-1] not in "aeiouyé":
        return stem[:-2] + "è" + stem[-1]
    return stem


@cache
def present(verb: str) -> tuple[str, ...]:
    """The six forms of the present, from je to ils."""
    if verb in _PREFIXED:
        prefix, base = _PREFIXED[verb]
        return tuple(prefix + form for form in present(base))
    if verb in _PRESENT:
        return tuple(_PRESENT[verb].split())
    stem = verb[:-2]
    if verb.endswith("er"):
        strong, soft = _strong_stem(verb), stem
        if stem.endswith("g"):
            soft = stem + "e"
        elif stem.endswith("c"):
            soft = stem[:-1] + "ç"
        return (strong + "e", strong + "es", strong + "e", soft + "ons", stem + "ez", strong + "ent")
    if verb.endswith("ir"):
        return tuple(stem + e for e in ("is", "is", "it", "issons", "issez", "issent"))
    return tuple(stem + e for e in ("s", "s", "", "ons", "ez", "ent"))


@cache
def imperfect(verb: str) -> tuple[str, ...]:
    """The six forms of the imperfect, from je to ils. They are derived from the nous form of the present."""
    stem = "ét" if verb == "être" else present(verb)[NOUS][:-3]

    def form(ending: str) -> str:
        if ending.startswith("i") and stem.endswith("ge"):
            return stem[:-1] + ending
        if ending.startswith("i") and stem.endswith("ç"):
            return stem[:-1] + "c" + ending
        return stem + ending

    return tuple(form(ending) for ending in _IMPERFECT_ENDINGS)


@cache
def _future_stem(verb: str) -> str:
    if verb in _PREFIXED:
        prefix, base = _PREFIXED[verb]
        return prefix + _future_stem(base)
    if verb in _FUTURE:
        return _FUTURE[verb]
    if verb.endswith("er"):
        strong = _strong_stem(verb)
        # préférer keeps its é in the future: préférera, but achètera.
        return verb if verb[:-2][-2:-1] == "é" else strong + "er"
    return verb[:-1] if verb.endswith("re") else verb


@cache
def future(verb: str) -> tuple[str, ...]:
    """The six forms of the future, from je to ils."""
    return tuple(_future_stem(verb) + ending for ending in _FUTURE_ENDINGS)


@cache
def conditional(verb: str) -> tuple[str, ...]:
    """The six forms of the conditional, from je to ils."""
    return tuple(_future_stem(verb) + ending for ending in _IMPERFECT_ENDINGS)


@cache
def participle(verb: str) -> str:
    """The past participle of a verb, masculine singular."""
    if verb in _PREFIXED:
        prefix, base = _PREFIXED[verb]
        return prefix + participle(base)
    if verb in _PARTICIPLE:
        return _PARTICIPLE[verb]
    return verb[:-2] + {"er": "é", "ir": "i", "re": "u"}[verb[-2:]]


def agree(form: str, feminine: bool, plural: bool) -> str:
    """The participle `form` (masculine singular) in the given gender and number."""
    if form == "dû" and (feminine or plural):
        form = "du"
    if feminine:
        form += "e"
    return form + "s" if plural and not form.endswith("s") else form


_FEMININE = {
    "beau": "belle", "vieux": "vieille", "nouveau": "nouvelle", "blanc": "blanche", "long": "longue",
    "gros": "grosse", "gentil": "gentille", "bon": "bonne", "doux": "douce", "fou": "folle",
    "sec": "sèche", "frais": "fraîche", "public": "publique", "inquiet": "inquiète", "bas": "basse",
    "jaloux": "jalouse", "discret": "discrète",
}  # fmt: skip
_LIAISON = {"beau": "bel", "vieux": "vieil", "nouveau": "nouvel"}
_INVARIABLE = {"marron", "orange", "bon marché"}


@cache
def adjective(word: str, feminine: bool, plural: bool) -> str:
    """The adjective `word` (masculine singular) in the given gender and number."""
    if word in _INVARIABLE:
        return word
    if feminine:
        if word in _FEMININE:
            word = _FEMININE[word]
        elif word.endswith("eux"):
            word = word[:-1] + "se"
        elif word.endswith("er"):
            word = word[:-2] + "ère"
        elif word.endswith("if"):
            word = word[:-1] + "ve"
        elif word.endswith("el") or word.endswith("ien"):
            word = word + word[-1] + "e"
        elif not word.endswith("e"):
            word += "e"
        return word + "s" if plural else word
    if not plural or word.endswith(("s", "x")):
        return word
    return word + "x" if word.endswith("eau") else word[:-2] + "aux" if word.endswith("al") else word + "s"


def liaison(word: str, following: str) -> str:
    """The masculine singular adjective `word` before the noun `following`: "un bel arbre", "un vieil ami"."""
    return _LIAISON.get(word, word) if vowel_start(following) else word


_PLURALS = {
    "œil": "yeux", "genou": "genoux", "bijou": "bijoux", "hibou": "hiboux", "carte postale": "cartes postales",
    "grand-père": "grands-pères", "grand-mère": "grands-mères",
}  # fmt: skip


@cache
def plural_noun(word: str) -> str:
    """Plural form of a French noun."""
    if word in _PLURALS:
        return _PLURALS[word]
    head, space, rest = word.partition(" ")
    if space:
        return f"{plural_noun(head)} {rest}"
    if word.endswith(("s", "x", "z")):
        return word
    if word.endswith(("eau", "eu")):
        return word + "x"
    if word.endswith("al"):
        return word[:-2] + "aux"
    return word + "s"


_ASPIRATED = ("haricot", "héros", "hibou", "homard", "huit", "haut", "onze", "oui", "honte")
_ELIDING = {"je", "ne", "de", "le", "la", "que", "me", "se", "ce", "lorsque"}


@cache
def vowel_start(word: str) -> bool:
    """Whether elision and liaison apply before this word: it starts with a vowel sound."""
    lower = word.lower()
    if lower.startswith(_ASPIRATED):
        return False
    return lower[0] in "aàâeéèêiîoôuhœ" or lower == "y"


def contract(preposition: str, phrase: Sequence[str]) -> list[str]:
    """Join a preposition that ends in "à" or "de" with a noun phrase: "à le" becomes "au", "de les" becomes "des"."""
    *lead, last = preposition.split()
    if phrase[0] == "les":
        return [*lead, {"à": "aux", "de": "des"}[last], *phrase[1:]]
    if phrase[0] == "le" and not vowel_start(phrase[1]):
        return [*lead, {"à": "au", "de": "du"}[last], *phrase[1:]]
    return [*lead, last, *phrase]


def write(words: Sequence[str], end: str = ".") -> str:
    """Join words into a sentence with elision, a capital and French spacing before ? and !"""
    parts = " ".join(words).split()
    text = ""
    for word, following in zip(parts, [*parts[1:], ""], strict=True):
        if word == ",":
            text = text.rstrip() + ", "
        elif following and following != "," and word in _ELIDING and vowel_start(following):
            text += word[:-1] + "'"
        elif word == "si" and following in ("il", "ils"):
            text += "s'"
        else:
            text += word + " "
    text = text.strip()
    return text[0].upper() + text[1:] + (" " + end if end in ("?", "!") else end)
