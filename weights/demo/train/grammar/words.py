"""The bilingual lexicon: nouns, adjectives, verbs and adverbs in English and French.

Every English entry has exactly one French one, so that an English sentence has exactly one translation.
"""

from __future__ import annotations

from dataclasses import dataclass

from weights.demo.train.grammar import english, french
from weights.demo.train.grammar.lists import listed, pairs


@dataclass(frozen=True)
class Noun:
    """A noun in both languages. kind: class of nouns, such as `food`, to which verbs and adjectives are restricted."""

    en: str
    fr: str
    feminine: bool
    kind: str

    def forms(self, plural: bool) -> tuple[str, str]:
        """The English and French noun, in the plural or the singular."""
        return (english.plural(self.en), french.plural_noun(self.fr)) if plural else (self.en, self.fr)


@dataclass(frozen=True)
class Adjective:
    """An adjective in both languages.

    kinds: kinds of nouns that it can describe. before: whether the French adjective precedes its noun.
    """

    en: str
    fr: str
    kinds: frozenset[str]
    before: bool


@dataclass(frozen=True)
class Verb:
    """A verb in both languages. Only its first word is conjugated.

    kinds: kinds of nouns that can be its object. stative: whether it describes a state, not an action.
    """

    en: str
    fr: str
    kinds: tuple[str, ...] = ()
    stative: bool = False

    @property
    def reflexive(self) -> bool:
        """Whether the French verb is reflexive (se lever)."""
        return self.fr.startswith("se ")

    @property
    def french_parts(self) -> tuple[str, str]:
        """The French infinitive without "se", and the words after it."""
        head, _, tail = self.fr.removeprefix("se ").partition(" ")
        return head, tail


# kind: english=french, feminine nouns marked with *
_NOUNS = """
person: man=homme, woman=femme*, boy=garçon, girl=fille*, child=enfant, friend=ami, neighbor=voisin, baby=bébé
person: brother=frère, sister=sœur*, father=père, mother=mère*, uncle=oncle, aunt=tante*, cousin=cousin, queen=reine*
person: grandfather=grand-père, grandmother=grand-mère*, king=roi, prince=prince, princess=princesse*, guest=invité
job: student=étudiant, teacher=professeur, doctor=médecin, nurse=infirmière*, lawyer=avocat, baker=boulanger
job: engineer=ingénieur, farmer=fermier, painter=peintre, writer=écrivain, singer=chanteur, actor=acteur
job: actress=actrice*, waiter=serveur, waitress=serveuse*, cook=cuisinier, gardener=jardinier, soldier=soldat
job: policeman=policier, dentist=dentiste, musician=musicien, journalist=journaliste, scientist=scientifique
job: architect=architecte, pilot=pilote, dancer=danseur, tourist=touriste, worker=ouvrier, judge=juge
animal: cat=chat, dog=chien, horse=cheval, cow=vache*, bird=oiseau, rabbit=lapin, mouse=souris*, fox=renard
animal: wolf=loup, bear=ours, duck=canard, chicken=poulet, donkey=âne, goat=chèvre*, elephant=éléphant, lion=lion
animal: monkey=singe, snake=serpent, frog=grenouille*, bee=abeille*, butterfly=papillon, turtle=tortue*, owl=hibou
food: apple=pomme*, orange=orange*, pear=poire*, cake=gâteau, egg=œuf, tomato=tomate*, potato=pomme de terre*
food: carrot=carotte*, sandwich=sandwich, pizza=pizza*, strawberry=fraise*, banana=banane*, onion=oignon, pie=tarte*
food: biscuit=biscuit, cherry=cerise*, lemon=citron, mushroom=champignon, sausage=saucisse*, peach=pêche*
stuff: bread=pain, cheese=fromage, meat=viande*, rice=riz, soup=soupe*, chocolate=chocolat, butter=beurre
stuff: jam=confiture*
drink: water=eau*, coffee=café, tea=thé, milk=lait, wine=vin, beer=bière*, lemonade=limonade*
drink: orange juice=jus d'orange
text: book=livre, letter=lettre*, newspaper=journal, poem=poème, story=histoire*, novel=roman, message=message
text: magazine=magazine, menu=menu, article=article, report=rapport, postcard=carte postale*
thing: key=clé*, phone=téléphone, computer=ordinateur, picture=tableau, camera=appareil photo, umbrella=parapluie
thing: box=boîte*, bag=sac, bottle=bouteille*, cup=tasse*, glass=verre, plate=assiette*, knife=couteau
thing: spoon=cuillère*
thing: pen=stylo, pencil=crayon, ball=ballon, toy=jouet, gift=cadeau, ticket=billet, map=carte*, lamp=lampe*
thing: clock=horloge*, mirror=miroir, guitar=guitare*, piano=piano, violin=violon, flower=fleur*, candle=bougie*
thing: photograph=photo*, coin=pièce*, ring=bague*, suitcase=valise*, basket=panier, blanket=couverture*
thing: hammer=marteau
clothes: hat=chapeau, coat=manteau, shirt=chemise*, dress=robe*, skirt=jupe*, sweater=pull, scarf=écharpe*
clothes: tie=cravate*
clothes: shoe=chaussure*, boot=botte*, jacket=veste*, glove=gant, sock=chaussette*, cap=casquette*
vehicle: car=voiture*, bicycle=vélo, bus=bus, train=train, boat=bateau, truck=camion, plane=avion, motorbike=moto*
furniture: table=table*, chair=chaise*, bed=lit, sofa=canapé, desk=bureau, shelf=étagère*, wardrobe=armoire*
furniture: bench=banc
opening: door=porte*, window=fenêtre*, gate=portail, drawer=tiroir, cupboard=placard
place: house=maison*, garden=jardin, kitchen=cuisine*, park=parc, school=école*, hospital=hôpital, museum=musée
place: city=ville*, village=village, forest=forêt*, library=bibliothèque*, hotel=hôtel, restaurant=restaurant
place: shop=magasin, market=marché, church=église*, castle=château, street=rue*, field=champ, bakery=boulangerie*
place: station=gare*, airport=aéroport, bank=banque*, theater=théâtre, swimming pool=piscine*, farm=ferme*
place: bedroom=chambre*, bathroom=salle de bains*, living room=salon, factory=usine*, pharmacy=pharmacie*
place: university=université*, cinema=cinéma, island=île*, valley=vallée*, square=place*
nature: tree=arbre, river=rivière*, mountain=montagne*, bridge=pont, lake=lac, beach=plage*, wall=mur, tower=tour*
idea: question=question*, answer=réponse*, problem=problème, idea=idée*, song=chanson*, word=mot, lesson=leçon*
idea: game=jeu, movie=film, exercise=exercice, language=langue*, exam=examen, secret=secret, dream=rêve, plan=projet
"""

# kinds | english=french; French adjectives marked with < precede the noun
_ADJECTIVES = """
person job animal furniture thing clothes vehicle opening place nature | big=grand<, small=petit<
person job animal place nature thing clothes vehicle furniture | old=vieux<, beautiful=beau<
thing clothes vehicle furniture text place idea | new=nouveau<
person job animal | young=jeune<, tired=fatigué, sick=malade, strong=fort, quiet=calme, dangerous=dangereux
person job animal | fast=rapide
person job animal | slow=lent, funny=drôle, nice=gentil, sad=triste, happy=heureux, lazy=paresseux, curious=curieux
person job | tall=grand<, rich=riche, intelligent=intelligent, polite=poli, famous=célèbre, serious=sérieux
person job | shy=timide
person job | patient=patient, generous=généreux, busy=occupé, angry=fâché, proud=fier, jealous=jaloux, brave=courageux
person job | honest=honnête, worried=inquiet, surprised=surpris, elegant=élégant, creative=créatif, discreet=discret
food stuff drink | good=bon<, delicious=délicieux, cold=froid, hot=chaud, fresh=frais, expensive=cher, bad=mauvais<
food stuff | salty=salé, sweet=sucré
thing clothes vehicle furniture | cheap=bon marché, red=rouge, blue=bleu, green=vert, yellow=jaune, black=noir
thing clothes vehicle furniture | white=blanc
thing clothes vehicle furniture opening | brown=marron, gray=gris, heavy=lourd, broken=cassé, dirty=sale, clean=propre
thing clothes vehicle | useful=utile, pretty=joli<, light=léger, precious=précieux
opening | open=ouvert, closed=fermé, wide=large
animal | black=noir, white=blanc, gray=gris, brown=marron
text idea | long=long<, interesting=intéressant, difficult=difficile, easy=facile, boring=ennuyeux
text idea | important=important
text idea | strange=étrange, short=court, simple=simple, amusing=amusant
place nature | magnificent=magnifique, ancient=ancien, empty=vide, noisy=bruyant, modern=moderne, peaceful=paisible
"""

# object kinds | english=french; kind 'pn' stands for person, job, animal; ! marks stative verbs (no -ing form)
_VERBS = """
food stuff | eat=manger, cut=couper, taste=goûter, prepare=préparer
food stuff drink | order=commander, serve=servir, bring=apporter, share=partager
drink | drink=boire, pour=verser
text | read=lire, write=écrire, finish=finir, translate=traduire, publish=publier, borrow=emprunter
text idea | understand=comprendre!, explain=expliquer, forget=oublier
idea | remember=retenir!, study=étudier, choose=choisir, discover=découvrir, learn=apprendre, repeat=répéter
thing clothes vehicle food text | buy=acheter, sell=vendre, lose=perdre, find=trouver, look for=chercher, steal=voler
thing clothes text | pack=emballer, hide=cacher, take=prendre, keep=garder, receive=recevoir, want=vouloir!
thing vehicle furniture opening | repair=réparer, break=casser, clean=nettoyer, paint=peindre, measure=mesurer
thing furniture clothes | carry=porter, touch=toucher, move=déplacer, need=avoir besoin de!
clothes | try on=essayer, iron=repasser, wash=laver, fold=plier
vehicle | drive=conduire, park=garer, stop=arrêter
opening | open=ouvrir, close=fermer, push=pousser
place | visit=visiter, leave=quitter, cross=traverser, build=construire, draw=dessiner, photograph=photographier
person job | help=aider, invite=inviter, meet=rencontrer, thank=remercier, call=appeler, listen to=écouter
person job | wait for=attendre
person job | know=connaître!, greet=saluer, talk to=parler à, answer=répondre à, phone=téléphoner à, hug=embrasser
person job animal | follow=suivre, watch=regarder, protect=protéger, hear=entendre, love=adorer!, hate=détester!
person job animal | like=aimer!
animal | feed=nourrir, chase=chasser, wash=laver
person job animal place nature thing vehicle | see=voir!, look at=regarder, admire=admirer
food stuff drink clothes text idea place | like=aimer!, love=adorer!, hate=détester!, prefer=préférer!
"""
_INTRANSITIVE = """
sleep=dormir, work=travailler, sing=chanter, dance=danser, swim=nager, run=courir, walk=marcher, travel=voyager
laugh=rire, smile=sourire, cry=pleurer, speak=parler, arrive=arriver, leave=partir, fall=tomber, stay=rester
come back=revenir, go out=sortir, go home=rentrer, study=étudier, cook=cuisiner, win=gagner, shout=crier, wait=attendre
play football=jouer au football, play cards=jouer aux cartes, play chess=jouer aux échecs, dream=rêver
play the piano=jouer du piano, play the guitar=jouer de la guitare, play the violin=jouer du violon
watch television=regarder la télévision, listen to music=écouter de la musique, do the dishes=faire la vaisselle
go to bed=aller au lit, have breakfast=prendre le petit-déjeuner, have dinner=dîner, have lunch=déjeuner
learn French=apprendre le français, speak English=parler anglais, speak French=parler français
make a noise=faire du bruit
take the train=prendre le train, take the bus=prendre le bus, take a bath=prendre un bain
tell stories=raconter des histoires
get up=se lever, wake up=se réveiller, get dressed=se habiller, rest=se reposer, take a walk=se promener
hurry=se dépêcher
fall asleep=se endormir, have fun=se amuser, get lost=se perdre
"""
_GIVING = "give=donner, show=montrer, send=envoyer, lend=prêter, sell=vendre, offer=offrir, bring=apporter"

# Phrases for being hungry, thirsty and so on, in both languages.
STATES = pairs("hungry=faim, thirsty=soif, sleepy=sommeil, afraid=peur, right=raison, wrong=tort")
MALE = listed("Paul Pierre Thomas David Martin Lucas Peter Daniel Victor Simon Hugo Oscar Tom Leo Adam")
FEMALE = listed("Marie Julie Anna Emma Alice Sarah Claire Sophie Laura Clara Eva Nina Lucy Jane Rose")
CITIES = pairs(
    "Paris=Paris, London=Londres, Lyon=Lyon, Berlin=Berlin, Rome=Rome, Madrid=Madrid, Brussels=Bruxelles, "
    "Geneva=Genève, New York=New York, Tokyo=Tokyo, Vienna=Vienne, Lisbon=Lisbonne, Boston=Boston, Montreal=Montréal"
)
COUNTRIES = pairs(
    "France=en France, Spain=en Espagne, Italy=en Italie, Germany=en Allemagne, England=en Angleterre, "
    "Canada=au Canada, Japan=au Japon, Portugal=au Portugal, Belgium=en Belgique, Brazil=au Brésil, China=en Chine, "
    "Mexico=au Mexique, Switzerland=en Suisse, Russia=en Russie, India=en Inde, Africa=en Afrique"
)
NUMBERS = pairs(
    "two=deux, three=trois, four=quatre, five=cinq, six=six, seven=sept, eight=huit, nine=neuf, ten=dix, "
    "eleven=onze, twelve=douze, fifteen=quinze, twenty=vingt, thirty=trente, a hundred=cent"
)
TIMES = {
    "present": pairs(
        "today=aujourd'hui, every day=tous les jours, every morning=chaque matin, every evening=chaque soir, "
        "on Sundays=le dimanche, on Mondays=le lundi, in the afternoon=l'après-midi, every week=chaque semaine"
    ),
    "now": pairs("now=maintenant, at the moment=en ce moment, today=aujourd'hui"),
    "past": pairs(
        "yesterday=hier, last week=la semaine dernière, last year=l'année dernière, last night=hier soir, "
        "two days ago=il y a deux jours, last summer=l'été dernier, on Friday=vendredi, "
        "a long time ago=il y a longtemps"
    ),
    "future": pairs(
        "tomorrow=demain, next week=la semaine prochaine, next year=l'année prochaine, soon=bientôt, "
        "tonight=ce soir, in two days=dans deux jours, next month=le mois prochain, tomorrow morning=demain matin, "
        "on Saturday=samedi"
    ),
}
FREQUENCY = pairs("always=toujours, often=souvent, sometimes=parfois, rarely=rarement")
MANNER = pairs("slowly=lentement, quickly=rapidement, quietly=calmement, loudly=bruyamment")
PLACE_PREPOSITIONS = {
    "place": pairs("in=dans, near=près de, behind=derrière, in front of=devant, far from=loin de, next to=à côté de"),
    "furniture": pairs("on=sur, under=sous, behind=derrière, near=près de, next to=à côté de, in front of=devant"),
    "nature": pairs("near=près de, behind=derrière, in front of=devant, far from=loin de"),
}


def _nouns() -> list[Noun]:
    nouns = []
    for line in _NOUNS.strip().splitlines():
        kind, _, entries = line.partition(": ")
        nouns += [Noun(en, fr.rstrip("*"), fr.endswith("*"), kind) for en, fr in pairs(entries)]
    return nouns


def _adjectives() -> list[Adjective]:
    adjectives = []
    for line in _ADJECTIVES.strip().splitlines():
        kinds, _, entries = line.partition(" | ")
        for en, fr in pairs(entries):
            adjectives.append(Adjective(en, fr.rstrip("<"), frozenset(kinds.split()), fr.endswith("<")))
    return adjectives


def _verbs(text: str) -> list[Verb]:
    verbs = []
    for line in text.strip().splitlines():
        kinds, bar, entries = line.rpartition(" | ")
        for en, fr in pairs(entries if bar else line):
            verbs.append(Verb(en, fr.rstrip("!"), tuple(kinds.split()), fr.endswith("!")))
    return verbs


NOUNS = _nouns()
ADJECTIVES = _adjectives()
TRANSITIVE = _verbs(_VERBS)
INTRANSITIVE = _verbs(_INTRANSITIVE)
GIVING = _verbs(_GIVING)
BY_KIND: dict[str, list[Noun]] = {}
for _noun in NOUNS:
    BY_KIND.setdefault(_noun.kind, []).append(_noun)
ADJECTIVES_FOR = {kind: [a for a in ADJECTIVES if kind in a.kinds] for kind in BY_KIND}
