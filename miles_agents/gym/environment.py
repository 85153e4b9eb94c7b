"""`TextEnv`: one of our asynchronous environments as a synchronous `gymnasium.Env` of texts."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium

from miles_agents import registry
from miles_agents.contracts import Env, EnvResources, StepResult
from miles_agents.errors import UsageError, did_you_mean
from miles_agents.gym.loop import loop_thread
from miles_agents.gym.opponents import Answer, opposed
from miles_agents.gym.sandboxes import SharedSandboxes, check_sandbox_name
from miles_agents.gym.spaces import UnicodeText
from miles_agents.gym.texts import MAX_CHARS, CutText, ParseReply, conversation_text, observation_text, parser_of
from miles_agents.runs.tables import printable
from miles_agents.types import Message, Reply, Task

_OPTIONS = ("task", "split")


class TextStep(NamedTuple):
    """What `TextEnv.step` gives."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class TextEnv(gymnasium.Env[str, str]):
    """A `gymnasium.Env` over an `Env`: observations and actions are texts.

    The observation is the new messages, see `observation_text`; it is empty where the last step has none. `info` holds
    them in full (`messages`), the tools' schemas (`tools`, at reset), `task_id`, and what the environment itself says.
    An action is what a model would write: `<tool_call>{"name": …, "arguments": …}</tool_call>` calls a tool.

    Where an environment has several seats, `opponents` may play some of them; those that are left are played in turn by
    whoever calls `step`: `info["seat"]` names the one to act, whom the observation is for. The reward is that of the
    seat whose action it was, `info["seat_rewards"]` has those of all (at the end, or whenever others get one).

    Args:
        env: a registered name, `file.py:Class`, `package.module:Class`, the class itself, or a function that makes
            an instance.
        render_mode: "ansi": `render` gives the conversation as text. None: it gives None.
        split: where `reset` draws tasks from; None: train, or the first one of an environment that has none.
        sandbox: the launcher for tools that need one: "auto", a registered one, or None for none. It is started by the
            first call that needs it and shared by the environments of this process.
        tool_format: how an action's calls are written: "hermes", or a function like `miles_agents.chat.parse_reply`.
        opponents: by seat, who plays it: the name of a scripted player of the environment, or a function of (the text
            the seat was told last, a numpy generator) that gives its reply.
        keys: the environment's own, as `env.KEY=…` on the command line.

    Raises:
        UsageError: no such environment, split, launcher, format, seat, opponent or key.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 — Gymnasium's own declaration

    def __init__(
        self,
        env: str | type[Env] | Callable[[], Env],
        *,
        render_mode: str | None = None,
        split: str | None = None,
        sandbox: str | None = "auto",
        tool_format: str | ParseReply = "hermes",
        opponents: Mapping[str, str | Answer] | None = None,
        **keys: Any,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise UsageError(f"render_mode={render_mode!r}: it is 'ansi' or None")
        self.render_mode = render_mode
        self.observation_space = UnicodeText(MAX_CHARS)
        self.action_space = UnicodeText(MAX_CHARS)
        self._parse = parser_of(tool_format)
        self._env = opposed(make_env(env, keys), opponents or {})
        self._split = self._checked_split(split)
        if sandbox is not None:
            check_sandbox_name(sandbox)
        self._sandboxes = SharedSandboxes(sandbox) if sandbox else None
        self._env.bind(EnvResources(sandboxes=self._sandboxes))
        self._tasks: dict[str, tuple[Task, ...]] = {}
        self._conversation: list[Message] = []
        self._task: Task | None = None
        self._calls = 0
        self._playing = False
        self._opened = False

    @property
    def env(self) -> Env:
        """The asynchronous environment behind this one."""
        return self._env

    @property
    def task(self) -> Task | None:
        """The task of the episode; None before the first one."""
        return self._task

    @property
    def conversation(self) -> tuple[Message, ...]:
        """All messages of the episode, the actions included."""
        return tuple(self._conversation)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: of this environment's `np_random`, and of the environment behind it.
            options: `task`, a Task or the id of one; `split`, where to draw one from or look for the id. Without a
                task one is drawn by `np_random`.

        Raises:
            UsageError: an unknown option, split or task id.
            EpisodeError: the episode cannot begin (a sandbox or a connection is lost).
        """
        super().reset(seed=seed)
        task = self._chosen_task(options or {})
        episode_seed = int(self.np_random.integers(2**63 - 1)) if seed is None else seed
        self._playing = False
        result = loop_thread().run(self._begin(task, episode_seed))
        self._task, self._calls, self._playing = task, 0, True
        self._conversation = list(result.observation)
        info = {"tools": [], **copy.deepcopy(result.info), **self._facts(result.observation)}
        return observation_text(result.observation), info

    def step(self, action: str) -> TextStep:
        """Give the environment what was said.

        Raises:
            gymnasium.error.ResetNeeded: no episode is running.
            gymnasium.error.InvalidAction: `action` is no text of the action space.
            EpisodeError: the episode is lost; it has no reward.
        """
        if not self.action_space.contains(action):
            raise gymnasium.error.InvalidAction(
                f"an action is a text of at most {MAX_CHARS} characters that UTF-8 can write; got {action!r:.80}"
            )
        if not isinstance(action, CutText):
            return self.step_reply(self._parse(str(action), first_call=self._calls))
        step = self.step_reply(self._parse(str(action), truncated=True, first_call=self._calls))
        if step.terminated or step.truncated:
            return step
        return self._ended_by(action.reason, step)

    def step_reply(self, reply: Reply) -> TextStep:
        """The same with a parsed reply.

        Raises:
            gymnasium.error.ResetNeeded: no episode is running.
            EpisodeError: the episode is lost; it has no reward.
        """
        self._require_episode()
        self._calls += len(reply.calls)
        self._conversation.append(reply.message())
        try:
            result = loop_thread().run(self._env.step(reply))
        except BaseException:
            self._playing = False
            raise
        return self._shown(result)

    def truncate(self, reason: str) -> TextStep:
        """End the episode from outside and score it as it stands, which a wrapper's `truncated=True` does not do.

        Raises:
            gymnasium.error.ResetNeeded: no episode is running.
            EpisodeError: it cannot be scored.
        """
        self._require_episode()
        self._playing = False
        result = loop_thread().run(self._env.truncate(reason))
        return self._shown(result._replace(terminated=False, truncated=True))

    def render(self) -> str | None:
        """The conversation so far, each message under its role; control characters are made visible."""
        if self.render_mode is None:
            return None
        return conversation_text(self._conversation, shown=printable)

    def close(self) -> None:
        """Free what the environment holds. May be called twice; a later `reset` opens it again."""
        if self._opened:
            loop_thread().run(self._close())

    async def _begin(self, task: Task, seed: int) -> Any:
        if not self._opened:
            self._opened = True
            await self._env.open_shared()
        return await self._env.reset(seed=seed, options={"task": task})

    async def _close(self) -> None:
        self._opened = self._playing = False
        try:
            await self._env.close()
            await self._env.close_shared()
        finally:
            if self._sandboxes is not None:
                await self._sandboxes.close()

    def _require_episode(self) -> None:
        if not self._playing:
            raise gymnasium.error.ResetNeeded("no episode is running: call reset() first")

    def _shown(self, result: StepResult) -> TextStep:
        self._conversation.extend(result.observation)
        terminated, truncated = bool(result.terminated), bool(result.truncated)
        if terminated or truncated:
            self._playing = False
        info = {**result.info, **self._facts(result.observation)}
        return TextStep(observation_text(result.observation), float(result.reward), terminated, truncated, info)

    def _ended_by(self, reason: str, step: TextStep) -> TextStep:
        """An environment that goes on after a reply that was cut: it is ended here."""
        end = self.truncate(reason)
        messages = (*step.info["messages"], *end.info["messages"])
        info = {**step.info, **end.info, "messages": messages}
        info["truncated_by"] = end.info.get("truncated_by") or reason
        return TextStep(observation_text(messages), step.reward + end.reward, False, True, info)

    def _facts(self, observation: Sequence[Message]) -> dict[str, Any]:
        return {"messages": tuple(observation), "task_id": "" if self._task is None else self._task.id}

    def _checked_split(self, split: Any) -> str:
        if split is None:
            return "train" if "train" in self._env.splits else self._env.splits[0]
        if split not in self._env.splits:
            raise UsageError(f"the environment has no split {split!r}. {did_you_mean(str(split), self._env.splits)}")
        return str(split)

    def _chosen_task(self, options: Mapping[str, Any]) -> Task:
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise UsageError(f"unknown option {unknown[0]!r} of reset(). {did_you_mean(str(unknown[0]), _OPTIONS)}")
        wanted = options.get("task")
        if isinstance(wanted, Task):
            return wanted
        tasks = self._tasks_of(self._checked_split(options.get("split", self._split)))
        if wanted is None:
            return tasks[int(self.np_random.integers(len(tasks)))]
        for task in tasks:
            if task.id == wanted:
                return task
        ids = [task.id for task in tasks[:1000]]
        raise UsageError(f"options['task'] is {wanted!r}: no Task, and no task's id. {did_you_mean(str(wanted), ids)}")

    def _tasks_of(self, split: str) -> tuple[Task, ...]:
        if split not in self._tasks:
            self._tasks[split] = tuple(self._env.tasks(split))
        if not self._tasks[split]:
            raise UsageError(f"the environment's split {split!r} is empty")
        return self._tasks[split]


def find_env_class(name: str) -> type[Env]:
    """The class behind a registered name, `file.py:Class` or `package.module:Class`.

    Raises:
        UsageError: there is none.
    """
    found = registry.load_object(name) if registry.is_object_spec(name) else registry.environments.get(name)
    if not (isinstance(found, type) and issubclass(found, Env)):
        raise UsageError(f"{name} is {found!r}, not a subclass of miles_agents.Env")
    return found


def make_env(env: str | type[Env] | Callable[[], Env], keys: Mapping[str, Any]) -> Env:
    """An environment with its keys: arguments of `__init__`, and the class's `configurable` attributes.

    Raises:
        UsageError: no such environment, it has no such key, or one that it needs is not given.
    """
    maker = find_env_class(env) if isinstance(env, str) else env
    arguments: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    if isinstance(maker, type):
        arguments = registry.init_arguments(maker)
        allowed = (*arguments, *getattr(maker, "configurable", ()))
    for name in keys:
        if name not in allowed:
            raise UsageError(f"{getattr(maker, '__name__', maker)} has no key {name!r}. {did_you_mean(name, allowed)}")
    _check_required(maker, keys)
    made = maker(**{name: value for name, value in keys.items() if name in arguments})
    for name, value in keys.items():
        if name not in arguments:
            setattr(made, name, value)
    return made


def _check_required(maker: Callable[..., Env], keys: Mapping[str, Any]) -> None:
    parameters = inspect.signature(maker).parameters.values()
    by_name = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    missing = [each.name for each in by_name if each.default is each.empty and each.name not in keys]
    if missing:
        raise UsageError(f"{getattr(maker, '__name__', maker)} needs {', '.join(f'{name}=…' for name in missing)}")
