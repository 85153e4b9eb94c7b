"""Environments as `gymnasium.Env`: registration, the contract, observations, seeds, ends, sandboxes, vectors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gym_envs import PRINT_42, ROLL, Dice, Echo, calling
from gymnasium.utils.env_checker import check_env

import miles_agents
import miles_agents.gym
from miles_agents import registry
from miles_agents.errors import EpisodeError, UnknownNameError, UsageError
from miles_agents.gym import TextEnv
from miles_agents.gym.loop import loop_thread
from miles_agents.gym.texts import MAX_CHARS, observation_text
from miles_agents.types import ImagePart, Message, Reply, Role, Task

ROOT = Path(__file__).parents[1]


def run_python(code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *flags, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)


class Needy(Echo):
    """Has a key without a default."""

    def __init__(self, *, colour: str) -> None:
        super().__init__()


# --- registration -----------------------------------------------------------------------------------------------------


def test_a_program_that_imports_gymnasium_alone_makes_our_environments_and_loads_no_torch() -> None:
    code = (
        "import sys, gymnasium\n"
        "env = gymnasium.make('miles_agents.gym:miles_agents/python_math-v0', level=1)\n"
        "observation, info = env.reset(seed=3)\n"
        "assert observation in env.observation_space and info['tools']\n"
        "env.close()\n"
        "print(env.spec.id, [name for name in ('torch', 'transformers', 'hydra', 'ray') if name in sys.modules])\n"
    )
    done = run_python(code, "-W", "error")
    assert (done.stdout, done.stderr) == ("miles_agents/python_math-v0 []\n", "")


def test_the_entry_point_of_the_group_for_gymnasium_registers_everything() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["gymnasium.envs"]
    assert points == {"miles_agents": "miles_agents.gym:register_all"}
    register = registry.load_object(points["miles_agents"])
    register()
    register()  # may be called again
    ours = {name for name in gymnasium.registry if name.startswith("miles_agents/")}
    assert ours >= {f"miles_agents/{name}" for name in registry.environments.names()}
    assert len(ours) >= 4


def test_what_the_decorator_registers_later_is_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.environments, "_entries", dict(registry.environments._entries))
    miles_agents.register("gym_dice-v3")(Dice)
    try:
        env = gymnasium.make("miles_agents/gym_dice-v3", sides=1)
        assert isinstance(env.unwrapped, TextEnv)
        env.reset(seed=0)
        assert env.step(ROLL)[0] == "rolled 1"
        env.close()
    finally:
        del gymnasium.registry["miles_agents/gym_dice-v3"]


def test_packages_elsewhere_are_found_through_our_own_entry_points(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text((ROOT / "examples/my_env.py").read_text().replace("weekdays-v0", "far-v2"))
    info = tmp_path / "elsewhere-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[miles_agents.envs]\nfar-v2 = elsewhere:Weekdays\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import gymnasium\n"
        "env = gymnasium.make('miles_agents.gym:miles_agents/far-v2')\n"
        "print(env.reset(seed=1)[0].split(' ')[0], env.unwrapped.env.max_turns)\n"
    )
    done = run_python(code)
    assert (done.stdout, done.returncode) == ("Which 8\n", 0), done.stderr


def test_a_misspelt_name_gets_gymnasiums_own_hint() -> None:
    with pytest.raises(gymnasium.error.NameNotFound, match="Did you mean: `python_math`"):
        gymnasium.make("miles_agents/pythn_math-v0")
    with pytest.raises(gymnasium.error.VersionNotFound, match="v0"):
        gymnasium.make("miles_agents/python_math-v9")
    with pytest.raises(UnknownNameError, match="Did you mean 'python_math'"):
        miles_agents.gym.make("pythn_math")


def test_a_bare_name_a_file_and_a_class_are_made_as_well() -> None:
    assert miles_agents.gym.make("python_math", level=1).spec.id == "miles_agents/python_math-v0"
    env = miles_agents.gym.make(f"{ROOT}/examples/shop.py:Shop", max_turns=2, max_episode_steps=9)
    assert env.spec.id == "miles_agents/Shop"
    assert env.unwrapped.env.max_turns == 2
    assert isinstance(env, gymnasium.wrappers.TimeLimit)
    assert isinstance(miles_agents.gym.make(Dice).unwrapped.env, Dice)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: TextEnv(Dice, side=3), "no key 'side'. Did you mean 'sides'"),
        (lambda: TextEnv(Dice, split="trian"), "Did you mean 'train'"),
        (lambda: TextEnv(Dice, sandbox="namspace"), "Did you mean 'namespace'"),
        (lambda: TextEnv(Dice, tool_format="hermse"), "Did you mean 'hermes'"),
        (lambda: TextEnv(Dice, render_mode="human"), "'ansi' or None"),
        (lambda: TextEnv("pathlib:Path"), "not a subclass"),
        (lambda: TextEnv(lambda: Dice(), sides=3), "no key 'sides'"),
        (lambda: TextEnv(Needy), r"Needy needs colour=…"),
        (lambda: TextEnv("gymnasium_text"), r"env\.game is not given"),
    ],
)
def test_bad_words_are_refused_when_the_environment_is_made(made: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        made()


# --- the contract -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["python_math", "./examples/my_env.py:Weekdays", "./examples/shop.py:Shop", Dice, Echo])
def test_check_env_has_nothing_to_say(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    made = miles_agents.gym.make(env)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(made.unwrapped)
    made.close()
    made.close()


def test_the_wrapped_environment_passes_the_passive_checker_without_a_warning() -> None:
    env = miles_agents.gym.make(Dice, render_mode="ansi")
    names = []
    layer: Any = env
    while layer is not env.unwrapped:
        names.append(type(layer).__name__)
        layer = layer.env
    assert names == ["OrderEnforcing", "PassiveEnvChecker"]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("early")
    env.reset(seed=1)
    env.step(ROLL)
    assert env.render()
    env.close()


def test_a_spec_makes_the_same_environment_again() -> None:
    env = miles_agents.gym.make("python_math", level=2, split="test")
    again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.reset(seed=4)[0] == env.reset(seed=4)[0]
    assert again.reset()[1]["task_id"].startswith("level2/test/")


# --- observations, actions, info --------------------------------------------------------------------------------------


def test_several_messages_have_their_roles_and_one_stands_alone() -> None:
    env = TextEnv(Dice)
    observation, info = env.reset(options={"task": "train/7"})
    assert observation == "[system]\nBe brief.\n\n[user]\ntrain roll 7, please."
    assert [message.role for message in info["messages"]] == [Role.SYSTEM, Role.USER]
    assert info["task_id"] == "train/7"
    assert info["tools"][0]["function"]["name"] == "roll"
    step = env.step(f"Rolling. {ROLL}")
    assert step.observation.startswith("rolled ")
    assert step.info["messages"][0].name == "roll"
    two = env.step(ROLL + ROLL)
    assert two.observation.count("[tool roll]\nrolled ") == 2
    env.close()


def test_texts_of_every_kind_become_observations_in_the_space() -> None:
    space = TextEnv(Dice).observation_space
    assert observation_text([]) == ""
    assert observation_text([Message.user("a\ud800b")]) == "a?b"
    image = Message(role=Role.USER, parts=(ImagePart(data=b"123"),))
    assert observation_text([image]) == "[image image/png, 3 bytes]"
    long = observation_text([Message.user("x" * (MAX_CHARS + 5))])
    assert "105 characters left out" in long
    assert long in space


def test_calls_are_numbered_through_the_episode_and_bad_ones_are_answered() -> None:
    env = TextEnv(Dice)
    env.reset(seed=0)
    first = env.step(ROLL)
    second = env.step("<tool_call>{broken</tool_call>" + ROLL)
    ids = [message.tool_call_id for step in (first, second) for message in step.info["messages"]]
    assert ids == ["call_0", "call_1", "call_2"]
    assert "bad tool call" in second.observation
    env.close()


def test_a_reply_object_is_an_action_of_the_unwrapped_environment() -> None:
    env = miles_agents.gym.make(Dice)
    env.reset(seed=0)
    rolled = env.unwrapped.step_reply(calling("roll"))
    end = env.unwrapped.step_reply(Reply.of(rolled.observation.removeprefix("rolled ")))
    assert (end.reward, end.terminated, end.truncated) == (1.0, True, False)
    assert end.info["rewards"] == {"right": 1.0, "short": 0.0}
    env.close()


def test_a_format_of_ones_own_reads_the_actions() -> None:
    def shouted(text: str, *, truncated: bool = False, first_call: int = 0) -> Reply:
        return calling("roll") if text == "ROLL!" else Reply.of(text)

    env = TextEnv(Dice, tool_format=shouted)
    env.reset(seed=0)
    assert env.step("ROLL!").observation.startswith("rolled ")
    env.close()


@pytest.mark.parametrize("action", [3, None, b"x", "\ud800"])
def test_an_action_that_is_no_text_is_refused_and_the_episode_goes_on(action: Any) -> None:
    env = TextEnv(Echo)
    env.reset(seed=0)
    with pytest.raises(gymnasium.error.InvalidAction, match="an action is a text"):
        env.step(action)
    assert env.step("hi").observation == "you said hi"
    env.close()


def test_the_last_observation_is_kept_and_then_a_reset_is_needed() -> None:
    env = TextEnv(Echo)
    env.reset(seed=0)
    env.step("hi")
    end = env.step("stop")
    assert (end.observation, end.reward, end.terminated, end.truncated) == ("you said stop", 0.25, True, False)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("more")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.truncate("late")
    env.close()


def test_rendering_gives_the_conversation_with_control_characters_visible() -> None:
    env = TextEnv(Echo, render_mode="ansi")
    env.reset(options={"task": "train-2"})
    env.step("\x1b[2J")
    assert env.render() == "[user]\nsay 2\n\n[assistant]\n␛[2J\n\n[user]\nyou said ␛[2J"
    assert TextEnv(Echo).render() is None
    env.close()


def test_a_turn_limit_truncates_and_the_rewards_are_named() -> None:
    env = TextEnv(Dice, max_turns=2)
    env.reset(seed=0)
    env.step(ROLL)
    end = env.step(ROLL)
    assert (end.terminated, end.truncated, end.info["truncated_by"]) == (False, True, "max_turns")
    assert end.info["rewards"] == {"right": 0.0, "short": 0.0}
    env.close()


# --- tasks and seeds --------------------------------------------------------------------------------------------------


def test_tasks_are_given_by_object_id_or_split() -> None:
    env = TextEnv(Dice, split="validation")
    own = Task(id="own", prompt=(Message.user("mine"),))
    assert env.reset(options={"task": own})[0] == "mine"
    assert env.task is own
    assert env.reset(seed=1)[1]["task_id"].startswith("validation/")
    assert env.reset(options={"task": "test/5", "split": "test"})[1]["task_id"] == "test/5"
    with pytest.raises(UsageError, match="Did you mean 'validation/5'"):
        env.reset(options={"task": "validaton/5"})
    with pytest.raises(UsageError, match="Did you mean 'task'"):
        env.reset(options={"tsak": own})
    with pytest.raises(UsageError, match="no split 'tset'"):
        env.reset(options={"split": "tset"})
    env.close()


def test_without_a_split_tasks_are_of_train_or_of_what_there_is() -> None:
    class Held(Echo):
        splits = ("test",)

    for made, begins in [(Echo, "train-"), (Held, "test-")]:
        env = TextEnv(made)
        assert env.reset(seed=0)[1]["task_id"].startswith(begins)
        env.close()


def episode(env: TextEnv, seed: int | None) -> list[Any]:
    _, info = env.reset(seed=seed)
    return [info["task_id"], env.step(ROLL).observation, env.step(ROLL).observation]


def test_a_seed_fixes_the_task_and_the_dice_and_so_everything_after_it() -> None:
    one, other = TextEnv(Dice), TextEnv(Dice)
    seeded = [episode(one, 7), episode(one, None), episode(one, None)]
    assert seeded == [episode(other, 7), episode(other, None), episode(other, None)]
    assert len({str(each) for each in seeded}) == 3
    assert episode(other, 8) != seeded[0]
    one.close()
    other.close()


def test_the_given_seed_is_the_one_of_the_environment_behind() -> None:
    env = TextEnv(Dice)
    env.reset(seed=11)
    expected = int(np.random.default_rng(11).integers(1, 1001))
    assert env.step(ROLL).observation == f"rolled {expected}"
    env.close()


# --- threads, ends and sandboxes --------------------------------------------------------------------------------------


def test_all_environments_of_a_process_run_in_one_loop_and_are_closed_once_asked() -> None:
    one, other = TextEnv(Echo), TextEnv(Echo)
    for env in (one, other):
        env.reset(seed=0)
        env.step("hi")
    assert one.env.loops == other.env.loops
    assert len(one.env.loops) == 1
    one.close()
    one.close()
    assert one.env.opened == ["open", "close"]
    assert not one.env.running
    assert other.step("still").observation == "you said still"
    one.reset(seed=0)  # opens it again
    assert one.env.opened == ["open", "close", "open"]
    one.close()
    other.close()
    TextEnv(Echo).close()  # never opened


def test_a_lost_episode_is_an_episode_error_and_the_next_reset_begins_anew() -> None:
    env = TextEnv(Echo)
    env.reset(seed=0)
    with pytest.raises(EpisodeError, match="the world ended"):
        env.step("crash")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("hi")
    env.reset(seed=0)
    assert env.step("hi").reward == 0.25
    env.close()


def test_waiting_for_the_loop_from_inside_it_is_refused_instead_of_hanging() -> None:
    env = TextEnv(Echo)

    async def inside() -> None:
        env.reset(seed=0)

    with pytest.raises(UsageError, match="cannot be used from inside"):
        loop_thread().run(inside())


def test_an_interrupt_cancels_the_step_and_leaves_the_environment_usable() -> None:
    import asyncio

    class Slow(Echo):
        cancelled = False

        async def step(self, action: Reply) -> Any:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                Slow.cancelled = True
                raise

    env = TextEnv(Slow)
    env.reset(seed=0)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        env.step("hi")
    assert time.monotonic() - began < 10
    assert Slow.cancelled
    env.close()


@pytest.mark.sandbox
def test_a_tool_opens_the_shared_sandbox_and_the_last_close_ends_it() -> None:
    from miles_agents.gym import sandboxes

    envs = [TextEnv("python_math", level=1) for _ in range(2)]
    for env in envs:
        env.reset(seed=0)
    assert not any(each.provider for each in sandboxes._launchers.values()), "no call needed one yet"
    assert [env.step(PRINT_42).observation for env in envs] == ["42", "42"]
    (launcher,) = [each for each in sandboxes._launchers.values() if each.provider]
    process = launcher.provider.process_id  # type: ignore[union-attr]
    envs[0].close()
    assert envs[1].step(PRINT_42).observation == "42"
    assert Path(f"/proc/{process}").exists()
    envs[1].close()
    assert not Path(f"/proc/{process}").exists()


@pytest.mark.sandbox
def test_a_program_that_forgets_to_close_leaves_nothing_behind() -> None:
    code = (
        "import gymnasium\n"
        "env = gymnasium.make('miles_agents.gym:miles_agents/python_math-v0', level=1)\n"
        "env.reset(seed=3)\n"
        f"assert env.step({PRINT_42!r})[0] == '42'\n"
        "from miles_agents.gym import sandboxes\n"
        "print(*[each.provider.process_id for each in sandboxes._launchers.values()])\n"
    )
    done = run_python(code, "-W", "error")
    assert (done.returncode, done.stderr) == (0, "")
    assert not Path(f"/proc/{int(done.stdout)}").exists()


def test_without_a_sandbox_an_environment_that_needs_one_is_lost() -> None:
    env = TextEnv("python_math", sandbox=None, level=1)
    with pytest.raises(EpisodeError, match="none was lent"):
        env.reset(seed=0)
    env.close()
