"""The progress view, the tables and the banners."""

import io
import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from miles_agents.errors import ConfigError, FailureCause
from miles_agents.runs import (
    Progress,
    Row,
    before_after_table,
    end_banner,
    episodes_side_by_side,
    pair_episodes,
    printable,
    start_banner,
)
from miles_agents.runs.progress import duration, sparkline
from miles_agents.runs.tables import next_commands, print_commands
from miles_agents.types import EpisodeStatus, Message, StopReason, ToolCall, ToolEvent, Trajectory, Turn, VersionSpan

HOSTILE = "[bold red]tag[/bold red] [/] \x1b[2J\x9b31m \u202e \ud800 </script>"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def shown(*things: object, width: int = 100, terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    for thing in things:
        console.print(thing)
    return console.file.getvalue()


def test_outside_a_terminal_each_step_is_one_plain_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    clock = Clock()
    console = Console(file=io.StringIO(), width=30)  # narrower than a line: it is not broken
    with Progress(60, console, clock=clock) as progress:
        for step in (1, 2):
            clock.now += 2.0
            progress.status("rolling out")
            progress.update(step, {"reward/raw_reward": 0.5, "throughput/sampled_tokens_per_s": 16234.0})
        progress.update(3, {"eval/accuracy": 0.25})
    assert console.file.getvalue().splitlines() == [
        "step 1/60  reward 0.500  tokens/s 16,234  2 s so far, 1 min 58 s left",
        "step 2/60  reward 0.500  tokens/s 16,234  4 s so far, 1 min 56 s left",
        "step 3/60  held-out 0.250  4 s so far, 1 min 16 s left",  # 4 s / 3 steps * 57
    ]


def test_ci_gets_plain_lines_even_where_it_pretends_to_be_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    with Progress(2, console) as progress:
        progress.update(1, {})
    assert "\x1b" not in console.file.getvalue()


def test_a_terminal_is_redrawn_and_keeps_the_last_value_of_each_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True, color_system=None)
    with Progress(2, console) as progress:
        progress.update(1, {"reward/raw_reward": 0.25, "eval/accuracy": 0.125})
        progress.update(2, {"reward/raw_reward": 0.75})
        progress.status(HOSTILE)
    last = console.file.getvalue().rsplit("step 2/2", 1)[1]
    assert "reward 0.750" in last
    assert "held-out 0.125" in last
    assert "▁█" in last
    assert "\x1b[2J" not in console.file.getvalue()


def test_a_narrow_terminal_does_not_break_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    console = Console(file=io.StringIO(), width=20, height=24, force_terminal=True, color_system=None)
    with Progress(1000, console) as progress:
        for step in range(1, 40):
            progress.update(step, {"reward/raw_reward": step / 40})
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue()).splitlines()
    assert max(len(line.rpartition("\r")[2]) for line in lines) <= 20


def test_a_resumed_run_estimates_from_its_own_steps() -> None:
    clock = Clock()
    progress = Progress(100, Console(file=io.StringIO()), first_step=50, clock=clock)
    assert progress.seconds_left() is None
    clock.now += 3.0
    progress.update(51, {})
    assert progress.seconds_left() == pytest.approx(3.0 * 49)


def test_time_left_follows_the_last_ten_steps() -> None:
    clock = Clock()
    progress = Progress(30, Console(file=io.StringIO()), clock=clock)
    for step in range(1, 21):
        clock.now += 100.0 if step <= 10 else 1.0
        progress.update(step, {})
    assert progress.seconds_left() == pytest.approx(10.0)


def test_what_was_measured_before_the_first_step_counts_as_no_step() -> None:
    clock = Clock()
    console = Console(file=io.StringIO(), width=80)
    progress = Progress(2, console, clock=clock)
    clock.now += 50.0
    progress.update(0, {"eval/accuracy": 0.25})
    clock.now += 2.0
    progress.update(1, {})
    assert console.file.getvalue().splitlines() == [
        "step 0/2  held-out 0.250  50 s so far",
        "step 1/2  52 s so far, 2 s left",
    ]


@pytest.mark.parametrize(("mode", "terminal", "lines"), [("off", True, 0), ("off", False, 0), ("plain", True, 1)])
def test_the_view_can_be_chosen(monkeypatch: pytest.MonkeyPatch, mode: str, terminal: bool, lines: int) -> None:
    monkeypatch.delenv("CI", raising=False)
    console = Console(file=io.StringIO(), width=80, force_terminal=terminal, color_system=None)
    with Progress(2, console, mode=mode) as progress:
        progress.status("evaluating")
        progress.update(1, {})
    assert len(console.file.getvalue().splitlines()) == lines
    assert "\x1b" not in console.file.getvalue()


def test_an_unknown_view_is_named() -> None:
    with pytest.raises(ConfigError, match=r"unknown progress view 'lively'\. Did you mean 'live'"):
        Progress(2, mode="lively")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (8040, "2 h 14 min")]
)
def test_durations_read_like_speech(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("values", "width", "bars"),
    [
        ([], 5, ""),
        ([math.nan], 5, ""),
        ([2.0, 2.0], 5, "▁▁"),
        ([0.0, 1.0], 5, "▁█"),
        ([0.0, math.nan, 1.0, 0.5], 5, "▁█▅"),  # 0.5 of 7 is 3.5, rounded to the even 4
        ([0.0, 0.0, 1.0, 1.0], 2, "▁█"),
    ],
)
def test_a_sparkline_spans_from_the_smallest_to_the_largest(values: list[float], width: int, bars: str) -> None:
    assert sparkline(values, width=width) == bars


def test_control_characters_become_visible() -> None:
    assert printable("a\tb\n\x1b[31m\x00\r\x9b\u202e\ud800é🍎") == "a\tb\n␛[31m␀␍\\x9b\\u202e\\ud800é🍎"


def episode(task: str, reward: float | None, *texts: str) -> Trajectory:
    call = ToolCall(id="c", name="py[b]", arguments={}, raw="")
    turns = tuple(
        Turn(
            prompt_ids=np.zeros(1, np.int32),
            completion_ids=np.zeros(1, np.int32),
            logprobs=np.zeros(1, np.float32),
            stop_reason=StopReason.STOP,
            versions=(VersionSpan(0, 0, 1),),
            text=text,
            tool_events=(ToolEvent(call=call, result=HOSTILE, ok=False),),
        )
        for text in texts
    )
    failed = reward is None
    return Trajectory(
        id=task,
        task_id=task,
        group_id="g",
        turns=turns,
        status=EpisodeStatus.FAILED if failed else EpisodeStatus.COMPLETED,
        cause=FailureCause.SANDBOX if failed else None,
        error=HOSTILE if failed else "",
        reward=reward,
        prompt=(Message.user(f"question {task} {HOSTILE}"),),
    )


def test_pairs_show_gains_first_and_one_without() -> None:
    before = [episode(task, 0.0) for task in "abcd"] + [episode("e", 1.0)]
    after = [episode("e", 0.0), *(episode(task, 1.0) for task in "abcd"), episode("new", 1.0)]
    assert [pair.after.task_id for pair in pair_episodes(before, after, limit=3)] == ["a", "b", "e"]
    assert [pair.after.task_id for pair in pair_episodes(before, after, limit=1)] == ["a"]
    assert [pair.after.task_id for pair in pair_episodes(before[4:], after, limit=3)] == ["e"]
    assert pair_episodes([], after, limit=3) == []


@pytest.mark.parametrize("width", [60, 120])
def test_hostile_episode_text_is_shown_as_it_is_and_steers_nothing(width: int) -> None:
    pairs = pair_episodes([episode("t[/]", None, HOSTILE)], [episode("t[/]", 1.0, HOSTILE, "x" * 5000)], limit=1)
    text = shown(episodes_side_by_side(pairs, width=width), width=width, terminal=True)
    # nothing but the styles of the view itself: no clear screen, no C1 control, no direction override, no surrogate
    assert not set(re.sub(r"\x1b\[[0-9;]*m", "", text)) & {"\x1b", "\x9b", "\u202e", "\ud800"}
    assert "[bold red]tag[/bold red]" in text
    assert "4600 characters" in text
    assert max(map(len, text.splitlines())) <= width


def test_the_before_after_table_shows_change_and_gaps() -> None:
    text = shown(
        before_after_table([Row("accuracy", 0.08, 0.953), Row("no [tool]", None, 0.008), Row("t", 2.0, 1.0, "{:.0f}")])
    )
    assert re.search(r"accuracy\s*│\s*0\.080 │ 0\.953 │ \+0\.873", text)
    assert re.search(r"no \[tool\]\s*│\s*– │ 0\.008 │\s*–", text)
    assert re.search(r"t\s*│\s*2 │\s*1 │\s*-1", text)


def test_banners_name_the_run_folder_and_what_to_type_next() -> None:
    start = shown(start_banner(Path("outputs/x"), {"model": "[red]starter"}))
    assert "outputs/x" in start
    assert "[red]starter" in start
    assert "outputs/x" in shown(end_banner(Path("outputs/x"), {}))


def test_the_evaluation_to_type_next_is_one_of_the_same_environment() -> None:
    words = [
        "env=./my env.py:Mine",
        "env.level=1",
        "env.data={split}.csv",
        "rollout.max_tokens=600",
        "trainer.lr=1",
        "seed=3",
    ]
    evaluate, report = next_commands(Path("outputs/x y"), words, split="dev")
    given = ["env=./my env.py:Mine", "env.level=1", "env.data={split}.csv", "rollout.max_tokens=600"]
    assert shlex.split(evaluate)[3:] == [*given, "model=outputs/x y", "split=dev", "samples=8"]
    assert shlex.split(report)[2:] == ["miles_agents.report", "outputs/x y"]


def test_commands_to_type_next_stay_on_one_line_each() -> None:
    console = Console(width=30, record=True, file=io.StringIO())
    command = "python -m miles_agents.report 'outputs/[x]' and more"
    print_commands(console, [command])
    assert f"  {command}" in console.export_text().splitlines()
