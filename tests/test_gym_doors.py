"""The two doors of an environment show the same; and many environments at once behind Gymnasium's vectors."""

from __future__ import annotations

import gymnasium
import pytest
from gym_envs import PRINT_42, ROLL, Dice, Echo
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import miles_agents.gym
from miles_agents.errors import UsageError
from miles_agents.gym import both_doors

# --- both doors -------------------------------------------------------------------------------------------------------


def test_both_doors_show_the_same_episode_of_an_environment_with_its_own_randomness() -> None:
    env = Dice()
    task = next(iter(env.tasks("test")))
    played = both_doors(Dice, task, lambda: env.oracle(task), 3)
    assert played.direct == played.gymnasium
    assert [shown.reward for shown in played.direct] == [0.0, 0.0, 1.0]
    assert played.direct[-1].terminated
    other = both_doors(Dice, task, lambda: env.oracle(task), 4)
    assert other.direct != played.direct


def test_both_doors_read_the_same_texts() -> None:
    task = next(iter(Dice().tasks("train")))
    played = both_doors(Dice, task, [ROLL, f"again {ROLL}{ROLL}", "<tool_call>{", "7"], 0)
    assert played.direct == played.gymnasium
    assert len(played.direct) == 5
    assert played.direct[2].observation.count("[tool roll]") == 2


def test_replies_that_can_be_played_only_once_are_refused() -> None:
    env = Dice()
    task = next(iter(env.tasks("train")))
    with pytest.raises(UsageError, match="plays the replies twice"):
        both_doors(Dice, task, env.oracle(task), 0)  # type: ignore[arg-type]


def test_a_door_that_changes_the_episode_is_seen() -> None:
    made: list[Dice] = []

    class Loaded(Dice):
        """The second instance, the one behind Gymnasium, cheats."""

        def __init__(self) -> None:
            super().__init__()
            made.append(self)
            self.sides = 1000 * len(made)

    env = Dice()
    task = next(iter(env.tasks("train")))
    played = both_doors(Loaded, task, lambda: env.oracle(task), 3)
    assert played.direct != played.gymnasium


@pytest.mark.sandbox
@pytest.mark.parametrize("sandbox", ["namespace", "auto"])
def test_both_doors_show_the_same_episode_of_python_math_with_its_tool(sandbox: str) -> None:
    env = miles_agents.gym.make("python_math", level=3).unwrapped.env
    for task in env.tasks("test")[:3]:
        played = both_doors("python_math", task, lambda task=task: env.oracle(task), 5, sandbox=sandbox)
        assert played.direct == played.gymnasium
        assert played.direct[-1].reward == 1.0
        assert len(played.direct) >= 3, "the tool was called"
    kept = [PRINT_42.replace("print(6 * 7)", "x = 5"), PRINT_42.replace("print(6 * 7)", "print(x + 1)"), "done"]
    played = both_doors("python_math", env.tasks("test")[0], kept, 1, sandbox=sandbox)
    assert played.direct == played.gymnasium


# --- vectors ----------------------------------------------------------------------------------------------------------


def test_eight_environments_step_together() -> None:
    envs = SyncVectorEnv([lambda: miles_agents.gym.make(Dice) for _ in range(8)])
    observations, infos = envs.reset(seed=1)
    assert len(observations) == 8
    assert observations in envs.observation_space
    assert all("roll" in str(tools) for tools in infos["tools"])
    rolled, rewards, terminated, truncated, infos = envs.step((ROLL,) * 8)
    assert all(text.startswith("rolled ") for text in rolled)
    assert len(set(rolled)) > 4, "each has dice of its own"
    assert not terminated.any()
    assert not truncated.any()
    numbers = tuple(text.removeprefix("rolled ") for text in rolled)
    last, rewards, terminated, truncated, infos = envs.step(numbers)
    assert last == ("",) * 8
    assert rewards.tolist() == [1.0] * 8
    assert terminated.all()
    assert infos["rewards"]["right"].tolist() == [1.0] * 8
    envs.close()


def test_a_vector_of_python_math_is_made_by_name() -> None:
    envs = gymnasium.make_vec("miles_agents/python_math-v0", num_envs=3, level=1, train_size=16)
    first, _ = envs.reset(seed=5)
    assert (
        gymnasium.make_vec("miles_agents/python_math-v0", num_envs=3, level=1, train_size=16).reset(seed=5)[0] == first
    )
    _, rewards, terminated, _, _ = envs.step(envs.action_space.sample())
    assert rewards.tolist() == [0.0] * 3
    assert terminated.all()
    envs.close()


def test_the_next_step_resets_what_ended() -> None:
    envs = SyncVectorEnv([lambda: miles_agents.gym.make(Echo)] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    envs.reset(seed=0)
    ended, _, terminated, _, _ = envs.step(("stop", "hi"))
    assert ended == ("you said stop", "you said hi")
    assert terminated.tolist() == [True, False]
    begun, rewards, terminated, _, _ = envs.step(("is not heard", "hi"))
    assert begun[0].startswith("say ")
    assert rewards.tolist() == [0.0, 0.25]
    assert not terminated.any()
    envs.close()


def test_the_same_step_resets_what_ended_and_keeps_the_last_observation() -> None:
    envs = SyncVectorEnv([lambda: miles_agents.gym.make(Echo)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    envs.reset(seed=0)
    shown, rewards, terminated, _, infos = envs.step(("stop", "hi"))
    assert shown[0].startswith("say ")
    assert shown[1] == "you said hi"
    assert rewards.tolist() == [0.25, 0.25]
    assert terminated.tolist() == [True, False]
    assert infos["final_obs"].tolist() == ["you said stop", None]
    assert infos["final_info"]["task_id"][0].startswith("train-")
    envs.close()


def test_without_autoreset_one_resets_by_mask() -> None:
    envs = SyncVectorEnv([lambda: miles_agents.gym.make(Echo)] * 2, autoreset_mode=AutoresetMode.DISABLED)
    envs.reset(seed=0)
    _, _, terminated, _, _ = envs.step(("stop", "hi"))
    begun, _ = envs.reset(options={"reset_mask": terminated.copy()})
    assert begun[0].startswith("say ")
    assert begun[1] == "you said hi"
    assert envs.step(("a", "b"))[0] == ("you said a", "you said b")
    envs.close()
