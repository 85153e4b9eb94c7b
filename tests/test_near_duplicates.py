"""Families of near-duplicate questions: the rule, its exactness, its speed."""

import json
import os
import random
import time
from itertools import combinations
from pathlib import Path

import pytest

from miles_agents.envs.near_duplicates import families, template

SHARED = Path(os.environ.get("MILES_AGENTS_DATA", Path(__file__).parents[2] / "shared" / "data"))


def related(one, other):
    first, second = families([one, other])
    return first == second


BASE = "Joan found 70 seashells on the beach. She gave Sam 27 of them. How many seashells has she left?"


@pytest.mark.parametrize(
    "other",
    [
        "Tim found 9 seashells on the beach. She gave Ann 1 of them. How many seashells has she left?",
        "Joan found seventy seashells on the beach. She gave Sam 27 of them. How many seashells has she left?",
        "Joan found 70 seashells  on the beach . she gave Sam 27 of them — how many seashells has she left ?",
        "Mary Otis found 1,070.5 seashells on the beach; she gave Mr. Bo 27 of them: How many seashells has she left",
    ],
)
def test_numbers_names_case_spacing_and_punctuation_make_no_other_question(other):
    assert related(BASE, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (BASE, "Joan sold 70 hats at the fair. She sold Sam 27 of them. How many hats did the others buy?"),
        ("How many are left of 7?", "How many were lost of 7?"),
        ("", "What is 7?"),
    ],
)
def test_other_questions_are_not_related(one, other):
    assert not related(one, other)


def test_equal_questions_are_related_however_they_are_typed():
    assert related(BASE, f" {BASE.upper()}\n")
    assert related(BASE, BASE.lower())


def test_templates_mask_numbers_and_names():
    assert template(BASE) == ("@ found # seashells on the beach she gave @ # of them how many seashells has she left")
    assert template("In two years Ada Byron pays $1,200.50, half of it.") == "in # years @ pays # # of it"
    assert template("The cat isn’t Ann’s.") == "the cat isn’t @"
    assert template("WHAT IS 3 AND 4?") == "what is # and #"  # shouted: no word counts as a name
    assert template("?!") == "?!"


def test_a_jaccard_index_of_four_fifths_is_a_near_duplicate_and_less_is_none():
    # 12 words have 10 runs of three; another last word changes one: 9 shared of 11. Another word in the middle
    # changes three: 7 of 13. Nine words have 7 runs; another last word: 6 of 8.
    words = list("abcdefghijkl")
    assert related(" ".join(words), " ".join([*words[:-1], "z"]))  # 9/11 = 0.82
    assert not related(" ".join(words), " ".join([*words[:6], "z", *words[7:]]))  # 7/13 = 0.54
    assert not related(" ".join(words[:9]), " ".join([*words[:8], "z"]))  # 6/8 = 0.75
    assert related(" ".join(words[:10]), " ".join([*words[:10], "x", "y"]))  # 8/10 = 0.8, exactly


def test_thirteen_words_in_a_row_are_a_near_duplicate_unless_they_are_a_phrase_of_the_set():
    shared = "can be written as a fraction of two whole numbers without common"
    assert related(f"Ends: {shared} factors", f"{shared} factors is the start of this one")  # 13 and one more
    assert not related(f"Ends in 7 words: {shared}", f"What is it, if {shared}")  # 12 and other ends
    phrase = [f"{chr(97 + n // 26)}{chr(97 + n % 26)} is such that {shared} factors" for n in range(60)]
    apart = [" ".join(f"{each[:2]}{k}" for k in "abcdefghijklmnopqrst") + each[2:] for each in phrase]
    assert len(set(families(apart[:50]))) == 1
    assert len(set(families(apart))) == 60  # more than fifty: it links nothing


def test_families_are_linked_through_others_and_do_not_depend_on_the_order():
    words = [f"w{chr(97 + n)}" for n in range(14)]  # 12 runs of three
    changed = [set(), {13}, {0, 13}]  # neighbours share 11 of 13 runs
    chain = [" ".join("new" * (n in places) + each for n, each in enumerate(words)) for places in changed]
    assert len(set(families(chain))) == 1
    assert len(set(families([chain[0], chain[2]]))) == 2  # 10 of 14, and 12 words in a row
    texts = [*chain, BASE, BASE.replace("70", "8"), "What else is there?"]
    expected = {frozenset(group) for group in grouped(texts)}
    for seed in range(10):
        random.Random(seed).shuffle(texts)
        assert {frozenset(group) for group in grouped(texts)} == expected


def grouped(texts):
    found = {}
    for text, family in zip(texts, families(texts), strict=True):
        found.setdefault(family, []).append(text)
    return found.values()


def windows(text, length):
    words = text.split()
    return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}


def compared_families(texts):
    """The same by comparing all pairs."""
    runs = [windows(text, 3) or {text} for text in texts]
    long = [windows(text, 13) for text in texts]
    home = list(range(len(texts)))
    for a, b in combinations(range(len(texts)), 2):
        if 5 * len(runs[a] & runs[b]) >= 4 * len(runs[a] | runs[b]) or long[a] & long[b]:
            old, new = home[b], home[a]
            home = [new if each == old else each for each in home]
    return {frozenset(i for i in range(len(texts)) if home[i] == root) for root in set(home)}


@pytest.mark.parametrize("seed", range(5))
def test_pairs_are_found_exactly_as_by_comparing_all_of_them(seed):
    rng = random.Random(seed)
    bases = [[rng.choice("abcdefgh") * 2 for _ in range(rng.randint(3, 25))] for _ in range(12)]
    texts = []
    for _ in range(120):
        words = list(rng.choice(bases))
        for _ in range(rng.randint(0, 2)):
            words[rng.randrange(len(words))] = rng.choice("xyz") * 2
        texts.append(" ".join(words))
    found = families(texts)
    assert {frozenset(i for i, f in enumerate(found) if f == root) for root in set(found)} == compared_families(texts)


def test_twenty_thousand_questions_take_seconds():
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 8))) for _ in range(4000)]
    frequent = [1 / (rank + 1) for rank in range(len(words))]  # as words are in a language
    questions = [" ".join(rng.choices(words, frequent, k=45)) for _ in range(20_000)]
    started = time.perf_counter()
    families(questions)
    assert time.perf_counter() - started < 30  # 5 s on an idle core


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no {SHARED}; set MILES_AGENTS_DATA to the data folder")
def test_variations_of_a_real_set_are_found():
    rows = [json.loads(line) for line in (SHARED / "svamp" / "test.jsonl").read_text().splitlines()]
    questions = [f"{row['Body']} {row['Question']}" for row in rows]
    cakes = [
        number for number, text in enumerate(questions) if text.startswith("Mary is baking a cake. The recipe calls")
    ]
    found = families(questions)
    largest = max({found[number] for number in cakes}, key=[found[number] for number in cakes].count)
    assert len(cakes) >= 18
    assert sum(found[number] == largest for number in cakes) >= 18
