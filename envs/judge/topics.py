"""Built-in tasks: something to explain to somebody, and short letters to write.

The facts and keywords stand in the rubric alone, never in the question. A topic is in one split only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from miles_agents.envs.judge.rubric import Criterion, OpenTask, Rubric

_MAX_WORDS = 90
_AUDIENCES = {
    "child": "a child of ten",
    "student": "a first-year student of another subject",
    "hurry": "a colleague who has one minute",
}


class _Topic(NamedTuple):
    name: str
    split: str
    what: str
    facts: tuple[str, ...]
    keywords: tuple[tuple[str, ...], ...]  # one group for each fact
    reference: str


class _Letter(NamedTuple):
    name: str
    split: str
    what: str
    content: str
    keywords: tuple[tuple[str, ...], ...]
    reference: str


_TOPICS = (
    _Topic(
        "sky",
        "train",
        "why the sky is blue on a clear day",
        (
            "sunlight is a mixture of colours",
            "air scatters short waves most",
            "so that colour reaches us from all over",
        ),
        (("mix*", "all colours", "all colors"), ("scatter*",), ("direction*", "everywhere", "all sides")),
        "Sunlight is a mixture of all colours. The tiny molecules of the air scatter short waves much more than long "
        "ones, and blue is among the short ones. So blue light reaches our eyes from every direction, while the rest "
        "passes nearly straight on.",
    ),
    _Topic(
        "seasons",
        "train",
        "why there are summer and winter",
        ("the axis is tilted", "the light falls more steeply", "the days are longer, distance is not the cause"),
        (("tilt*", "axis"), ("steep*", "overhead", "angle"), ("longer", "distance")),
        "The axis of the Earth is tilted. For half of the year our side leans towards the Sun: its light falls more "
        "steeply, so it is less spread out, and it shines for longer each day. That is our warm half. The distance to "
        "the Sun is not the cause.",
    ),
    _Topic(
        "vaccine",
        "train",
        "how a vaccine protects somebody",
        ("it shows the body a harmless piece", "the body makes antibodies and remembers", "later it reacts faster"),
        (("harmless", "weakened", "piece"), ("antibod*", "remember*", "memory"), ("faster", "quick*", "at once")),
        "A vaccine shows the immune system a harmless piece of a germ. The body learns to make antibodies against it "
        "and keeps cells that remember it. When the real germ comes later, it is met so quickly that one hardly falls "
        "ill.",
    ),
    _Topic(
        "tides",
        "train",
        "why the sea rises and falls about twice a day",
        ("the Moon pulls on the water", "it pulls the near side more than the far side", "the Earth turns under it"),
        (("moon",), ("near*", "far side", "bulge*"), ("turn*", "rotat*", "spin*")),
        "The Moon pulls on the near side of the Earth more than on the far side. The oceans are stretched into two "
        "bulges, one towards the Moon and one away from it. As the Earth turns, each coast passes through both within "
        "about a day.",
    ),
    _Topic(
        "bread",
        "train",
        "why dough with yeast grows",
        ("yeast eats sugar", "it gives off carbon dioxide", "gluten holds the bubbles"),
        (("sugar*", "starch"), ("carbon dioxide", "gas", "co2"), ("gluten", "elastic", "stretch*")),
        "Yeast is alive: it eats the sugar of the flour and gives off carbon dioxide, a gas. Kneading has made a net "
        "of gluten, which is elastic. It holds the bubbles, so the dough is blown up slowly.",
    ),
    _Topic(
        "recursion",
        "train",
        "what recursion is in programming",
        ("a function calls itself", "each time on a smaller problem", "a base case ends it"),
        (("calls itself",), ("smaller", "simpler"), ("base case", "stops", "ends")),
        "A recursive function calls itself. Each call works on a smaller piece of the problem and waits for what the "
        "next one finds. There must be a base case, a piece so small that it is answered directly; there the chain "
        "ends.",
    ),
    _Topic(
        "interest",
        "train",
        "why savings with compound interest grow faster and faster",
        ("interest is added to the capital", "it then earns interest itself", "so growth is exponential"),
        (("added",), ("earn*",), ("exponential*", "doubl*", "multipl*")),
        "At the end of each year the interest is added to what was saved. From then on it earns interest too. Each "
        "year's gain is therefore larger than the last one's: the sum is multiplied by the same number each time, "
        "which is exponential growth.",
    ),
    _Topic(
        "encryption",
        "train",
        "how two people can write to each other secretly with public and private keys",
        ("everybody may know one of the keys", "what it locks only the other opens", "nothing secret is sent"),
        (("everybody", "everyone", "anyone"), ("decrypt*", "unlock*", "open*"), ("never", "without")),
        "Each of them makes a pair. One half is given to everybody: it only locks. What it has locked can be opened "
        "with the other half alone, which never leaves its owner. So a secret can be sent without meeting first.",
    ),
    _Topic(
        "plane",
        "train",
        "why an aeroplane stays in the air",
        ("the wing pushes air down", "the air pushes the wing up", "this needs speed"),
        (("down", "downwards"), ("lift", "pushes back", "reaction"), ("speed", "fast*", "forward*")),
        "Its engines drive it forward. The wings are shaped and tilted so that they turn the air down. Air that is "
        "pushed down pushes back: that is lift. With enough speed the lift is as large as the weight.",
    ),
    _Topic(
        "photosynthesis",
        "train",
        "how a plant makes its food",
        ("it takes in carbon dioxide and water", "with the energy of light", "it makes sugar and gives off oxygen"),
        (("carbon dioxide", "co2"), ("light", "sunlight", "sun"), ("sugar*", "glucose", "oxygen")),
        "A leaf takes carbon dioxide from the air and water from the roots. With the energy of sunlight its green "
        "chlorophyll joins them into sugar, which feeds the plant. Oxygen is left over and goes into the air.",
    ),
    _Topic(
        "microwave",
        "validation",
        "how a microwave oven heats a meal",
        ("waves push molecules back and forth", "mostly those of water", "their motion is heat"),
        (("wave*", "radiation", "field"), ("water",), ("friction", "motion", "rotat*", "wiggl*")),
        "It fills the box with electromagnetic waves. Their field pulls molecules of water to and fro some billions of "
        "times a second. These bump into their neighbours, and such motion is what we feel as heat.",
    ),
    _Topic(
        "inflation",
        "validation",
        "what inflation is and why it matters",
        ("prices rise in general", "so money buys less", "savings and wages lose value"),
        (("prices",), ("less", "purchasing power"), ("savings", "wages", "saved")),
        "Inflation means that prices in general rise over time. The same money then buys less. Those whose wages do "
        "not keep up, or who hold savings in cash, lose by it; those who owe money gain.",
    ),
    _Topic(
        "gps",
        "validation",
        "how a phone finds its position by satellites",
        ("satellites send the time", "the delay gives the distance", "several distances give the place"),
        (("clock*", "time"), ("distance*", "delay", "how far"), ("three", "four", "several")),
        "Each satellite has a precise clock and sends the time and its own place. From how late a signal comes, the "
        "phone knows the distance to that satellite. Four such distances fit only one place, and set its own clock "
        "right.",
    ),
    _Topic(
        "rainbow",
        "test",
        "how a rainbow comes about",
        ("drops of water bend light", "each colour by another angle", "it is reflected inside the drop"),
        (("drop*",), ("refract*", "bend*", "bent"), ("reflect*",)),
        "Sunlight enters drops of rain, is bent, reflected at the back, and bent again as it leaves. Each colour is "
        "bent by a slightly different angle, so we see each of them from another ring of drops. The Sun must be "
        "behind us.",
    ),
    _Topic(
        "soap",
        "test",
        "why soap helps to wash off grease",
        ("its molecules have two ends", "one likes water, one likes fat", "so fat is carried off in small drops"),
        (("molecule*",), ("water",), ("fat", "oil", "oily")),
        "A molecule of soap has two ends. One likes water, the other likes fat. Many of them surround a little oil "
        "with their fatty ends inside, and the drops made like that float off with the water.",
    ),
    _Topic(
        "batteries",
        "test",
        "how a rechargeable battery stores energy",
        ("ions move between two electrodes", "electrons flow through the circuit", "charging drives them back"),
        (("ion*",), ("electron*",), ("back", "reverse*")),
        "Inside are two electrodes. While it is used, ions wander from one to the other through the liquid between "
        "them, and electrons take the way outside, through the device. Charging pushes both back, so it can begin "
        "again.",
    ),
)
_FORM = (("subject",), ("dear", "hello"), ("regards", "sincerely", "best wishes", "yours"))
_LETTERS = (
    _Letter(
        "refund",
        "train",
        "Write a short, polite e-mail to a shop: a kettle that you bought on 3 May leaks, and you want your money "
        "back.",
        "says what is wrong with what, when it was bought, and asks clearly for the money",
        (("refund*", "reimburse*"),),
        "Subject: Leaking kettle\n\nDear team,\n\non 3 May I bought a kettle from you. Since yesterday it leaks at the "
        "spout. I kindly ask you for a full refund; the receipt is attached.\n\nKind regards,\nA customer",
    ),
    _Letter(
        "landlord",
        "train",
        "Write a short, firm e-mail to a landlord: the heating has been broken for a week, and it has to work by "
        "Friday.",
        "says what is broken since when, sets the date, stays polite",
        (("repair*", "fix*"),),
        "Subject: Heating out of order\n\nDear landlord,\n\nfor a week now the heating has not worked. Please have it "
        "repaired by Friday, or I shall have to reduce the rent.\n\nYours sincerely,\nyour tenant",
    ),
    _Letter(
        "deadline",
        "validation",
        "Write a short e-mail to a teacher: you have been ill and ask for three more days for an essay.",
        "gives the reason, asks for the three days, offers something in return",
        (("extension", "extend*"),),
        "Subject: Essay\n\nDear teacher,\n\nI have been ill since Monday. May I ask for an extension of three days? I "
        "can send you the first half today.\n\nBest wishes,\na student",
    ),
    _Letter(
        "decline",
        "test",
        "Write a short, friendly e-mail that declines an invitation to a wedding because of a journey.",
        "declines clearly, gives the reason, is warm",
        (("unfortunately", "sorry", "sadly"), ("congratulat*", "wish*", "happy")),
        "Subject: Your wedding\n\nDear both,\n\ncongratulations, and thank you for asking me! Unfortunately I shall be "
        "on a journey then and cannot come. I wish you a wonderful day.\n\nYours,\na friend",
    ),
)


def built_in_tasks(split: str) -> Iterator[OpenTask]:
    """The tasks of a split, always the same and in the same order."""
    for topic in _TOPICS:
        if topic.split == split:
            for name, audience in _AUDIENCES.items():
                yield _explaining(topic, name, audience)
    for letter in _LETTERS:
        if letter.split == split:
            yield _writing(letter)


def _explaining(topic: _Topic, name: str, audience: str) -> OpenTask:
    criteria = (
        Criterion(
            name="facts",
            description=f"it is right, and says: {'; '.join(topic.facts)}",
            weight=2.0,
            keywords=topic.keywords,
        ),
        Criterion(name="audience", description=f"words, pace and examples suit {audience}"),
        Criterion(name="brevity", description=f"at most {_MAX_WORDS} words, none of them beside the point"),
    )
    return OpenTask(
        id=f"{topic.name}/{name}",
        question=f"Explain {topic.what} to {audience}, in at most {_MAX_WORDS} words.",
        rubric=Rubric(criteria=criteria, reference=topic.reference, max_words=_MAX_WORDS),
        kind="explain",
    )


def _writing(letter: _Letter) -> OpenTask:
    criteria = (
        Criterion(name="content", description=letter.content, weight=2.0, keywords=letter.keywords),
        Criterion(name="form", description="a subject line, a greeting, a closing; no empty phrases", keywords=_FORM),
    )
    question = f"{letter.what} At most {_MAX_WORDS} words."
    return OpenTask(
        id=letter.name,
        question=question,
        rubric=Rubric(criteria=criteria, reference=letter.reference, max_words=_MAX_WORDS),
        kind="write",
    )
