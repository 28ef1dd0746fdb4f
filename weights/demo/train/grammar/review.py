"""The review grammar: opinions on films, restaurants, hotels and more, labelled negative or positive.

The label follows from the structure of a review, not from word counts: negation inverts a word, and in a contrast the
clause after "but", or the overall verdict, decides.
"""

from __future__ import annotations

from random import Random

from weights.demo.train.grammar.lists import listed
from weights.demo.train.grammar.template import expand, tidy

NEGATIVE, POSITIVE = 0, 1

# domain: reviewed things; aspects with singular verbs; aspects with plural verbs; verbs for using such a thing
_DOMAINS = {
    "film": ("film,movie,documentary,comedy,thriller,drama", "acting,plot,story,soundtrack,ending,photography,dialogue",
             "actors,characters,special effects,songs", "watched,saw"),
    "book": ("book,novel,story,biography,thriller", "plot,writing,style,ending,first chapter,beginning",
             "characters,dialogues,chapters,pictures", "read,finished"),
    "restaurant": ("restaurant,cafe,bistro,pizzeria,place", "food,service,soup,pizza,dessert,wine,menu,atmosphere",
                   "waiters,staff,desserts,portions,prices", "tried,visited"),
    "hotel": ("hotel,hostel,guest house,place,resort", "room,breakfast,bed,view,location,bathroom,pool,service",
              "staff,rooms,beds,receptionists,towels", "visited,booked"),
    "phone": ("phone,laptop,tablet,camera,watch", "screen,battery,keyboard,sound,design,price,display",
              "speakers,buttons,colors,photos,updates", "bought,tested"),
    "music": ("album,concert,song,band,show", "music,singer,voice,melody,rhythm,sound",
              "lyrics,musicians,songs,guitars", "heard,played"),
    "shop": ("shop,store,bakery,market,pharmacy", "service,choice,quality,bread,parking,website",
             "prices,staff,assistants,products", "visited,found"),
    "course": ("course,lesson,class,workshop,lecture", "teacher,content,material,pace,explanation",
               "exercises,teachers,examples,slides", "took,attended"),
    "toy": ("game,toy,puzzle,bike,gift", "quality,design,packaging,idea,material", "instructions,colors,pieces,rules",
            "bought,tried"),
}  # fmt: skip
_GOOD = listed(
    "good,great,wonderful,excellent,fantastic,amazing,lovely,brilliant,superb,perfect,delightful,beautiful,nice,"
    "enjoyable,impressive,charming,outstanding,marvelous,pleasant,terrific,awesome,splendid,fabulous,magnificent,"
    "incredible,fun"
)
_BAD = listed(
    "bad,terrible,awful,horrible,boring,dreadful,poor,disappointing,mediocre,dull,annoying,ugly,unpleasant,"
    "disgusting,useless,pathetic,stupid,weak,cheap,nasty,worthless,appalling,tedious,rude,lousy,frustrating"
)
_LIKED = listed("loved,liked,enjoyed,adored,appreciated,really enjoyed,really loved,absolutely loved")
_DISLIKED = listed("hated,disliked,regretted,really disliked,absolutely hated,truly hated,could not stand,detested")
_LIKE = listed("like,love,enjoy,recommend,appreciate")
_DISLIKE = listed("hate,dislike,regret")
_VERY = ["", "", "very ", "really ", "so ", "quite ", "absolutely ", "truly ", "incredibly ", "rather ", "extremely "]
_NEG_IS = "[is not|was not|isn't|wasn't|is never|was hardly]"
_NEG_ARE = "[are not|were not|aren't|weren't|were hardly|are never]"

# Overall verdicts of each label.
_VERDICTS = {
    POSITIVE: [
        "[I will come back|I would buy it again|I recommend it to everyone|highly recommended|five stars|worth "
        "every penny]",
        "[it made me happy|it made my day|I had a great time|we had a lot of fun|I could not be happier|I am very "
        "satisfied]",
        "[what a pleasant surprise|it was better than I expected|I could not ask for more|it exceeded my expectations]",
        "[I have no complaints|nothing was wrong|nothing went wrong|I was not disappointed|it did not "
        "disappoint|I regret nothing]",
        "[I would not change a thing|you will not regret it|do not miss it|I can't wait to come back|never a dull "
        "moment]",
    ],
    NEGATIVE: [
        "[I will never come back|I would not buy it again|I do not recommend it|avoid it|one star|a waste of money]",
        "[it made me angry|it ruined my day|I had a bad time|it was no fun|I want my money back|I am very unhappy]",
        "[what a disappointment|it was worse than I expected|I expected more|it did not meet my expectations|stay "
        "away]",
        "[I have many complaints|nothing was right|everything went wrong|I was very disappointed|I was not "
        "happy|I regret it]",
        "[I would change everything|you will regret it|do not bother|I can't recommend it|I was not "
        "satisfied|never again]",
    ],
}  # fmt: skip


class _Reviewer:
    """Draws clauses about one thing with a given label, 0 for negative and 1 for positive.

    The clauses are templates, in which `[a|b]` is a choice.
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        things, single, many, verbs = _DOMAINS[rng.choice(list(_DOMAINS))]
        self.thing = rng.choice(things.split(","))
        self.single, self.many, self.verbs = single.split(","), many.split(","), verbs.split(",")

    def word(self, label: int) -> str:
        """An adjective with this label, sometimes after a word such as "very"."""
        return self.rng.choice(_VERY) + self.rng.choice(_GOOD if label else _BAD)

    def plain(self, label: int) -> str:
        """An adjective with this label, without a word such as "very"."""
        return self.rng.choice(_GOOD if label else _BAD)

    def aspect(self, label: int) -> str:
        """A clause with this label about one aspect of the thing. It may negate a word with the opposite label."""
        rng = self.rng
        plural = rng.random() < 0.4
        name = rng.choice(self.many if plural else self.single)
        be = "[are|were]" if plural else "[is|was]"
        draw = rng.random()
        if draw < 0.62:
            return f"the {name} {be} {self.word(label)}"
        if draw < 0.9:
            negated = _NEG_ARE if plural else _NEG_IS
            emphasis = rng.choice(["", "", "at all", "in any way"])
            strength = rng.choice(["", "", "very ", "that ", "so "]) if not emphasis else ""
            return f"the {name} {negated} {strength}{self.plain(1 - label)} {emphasis}"
        return f"[I|we|my friends] {rng.choice(_LIKED if label else _DISLIKED)} the {name}"

    def whole(self, label: int) -> str:
        """A clause with this label about the thing as a whole."""
        rng, thing = self.rng, self.thing
        mine = rng.choice(_LIKED if label else _DISLIKED)
        good, other = self.word(label), self.plain(1 - label)
        verb = rng.choice(self.verbs)
        worst = "[the worst|one of the worst]"
        patterns = [
            f"[I|we|my wife|my husband|everyone|my children|my brother|our family] {mine} [this|the|that] {thing}",
            f"[I|we] {mine} this {self.plain(label)} {thing}",
            f"[this|the|that] {thing} [is|was] {good}",
            f"[this|the|that] {thing} [is|was] {self.plain(label)} and {self.plain(label)}",
            f"what a {self.plain(label)}, {self.plain(label)} {thing}",
            f"what a {self.plain(label)} {thing}",
            f"it [is|was] a {good} {thing}",
            f"[this|the] {thing} {_NEG_IS} {other} [at all||]",
            f"it {_NEG_IS} a {other} {thing} [at all||]",
            f"there is nothing {other} about this {thing}",
            f"I [did not|didn't|do not|don't|never] {rng.choice(_DISLIKE if label else _LIKE)} this {thing} [at all||]",
            f"[the best|one of the best] {thing}s I have ever seen" if label else f"{worst} {thing}s ever",
            f"I {verb} this {thing} [last week|yesterday|twice|with my family] and it was {good}",
            f"I {verb} this {thing} and I {mine} it",
            f"I [thought|expected|feared] it would be {other}, but it was {good}",
            f"{self.plain(label)} {thing}",
            f"not {other} [at all|]",
            f"no one could call this {thing} {other}",
            f"[I think|I find|I must say] this {thing} [is|was] {good}",
        ]
        return rng.choice(patterns)

    def contrast(self, label: int) -> str:
        """A sentence with both labels, in which the overall verdict has this label and decides."""
        rng = self.rng
        patterns = [
            f"{self.aspect(1 - label)}, but {self.whole_short(label)}",
            f"{self.aspect(1 - label)} but {self.aspect(label)} and overall {self.whole_short(label)}",
            f"although {self.aspect(1 - label)}, {self.whole_short(label)}",
            f"even though {self.aspect(1 - label)}, {self.whole_short(label)}",
            f"{self.whole_short(label)}, although {self.aspect(1 - label)}",
            f"{self.whole_short(label)} even though {self.aspect(1 - label)}",
            f"despite the {self.plain(1 - label)} {rng.choice(self.single)}, {self.whole_short(label)}",
            f"{self.aspect(1 - label)}. However, {self.whole_short(label)}",
        ]
        return rng.choice(patterns)

    def whole_short(self, label: int) -> str:
        """A short overall verdict with this label, which can follow "but" or precede "although"."""
        rng, thing = self.rng, self.thing
        mine = rng.choice(_LIKED if label else _DISLIKED)
        warmly = "[loved|enjoyed]" if label else "[hated|regretted]"
        again = "[will not come back|would not recommend it]"
        if label:
            again = "[will come back|would recommend it|would do it again]"
        return rng.choice([
            f"[I|we] {mine} it", f"[I|we] {mine} the {thing}", f"the {thing} was {self.word(label)}",
            f"it was {self.word(label)}", f"I {warmly} [every minute|everything]",
            f"it {_NEG_IS} {self.plain(1 - label)}",
            f"I [did not|didn't] {rng.choice(_DISLIKE if label else _LIKE)} it",
            f"I {again}",
        ])  # fmt: skip


def review(rng: Random) -> tuple[str, int]:
    """A random review and its label, 0 for negative and 1 for positive."""
    label = rng.randrange(2)
    writer = _Reviewer(rng)
    draw = rng.random()
    if draw < 0.36:
        parts = [writer.whole(label)]
    elif draw < 0.48:
        parts = [writer.aspect(label)]
    elif draw < 0.6:
        parts = [f"{writer.aspect(label)} and {writer.aspect(label)}"]
    elif draw < 0.8:
        parts = [writer.contrast(label)]
    else:
        parts = [writer.whole(label), rng.choice([writer.aspect(label), rng.choice(_VERDICTS[label])])]
    if draw < 0.8 and rng.random() < 0.15:
        parts.append(rng.choice(_VERDICTS[label]))
    end = rng.choice([".", ".", ".", "!", ""])
    text = tidy(". ".join(expand(rng, part) for part in parts)) + end
    return (text.lower() if rng.random() < 0.1 else text), label
