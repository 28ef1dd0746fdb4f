"""English morphology: plurals, verb forms, "a" or "an", and joining words into a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

_PLURALS = {
    "man": "men", "woman": "women", "child": "children", "person": "people", "mouse": "mice", "foot": "feet",
    "wolf": "wolves", "knife": "knives", "leaf": "leaves", "sheep": "sheep", "fish": "fish", "tomato": "tomatoes",
    "potato": "potatoes", "policeman": "policemen", "gentleman": "gentlemen", "wife": "wives", "loaf": "loaves",
    "goose": "geese",
}  # fmt: skip
_IRREGULAR = {
    "be": "was been", "have": "had had", "do": "did done", "go": "went gone", "eat": "ate eaten",
    "drink": "drank drunk", "see": "saw seen", "read": "read read", "write": "wrote written", "take": "took taken",
    "give": "gave given", "buy": "bought bought", "sell": "sold sold", "find": "found found", "lose": "lost lost",
    "make": "made made", "know": "knew known", "meet": "met met", "hear": "heard heard", "sing": "sang sung",
    "sleep": "slept slept", "run": "ran run", "come": "came come", "leave": "left left", "fall": "fell fallen",
    "drive": "drove driven", "wear": "wore worn", "break": "broke broken", "choose": "chose chosen",
    "forget": "forgot forgotten", "understand": "understood understood", "build": "built built",
    "send": "sent sent", "lend": "lent lent", "teach": "taught taught", "learn": "learned learned",
    "swim": "swam swum", "get": "got got", "draw": "drew drawn", "throw": "threw thrown", "hide": "hid hidden",
    "say": "said said", "think": "thought thought", "tell": "told told", "sit": "sat sat", "stand": "stood stood",
    "feel": "felt felt", "keep": "kept kept", "grow": "grew grown", "fly": "flew flown", "win": "won won",
    "begin": "began begun", "bring": "brought brought", "catch": "caught caught", "hold": "held held",
    "steal": "stole stolen", "shine": "shone shone", "become": "became become", "ring": "rang rung",
    "bite": "bit bitten", "dig": "dug dug", "put": "put put", "cut": "cut cut", "let": "let let",
    "fight": "fought fought", "pay": "paid paid", "smell": "smelled smelled", "wake": "woke woken",
    "climb": "climbed climbed", "feed": "fed fed",
    "speak": "spoke spoken", "show": "showed shown", "spend": "spent spent", "lead": "led led", "shake": "shook shaken",
}  # fmt: skip
_DOUBLING = {
    "prefer", "stop", "chat", "plan", "hug", "run", "swim", "get", "sit", "forget", "win", "begin", "dig", "put", "cut",
    "nap", "rub", "trip", "drop", "clap", "knit", "hop", "snap", "grin", "let", "chop", "grab", "step",
}  # fmt: skip
_AN_EXCEPTIONS = ("uni", "use", "eur", "one")


@cache
def plural(noun: str) -> str:
    """The plural of a noun. In a compound noun the last word changes."""
    head, _, last = noun.rpartition(" ")
    if head:
        return f"{head} {plural(last)}"
    if noun in _PLURALS:
        return _PLURALS[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


@cache
def third(verb: str) -> str:
    """The third person singular of a verb in the present. In a phrasal verb the first word changes."""
    head, space, tail = verb.partition(" ")
    if head in ("have", "be"):
        form = {"have": "has", "be": "is"}[head]
    elif head.endswith("y") and head[-2] not in "aeiou":
        form = head[:-1] + "ies"
    else:
        form = head + ("es" if head.endswith(("s", "x", "ch", "sh", "o", "z")) else "s")
    return form + space + tail


def _add_ed(head: str) -> str:
    if head.endswith("e"):
        return head + "d"
    if head.endswith("y") and head[-2] not in "aeiou":
        return head[:-1] + "ied"
    return head + (head[-1] if head in _DOUBLING else "") + "ed"


@cache
def past(verb: str) -> str:
    """The simple past of a verb."""
    head, space, tail = verb.partition(" ")
    return (_IRREGULAR[head].split()[0] if head in _IRREGULAR else _add_ed(head)) + space + tail


@cache
def participle(verb: str) -> str:
    """The past participle of a verb."""
    head, space, tail = verb.partition(" ")
    return (_IRREGULAR[head].split()[1] if head in _IRREGULAR else _add_ed(head)) + space + tail


@cache
def ing(verb: str) -> str:
    """The -ing form of a verb."""
    head, space, tail = verb.partition(" ")
    if head.endswith("e") and not head.endswith(("ee", "oe", "ye")) and head != "be":
        head = head[:-1]
    elif head in _DOUBLING:
        head += head[-1]
    return head + "ing" + space + tail


def article(following: str) -> str:
    """The indefinite article, "a" or "an", before the word `following`."""
    vowel = following[0].lower() in "aeiou" and not following.startswith(_AN_EXCEPTIONS)
    return "an" if vowel or following.startswith(("hour", "honest")) else "a"


def write(words: Sequence[str], end: str = ".") -> str:
    """Join words into a sentence that starts with a capital. end: final punctuation."""
    text = " ".join(word for word in words if word).replace(" ,", ",")
    return text[0].upper() + text[1:] + end
