"""Contamination: exact duplicates and shared runs of words, by hand."""

import json
import os
import random
import time
from pathlib import Path

import pytest

from miles_agents.envs.contamination import contamination

SHARED = Path(os.environ.get("MILES_AGENTS_DATA", Path(__file__).parents[2] / "shared" / "data"))
LONG = "a b c d e f g h i j k l m n o p"  # 16 words: 4 runs of 13


def places(overlaps):
    return [(overlap.test, overlap.train) for overlap in overlaps]


def test_equal_texts_are_exact_duplicates_whatever_their_case_and_spacing():
    report = contamination(["Other.", "What is  TWO?"], ["what is two?", "what was two?"])
    assert places(report.exact) == [(0, 1)]
    assert report.overlaps == ()
    assert report.share == 0.5
    assert not report.clean


def test_thirteen_words_in_a_row_are_an_overlap_and_twelve_are_none():
    train = ["x y", "so: " + "A, b c d e f g h i j k l M! and so on"]
    thirteen, twelve = "1 2 a b c d e f g h i j k l m", "1 2 3 a b c d e f g h i j k l and"
    report = contamination(train, [twelve, thirteen])
    assert places(report.overlaps) == [(1, 1)]
    assert report.overlaps[0].shared == "a b c d e f g h i j k l m"
    assert contamination(train, [twelve], n=12).overlaps[0].shared == "a b c d e f g h i j k l"


def test_a_text_shorter_than_the_runs_is_compared_whole_if_it_has_five_words():
    train = [f"before {LONG} after"]
    assert places(contamination(train, ["C d, e f g."]).overlaps) == [(0, 0)]
    assert contamination(train, ["c d e f h"]).clean
    four = contamination(train, ["c d e f"])
    assert four.clean
    assert four.uncompared == 1
    assert not contamination(["c d e f"], ["C d e f"]).clean  # but equal texts are found at any length


def test_the_first_training_text_is_named_and_each_test_text_counts_once():
    report = contamination([f"{LONG} q", LONG], [f"z {LONG}", LONG, "nothing"])
    assert places(report.exact) == [(1, 1)]
    assert places(report.overlaps) == [(0, 0)]
    assert str(report) == (
        "1 exact duplicates and 1 overlaps of 13 words among 3 test texts (66.7 %), against 2 training texts"
    )


def test_nothing_is_shared_with_nothing():
    report = contamination([], [])
    assert report.clean
    assert report.share == 0.0
    assert contamination(iter(["a b c d e"]), iter(["f g h i j"])).clean


def test_runs_too_short_to_say_anything_are_refused():
    with pytest.raises(ValueError, match="n is 4; runs of fewer than 5 words"):
        contamination([], [], n=4)


def test_large_sets_take_seconds():
    rng = random.Random(0)
    train, test = ([" ".join(str(rng.randrange(5000)) for _ in range(45)) for _ in range(n)] for n in (8000, 1500))
    started = time.perf_counter()
    assert places(contamination(train, [*test, train[7][20:]]).overlaps) == [(1500, 7)]
    assert time.perf_counter() - started < 10  # 0.5 s on an idle core


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no {SHARED}; set MILES_AGENTS_DATA to the data folder")
def test_gsm8k_shares_three_runs_and_no_question():
    files = {name: (SHARED / "gsm8k" / f"{name}.jsonl").read_text().splitlines() for name in ("train", "test")}
    questions = {name: [json.loads(line)["question"] for line in lines] for name, lines in files.items()}
    report = contamination(questions["train"], questions["test"])
    assert (len(report.exact), len(report.overlaps), report.uncompared) == (0, 3, 0)  # counted once
