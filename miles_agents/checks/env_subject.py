"""The environment under attack: its instances, its tasks, what it is lent, and what was seen of it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from miles_agents.checks.env import spread
from miles_agents.checks.env_contract import allowed_for_junk
from miles_agents.checks.env_play import Oracle, Played, following, play_episode, saying, touring
from miles_agents.checks.env_watch import LoopWatch
from miles_agents.contracts import (
    Env,
    EnvResources,
    ExecResult,
    Language,
    Observation,
    Sandbox,
    SandboxProvider,
    Tool,
    ToolEnv,
)
from miles_agents.contracts.tools import limits_of
from miles_agents.errors import GraderError
from miles_agents.types import Reply, Task

_log = logging.getLogger(__name__)

_SETTLE_S = 3.0  # for tasks and sessions to end after they were told to


class CountedSandboxes(SandboxProvider):
    """The sandboxes of another provider, counted: which sessions are open."""

    def __init__(self, provider: SandboxProvider) -> None:
        self._provider = provider
        self.sessions: set[_CountedSandbox] = set()

    @property
    def description(self) -> str:
        """As the other provider's."""
        return self._provider.description

    async def start(self) -> None:
        """Nothing: the other provider runs already."""

    async def open(self) -> Sandbox:
        """A session, counted until it is closed."""
        session = _CountedSandbox(await self._provider.open(), self.sessions)
        self.sessions.add(session)
        return session

    async def close(self) -> None:
        """Close what is still open; the other provider belongs to its owner."""
        for session in list(self.sessions):
            await session.close()


class _CountedSandbox(Sandbox):
    def __init__(self, session: Sandbox, open_sessions: set[_CountedSandbox]) -> None:
        self._session = session
        self._open_sessions = open_sessions

    async def exec(self, code: str, *, timeout_s: float, language: Language = Language.PYTHON) -> ExecResult:
        return await self._session.exec(code, timeout_s=timeout_s, language=language)

    async def read_file(self, path: str) -> bytes:
        return await self._session.read_file(path)

    async def write_file(self, path: str, data: bytes) -> None:
        await self._session.write_file(path, data)

    async def reset(self) -> None:
        await self._session.reset()

    async def close(self) -> None:
        await self._session.close()
        self._open_sessions.discard(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackSettings:
    """How an environment is attacked."""

    tasks_per_split: int = 3  # played by each agent
    seed: int = 0  # of the episodes and of what is drawn at random
    deadline_s: float = 300.0  # of one check
    slack_s: float = 10.0  # for a call to come back after its deadline, a cancelled step to end; busy machines are slow
    patience_s: float = 10.0  # the longest the event loop may stand still
    sandbox: str = "auto"  # the launcher behind the Gymnasium door


class Agent(NamedTuple):
    """Who plays, without a model; `replies` gives those of one episode."""

    who: str
    replies: Callable[[Task, Env], Iterable[Reply]]


class Seen(NamedTuple):
    """An episode that was played, or the error of its grader."""

    task: Task
    who: str
    played: Played | None
    error: GraderError | None


class Subject:
    """What the checks of an attack share.

    Args:
        make: a new instance.
        sandboxes: lent to each instance; None if no tool needs one.
        settings: how it is attacked.
        watch: interrupts what holds up the event loop.
    """

    def __init__(
        self, make: Callable[[], Env], sandboxes: SandboxProvider | None, settings: AttackSettings, watch: LoopWatch
    ) -> None:
        self.make = make
        self._watch = watch
        self._schemas: list[Mapping[str, Any]] | None = None
        self._made: list[Env] = []
        self._used: list[Env] = []  # closed; what they share is not
        self.sandboxes = CountedSandboxes(sandboxes) if sandboxes else None
        self.settings = settings
        self.seed = settings.seed
        self.tasks: Mapping[str, Sequence[Task]] = {}
        self.doing = ""  # what was last begun, for messages
        self.episodes: list[Seen] = []  # of the agents that every environment is played with
        self.leaks = False  # an ordinary episode leaves something open
        self._close_fails = False
        self.env = self.new()

    def new(self) -> Env:
        """Another instance, with sandboxes."""
        with self._watch.paused():
            env = self.make()
        env.bind(EnvResources(sandboxes=self.sandboxes))
        self._made.append(env)
        return env

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Reading the tasks may take long."""
        with self._watch.paused():
            yield

    def renew(self) -> None:
        """Another common instance: the one before may be in any state."""
        self.env = self.new()

    async def tidy(self) -> None:
        """End the episodes that still run; only the common instance is kept.

        Whatever goes wrong is the business of the check `close`.
        """
        for env in self._made:
            await self._closed(env.close())
        self._used = [*self._used, *(env for env in self._made if env is not self.env)]
        self._made = [self.env]

    async def close(self) -> None:
        """Close every instance and what they share."""
        await self.tidy()
        for env in (*self._used, self.env):
            await self._closed(env.close_shared())
        if self.sandboxes is not None:
            await self.sandboxes.close()

    async def _closed(self, closing: Coroutine[Any, Any, None]) -> None:
        if self._close_fails:  # once is enough: each may take its time
            closing.close()
            return
        try:
            async with asyncio.timeout(self.settings.slack_s):
                await closing
        except Exception as error:  # noqa: BLE001 — seam: a bug in `close` must not hide what was found
            self._close_fails = True
            _log.warning("%s could not be closed: %r", type(self.env).__name__, error)

    # --- what is known of it ------------------------------------------------------------------------------------------

    @property
    def allowed(self) -> float:
        """The most that an episode without meaning may score."""
        return allowed_for_junk(self.env)

    @property
    def has_oracle(self) -> bool:
        """True if it knows how to play its own tasks."""
        return isinstance(self.env, Oracle)

    @property
    def first(self) -> Task:
        """One task."""
        return self.chosen[0]

    @property
    def chosen(self) -> list[Task]:
        """The tasks that are played: some of each split."""
        return [task for tasks in self.tasks.values() for task in spread(tasks, self.settings.tasks_per_split)]

    async def schemas(self) -> list[Mapping[str, Any]]:
        """The schemas of its tools, as `reset` gives them."""
        if self._schemas is None:
            reset = await self.env.reset(seed=self.seed, options={"task": self.first})
            self._schemas = [schema for schema in reset.info.get("tools", []) if "function" in schema]
        return self._schemas

    def rng(self, task: Task, number: int = 0) -> random.Random:
        """A generator of its own for a task: the same each time."""
        return random.Random(f"{self.seed}/{task.id}/{number}")

    # --- playing ------------------------------------------------------------------------------------------------------

    async def play(self, task: Task, replies: Iterable[Reply], what: str, *, env: Env | None = None) -> Played:
        """One episode, on the common instance or another; `what` names the agent in messages."""
        return await play_episode(
            env or self.env, task, self._followed(replies, f"task {task.id}, {what}"), seed=self.seed
        )

    async def knowing(self) -> list[Agent]:
        """Agents that reach much of an environment: its oracle, and one that calls each tool once."""
        schemas = await self.schemas()
        tour = Agent("an agent that calls each tool", lambda task, env: touring(schemas, self.rng(task)))
        oracle = Agent("the oracle", lambda task, env: env.oracle(task) if isinstance(env, Oracle) else ())
        return [oracle, tour] if self.has_oracle else [tour]

    async def all_agents(self) -> list[Agent]:
        """Those, and one that says nothing."""
        return [Agent("an agent that says nothing", lambda task, env: saying("")), *await self.knowing()]

    async def by(self, agent: Agent, task: Task, env: Env) -> Played:
        """One episode of an agent."""
        return await self.play(task, agent.replies(task, env), agent.who, env=env)

    def _followed(self, replies: Iterable[Reply], who: str) -> Generator[Reply, Observation, None]:
        source = iter(replies)
        reply = next(source, None)
        number = 0
        while reply is not None:
            number += 1
            self.doing = f"{who}, reply {number}: {describe(reply)}"
            observation: Observation = yield reply
            reply = following(source, observation)

    # --- tools that hang ----------------------------------------------------------------------------------------------

    def hanging(self, deadline_s: float | None) -> tuple[Env, list[HangingTool]]:
        """An instance whose tools never answer.

        Args:
            deadline_s: the longest deadline of a call, where its own is longer; None leaves them as they are.
        """
        env = self.new()
        tools = [HangingTool(tool, deadline_s) for tool in env.all_tools()]
        env.__dict__["all_tools"] = lambda: tuple(tools)
        if deadline_s is not None and isinstance(env, ToolEnv):
            env.tool_timeout_s = min(env.tool_timeout_s, deadline_s)
        return env, tools

    def open_now(self) -> set[Any]:
        """What is open: sandbox sessions, and tasks of asyncio other than this one."""
        return {*asyncio.all_tasks(), *(self.sandboxes.sessions if self.sandboxes else ())} - {asyncio.current_task()}

    async def left_open(self, former: set[Any]) -> str:
        """What is still open some time after everything was closed, and was not before; empty if nothing is."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(_SETTLE_S, self.settings.slack_s)
        while (left := self.open_now() - former) and loop.time() < deadline:  # noqa: ASYNC110 — nobody says when
            await asyncio.sleep(0.02)
        tasks = [f"the asyncio task {each.get_coro()!r}" for each in left if isinstance(each, asyncio.Task)]
        sessions = len(left) - len(tasks)
        return "; ".join([*tasks, *([f"open sandbox sessions: {sessions}"] if sessions else [])])


class HangingTool:
    """A tool that never answers, in place of another."""

    def __init__(self, tool: Tool, deadline_s: float | None) -> None:
        self.name = tool.name
        self.needs_sandbox = tool.needs_sandbox
        self.ends_episode = getattr(tool, "ends_episode", False)
        self.calls = 0
        self._tool = tool
        limits = limits_of(tool)
        if limits.timeout_s is not None and deadline_s is not None:
            limits = replace(limits, timeout_s=min(limits.timeout_s, deadline_s))
        self.limits = limits

    def schema(self) -> dict[str, Any]:
        """As the tool's."""
        return self._tool.schema()

    async def call(self, arguments: Mapping[str, Any], context: Any) -> Any:
        """Never answers."""
        self.calls += 1
        await asyncio.Event().wait()


def describe(reply: Reply) -> str:
    """A reply in a few words."""
    if reply.calls:
        return "calling " + ", ".join(f"{call.name}({_short(str(dict(call.arguments or {})))})" for call in reply.calls)
    return f"saying {_short(reply.text)!r}"


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:40]} … {text[-15:]}"
