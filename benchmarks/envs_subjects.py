"""This project, as `benchmarks.envs` measures it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks import envs_work
from benchmarks.envs_rounds import Plan
from benchmarks.envs_work import Outcome
from miles_agents.contracts import EnvResources, ToolEnv, tool
from miles_agents.engines.openai.client import Server
from miles_agents.engines.openai.model import OpenAIChatModel
from miles_agents.evaluation.playing import play_all
from miles_agents.rollout.environments import EnvironmentPool
from miles_agents.rollout.message_policy import ChatLimits, MessagePolicy
from miles_agents.rollout.player import EpisodePlayer
from miles_agents.types import Episode, Message, Task, Trajectory


class LookEnv(ToolEnv):
    """An ordinary environment of one tool."""

    max_turns = envs_work.TURNS

    @tool
    async def look(self, place: str) -> str:
        """Look into a place.

        Args:
            place: name of the place
        """
        return envs_work.look(place)

    def tasks(self, split: str) -> Iterable[Task]:
        """As many as a round may need."""
        prompt = (Message.system(envs_work.SYSTEM), Message.user(envs_work.QUESTION))
        return [Task(id=f"{split}-{n}", prompt=prompt, answer=envs_work.ANSWER, split=split) for n in range(1 << 13)]

    async def reward(self, episode: Episode) -> float:
        """Whether the answer is the right one."""
        return float(episode.final.content == episode.task.answer)


class Ours:
    """What `evaluate` runs: pool, player, policy, chat model, `ToolEnv`."""

    description = "ToolEnv, EpisodePlayer, MessagePolicy and OpenAIChatModel, as evaluate runs them"

    async def play(self, plan: Plan) -> list[Outcome]:
        """See `Subject.play`."""
        return [
            Outcome(sum(event.ok for event in each.tool_events()), each.turns[-1].text)
            for each in await self.trajectories(plan)
        ]

    async def trajectories(self, plan: Plan) -> Sequence[Trajectory]:
        """The records of a round's episodes."""
        server = Server(base_url=plan.base_url, connections=plan.together)
        model = OpenAIChatModel(model=envs_work.MODEL, server=server)
        limits = ChatLimits(max_new_tokens=envs_work.MAX_TOKENS, max_tokens=16_384)
        policy = MessagePolicy(model=model, limits=limits, request_deadline_s=120.0)
        player = EpisodePlayer(policy=policy, deadline_s=600.0)
        pool = EnvironmentPool(LookEnv, EnvResources())
        tasks = pool.tasks("test")[: plan.episodes]
        await model.start()
        try:
            async with pool.shared():
                return await play_all(player, pool, tasks, samples=1, seed=0, concurrency=plan.together)
        finally:
            await model.close()


def facts(trajectory: Trajectory) -> dict[str, Any]:
    """What of a trajectory depends on nothing but the episode: all but times."""
    return {
        "id": trajectory.id,
        "status": trajectory.status,
        "reward": trajectory.reward,
        "texts": [turn.text for turn in trajectory.turns],
        "observations": [turn.observation for turn in trajectory.turns],
        "events": [(event.call, event.result, event.ok) for event in trajectory.tool_events()],
        "tokens": (trajectory.prompt_tokens, trajectory.sampled_tokens),
        "seed": trajectory.seed,
    }
