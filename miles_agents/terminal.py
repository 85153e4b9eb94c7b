"""The terminal of `play`: what is shown there, and the lines that come from it."""

from __future__ import annotations

import codecs
import io
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from miles_agents.contracts import Env, ResetResult, StepResult
from miles_agents.contracts.threads import run_in_thread
from miles_agents.errors import ConfigError
from miles_agents.gym.texts import conversation_text
from miles_agents.runs.tables import printable
from miles_agents.types import ImagePart, Message, Reply


class Screen:
    """Writes for people; control characters of what is shown become visible."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._prompts = stream.isatty()
        self._pictures: Path | None = None  # a new folder; made for the first one

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
        for message in messages:
            for image in message.images:
                self.line(f"the picture is in {self._saved(image)}\n")

    def _saved(self, image: ImagePart) -> Path:
        if self._pictures is None:
            self._pictures = Path(tempfile.mkdtemp(prefix="miles-agents-play-"))
        kind = image.media_type.rpartition("/")[2]
        number = len(list(self._pictures.iterdir()))
        path = self._pictures / f"picture-{number}.{kind if kind.isalnum() else 'bin'}"
        path.write_bytes(image.data)
        return path

    def end(self, result: StepResult, totals: Mapping[str, float]) -> None:
        """How the episode ended, and the reward by name; of each seat where there are several."""
        how = "terminated" if result.terminated else f"truncated by {result.info.get('truncated_by') or 'env'}"
        lines = ["", f"the episode is {how}"]
        if len(totals) == 1:
            lines += [f"reward {total:g}" for total in totals.values()]
            lines += [f"  {name} {value:g}" for name, value in result.info.get("rewards", {}).items()]
        for seat, total in totals.items() if len(totals) > 1 else ():
            lines.append(f"reward of {seat} {total:g}")
            rewards = result.info.get("seat_components", {}).get(seat, {})
            lines += [f"  {name} {value:g}" for name, value in rewards.items()]
        self.line("\n".join(lines))


class ShownEnv(Env):
    """The same environment; what is said in it is shown."""

    def __init__(self, env: Env, screen: Screen) -> None:
        self._env = env
        self.screen = screen
        self.seats = env.seats
        self.ended = False
        self._totals = dict.fromkeys(self.seats, 0.0)
        self._acting = self.seats[0]

    def tasks(self, split: str) -> Any:
        """As the environment."""
        return self._env.tasks(split)

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        """Shows the first messages and the names of the tools."""
        begun = await self._env.reset(seed=seed, options=options)
        self._totals, self.ended = dict.fromkeys(self.seats, 0.0), False
        names = ", ".join(str(tool["function"]["name"]) for tool in begun.info.get("tools", ()))
        self.screen.line(f"tools: {names or 'none'}")
        self._turn_of(begun.info)
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

    def _turn_of(self, info: Mapping[str, Any]) -> None:
        self._acting = str(info.get("seat", self._acting))
        if len(self.seats) > 1:
            self.screen.line(f"--- {self._acting}")

    def _shown(self, result: StepResult) -> StepResult:
        for seat, reward in result.info.get("seat_rewards", {self._acting: result.reward}).items():
            self._totals[seat] += float(reward)
        self.ended = result.terminated or result.truncated
        if not self.ended:
            self._turn_of(result.info)
        self.screen.messages(result.observation)
        if self.ended:
            if not result.observation:  # nobody told the player how it came to its end
                for seat, said in result.info.get("opponents", ()):
                    self.screen.line(f"\n[{seat}]\n{said}\n")
            self.screen.end(result, self._totals)
        return result


class Lines(NamedTuple):
    """Lines that are typed or read, one at a time; None: there are no more."""

    next: Callable[[], Any]


def keyboard_lines(stream: TextIO) -> Lines:
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


def file_lines(path: str) -> Lines:
    """The lines of a file.

    Raises:
        ConfigError: it cannot be read.
    """
    file = Path(path).expanduser()
    try:
        lines = iter(file.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"replies={path}: {error}") from error

    async def following() -> str | None:
        return next(lines, None)

    return Lines(following)
