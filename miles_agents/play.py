"""`python -m miles_agents.play`: one episode in the terminal, played by a person, a model, the oracle or a file.

python -m miles_agents.play env=python_math env.level=1
python -m miles_agents.play env=python_math model=starter split=test task=3
"""

from __future__ import annotations

import asyncio
import codecs
import io
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TextIO

import numpy as np

from miles_agents import assembly
from miles_agents.chat import ChatFormat, parse_reply
from miles_agents.checks.env import Oracle
from miles_agents.command import EXIT_FAILED, EXIT_OK, Invocation, finish, load_env_class, run_command
from miles_agents.configs import schema
from miles_agents.configs.ranges import check_ranges
from miles_agents.contracts import Env, Observation, ResetResult, RolloutEngine, StepResult
from miles_agents.contracts.threads import run_in_thread
from miles_agents.errors import ConfigError, UsageError, did_you_mean
from miles_agents.gym.texts import conversation_text
from miles_agents.rollout.player import EpisodeSpec
from miles_agents.runs.tables import printable
from miles_agents.types import Message, Reply, Task

SUMMARY = "Play one episode of an environment in the terminal, or watch a model or the oracle play it."
HELP = """\
Type a reply; an empty line, or a line with a single dot, sends it.
  /call TOOL {"argument": …}  call a tool (a reply of its own)
  /tools                      what the tools take
  /quit                       leave the episode
  //…                         a reply that begins with a slash
A call may also be typed as a model writes it: <tool_call>{"name": …, "arguments": {…}}</tool_call>
"""
_SENDS = ("", ".")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code comes back."""
    return run_command("play", SUMMARY, _play, words=words)


def _play(invocation: Invocation) -> int:
    config: schema.PlayConfig = invocation.config
    check_ranges(config)
    players = [name for name in ("model", "replies", "oracle") if getattr(config, name)]
    if len(players) > 1:
        raise ConfigError(f"{' and '.join(f'{name}=' for name in players)} are given: one of them can play")
    return asyncio.run(play(config, load_env_class(config.env.id), Screen(sys.stdout), _keyboard(sys.stdin)))


async def play(config: schema.PlayConfig, env_class: type[Env], screen: Screen, keyboard: Lines) -> int:
    """Play one episode; the exit code comes back.

    Args:
        config: the command's configuration.
        env_class: of the environment.
        screen: where it is shown.
        keyboard: the lines that a person types; read only if a person plays.

    Raises:
        UsageError: no such task, file or model, or the environment has no oracle.
        EpisodeError: the episode was lost.
    """
    catalogue = assembly.make_environments(config.env, env_class, None)
    task = _chosen(catalogue.tasks(config.split), config)
    if len(catalogue.catalogue.seats) > 1:
        raise UsageError(f"{env_class.__name__} has several seats: {', '.join(catalogue.catalogue.seats)}")
    oracle = _oracle(catalogue.catalogue, task) if config.oracle else None
    typed = _file_lines(config.replies) if config.replies is not None else keyboard
    async with catalogue.shared():
        sandboxes = await assembly.open_sandboxes(config.sandbox) if assembly.needs_sandbox(catalogue) else None
        pool = assembly.make_environments(config.env, env_class, sandboxes)
        async with sandboxes or nullcontext(), pool.shared(), pool.lend() as env:
            screen.line(f"task {task.id} ({task.split}), seed {config.seed}")
            shown = ShownEnv(env, screen)
            if config.model is not None:
                return await _watch_model(config, config.model, shown, task)
            source = _Played(oracle) if oracle is not None else _Typed(typed, screen, asked=config.replies is None)
            ended = await _until_end(shown, task, config.seed, source)
    if ended:
        return EXIT_OK
    screen.line("the episode is left unfinished: there is no score")
    return EXIT_OK if typed is keyboard and oracle is None else EXIT_FAILED


async def _until_end(env: ShownEnv, task: Task, seed: int, source: _Source) -> bool:
    begun = await env.reset(seed=seed, options={"task": task})
    observation, tools = begun.observation, list(begun.info.get("tools", ()))
    while (reply := await source.reply(observation, tools)) is not None:
        result = await env.step(reply)
        if result.terminated or result.truncated:
            return True
        observation = result.observation
    return False


# --- which task -------------------------------------------------------------------------------------------------------


def _chosen(tasks: Sequence[Task], config: schema.PlayConfig) -> Task:
    wanted = config.task
    if wanted is None:
        return tasks[int(np.random.default_rng(config.seed).integers(len(tasks)))]
    for task in tasks:
        if task.id == wanted:
            return task
    if wanted.isdecimal() and int(wanted) < len(tasks):
        return tasks[int(wanted)]
    ids = [task.id for task in tasks[:1000]]
    raise ConfigError(
        f"task={wanted}: no task of the {config.split} split; give an id or a number up to {len(tasks) - 1}. "
        f"{did_you_mean(wanted, ids, listed=3)}"
    )


def _oracle(env: Env, task: Task) -> Iterator[Reply]:
    if not isinstance(env, Oracle):
        raise ConfigError(f"oracle=true: {type(env).__name__} has no oracle(task) that knows the answer")
    return iter(env.oracle(task))


# --- who plays --------------------------------------------------------------------------------------------------------


class _Source(Protocol):
    """Where replies come from."""

    async def reply(self, observation: Observation, tools: Sequence[Mapping[str, Any]]) -> Reply | None:
        """The next reply; None: there is none."""
        ...


class _Played:
    """Replies of an oracle; a generator is sent what was observed."""

    def __init__(self, replies: Iterator[Reply]) -> None:
        self._replies = replies
        self._begun = False

    async def reply(self, observation: Observation, tools: Sequence[Mapping[str, Any]]) -> Reply | None:
        """The oracle's next one."""
        begun, self._begun = self._begun, True
        try:
            if begun and isinstance(self._replies, Generator):
                sent: Reply = self._replies.send(observation)
                return sent
            return next(self._replies)
        except StopIteration:
            return None


class _Typed:
    """Replies that are typed, or stand in a file as one would type them."""

    def __init__(self, lines: Lines, screen: Screen, *, asked: bool) -> None:
        self._lines = lines
        self._screen = screen
        self._asked = asked
        self._told = not asked
        self._calls = 0

    async def reply(self, observation: Observation, tools: Sequence[Mapping[str, Any]]) -> Reply | None:
        """The next one; commands are obeyed until there is one."""
        if not self._told:
            self._told = True
            self._screen.line("type a reply, then an empty line; /help says more")
        text = await self._text(tools)
        if text is None:
            return None
        reply = parse_reply(text, first_call=self._calls)
        self._calls += len(reply.calls)
        return reply

    async def _text(self, tools: Sequence[Mapping[str, Any]]) -> str | None:
        lines: list[str] = []
        while (line := await self._line("> " if not lines else "… ")) is not None:
            if line == "." or (line == "" and lines):
                return "\n".join(lines)
            if lines or not line:
                lines += [line] if line else []
            elif line.startswith("//"):
                lines.append(line[1:])
            elif line.startswith("/"):
                said = self._obey(line, tools)
                if said is not None or line == "/quit":
                    return said
            else:
                lines.append(line)
        return "\n".join(lines) if lines else None

    async def _line(self, prompt: str) -> str | None:
        if self._asked:
            self._screen.ask(prompt)
        line = await self._lines.next()
        return None if line is None else line.rstrip("\r\n")

    def _obey(self, line: str, tools: Sequence[Mapping[str, Any]]) -> str | None:
        """Do what a command says; the text of a reply, if it is one."""
        command, _, rest = line.partition(" ")
        if command == "/call":
            try:
                return _call_text(rest.strip(), tools)
            except UsageError as error:
                self._screen.line(str(error))
        elif command == "/help":
            self._screen.line(HELP)
        elif command == "/tools":
            self._screen.line("\n".join(_described(schema) for schema in tools) or "there are no tools")
        elif command != "/quit":
            known = ["/call", "/help", "/tools", "/quit"]
            self._screen.line(f"unknown command {command!r}. {did_you_mean(command, known)}")
        return None


def _call_text(typed: str, tools: Sequence[Mapping[str, Any]]) -> str:
    """`TOOL {"argument": …}` as a model writes it.

    Raises:
        UsageError: no such tool, or no JSON object.
    """
    name, _, arguments = typed.partition(" ")
    known = [str(tool["function"]["name"]) for tool in tools]
    if name not in known:
        raise UsageError(f"no tool {name!r}. {did_you_mean(name, known)}")
    try:
        value = json.loads(arguments or "{}")
    except ValueError as error:
        raise UsageError(f'the arguments are no JSON ({error}); write /call {name} {{"argument": …}}') from error
    if not isinstance(value, dict):
        raise UsageError(f'the arguments are no JSON object; write /call {name} {{"argument": …}}')
    call = json.dumps({"name": name, "arguments": value}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def _described(tool: Mapping[str, Any]) -> str:
    function = tool["function"]
    parameters = function.get("parameters", {})
    required = set(parameters.get("required", ()))
    lines = [f"{function['name']}: {function.get('description', '')}".rstrip()]
    for name, each in parameters.get("properties", {}).items():
        optional = "" if name in required else ", may be left out"
        lines.append(
            f"  {name} ({_kind(each, parameters.get('$defs', {}))}{optional}): {each.get('description', '')}".rstrip(
                ": "
            )
        )
    return "\n".join(lines)


def _kind(parameter: Mapping[str, Any], named: Mapping[str, Any]) -> str:
    """What a parameter takes, in a word or as its JSON schema; `named` are the schemas it may refer to."""
    parameter = named.get(str(parameter.get("$ref", "")).removeprefix("#/$defs/"), parameter)
    if "enum" in parameter:
        return "one of " + ", ".join(json.dumps(value, ensure_ascii=False) for value in parameter["enum"])
    plain = parameter.get("type")
    if isinstance(plain, str) and plain not in ("array", "object"):
        return plain
    told = {key: value for key, value in parameter.items() if key != "description"}
    return json.dumps(told, ensure_ascii=False)


async def _watch_model(config: schema.PlayConfig, model_config: schema.ModelConfig, env: ShownEnv, task: Task) -> int:
    from rich.console import Console

    from miles_agents.training import make_model  # loads what makes models

    model = await make_model(model_config, Console(file=sys.stderr))
    context = assembly.model_shape(model).context
    rollout = schema.RolloutConfig(
        max_new_tokens=config.max_new_tokens,
        max_tokens=config.max_tokens or context,
        episode_deadline_s=config.episode_deadline_s,
    )
    assembly.check_tokens(rollout, model_context=context)
    async with _engine(config, model_config, model, rollout.max_tokens) as engine:
        player = assembly.make_player(
            engine, ChatFormat.from_folder(model), rollout, config, config.engine.request_deadline_s
        )
        spec = EpisodeSpec(task=task, group_id=f"play/{task.id}", seed=config.seed)
        trajectory = await player.play(env, spec)
    if not trajectory.status.is_valid:
        env.screen.line(f"the episode was lost ({trajectory.cause}): {trajectory.error}")
        return EXIT_FAILED
    if not env.ended:  # a limit of the player's own, scored by env.truncate
        env.screen.line(f"truncated by {trajectory.truncated_by}")
    return EXIT_OK


@asynccontextmanager
async def _engine(
    config: schema.PlayConfig, model_config: schema.ModelConfig, model: Path, max_tokens: int
) -> AsyncIterator[RolloutEngine]:
    from miles_agents.models.loading import load_causal_lm

    engine: Any = assembly.make_engine(
        config.engine,
        assembly.EnginePlan(
            max_tokens=max_tokens,
            concurrency=1,
            threads=assembly.engine_threads(config.engine, config.cluster),
            dtype=model_config.dtype,
        ),
    )
    try:
        await engine.start()
        await engine.adopt(await asyncio.to_thread(load_causal_lm, model), version=0)
        yield engine
    finally:
        await engine.close()


# --- what is shown ----------------------------------------------------------------------------------------------------


class Screen:
    """Writes for people; control characters of what is shown become visible."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._prompts = stream.isatty()

    def line(self, text: str) -> None:
        """A line, or several."""
        self._stream.write(printable(text).rstrip("\n") + "\n")
        self._stream.flush()

    def ask(self, prompt: str) -> None:
        """A prompt, where somebody sits."""
        if self._prompts:
            self._stream.write(prompt)
            self._stream.flush()

    def messages(self, messages: Sequence[Message]) -> None:
        """What was said."""
        if messages:
            self.line(f"\n{conversation_text(messages)}\n")

    def end(self, result: StepResult, total: float) -> None:
        """How the episode ended, and the reward by name."""
        how = "terminated" if result.terminated else f"truncated by {result.info.get('truncated_by') or 'env'}"
        rewards = result.info.get("rewards", {})
        parts = [f"  {name} {value:g}" for name, value in rewards.items()]
        self.line("\n".join(["", f"the episode is {how}", f"reward {total:g}", *parts]))


class ShownEnv(Env):
    """The same environment; what is said in it is shown."""

    def __init__(self, env: Env, screen: Screen) -> None:
        self._env = env
        self.screen = screen
        self.seats = env.seats
        self.ended = False
        self._total = 0.0

    def tasks(self, split: str) -> Any:
        """As the environment."""
        return self._env.tasks(split)

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        """Shows the first messages and the names of the tools."""
        begun = await self._env.reset(seed=seed, options=options)
        self._total, self.ended = 0.0, False
        names = ", ".join(str(tool["function"]["name"]) for tool in begun.info.get("tools", ()))
        self.screen.line(f"tools: {names or 'none'}")
        self.screen.messages(begun.observation)
        return begun

    async def step(self, action: Reply) -> StepResult:
        """Shows the reply, and what came of it."""
        self.screen.messages([Message.assistant(action.text)])
        return self._shown(await self._env.step(action))

    async def truncate(self, reason: str) -> StepResult:
        """Shows the end."""
        return self._shown(await self._env.truncate(reason))

    async def close(self) -> None:
        """As the environment."""
        await self._env.close()

    def _shown(self, result: StepResult) -> StepResult:
        self._total += float(result.reward)
        self.screen.messages(result.observation)
        if result.terminated or result.truncated:
            self.ended = True
            self.screen.end(result, self._total)
        return result


# --- lines ------------------------------------------------------------------------------------------------------------


class Lines(NamedTuple):
    """Lines that are typed or read, one at a time; None: there are no more."""

    next: Callable[[], Any]


def _keyboard(stream: TextIO) -> Lines:
    """Standard input, read in a thread so that Ctrl-C and the environment's own tasks are not held up.

    The bytes are read from below Python's buffer: a thread that waits in it when the process ends would break its end.
    """
    try:
        number = stream.fileno()
    except (io.UnsupportedOperation, AttributeError):  # a stand-in without a file behind it
        lines = iter(stream)
        return Lines(lambda: run_in_thread(next, lines, None))
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    waiting = ""

    async def following() -> str | None:
        nonlocal waiting
        while "\n" not in waiting:
            data = await run_in_thread(os.read, number, 1 << 16)
            waiting += decoder.decode(data, final=not data)
            if not data:
                last, waiting = waiting, ""
                return last or None
        line, _, waiting = waiting.partition("\n")
        return line

    return Lines(following)


def _file_lines(path: str) -> Lines:
    file = Path(path).expanduser()
    try:
        lines = iter(file.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"replies={path}: {error}") from error

    async def following() -> str | None:
        return next(lines, None)

    return Lines(following)


if __name__ == "__main__":
    finish(main(sys.argv[1:]))
