"""The paraphrase grammar: sentences with the same meaning, and sentences that differ little but in meaning.

An `Event` is a meaning. Two sentences that express the same event are paraphrases. A sentence for an event that differs
in one point (person, object, place, time, number, negation) is a hard negative.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from weights.demo.train.grammar import english
from weights.demo.train.grammar.lists import listed
from weights.demo.train.grammar.template import tidy

# Each entry is one meaning with its synonyms.
_PEOPLE = listed(
    "boy|lad,girl|young lady,doctor|physician,teacher|instructor,child|kid,man|gentleman,woman|lady,policeman|cop,"
    "lawyer|attorney,baker,farmer,nurse,painter,soldier,writer|author,singer|vocalist,king|monarch,student|pupil,"
    "cook|chef,neighbor,tourist|traveler,gardener,engineer,musician,actor,scientist|researcher,waiter|server,"
    "dentist,friend|buddy,driver"
)
# Verbs with synonyms, by the type of their objects.
_VERBS = {
    "thing": (
        "buy|purchase,sell,lose,find|discover,hide|conceal,steal,break,clean|wash,repair|fix|mend,carry|transport,paint,"
        "photograph|snap,choose|select|pick,need|require,receive|get,order|request"
    ),
    "person": (
        "help|assist,call|phone|telephone,invite,follow,watch|observe,thank,greet|welcome,see|notice,meet|encounter,"
        "protect|defend,admire|look up to,hear,love|adore,hate|detest,interview,visit,criticize,hug|embrace"
    ),
    "food": "eat|consume,cook|prepare,taste|try,order|request,share,buy|purchase",
    "text": "read,write,finish|complete,explain|clarify,translate,publish,forget,understand|comprehend,study|learn",
    "place": "build|construct,visit|go to see,leave|exit,destroy|demolish,enter|go into,photograph|snap",
}
_OBJECTS = {
    "thing": (
        "car|automobile,bicycle|bike,picture|painting,phone|telephone,sofa|couch,bag|sack,ship|boat,gift|present,"
        "coat|jacket,computer,lamp,guitar,umbrella,ring,clock,camera,table,hat,shirt,toy,television|TV,mirror,"
        "knife,suitcase,chair"
    ),
    "food": "cake,soup,pizza,apple,sandwich,fish,steak|beef,salad,biscuit|cookie,candy|sweet,egg,sausage,pie,potato",
    "text": (
        "book,letter,story|tale,poem,article,report,novel,message,lesson,newspaper|paper,magazine,"
        "contract|agreement"
    ),
    "place": "house|home,museum,castle,shop|store,bridge,school,hospital,church,garden,tower,library,factory,theater",
}  # fmt: skip
_ADJECTIVES = listed(
    "big|large,small|little,old,new|brand new,beautiful|pretty,expensive|costly,cheap|inexpensive,"
    "strange|odd|weird,famous|well-known,red,blue,green,black,white"
)
_PERSON_ADJECTIVES = listed(
    "happy|cheerful,sad|unhappy,angry|furious,young,old|elderly,rich|wealthy,poor,clever|smart|intelligent,"
    "brave|courageous,tired|weary,sick|ill,kind|nice,lazy|idle,tall,famous|well-known"
)
_PLACES = listed(
    "in the garden|in the yard,in the street|on the street,at school,at the station,in the kitchen,in the park,"
    "near the river|by the river,at the market,in the city|in town,in the forest|in the woods,at home|in the house,"
    "at the office|at work,in the library,near the bridge"
)
_TIMES = {
    "past": (
        "yesterday,last week,last year,this morning,last night|yesterday evening,two days ago,last summer,on Monday"
    ),
    "future": "tomorrow,next week,next year,soon|shortly,tonight|this evening,in two days,next month,on Friday",
    "present": (
        "every day|daily,every week|weekly,often|frequently,every morning,on Sundays|every Sunday,every year|yearly"
    ),
}
_NUMBERS = ("the", "the", "the", "a", "a", "two", "three", "four", "many|a lot of", "some|several")
_VERB_LIST = [(verb, kind) for kind, verbs in _VERBS.items() for verb in verbs.split(",")]
_QUESTIONS = ("is it true that {}?", "is it correct that {}?", "do you know if {}?", "can you tell me whether {}?")
_MOODS = ("statement",) * 6 + ("question",)


@dataclass(frozen=True)
class Thing:
    """A person or an object: a noun with its number or article and an adjective (empty for none)."""

    noun: str
    number: str
    adjective: str


@dataclass(frozen=True)
class Event:
    """A meaning. Each word of it is written as a list of synonyms, separated by `|`.

    kind: `action`, `state`, `being` (in a place) or `having`.
    """

    kind: str
    agent: Thing
    verb: str
    patient: Thing
    place: str
    time: str
    tense: str
    negated: bool
    mood: str

    def key(self) -> str:
        """A text that identifies the event, from which the held-out split is computed."""
        return repr(self)


def _thing(rng: Random, kind: str) -> Thing:
    nouns = _PEOPLE if kind == "person" else _OBJECTS[kind].split(",")
    adjectives = _PERSON_ADJECTIVES if kind == "person" else _ADJECTIVES
    return Thing(rng.choice(nouns), rng.choice(_NUMBERS), rng.choice(adjectives) if rng.random() < 0.25 else "")


def event(rng: Random) -> Event:
    """A random event, a statement or a question about people, objects and places."""
    kind = rng.choices(("action", "state", "being", "having"), (70, 12, 10, 8))[0]
    verb, object_kind = rng.choice(_VERB_LIST)
    tense = rng.choice(("past", "past", "future", "present"))
    agent, patient = _thing(rng, "person"), _thing(rng, object_kind)
    while patient.noun == agent.noun:
        patient = _thing(rng, object_kind)
    place = rng.choice(_PLACES) if rng.random() < 0.3 or kind == "being" else ""
    time = rng.choice(_TIMES[tense].split(",")) if rng.random() < 0.4 else ""
    if kind == "state":
        verb = rng.choice(_PERSON_ADJECTIVES)
        agent = replace(agent, adjective="")
    if kind == "having":
        patient = _thing(rng, "thing")
    if kind != "action":
        tense, time = "present", ""
    if kind in ("state", "having"):
        place = ""
    return Event(kind, agent, verb, patient, place, time, tense, rng.random() < 0.2, rng.choice(_MOODS))


def near_miss(rng: Random, meant: Event) -> Event:
    """A random event that differs from `meant` in one point, so that it has nearly the same words."""
    while True:
        other = event(rng)
        changes = ["agent", "negated", "number", "mood"]
        if meant.kind == "action":
            changes += ["patient", "verb", "number of patient", "tense", "swap", "swap"]
        if meant.kind == "having":
            changes += ["patient"]
        if meant.kind == "state":
            changes += ["verb"]
        if meant.place:
            changes += ["place"]
        if meant.time:
            changes += ["time"]
        missed = _changed(rng, meant, other, rng.choice(changes))
        if missed != meant:
            return missed


def _changed(rng: Random, meant: Event, other: Event, change: str) -> Event:
    people = meant.patient.noun in _PEOPLE
    if change == "swap":
        return replace(meant, agent=meant.patient, patient=meant.agent) if people else meant
    if change == "agent":
        return replace(meant, agent=replace(meant.agent, noun=rng.choice(_PEOPLE)))
    if change == "negated":
        return replace(meant, negated=not meant.negated)
    if change == "mood":
        return replace(meant, mood="question" if meant.mood == "statement" else "statement")
    if change == "number":
        return replace(meant, agent=replace(meant.agent, number=rng.choice(_NUMBERS)))
    if change == "number of patient":
        return replace(meant, patient=replace(meant.patient, number=rng.choice(_NUMBERS)))
    if change == "place":
        return replace(meant, place=rng.choice(_PLACES))
    if change == "time":
        return replace(meant, time=rng.choice(_TIMES[meant.tense].split(",")))
    if change == "tense":
        return replace(meant, tense=rng.choice(tuple(_TIMES)), time="")
    if change == "verb":
        if meant.kind == "state":
            return replace(meant, verb=rng.choice(_PERSON_ADJECTIVES))
        kind = next(kind for verb, kind in _VERB_LIST if verb == meant.verb and (kind == "person") == people)
        return replace(meant, verb=rng.choice([verb for verb, of in _VERB_LIST if of == kind]))
    if people:
        return replace(meant, patient=replace(meant.patient, noun=rng.choice(_PEOPLE)))
    kind = next(kind for kind, nouns in _OBJECTS.items() if meant.patient.noun in nouns.split(","))
    return replace(meant, patient=replace(meant.patient, noun=rng.choice(_OBJECTS[kind].split(","))))


def _pick(rng: Random, synonyms: str) -> str:
    return rng.choice(synonyms.split("|"))


def _phrase(rng: Random, thing: Thing) -> tuple[str, bool]:
    """A random noun phrase for the person or object, and whether it is plural."""
    number = _pick(rng, thing.number)
    plural = thing.number not in ("the", "a")
    noun = _pick(rng, thing.noun)
    words = [number, _pick(rng, thing.adjective) if thing.adjective else "", english.plural(noun) if plural else noun]
    return " ".join(word for word in words if word), plural


def render(rng: Random, meant: Event) -> str:
    """A random sentence that expresses the event `meant`, with random synonyms and word order."""
    agent, many = _phrase(rng, meant.agent)
    if meant.kind == "state":
        core = _state(rng, meant, agent, many)
    elif meant.kind == "being":
        core = _being(rng, meant, agent, many)
    elif meant.kind == "having":
        core = _having(rng, meant, agent, many)
    else:
        core = _action(rng, meant, agent, many)
    if meant.mood == "question":
        lead = rng.choice(_QUESTIONS)
        return tidy(lead.format(core))
    lead = rng.choice(["{}."] * 5 + ["it is true that {}.", "they say that {}."])
    return tidy(lead.format(core))


def _be(plural: bool, negated: bool, rng: Random) -> str:
    if negated:
        return rng.choice(["are not", "aren't"] if plural else ["is not", "isn't"])
    return "are" if plural else "is"


def _state(rng: Random, meant: Event, agent: str, many: bool) -> str:
    adjective = _pick(rng, meant.verb)
    be = _be(many, meant.negated, rng)
    return rng.choice([f"{agent} {be} {adjective}", f"{agent} {_seems(many, meant.negated)} {adjective}"])


def _seems(many: bool, negated: bool) -> str:
    if negated:
        return "do not seem" if many else "does not seem"
    return "seem" if many else "seems"


def _being(rng: Random, meant: Event, agent: str, many: bool) -> str:
    place = _pick(rng, meant.place)
    be = _be(many, meant.negated, rng)
    forms = [f"{agent} {be} {place}", f"{place} {be.replace('n' + chr(39) + 't', ' not')} {agent}"]
    if meant.agent.number != "the":
        forms += [f"there {be} {agent} {place}", f"{place} there {be} {agent}"]
    return rng.choice(forms)


def _having(rng: Random, meant: Event, agent: str, many: bool) -> str:
    object_, plural = _phrase(rng, meant.patient)
    if meant.negated:
        do = rng.choice(["do not", "don't"] if many else ["does not", "doesn't"])
        belong = rng.choice(["do not belong", "don't belong"] if plural else ["does not belong", "doesn't belong"])
        forms = [f"{agent} {do} have {object_}", f"{agent} {do} own {object_}", f"{object_} {belong} to {agent}"]
        return rng.choice(forms)
    have, own = ("have", "own") if many else ("has", "owns")
    belong = "belong" if plural else "belongs"
    return rng.choice([f"{agent} {have} {object_}", f"{agent} {own} {object_}", f"{object_} {belong} to {agent}"])


def _active(rng: Random, meant: Event, verb: str, many: bool) -> str:
    if meant.tense == "future":
        if meant.negated:
            return rng.choice([f"will not {verb}", f"won't {verb}", f"{_be(many, True, rng)} going to {verb}"])
        return rng.choice([f"will {verb}", f"{_be(many, False, rng)} going to {verb}"])
    if meant.tense == "past":
        if meant.negated:
            return rng.choice([f"did not {verb}", f"didn't {verb}"])
        return english.past(verb)
    if meant.negated:
        return rng.choice([f"do not {verb}", f"don't {verb}"] if many else [f"does not {verb}", f"doesn't {verb}"])
    return verb if many else english.third(verb)


def _passive(rng: Random, meant: Event, verb: str, plural: bool) -> str:
    participle = english.participle(verb)
    no = " not" if meant.negated else ""
    if meant.tense == "future":
        return rng.choice([f"will{no} be {participle}", f"{'are' if plural else 'is'}{no} going to be {participle}"])
    be = {"past": ("was", "were"), "present": ("is", "are")}[meant.tense][plural]
    return f"{be}{no} {participle}"


def _action(rng: Random, meant: Event, agent: str, many: bool) -> str:
    verb = _pick(rng, meant.verb)
    patient, plural = _phrase(rng, meant.patient)
    draw = rng.random()
    if draw < 0.5:
        core = f"{agent} {_active(rng, meant, verb, many)} {patient}"
    elif draw < 0.88 or meant.negated or meant.agent.number != "the":
        core = f"{patient} {_passive(rng, meant, verb, plural)} by {agent}"
    else:
        core = f"it {'was' if meant.tense == 'past' else 'is'} {agent} who {_active(rng, meant, verb, many)} {patient}"
    place = _pick(rng, meant.place) if meant.place else ""
    time = _pick(rng, meant.time) if meant.time else ""
    tail = [word for word in (place, time) if word]
    rng.shuffle(tail)
    if tail and rng.random() < 0.4:
        front = tail.pop(rng.randrange(len(tail)))
        core = f"{front}, {core}"
    return " ".join([core, *tail])
