"""Rewards of one's own: by name, in each turn, from a service, and by comparing siblings.

python -m miles_agents.environments check ./examples/my_rewards.py:Bill
python -m miles_agents.play env=./examples/my_rewards.py:Bill oracle=true
"""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence

import miles_agents as ma
from miles_agents.types import ToolCall, Trajectory

PRICES = {"apple": 13, "mango": 71, "pear": 29, "plum": 17, "quince": 53}
COUNTS = {"train": range(2, 30), "validation": range(30, 34), "test": range(34, 38)}


# rewards: function
def right(episode: ma.Episode) -> bool:
    """The last number of the final reply is the task's answer."""
    return re.findall(r"\d+", episode.final.content)[-1:] == [episode.task.answer]


def brief(episode: ma.Episode) -> float:
    """1 for a right answer of at most 40 characters; a wrong one earns nothing for being short."""
    return float(right(episode) and len(episode.final.content) <= 40)


# rewards: service
async def friendliness(text: str) -> float:
    """Stands for a model or a service that is asked over the network; 0 to 1."""
    await asyncio.sleep(0)
    return float(bool(re.search(r"\b(please|thank|welcome|gladly)", text, re.IGNORECASE)))


# rewards: environment
class Bill(ma.ToolEnv):
    """What do so many of two fruits cost? Only the tool knows the prices."""

    max_turns = 6
    reward_range = (-0.3, 1.1)  # six turns with a repeated call; a right and brief answer
    rewards = (ma.Reward(name="brief", function=brief, weight=0.1),)
    reward_weights: Mapping[str, float] = {"given": 0.0, "fewest_calls": 0.2}

    def reward(self, episode: ma.Episode) -> dict[str, float]:
        """Several at once, by name; the name `answer` says whether the task is solved."""
        return {"answer": float(right(episode)), "given": float(bool(re.search(r"\d", episode.final.content)))}

    @ma.reward(per_turn=True, weight=-0.05)
    def repeated(self, episode: ma.Episode) -> float:
        """1 in a turn that makes a call which was made before."""
        earlier = [call.arguments for reply in episode.replies[:-1] for call in reply.calls]
        return float(any(call.arguments in earlier for call in episode.replies[-1].calls))

    @ma.reward(weight=0.0)
    async def friendly(self, episode: ma.Episode) -> float:
        """Weight 0: it is recorded, and nothing is trained on it."""
        return await friendliness(episode.final.content)

    async def group_rewards(self, group: Sequence[Trajectory]) -> Sequence[Mapping[str, float]]:
        """1 for those of the right ones that needed the fewest calls."""
        calls = [sum(len(turn.tool_events) for turn in trajectory.turns) for trajectory in group]
        solved = [trajectory.rewards["answer"] == 1 for trajectory in group]
        fewest = min((count for count, good in zip(calls, solved, strict=True) if good), default=0)
        return [{"fewest_calls": float(good and count == fewest)} for count, good in zip(calls, solved, strict=True)]

    # rewards: end

    @ma.tool
    def price(self, fruit: str) -> str:
        """The price of one fruit.

        Args:
            fruit: its name, in the singular.
        """
        if fruit not in PRICES:
            raise ma.ToolError(f"there is no {fruit}; there are {', '.join(PRICES)}")
        return str(PRICES[fruit])

    def tasks(self, split: str) -> Iterator[ma.Task]:
        """Each count is in one split only."""
        for count in COUNTS[split]:
            one, other = list(PRICES)[count % 5], list(PRICES)[(count + 2) % 5]
            prompt = (ma.Message.user(f"What do {count} pieces of {one} and one {other} cost together?"),)
            yield ma.Task(
                id=f"{count}-{one}-{other}",
                prompt=prompt,
                answer=str(count * PRICES[one] + PRICES[other]),
                metadata={"fruits": [one, other]},
                split=split,
            )

    def oracle(self, task: ma.Task) -> Iterator[ma.Reply]:
        """Look up both prices, then answer."""
        calls = [
            ToolCall(id=f"call_{number}", name="price", arguments={"fruit": fruit}, raw="…")
            for number, fruit in enumerate(task.metadata["fruits"])
        ]
        yield ma.Reply(text="…", calls=tuple(calls))
        yield ma.Reply.of(str(task.answer))
