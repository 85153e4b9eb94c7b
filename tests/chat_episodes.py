"""Episodes of a dialogue: played by the real player on an engine that keeps what it was given and what it gave, or made
turn by turn with a chat format alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import miles_agents as ma
from miles_agents.chat import ChatFormat
from miles_agents.contracts import Env, ResetResult, StepResult
from miles_agents.engines.scripted import ScriptedEngine, ScriptedReply
from miles_agents.rollout.player import EpisodePlayer
from miles_agents.rollout.policy import EpisodeSpec
from miles_agents.rollout.token_policy import Sampling, TokenPolicy
from miles_agents.types import (
    Completion,
    EpisodeStatus,
    GenerateRequest,
    Message,
    Reply,
    StopReason,
    Task,
    Trajectory,
    Turn,
    VersionSpan,
)

Seen = list[tuple[list[int], list[int], list[float]]]


class Dialogue(Env):
    """Asks the questions of its list one after the other, tool messages among them; keeps the replies."""

    def __init__(self, answers: Sequence[Sequence[Message]], *, reward: float = 1.0, tools: Any = ()) -> None:
        self.replies: list[Reply] = []
        self._answers = answers
        self._reward = reward
        self._tools = tools

    def tasks(self, split: str) -> list[Task]:
        """One."""
        return [ma.Task(id="d", prompt=(Message.user("q1"),), split=split)]

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        """Begin."""
        self.replies = []
        return ResetResult((Message.user("q1"),), {"tools": self._tools})

    async def step(self, action: Reply) -> StepResult:
        """Go on, or end."""
        self.replies.append(action)
        if len(self.replies) > len(self._answers):
            return StepResult((), self._reward, True, False, {})
        return StepResult(tuple(self._answers[len(self.replies) - 1]), 0.0, False, False, {})


class RecordingEngine(ScriptedEngine):
    """`seen`: (ids given, ids and logprobs sampled), in order."""

    seen: Seen

    async def generate(self, request: GenerateRequest) -> Completion:
        """As scripted, and written down."""
        completion = await super().generate(request)
        self.seen.append((request.ids.tolist(), completion.ids.tolist(), completion.logprobs.tolist()))
        return completion


async def play_dialogue(
    chat: ChatFormat,
    said: Iterable[Sequence[int] | str],
    answers: Sequence[Sequence[Message]],
    *,
    tools: Any = (),
    spec: EpisodeSpec | None = None,
    reward: float = 1.0,
) -> tuple[Trajectory, Seen]:
    """Play one episode. `said`: each reply, as ids or as text that is ended as the format's models end it."""
    script = [
        ScriptedReply(ids=[int(each) for each in (chat.encode_reply(reply) if isinstance(reply, str) else reply)])
        for reply in said
    ]
    engine = RecordingEngine(script, context_length=2000)
    engine.seen = []
    sampling = Sampling(max_new_tokens=300, max_tokens=2000)
    player = EpisodePlayer(policy=TokenPolicy(engine=engine, chat=chat, sampling=sampling), deadline_s=10.0)
    env = Dialogue(answers, reward=reward, tools=tools)
    trajectory = await player.play(env, spec or EpisodeSpec(task=env.tasks("train")[0], group_id="g"))
    assert trajectory.status.is_valid, trajectory.error
    return trajectory, engine.seen


def make_dialogue(
    chat: ChatFormat, said: Iterable[Sequence[int]], answers: Sequence[Sequence[Message]], *, tools: Any = ()
) -> tuple[Trajectory, Seen]:
    """The same with nothing but the format: replies enter later prompts as `history_message` gives them."""
    messages = [Message.user("q1")]
    prompt = chat.first_prompt(messages, tools)
    turns: list[Turn] = []
    for index, reply in enumerate(said):
        sampled = np.asarray(reply, np.int32)
        turns.append(
            Turn(
                prompt_ids=prompt,
                completion_ids=sampled,
                logprobs=np.linspace(-1.0, -0.1, len(sampled), dtype=np.float32),
                stop_reason=StopReason.STOP,
                versions=(VersionSpan(0, 0, len(sampled)),),
            )
        )
        if index < len(answers):
            messages += [chat.history_message(chat.parse(sampled, tools=tools)), *answers[index]]
            prompt = chat.next_prompt(
                ids=prompt, completion_ids=sampled, messages=messages, observation=answers[index], tools=tools
            )
    trajectory = Trajectory(
        id="t", task_id="d", group_id="g", turns=tuple(turns), status=EpisodeStatus.COMPLETED, reward=1.0
    )
    seen = [(turn.prompt_ids.tolist(), turn.completion_ids.tolist(), turn.logprobs.tolist()) for turn in turns]
    return trajectory, seen
