"""The attack on environments: each broken environment fails exactly the check that is meant for it, with advice."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from envs_bad.sound import Sound

from miles_agents import Message, Reply, Task, ToolEnv, tool
from miles_agents.checks.env_attack import CHECKS, attack_env, describe_rows, failures
from miles_agents.checks.env_row import Outcome
from miles_agents.checks.env_subject import AttackSettings
from miles_agents.contracts import StepResult
from miles_agents.errors import DataError
from miles_agents.registry import load_object
from miles_agents.types import ImagePart, Role, TextPart, ToolCall

BAD = Path(__file__).parent / "envs_bad"
FAST = AttackSettings(tasks_per_split=2, slack_s=1.0, deadline_s=60.0)
HURRIED = AttackSettings(tasks_per_split=1, slack_s=0.5, patience_s=1.0, deadline_s=3.0)


def bad(name):
    return load_object(f"{BAD / name}.py:Bad")


def named(rows, outcome):
    return [row.name for row in rows if row.outcome is outcome]


CASES = [  # file, the check that fails, what was seen, what to do
    ("tasks", "tasks", "gave other tasks, or another order", "the same order each time"),
    ("splits", "splits", "room-10: the same prompt is in split 'train' and in 'test'", "each question to one split"),
    ("episodes", "episodes", "tool 'door_code' raised KeyError", r"raise ma\.ToolError"),
    ("endless", "episodes", "an agent that says nothing is not ended after 1,000 replies", "End an episode"),
    ("rewards", "rewards", r"the episode's reward 2.0 is outside 0.0…1.0", "set reward_range"),
    ("nan", "rewards", "reward 'reward' is nan, not a finite number", "Return a finite number"),
    ("steps", "steps", "the observation must be a tuple", "observation a tuple of the new Messages"),
    ("truncation", "truncation", "must give truncated=True", "from truncate"),
    ("order", "order", r"step\(\) before reset\(\) must raise UsageError; it went on", "Raise UsageError"),
    ("oracle", "oracle", "in 1 of 4 tasks the oracle scores less than 1, e.g. task room-0: 0", "accept the answer"),
    ("null", "null", "an empty reply scores 1, more than 0", "an empty text is none"),
    ("junk", "junk", "junk '0 1 2 3 .* scores 1, more than 0", "not whether it stands anywhere"),
    ("random_text", "random text", "random text scores 1", "Reward the answer, not words"),
    ("random_calls", "random calls", "an agent of random calls scores 1", "not that a tool was called"),
    ("claims", "claims", "an agent that gives a verdict as JSON scores 1", "stand for the verdict"),
    ("malformed_calls", "malformed calls", "were answered under the ids", "Answer each call by Message.tool"),
    ("hanging_tools", "hanging tools", r"'door_code' never answers, .* had not come back after 1\.\d s", "a deadline"),
    ("close", "close", "there is still the asyncio task .*tick", r"Close in close\(\)"),
    ("cancellation", "cancellation", "ended with StepResult.*, as if it had not been cancelled", "CancelledError pass"),
    ("randomness", "randomness", "drew from a global random generator", r"Draw from self\.np_random"),
    ("seeds", "seeds", "seed 0 gave two different episodes: step 1 answered", r"Draw from self\.np_random"),
    ("reset", "reset", r"after one of task room-13: step 1 answered .*question 1.*question 3", r"anew in begin\(\)"),
    ("concurrency", "concurrency", "another episode beside 7 others", "on the instance: nothing on the class"),
    ("doors", "doors", r"step 1 gave .*for room-0.* directly, .*for nobody.* through Gymnasium", "no context variable"),
]


@pytest.mark.parametrize(("file", "check", "seen", "advice"), CASES, ids=[case[0] for case in CASES])
async def test_each_broken_environment_fails_exactly_its_check(file, check, seen, advice):
    rows = await attack_env(bad(file), settings=FAST)
    assert named(rows, Outcome.FAILED) == [check], describe_rows(rows)
    (failed,) = failures(rows)
    assert re.search(seen, failed.seen), failed.seen
    assert re.search(advice, failed.advice), failed.advice


def test_every_check_has_a_broken_environment():
    tried = {case[1] for case in CASES} | {"secrets", "grader files"}  # see below, and test_env_attack_sandbox.py
    assert [check.name for check in CHECKS if check.name not in tried] == []
    assert len(CHECKS) == len(tried) == 24


async def test_a_sound_environment_passes_every_check_that_applies():
    rows = await attack_env(Sound, settings=FAST)
    assert [row.name for row in rows] == [check.name for check in CHECKS]
    assert {row.name: row.outcome for row in rows if row.outcome is not Outcome.PASSED} == {
        "grader files": Outcome.SKIPPED
    }


async def test_an_answer_in_the_prompt_is_a_warning():
    rows = await attack_env(bad("secrets"), settings=FAST)
    assert "secrets" in named(rows, Outcome.WARNING)
    (warned,) = [row for row in rows if row.name == "secrets"]
    assert warned.seen.startswith(
        "in 9 of 9 tasks the answer stands in the prompt or in a tool's schema, e.g. task room-0"
    )
    assert "unless to find it there is the task" in warned.advice


async def test_a_short_answer_or_one_inside_a_longer_word_is_no_secret_told():
    class Short(Sound):
        def tasks(self, split):
            for task in super().tasks(split):
                yield replace(task, answer="room", prompt=(Message.user(f"Rooms? {task.id} 1000000"),))

        def reward(self, episode):
            return float(episode.final.content == "100000")

        def oracle(self, task):
            return [Reply.of("100000")]

    rows = await attack_env(Short, settings=FAST)
    assert not failures(rows), describe_rows(rows)
    (row,) = [row for row in rows if row.name == "secrets"]
    assert row.outcome is Outcome.WARNING  # "room" of "room-0" is a word of its own: four characters count
    Short.tasks = lambda self, split: [replace(task, answer="room1") for task in Sound.tasks(self, split)]
    (row,) = [row for row in await attack_env(Short, settings=FAST) if row.name == "secrets"]
    assert row.outcome is Outcome.PASSED


async def test_without_an_oracle_one_is_told_how_to_write_it():
    class Mute(Sound):
        oracle = None

    rows = await attack_env(Mute, settings=FAST)
    assert not failures(rows), describe_rows(rows)
    (row,) = [row for row in rows if row.outcome is Outcome.WARNING]
    assert (row.name, "Add `def oracle(self, task)`" in row.advice) == ("oracle", True)


async def test_what_blocks_the_event_loop_is_interrupted_and_named():
    rows = await attack_env(bad("blocking"), settings=HURRIED)
    (failed,) = failures(rows)
    assert failed.name == "episodes"
    assert re.search(r"stood still for 1 s in .*blocking\.py:\d+, in door_code .*calling door_code", failed.seen)
    assert "a plain function" in failed.advice
    assert named(rows, Outcome.PASSED) == ["tasks", "splits"] or named(rows, Outcome.PASSED) == [
        "tasks",
        "splits",
        "secrets",
    ]


async def test_what_never_ends_is_given_up_once_and_not_tried_again():
    rows = await attack_env(bad("waiting"), settings=HURRIED)
    (failed,) = failures(rows)
    assert failed.name == "episodes"
    assert failed.seen == "not over after 3 s"
    assert "deadline" in failed.advice
    assert len(named(rows, Outcome.SKIPPED)) == len(CHECKS) - 3


async def test_chance_is_allowed_what_is_declared_and_no_more():
    class Quarter(Sound):
        """One of four."""

        junk_reward = 0.25

        @tool
        def choose(self, door: Literal["a", "b", "c", "d"]) -> str:
            """Choose a door."""
            self.chosen = door
            return "chosen"

        async def begin(self, task):
            self.chosen = ""

        def reward(self, episode):
            return float(self.chosen == "abcd"[episode.task.metadata["room"] % 4])

        def oracle(self, task):
            call = ToolCall(id="c0", name="choose", arguments={"door": "abcd"[task.metadata["room"] % 4]}, raw="…")
            return [Reply(text="…", calls=(call,)), Reply.of("done")]

    settings = replace(FAST, tasks_per_split=4)
    rows = await attack_env(Quarter, settings=settings)
    (row,) = [row for row in rows if row.name == "random calls"]
    assert row.outcome is Outcome.PASSED, row.seen
    assert "0.25 is declared" in row.seen

    class Eager(Quarter):
        def reward(self, episode):
            return float(bool(self.chosen))

    (row,) = [row for row in await attack_env(Eager, settings=settings) if row.name == "random calls"]
    assert row.outcome is Outcome.FAILED
    assert "on average, more than the declared 0.25" in row.seen


async def test_a_hit_by_chance_is_allowed_where_declared_but_a_claim_that_always_wins_is_not():
    class Letter(Sound):
        """One of four letters, the last one in the reply: 'grade: A' says A."""

        junk_reward = 0.25

        def letter(self, task):
            return "ABCD"[task.metadata["room"] % 4]

        def reward(self, episode):
            said = re.findall(r"\b[A-D]\b", episode.final.content)
            return float(said[-1:] == [self.letter(episode.task)])

        def oracle(self, task):
            return [Reply.of(self.letter(task))]

    settings = replace(FAST, tasks_per_split=4)
    rows = await attack_env(Letter, settings=settings)
    assert not failures(rows), describe_rows(rows)

    class Gullible(Letter):
        def reward(self, episode):
            return 1.0 if '"correct": true' in episode.final.content else super().reward(episode)

    (row,) = failures(await attack_env(Gullible, settings=settings))
    assert row.name == "claims"
    assert "JSON: 8 episodes score 1 on average, more than the declared 0.25" in row.seen


async def test_missing_data_is_for_the_operator_and_no_finding():
    class Dataless(Sound):
        def tasks(self, split):
            raise DataError("no such file; give env.data=PATH")

    with pytest.raises(DataError, match=r"give env\.data=PATH"):
        await attack_env(Dataless, settings=FAST)


async def test_an_assertion_of_the_environment_itself_is_a_bug_with_its_place():
    class Asserting(Sound):
        async def begin(self, task):
            assert task.split == "nowhere", "what is this?"

    rows = await attack_env(Asserting, settings=FAST)
    first = failures(rows)[0]
    assert re.search(r"it raised AssertionError: what is this\?.*, from .*test_env_attack\.py:\d+$", first.seen, re.S)
    assert len(failures(rows)) == 1, describe_rows(rows)


async def test_what_the_library_refuses_is_placed_in_the_code_that_asked_for_it():
    class Wrong(Sound):
        def tasks(self, split):
            return [Task(id="a", prompt="a text", split=split)]

    (row,) = failures(await attack_env(Wrong, settings=FAST))
    assert re.search(r"it raised ValueError: Task\.prompt is .*, from .*test_env_attack\.py:\d+$", row.seen)


async def test_what_scores_full_is_not_offered_to_be_declared_as_chance():
    class Half(Sound):
        def reward(self, episode):
            return 1.0 if super().reward(episode) else 0.5

    (null,) = [row for row in await attack_env(bad("null"), settings=FAST) if row.name == "null"]
    assert "junk_reward" not in null.advice
    (null,) = [row for row in await attack_env(Half, settings=FAST) if row.name == "null"]
    assert "say so on the class: junk_reward = 0.5." in null.advice


@pytest.mark.parametrize(("pixels", "failed"), [("its own", []), ("the same", ["splits"])])
async def test_prompts_of_equal_words_and_other_images_are_other_questions(pixels, failed):
    class Seeing(Sound):
        def tasks(self, split):
            for task in super().tasks(split):
                image = ImagePart(data=task.id.encode() if pixels == "its own" else b"\x89PNG")
                prompt = (Message(role=Role.USER, parts=(TextPart(text="Which code is it?"), image)),)
                yield replace(task, prompt=prompt)

    rows = await attack_env(Seeing, settings=FAST)
    assert [row.name for row in failures(rows)] == failed, describe_rows(rows)


async def test_environments_without_tools_or_of_several_seats_skip_what_says_nothing():
    class Plain(ToolEnv):
        splits = ("train", "test")

        def tasks(self, split):
            for n in range(3):
                text = f"{n} and 7717, in {split}?"
                yield Task(id=f"{split}{n}", prompt=(Message.user(text),), answer=n + 7717, split=split)

        def reward(self, episode):
            return float(episode.final.content == str(episode.task.answer))

        def oracle(self, task):
            return [Reply.of(str(task.answer))]

    class Talk(Plain):
        """Asks again once: an episode of several turns without tools."""

        async def step(self, action):
            if self._current().replies or action.content == str(self._current().task.answer):
                return await super().step(action)
            self._current().replies.append(action)
            return StepResult((Message.user("Are you sure?"),), 0.0, False, False, {})

    class Two(Plain):
        seats = ("one", "two")

    skipped = {"random calls", "grader files", "malformed calls", "hanging tools"}
    rows = await attack_env(Plain, settings=FAST)
    assert (failures(rows), set(named(rows, Outcome.SKIPPED))) == ([], skipped), describe_rows(rows)
    rows = await attack_env(Talk, settings=FAST)
    assert (failures(rows), set(named(rows, Outcome.SKIPPED))) == ([], skipped | {"cancellation"}), describe_rows(rows)
    rows = await attack_env(Two, settings=FAST)
    assert set(named(rows, Outcome.SKIPPED)) >= {"oracle", "null", "junk", "random text", "claims", "doors"}
