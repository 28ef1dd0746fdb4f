"""The story grammar: short tales with named characters, a place, a wish or a trouble, dialogue and an ending."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from weights.demo.train.grammar.lists import listed
from weights.demo.train.grammar.plots import BEGINNINGS, ENDINGS, PLOTS, WEATHER
from weights.demo.train.grammar.template import expand, tidy

_GIRLS = listed("Lily Mia Anna Emma Rose Clara Nina Ruby Alice Ella Sara Molly Daisy Ivy Zoe Maya Lucy Nora")
_BOYS = listed("Tom Ben Max Leo Sam Jack Oscar Finn Hugo Theo Noah Adam Peter Felix Otto Luke Milo Toby")
_PEOPLE_HER = listed("girl,princess,woman,queen,grandmother,baker,painter,sailor,teacher,gardener,witch")
_PEOPLE_HIM = listed(
    "boy,prince,man,king,grandfather,baker,farmer,fisherman,painter,sailor,shepherd,wizard,tailor,miller"
)
_ANIMALS = listed(
    "fox,bear,rabbit,mouse,owl,cat,dog,frog,duck,goat,hedgehog,squirrel,wolf,donkey,turtle,pony,crow,dragon,lion,"
    "badger,goose,hen,monkey,penguin,otter"
)
_TRAITS = listed(
    "little,old,young,clever,kind,brave,shy,curious,lazy,happy,gentle,poor,proud,quiet,funny,busy,lonely,wise"
)
_HOMES = listed(
    "in a small village,in a little house by the sea,near a dark forest,at the edge of a quiet town,"
    "on a green hill,in a tall tower,in an old castle,beside a clear river,on a farm in the valley,"
    "under a big oak tree,in a cottage at the foot of the mountain,in the middle of a busy city,near a blue lake,"
    "on a tiny island"
)
_PLACES = listed(
    "the forest,the market,the river,the old bridge,the garden,the barn,the meadow,the beach,the village square,"
    "the cave,the top of the hill,the lake,the library,the old mill,the harbor,the orchard,the castle gate"
)
_THINGS = listed(
    "key,ring,red ball,map,silver bell,lantern,blue hat,golden coin,wooden flute,kite,book,umbrella,necklace,"
    "toy boat,basket,green scarf,small drum,music box,letter,pocket watch,warm coat,paper star,button,magic stone,"
    "feather"
)
_FOODS = listed(
    "apple pie,honey cake,warm bread,carrot soup,cheese,cookies,strawberries,pancakes,chocolate,cherries,"
    "roasted nuts,pumpkin soup,plum jam,sweet berries"
)
_DREAMS = listed(
    "see the sea,learn to sing,fly like a bird,climb the highest mountain,find a treasure,build a boat,"
    "paint the sky,dance in the palace,travel around the world,play the violin,catch a falling star,visit the moon,"
    "write a book"
)


@dataclass(frozen=True)
class Character:
    """A character of a story: what it is, a trait, its name (empty for none) and its pronouns."""

    kind: str
    trait: str
    name: str
    pronouns: tuple[str, str, str]

    def slots(self, suffix: str) -> dict[str, str]:
        """Values of the template slots about this character. suffix: end of the slots' names, such as `2`."""
        he, him, his = self.pronouns
        short = self.name or f"the {self.kind}"
        return {
            f"intro{suffix}": f"a {self.trait} {self.kind}", f"full{suffix}": f"the {self.trait} {self.kind}",
            f"kind{suffix}": self.kind, f"name{suffix}": short, f"trait{suffix}": self.trait,
            f"named{suffix}": f" named {self.name}" if self.name else "",
            f"he{suffix}": he, f"him{suffix}": him, f"his{suffix}": his,
        }  # fmt: skip


def _character(rng: Random, avoid: str = "") -> Character:
    female = rng.random() < 0.5
    if rng.random() < 0.5:
        kind = rng.choice([animal for animal in _ANIMALS if animal != avoid])
    else:
        kind = rng.choice([person for person in (_PEOPLE_HER if female else _PEOPLE_HIM) if person != avoid])
    name = rng.choice(_GIRLS if female else _BOYS) if rng.random() < 0.6 else ""
    pronouns = ("she", "her", "her") if female else ("he", "him", "his")
    return Character(kind, rng.choice(_TRAITS), name, pronouns)


def story(rng: Random) -> str:
    """A random story, as a single paragraph."""
    beginning = rng.choice(BEGINNINGS)
    hero = _character(rng)
    if "{named}" not in beginning:
        hero = replace(hero, name="")  # a name must be introduced before it is used
    friend = _character(rng, hero.kind)
    while (hero.name and friend.name == hero.name) or friend.trait == hero.trait:
        friend = _character(rng, hero.kind)
    place, second = rng.sample(_PLACES, 2)
    slots = hero.slots("") | friend.slots("2")
    slots |= {
        "home": rng.choice(_HOMES), "place": place, "place2": second, "thing": rng.choice(_THINGS),
        "food": rng.choice(_FOODS), "dream": rng.choice(_DREAMS), "weather": rng.choice(WEATHER),
    }  # fmt: skip
    steps = [beginning]
    for options in rng.choice(PLOTS):
        step = rng.choice(options)
        if step:
            steps.append(step)
    steps.append(rng.choice(ENDINGS))
    return " ".join(tidy(expand(rng, step, slots)) for step in steps)
