"""The space of texts: what is in it, what it samples, and how Gymnasium's vector environments batch it."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_differing_spaces, batch_space, concatenate, create_empty_array, iterate

from miles_agents.gym import UnicodeText


@pytest.mark.parametrize("text", ["", "two words", "line\nline\ttab", "für Ωλ 日本語 👋🏽", "\x00\x1b[2J", "a" * 100])
def test_every_writable_text_up_to_the_limit_is_in_the_space(text: str) -> None:
    assert text in UnicodeText(100)


@pytest.mark.parametrize("value", ["a" * 101, "lone \ud800 surrogate", b"bytes", 7, None, ["a"], np.array("a")])
def test_what_is_no_text_or_too_long_is_not_in_the_space(value: object) -> None:
    assert value not in UnicodeText(100)


def test_the_stock_space_would_refuse_a_plain_sentence() -> None:
    assert "Hi there." not in spaces.Text(100)
    assert "Hi there." in UnicodeText(100)


def test_samples_are_in_the_space_follow_from_the_seed_and_hold_more_than_ascii() -> None:
    space, same = UnicodeText(40, seed=5), UnicodeText(40, seed=5)
    samples = [space.sample() for _ in range(200)]
    assert samples == [same.sample() for _ in range(200)]
    assert samples != [UnicodeText(40, seed=6).sample() for _ in range(200)]
    assert all(sample in space for sample in samples)
    joined = "".join(samples)
    assert {" ", "\n", "ü", "語", "👋"} <= set(joined)
    assert {len(sample) for sample in samples} >= {0, 40}
    assert UnicodeText(0).sample() == ""


def test_samples_of_a_huge_space_are_short() -> None:
    space = UnicodeText(1 << 24, seed=0)
    assert max(len(space.sample()) for _ in range(100)) <= 64


def test_masks_have_no_meaning_here() -> None:
    with pytest.raises(ValueError, match="neither mask nor probability"):
        UnicodeText(5).sample(mask=(None, None))
    with pytest.raises(ValueError, match="at least 0"):
        UnicodeText(-1)


def test_spaces_are_equal_by_their_limit_alone() -> None:
    assert UnicodeText(5, seed=1) == UnicodeText(5, seed=2)
    assert UnicodeText(5) != UnicodeText(6)
    assert UnicodeText(5) != spaces.Text(5)
    assert repr(UnicodeText(5)) == "UnicodeText(5)"


def test_json_and_back_is_the_same() -> None:
    space = UnicodeText(50, seed=3)
    texts = [space.sample() for _ in range(20)]
    assert space.from_jsonable(space.to_jsonable(texts)) == texts


def test_a_batch_is_a_tuple_of_texts() -> None:
    space = UnicodeText(30, seed=1)
    batch = batch_space(space, 3)
    assert batch == spaces.Tuple([UnicodeText(30)] * 3)
    sample = batch.sample()
    assert sample in batch
    assert len(set(sample)) == 3, "the three draw from generators of their own"
    assert list(iterate(batch, ("one", "two", "three"))) == ["one", "two", "three"]
    empty = create_empty_array(space, 3)
    assert empty == ("", "", "")
    assert concatenate(space, ["a", "b c", ""], empty) == ("a", "b c", "")


def test_batching_draws_nothing_from_the_space_itself() -> None:
    space, same = UnicodeText(30, seed=1), UnicodeText(30, seed=1)
    batch_space(space, 3)
    assert space.sample() == same.sample()


def test_spaces_of_different_limits_are_batched_side_by_side() -> None:
    batch = batch_differing_spaces([UnicodeText(1), UnicodeText(3)])
    assert ("a", "abc") in batch
    assert ("abc", "a") not in batch


def test_the_space_is_part_of_larger_ones() -> None:
    both = spaces.Dict(text=UnicodeText(9), number=spaces.Discrete(3))
    both.seed(0)
    assert both.sample() in both
    assert not UnicodeText(9).is_np_flattenable
