"""What a run prints about itself: banners, the before/after table, episodes side by side.

Episode text is hostile: it is shown as data, never read as console markup or sent to the terminal as control codes.
"""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console, Group
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from miles_agents.types import Role, ToolEvent, Trajectory, Turn

_EPISODE_WORDS = ("env=", "env.", "engine=", "sandbox=", "sandbox.", "rollout.max_tokens=", "rollout.max_new_tokens=")
_SHOWN_CHARACTERS = 400  # of one message; its middle is left out


class Row(NamedTuple):
    """One line of the before/after table."""

    label: str
    before: float | None
    after: float | None
    shape: str = "{:.3f}"


class EpisodePair(NamedTuple):
    """The same task played before and after training."""

    before: Trajectory
    after: Trajectory


def printable(text: str) -> str:
    r"""`text` with control characters made visible, so that it cannot steer a terminal.

    Tabs and newlines stay; ESC becomes ␛; other control, bidirectional-override and surrogate characters become
    escapes such as `\x9b`.
    """
    return "".join(character if _is_safe(character) else _visible(character) for character in text)


def _is_safe(character: str) -> bool:
    return character in "\n\t" or unicodedata.category(character) not in {"Cc", "Cf", "Cs"} or character == "\u200d"


def _visible(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def before_after_table(rows: Sequence[Row], *, title: str = "held-out tasks") -> Table:
    """A table of figures before and after training, with their difference."""
    table = Table(title=Text(title), title_justify="left", title_style="bold")
    table.add_column("")
    for column in ("before", "after", "change"):
        table.add_column(column, justify="right")
    for label, before, after, shape in rows:
        change = None if before is None or after is None else after - before
        table.add_row(
            Text(printable(label)), *(_cell(value, shape) for value in (before, after)), _cell(change, shape, sign=True)
        )
    return table


def _cell(value: float | None, shape: str, *, sign: bool = False) -> Text:
    if value is None:
        return Text("–", style="dim")
    text = shape.format(value)
    if not sign:
        return Text(text)
    style = "green" if value > 0 else "red" if value < 0 else "dim"
    return Text(text if text.startswith("-") else f"+{text}", style=style)


def pair_episodes(before: Sequence[Trajectory], after: Sequence[Trajectory], *, limit: int) -> list[EpisodePair]:
    """Pair first samples by task, those with the largest gain in reward first, and at most one in two without gain."""
    first: dict[str, Trajectory] = {}
    for trajectory in before:
        first.setdefault(trajectory.task_id, trajectory)
    pairs: dict[str, EpisodePair] = {}
    for trajectory in after:
        if trajectory.task_id in first:
            pairs.setdefault(trajectory.task_id, EpisodePair(first[trajectory.task_id], trajectory))
    ranked = sorted(pairs.values(), key=_gain, reverse=True)
    gained = [pair for pair in ranked if _gain(pair) > 0]
    others = [pair for pair in ranked if _gain(pair) <= 0]
    spared = min(len(others), max(limit // 2 if limit > 2 else 0, limit - len(gained)))
    return (gained[: limit - spared] + others[len(others) - spared :])[:limit]


def _gain(pair: EpisodePair) -> float:
    return (pair.after.reward or 0.0) - (pair.before.reward or 0.0)


def episodes_side_by_side(pairs: Sequence[EpisodePair], *, width: int = 100) -> Group:
    """Each pair as two panels beside each other, or below each other where `width` is under 80 columns."""
    parts: list[Rule | Text | Table | Panel] = []
    for pair in pairs:
        parts.append(Rule(Text(printable(f"task {pair.after.task_id}")), align="left", style="dim"))
        parts.append(_question(pair.after))
        panels = [_panel("before", pair.before), _panel("after", pair.after)]
        if width < 80:
            parts.extend(panels)
            continue
        grid = Table.grid(expand=True, padding=(0, 1))
        grid.add_column(ratio=1)
        grid.add_column(ratio=1)
        grid.add_row(*panels)
        parts.append(grid)
    return Group(*parts)


def _question(trajectory: Trajectory) -> Text:
    asked = [message.text for message in trajectory.prompt if message.role is Role.USER]
    return Text(_shortened(asked[-1] if asked else ""), style="italic")


def _panel(label: str, trajectory: Trajectory) -> Panel:
    body = Text()
    for turn in trajectory.turns:
        body.append_text(_turn(turn))
    if trajectory.error:
        body.append(f"{_shortened(trajectory.error)}\n", style="red")
    body.rstrip()
    outcome = trajectory.status.value if trajectory.reward is None else f"reward {trajectory.reward:g}"
    good = trajectory.reward is not None and trajectory.reward > 0
    title = Text.assemble((label, "bold"), "  ", (outcome, "green" if good else "red"))
    return Panel(body, title=title, title_align="left", border_style="dim")


def _turn(turn: Turn) -> Text:
    shown = Text(_shortened(turn.text.strip()) + "\n", style="bold")
    for event in turn.tool_events:
        shown.append(f"{_result(event)}\n", style="cyan" if event.ok else "yellow")
    return shown


def _result(event: ToolEvent) -> str:
    return f"→ {printable(event.call.name)}: {_shortened(event.result.strip() or '(no output)')}"


def _shortened(text: str) -> str:
    if len(text) > _SHOWN_CHARACTERS:
        half = _SHOWN_CHARACTERS // 2
        text = f"{text[:half]} … {len(text) - 2 * half} characters … {text[-half:]}"
    return printable(text)


def start_banner(run: Path, facts: Mapping[str, str]) -> Panel:
    """Shown when a run starts: its folder, and facts such as model, sandbox, batch."""
    return Panel(_facts({"run folder": str(run), **facts}), title="miles_agents", title_align="left")


def end_banner(run: Path, facts: Mapping[str, str]) -> Panel:
    """Shown when a run ends: its folder, and facts such as the accuracies."""
    return Panel(_facts({"run folder": str(run), **facts}), title="run finished", title_align="left")


def next_commands(run: Path, words: Sequence[str], *, split: str) -> list[str]:
    """What to type after a training run, as the shell takes it.

    Args:
        run: its folder.
        words: the `key=value` words it was started with; an evaluation must be told those that make its episodes again.
        split: the held-out split it was scored on.
    """
    shared = [word for word in words if word.startswith(_EPISODE_WORDS)]
    folder = shlex.quote(str(run))
    evaluate = ["evaluate", *map(shlex.quote, shared), f"model={folder}", f"split={split}", "samples=8"]
    return [f"python -m miles_agents.{' '.join(evaluate)}", f"python -m miles_agents.report {folder}"]


def print_commands(console: Console, commands: Sequence[str]) -> None:
    """Say what to type next, each command on one line that can be copied whole, however narrow the terminal."""
    console.print("Try next:")
    for command in commands:
        console.print(f"  {printable(command)}", soft_wrap=True, markup=False, highlight=False)


def _facts(facts: Mapping[str, str]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for label, value in facts.items():
        grid.add_row(Text(printable(label)), Text(printable(value)))
    return grid
