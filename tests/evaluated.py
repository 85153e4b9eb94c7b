"""Small environments and a scripted server for the tests of evaluations: no model is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from command_runs import Done, command
from openai_server import Answer, OpenAIServer, says

# `Sums`: n tasks "k+1"; tags, a level, train tasks of which some are test tasks. `Duel`: two seats that speak in turn;
# siblings are compared. `Plain`: has no key of its own.
ENVS = r'''
import miles_agents as ma


class Sums(ma.ToolEnv):
    max_turns = 3

    def __init__(self, size: int = 4, gold: int = 0):
        self.size, self.gold = size, gold

    @ma.tool
    async def add(self, a: int, b: int) -> int:
        """Add."""
        return a + b

    def tasks(self, split):
        for n in range(self.size):
            words = f"what comes right after the number {n}" if split == "test" or n < 1 else f"say {n}"
            yield ma.Task(
                id=f"{split}{n}",
                prompt=(ma.Message.system("You are good at sums."), ma.Message.user(words)),
                answer=str(n + 1 + self.gold),
                metadata={"level": 1 + n % 2, "tags": ["small"] if n < 2 else ["small", "large"]},
                split=split,
            )

    async def reward(self, episode):
        said = episode.final.content
        if "crash" in said:
            raise KeyError("the grader is broken")
        return {"answer": float(f"{{{episode.task.answer}}}" in said)}


class Plain(ma.Env):
    splits = ("test",)

    def tasks(self, split):
        return [ma.Task(id="p", prompt=(ma.Message.user("hello"),), split=split)] if split == "test" else []

    async def reset(self, *, seed=None, options=None):
        return ma.contracts.ResetResult(options["task"].prompt, {})

    async def step(self, action):
        return ma.contracts.StepResult((), float("0" in action.content), True, False, {})


class Duel(ma.Env):
    seats = ("left", "right")
    reward_weights = {"longest": 0.0}

    def tasks(self, split):
        return [ma.Task(id=f"d{n}", prompt=(ma.Message.user(f"duel {n}"),), split=split) for n in range(3)]

    async def reset(self, *, seed=None, options=None):
        self.spoken = 0
        return ma.contracts.ResetResult(options["task"].prompt, {"seat": "left"})

    async def step(self, action):
        self.spoken += 1
        if self.spoken == 1:
            return ma.contracts.StepResult((ma.Message.user("your turn 0"),), 0.0, False, False, {"seat": "right"})
        shares = {"left": 1.0, "right": 0.0}
        return ma.contracts.StepResult((), 0.0, True, False, {"seat_rewards": shares})

    async def group_rewards(self, group):
        return [{"longest": float(each.sample_index)} for each in group]
'''


def write_envs(folder: Path) -> None:
    """`envs_here.py` in a folder."""
    (folder / "envs_here.py").write_text(ENVS)


def number_in(request: Mapping[str, Any]) -> int:
    """The number that the task of a request asks about."""
    user = next(message["content"] for message in request["messages"] if message["role"] == "user")
    return int(user.rsplit(" ", 1)[-1])


def successor(request: Mapping[str, Any]) -> Answer:
    """A right answer after one tool call; wrong for some seeds."""
    n = number_in(request)
    if request["messages"][-1]["role"] == "user":
        return says(calls=[("c", "add", json.dumps({"a": n, "b": 1}))], tokens=(20, 6))
    wrong = request["seed"] % 3 == 0
    return says(f"\\boxed{{{n + 1 + wrong}}}", tokens=(40, 3))


def evaluate(server: OpenAIServer, *words: str, env: str = "Sums") -> Done:
    """Evaluate model `m` of the server on environments of `envs_here.py`; `env` may be several, with commas."""
    names = [f"./envs_here.py:{each}" for each in env.split(",")]
    listed = names[0] if len(names) == 1 else f"[{','.join(names)}]"
    return command(
        "evaluate",
        f"env={listed}",
        "engine=openai",
        "model=m",
        f"engine.base_url={server.base_url}",
        "rollout.max_tokens=1000",
        *words,
    )


def results(run: Path | str) -> dict[str, Any]:
    """results.json of a run."""
    content: dict[str, Any] = json.loads((Path(run) / "results.json").read_text())
    return content


def records(run: Path | str, name: str = "") -> list[dict[str, Any]]:
    """The trajectories of a run, as they are written."""
    file = Path(run) / "trajectories" / f"eval_step_000000{'_' + name if name else ''}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]
