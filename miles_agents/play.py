"""`python -m miles_agents.play`: one episode in the terminal, played by a person, a model, the oracle or a file.

python -m miles_agents.play env=python_math env.level=1
python -m miles_agents.play env=python_math model=starter split=test task=3
python -m miles_agents.play env=self_play opponents={second: perfect}
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from miles_agents import assembly
from miles_agents.chat import parse_reply
from miles_agents.chat.settings import check_chat, make_chat
from miles_agents.checks.env import Oracle
from miles_agents.command import EXIT_FAILED, EXIT_OK, Invocation, finish, load_env_class, run_command
from miles_agents.configs import schema
from miles_agents.configs.ranges import check_ranges
from miles_agents.contracts import Env, Observation, RolloutEngine
from miles_agents.errors import ConfigError, UsageError, did_you_mean
from miles_agents.rollout.opposed import Opposed
from miles_agents.rollout.player import EpisodeSpec
from miles_agents.rollout.policy import Policy
from miles_agents.terminal import Lines, Screen, ShownEnv, file_lines, keyboard_lines
from miles_agents.types import Reply, Task

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
    return asyncio.run(play(config, load_env_class(config.env.id), Screen(sys.stdout), keyboard_lines(sys.stdin)))


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
    oracle = _oracle(catalogue.catalogue, task, config) if config.oracle else None
    typed = file_lines(config.replies) if config.replies is not None else keyboard
    watched = await _watched(config, config.model) if config.model is not None else None
    async with catalogue.shared(), _others(config, catalogue.catalogue) as others:
        sandboxes = await assembly.open_sandboxes(config.sandbox) if assembly.needs_sandbox(catalogue) else None
        pool = assembly.make_environments(config.env, env_class, sandboxes)
        async with sandboxes or nullcontext(), pool.shared(), pool.lend() as env:
            screen.line(f"task {task.id} ({task.split}), seed {config.seed}")
            if watched is not None:
                return await _watch(config, watched, ShownEnv(env, screen), task, others)
            shown = ShownEnv(Opposed(env, others) if others else env, screen)
            if len(shown.seats) > 1 and oracle is None:
                screen.line(_seats_left(shown.seats, env))
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


def _oracle(env: Env, task: Task, config: schema.PlayConfig) -> Iterator[Reply]:
    if config.opponents:
        raise ConfigError("oracle=true and opponents= are given: the oracle plays every seat")
    if not isinstance(env, Oracle):
        raise ConfigError(f"oracle=true: {type(env).__name__} has no oracle(task) that knows the answer")
    return iter(env.oracle(task))


def _others(config: schema.PlayConfig, env: Env) -> AbstractAsyncContextManager[Mapping[str, Policy]]:
    if not config.opponents:
        return nullcontext({})
    from miles_agents.opponents import Sampled, seated  # a model among them loads what samples from models

    rollout = schema.RolloutConfig(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        max_new_tokens=config.max_new_tokens,
        max_tokens=config.max_tokens or sys.maxsize,  # at most a model's context
    )
    sampled = Sampled(rollout, config.cluster, config.model or schema.ModelConfig(), concurrency=1)
    return seated(config.opponents, env, sampled, key="opponents")


def _seats_left(seats: Sequence[str], env: Env) -> str:
    players = [*getattr(env, "opponents", ()), "a model's folder"]
    return f"you play {' and '.join(seats)} in turn; opponents={{{seats[-1]}: …}} seats one of: {', '.join(players)}"


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


class _Watched(NamedTuple):
    """The model that plays."""

    folder: Path
    config: schema.ModelConfig
    rollout: schema.RolloutConfig


async def _watched(config: schema.PlayConfig, model_config: schema.ModelConfig) -> _Watched:
    from rich.console import Console

    from miles_agents.training import make_model  # loads what makes models

    check_chat(model_config)
    folder = await make_model(model_config, Console(file=sys.stderr))
    context = assembly.model_shape(folder).context
    rollout = schema.RolloutConfig(
        max_new_tokens=config.max_new_tokens,
        max_tokens=config.max_tokens or context,
        episode_deadline_s=config.episode_deadline_s,
    )
    try:
        assembly.check_tokens(rollout, model_context=context)
    except ConfigError as error:  # of the same keys, which have no group here
        raise ConfigError(str(error).replace("rollout.", "")) from error
    return _Watched(folder, model_config, rollout)


async def _watch(
    config: schema.PlayConfig, model: _Watched, env: ShownEnv, task: Task, others: Mapping[str, Policy]
) -> int:
    async with _engine(config, model) as engine:
        chat = make_chat(model.config, model.folder)
        player = assembly.make_player(
            engine, chat, model.rollout, config, config.engine.request_deadline_s, others=others
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
async def _engine(config: schema.PlayConfig, model: _Watched) -> AsyncIterator[RolloutEngine]:
    from miles_agents.models.loading import load_causal_lm

    engine: Any = assembly.make_engine(
        config.engine,
        assembly.EnginePlan(
            max_tokens=model.rollout.max_tokens,
            concurrency=1,
            threads=assembly.engine_threads(config.engine, config.cluster),
            dtype=model.config.dtype,
        ),
    )
    try:
        await engine.start()
        await engine.adopt(await asyncio.to_thread(load_causal_lm, model.folder), version=0)
        yield engine
    finally:
        await engine.close()


if __name__ == "__main__":
    finish(main(sys.argv[1:]))
