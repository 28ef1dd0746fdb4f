"""Plots of the stories: a plot is a list of steps, and a step is a list of alternative texts.

Slots without a number are about the hero, slots with a 2 about the character that the hero meets.
"""

from __future__ import annotations

from weights.demo.train.grammar.lists import listed

WEATHER = listed(
    "the sun was shining,it was raining,the wind was cold,snow covered the ground,the sky was blue,"
    "the moon was bright,the air was warm,a storm was coming,the birds were singing,the leaves were falling"
)

BEGINNINGS = [
    "Once upon a time, there was {intro}{named} who lived {home}.",
    "Once upon a time, {intro}{named} lived {home}.",
    "Once upon a time, {home}, there lived {intro}{named}.",
    "{full} lived {home}. [Everyone liked {him}|The neighbors liked {him} very much|{he} was never bored].",
    "{full} lived {home} [all alone|with {his} family|with two brothers|and worked hard every day].",
    "Long ago, {intro}{named} lived {home}.",
    "There was once {intro}{named}. {he} lived {home}.",
    "{home} lived {intro}{named}.",
    "A long time ago, there was {intro}{named} who loved {food}. {he} lived {home}.",
    "{full} was [tired|hungry|bored|very happy|sad] that morning. {he} lived {home} and {weather}.",
]

ENDINGS = [
    "From that day on, they were [best friends|good friends|always together].",
    "And they lived happily ever after.",
    "[That night|That evening], {name} [slept well|fell asleep with a smile|dreamed of {place}].",
    "{name} never forgot that day.",
    "{name} was [happy|proud|grateful] and {he} [told the story to everyone|smiled all the way home|sang a little "
    "song].",
    "After that, {name} and {name2} met every [day|week|morning|Sunday] at {place2}.",
    "[And so|In the end], {name} learned that [a friend is better than gold|it is good to be kind|nobody is too "
    "small to help"
    "|it is brave to ask for help|a promise must be kept|patience is a treasure].",
    "The end of the day was [quiet|golden|warm], and {name} was not [sad|afraid|lonely|tired] anymore.",
]

_ONE_DAY = "[One day|One morning|One evening|One afternoon|One winter day|One summer morning]"
_SAID = "[said|answered|whispered|replied]"

_LOST = [
    [
        f"{_ONE_DAY}, {{name}} lost {{his}} {{thing}}.",
        f"{_ONE_DAY}, {{name}} could not find {{his}} {{thing}}.",
        "{he} had a {thing} that {he} loved more than anything. " + f"{_ONE_DAY}, it was gone.",
    ],
    [
        "{he} looked [under the bed|behind the door|in the kitchen|in every room], but it was not there.",
        "{he} was very [sad|worried|upset] and {he} began to [cry|look everywhere].",
        "{he} went to {place} to look for it, but {he} found nothing.",
    ],
    [
        "At {place2}, {he} met {intro2}{named2}.",
        "Then {intro2}{named2} came along.",
        "On the way to {place2}, {he} saw {intro2}{named2}.",
    ],
    [
        f'"Why are you so sad?" asked {{name2}}. "I have lost my {{thing}}," {_SAID} {{name}}.',
        f'"Have you seen my {{thing}}?" asked {{name}}. "No, but I can help you," {_SAID} {{name2}}.',
        '"What are you looking for?" asked {name2}. "My {thing}," said {name}. "Let us look for it together."',
    ],
    [
        "They [walked|went|ran] to {place} together.",
        "They looked behind every [tree|stone|door|bush].",
        "They searched until the sun went down.",
        "",
    ],
    [
        "At last, {name2} found the {thing} [under a stone|in the grass|behind an old wall|in a nest|near the water].",
        "Suddenly, {name} saw the {thing} [in the grass|under a leaf|on a branch|between two stones].",
    ],
    [
        '"Thank you!" said {name}. "You are a true friend."',
        "{name} [hugged|thanked] {name2} and gave {him2} some {food}.",
        "{name} was so happy that {he} [danced|laughed|jumped for joy].",
    ],
]

_LONELY = [
    ["{name} had no friends.", "{name} was often alone.", "Nobody ever came to visit {name}."],
    [
        f"{_ONE_DAY}, {{he}} went to {{place}} and saw {{intro2}}{{named2}}.",
        f"{_ONE_DAY}, {{intro2}}{{named2}} knocked at the door.",
        f"{_ONE_DAY}, when {{weather}}, {{he}} heard a voice near {{place}}. It was {{intro2}}{{named2}}.",
    ],
    [
        f'"Do you want to play with me?" asked {{name2}}. "Yes, I would love to," {_SAID} {{name}}.',
        '"Hello," said {name2}. "What is your name?" {name} was too shy to answer.',
        f'"Are you hungry?" asked {{name}}. "A little," {_SAID} {{name2}}.',
    ],
    [
        "They [played|sang|danced|talked] all day long.",
        "They ate {food} and told each other stories.",
        "They shared some {food} and laughed together.",
        "{name} showed {name2} {his} {thing}.",
    ],
    [
        "When {name2} had to go home, {name} was sad.",
        "In the evening, {name2} said goodbye.",
        "When the stars came out, it was time to go home.",
    ],
    [
        '"Will you come back tomorrow?" asked {name}. "Of course," said {name2}.',
        '"I will come back," promised {name2}, and {he2} kept {his2} promise.',
        "The next day, {name2} came back with a {thing}.",
    ],
]

_JOURNEY = [
    ["{name} had a dream. {he} wanted to {dream}.", "More than anything, {name} wanted to {dream}."],
    [
        f"{_ONE_DAY}, {{he}} packed some {{food}} and left home.",
        f'{_ONE_DAY}, {{he}} said, "I am going to {{dream}}!" Everyone laughed, but {{he}} did not listen.',
        f"{_ONE_DAY}, when {{weather}}, {{he}} took {{his}} {{thing}} and set out.",
    ],
    [
        "{he} walked for [three|five|seven|many] days and crossed {place}.",
        "The road was long and {he} was [tired|cold|hungry], but {he} did not stop.",
        "First {he} came to {place}, and then {he} came to {place2}.",
    ],
    [
        "There {he} met {intro2}{named2}.",
        "At {place2}, {intro2}{named2} was [sitting on a stone|waiting|sleeping in the grass|singing a song].",
    ],
    [
        '"Where are you going?" asked {name2}. "I want to {dream}," said {name}.',
        '"You look tired," said {name2}. "Come and eat some {food} with me."',
        '"I have always wanted to {dream} too," said {name2}. "May I come with you?"',
    ],
    [
        "They traveled together over hills and rivers.",
        "{name2} knew the way and {he2} led {name} through the dark.",
        "{name2} gave {name} a {thing} and showed {him} the way.",
    ],
    [
        "At last, {his} dream came true.",
        "It was not easy, but {name} never gave up.",
        "When they arrived, {weather} and {name} could not believe {his} eyes.",
    ],
]

_KINDNESS = [
    [
        f"{_ONE_DAY}, {{name}} was walking near {{place}} when {{he}} heard a cry for help.",
        f"{_ONE_DAY}, {{weather}} and {{name}} went to {{place}}.",
    ],
    [
        "{intro2}{named2} was stuck in [the mud|a hole|a net|the snow].",
        "There {he} found {intro2}{named2}, who was [hurt|lost|cold and hungry|trapped under a branch].",
    ],
    [
        f'"Please help me," {_SAID} {{name2}}. "Do not be afraid," said {{name}}.',
        '"I will help you," said {name}, '
        "and {he} [pulled with all {his} strength|ran to get a rope|gave {him2} some {food}].",
        '{name} did not run away. "I am here," {he} said.',
    ],
    [
        '{name2} was saved. "I will never forget this," {he2} said.',
        "Soon {name2} was [safe|warm|well] again and {he2} thanked {name}.",
    ],
    [
        "A few days later, {name} was in trouble. {he} had lost {his} way in the dark.",
        "Many weeks later, {name} fell into the river near {place2}.",
        "Later that year, a storm broke the roof of {name}'s house.",
        "",
    ],
    [
        "But {name2} came back and helped {him}.",
        '{name2} heard about it and came at once. "Now it is my turn to help," {he2} said.',
        "{name2} remembered the kindness of {name} and brought {him} a {thing}.",
    ],
]

_RACE = [
    [
        "{name} always said that {he} was the fastest. But {intro2}{named2} did not believe it.",
        f'{_ONE_DAY}, {{intro2}}{{named2}} said to {{name}}, "I can run faster than you!"',
        f"{_ONE_DAY}, {{name}} and {{intro2}}{{named2}} decided to have a race.",
    ],
    [
        "They would run from {place} to {place2}, and the winner would get a {thing}.",
        "Everyone came to {place} to watch. The prize was some {food}.",
    ],
    [
        "At first, {name} was far ahead.",
        "In the beginning, {name2} was much faster.",
        '"One, two, three, go!" And they began to run.',
    ],
    [
        "But then {name2} fell and hurt {his2} foot.",
        "But {name2} stopped to [rest|eat|sleep] under a tree.",
        "But halfway there, a big storm began.",
    ],
    [
        "{name} could have won, but {he} went back to help {name2}.",
        "{name} did not stop until {he} came to {place2}.",
        "They waited together until it was over, and nobody cared about the race.",
    ],
    [
        '"You are the real winner," said {name2}.',
        '"It does not matter who wins," said {name}. "It was fun."',
        "They shared the prize and laughed.",
    ],
]

_PARTY = [
    [
        "It was {name}'s birthday.",
        "{name} wanted to give a party.",
        "The whole village was getting ready for the feast.",
    ],
    [
        "{he} wanted to make {food}, but there was no [flour|sugar|butter|milk|honey] left.",
        "{he} had cooked {food} for everyone, but nobody came.",
        "{he} cleaned the house, lit the candles and made {food}.",
    ],
    [
        "So {he} went to {place} and met {intro2}{named2}.",
        "Then somebody knocked. It was {intro2}{named2} with a {thing}.",
    ],
    [
        f'"Can you help me?" asked {{name}}. "Certainly," {_SAID} {{name2}}.',
        '"What smells so good?" asked {name2}. "It is {food}," said {name}.',
        '"I brought you a present," said {name2}. It was a {thing}.',
    ],
    [
        "They cooked and sang until it was dark.",
        "They invited everyone from {place2}.",
        "{name2} played music and {name} danced.",
    ],
    [
        "It was the best party of the year.",
        '"This is the best day of my life," said {name}.',
        "Everyone ate and drank and was merry.",
    ],
]

_NOISE = [
    [
        "One night, {name} heard a strange noise.",
        "Every night, there was a strange light near {place}.",
        "One night, {weather} and {name} could not sleep.",
    ],
    [
        "{he} took {his} {thing} and went outside.",
        "{he} was afraid, but {he} was also curious.",
        '"Who is there?" {he} called. Nobody answered.',
    ],
    [
        "Near {place}, something moved in the dark.",
        "{he} followed the sound to {place}.",
        "Slowly, {he} opened the door.",
    ],
    [
        "It was only {intro2}{named2}, who was looking for some {food}.",
        "There stood {intro2}{named2} with a {thing}.",
        "It was {intro2}{named2}, and {he2} was shaking with cold.",
    ],
    [
        f'"I am sorry," {_SAID} {{name2}}. "I did not want to wake you."',
        '"Do not be afraid," said {name2}. "I am only hungry."',
        '{name} laughed. "I thought you were a ghost!"',
    ],
    [
        "{name} made some {food} and they ate by the fire.",
        "{name} let {name2} sleep in the warm kitchen.",
        "They talked until the morning came.",
    ],
]

_QUARREL = [
    ["{name} had a friend, {intro2}{named2}.", "{name}'s best friend was {intro2}{named2}."],
    [
        f"{_ONE_DAY}, they found a {{thing}} near {{place}}.",
        f"{_ONE_DAY}, at {{place}}, they saw a {{thing}} in the grass.",
    ],
    [
        f'"It is mine!" said {{name}}. "No, I saw it first!" {_SAID} {{name2}}.',
        "Both of them wanted it, and soon they were [angry|shouting|fighting].",
    ],
    [
        "They pulled and pulled until the {thing} broke.",
        "{name2} went home without a word.",
        "For three days, they did not speak to each other.",
    ],
    [
        "{name} felt [sorry|lonely|ashamed], because a {thing} cannot laugh or sing.",
        "Without {name2}, everything was boring.",
    ],
    [
        '{he} went to {place2} and said, "I am sorry. You can have it."',
        "So {he} made some {food} and took it to {name2}.",
    ],
    ['"I am sorry too," said {name2}. "Let us share it."', "{name2} smiled, and they were friends again."],
]

PLOTS = [_LOST, _LONELY, _JOURNEY, _KINDNESS, _RACE, _PARTY, _NOISE, _QUARREL]
