"""The figures of an evaluation as tables that fit into 80 columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from miles_agents.evaluation import Evaluation, EvaluationRow
from miles_agents.evaluation.overlap import TaskOverlap
from miles_agents.runs.tables import printable
from miles_agents.runs.tool_figures import Percentiles, ToolFigures, ToolTable
from miles_agents.scoring.results import Played, Scored

_MOST_KS = 4
_LIMITS = {
    "max_new_tokens": "rollout.max_new_tokens",
    "context": "rollout.max_tokens, or the model's context",
    "max_turns": "env.max_turns",
    "deadline": "rollout.episode_deadline_s",
}


def results_table(evaluation: Evaluation, *, title: str) -> Group:
    """All tasks first, then a row per seat, level, kind and so on; then the tools."""
    ks = _shown_ks(evaluation.total.pass_at_k)
    votes = sorted(evaluation.total.majority_at_k)
    headings = [*(f"pass@{k}" for k in ks), *(f"maj@{k}" for k in votes)]
    scores = _table("", ["accuracy", "95 % interval", *headings])
    # Where an episode is right or wrong the mean reward is the accuracy again.
    graded = any(_is_graded(row) for row in (evaluation.total, *evaluation.rows))
    counted = ["episodes", "tool use", "tool errors", "malformed", "truncated", "lost"]
    rates = _table("", ["reward", *counted] if graded else counted)
    for row in (evaluation.total, *evaluation.rows):
        name = Text(printable(f"{row.name} ({row.tasks})"))
        scores.add_row(name, *_score_cells(row, ks, votes))
        rates.add_row(name, *_reward_cells(row, graded), *_rate_cells(row))
    called = evaluation.tools.unknown_calls or any(each.calls for each in evaluation.tools.tools.values())
    return Group(
        Text(title, style="bold"),
        scores,
        rates,
        *([_tool_table(evaluation.tools)] if called else []),
        *_lost(evaluation),
        *_cut(evaluation),
    )


def subject_block(scored: Scored, *, split: str, model: str) -> Group:
    """The block of one environment: its tables, what it shares with training data, tokens and time."""
    lines: list[RenderableType] = []
    if scored.overlap is not None:
        lines.append(Text(_overlap_line(scored.overlap)))
    lines.append(Text(_time_line(scored.evaluation.total, scored.played)))
    title = f"{printable(scored.name)} ({printable(scored.env_id)}), {printable(split)} split, {printable(model)}"
    title += "".join(f", {seat}: {printable(who)}" for seat, who in scored.opponents.items())
    return Group(results_table(scored.evaluation, title=title), *lines, Text(""))


def _shown_ks(pass_at_k: dict[int, float]) -> list[int]:
    ks = [k for k in sorted(pass_at_k) if k > 1]
    return ks if len(ks) <= _MOST_KS else [ks[0], ks[len(ks) // 2], *ks[-(_MOST_KS - 2) :]]


def _lost(evaluation: Evaluation) -> list[Text]:
    """Both ways of counting lost episodes, and their causes."""
    total = evaluation.total
    if not total.failed:
        return []
    causes = ", ".join(f"{count} {cause}" for cause, count in evaluation.failures_by_cause.items())
    share = f"{total.failed} of {total.episodes} episodes ({100 * total.failed / total.episodes:.1f} %)"
    if total.accuracy is None:
        return [Text(f"lost: {share}, by cause: {causes}; nothing is left to score")]
    both = f"accuracy {total.accuracy:.3f} over the others, {total.accuracy_over_all:.3f} over all"
    return [Text(f"lost: {share}, by cause: {causes}; {both}")]


def _cut(evaluation: Evaluation) -> list[Text]:
    """What to raise where limits cut off much."""
    cut = {name: count for name, count in evaluation.truncated_by.items() if name in _LIMITS}
    if sum(cut.values()) * 10 < max(1, evaluation.total.scored):
        return []
    said = ", ".join(f"{count} by {_LIMITS[name]}" for name, count in cut.items())
    return [Text(f"cut off, of {evaluation.total.scored} scored episodes: {said}", style="dim")]


def _overlap_line(overlap: TaskOverlap) -> str:
    found = overlap.found
    if found.clean:
        return f"contamination: none of {found.test_texts} tasks among {found.train_texts} training tasks"
    return (
        f"contamination: {len(found.exact)} exact, {len(found.overlaps)} by {found.n} words, "
        f"of {found.test_texts} tasks ({100 * found.share:.1f} %)"
    )


def _time_line(total: EvaluationRow, played: Played) -> str:
    each = f"tokens per episode: {total.sampled_tokens:,.0f} sampled, {total.prompt_tokens:,.0f} given"
    if not played.episodes:
        return f"{each}; nothing was left to play"
    rate = played.tokens_per_s or 0.0
    return f"{each}; {played.episodes} played in {played.wall_s:,.1f} s ({rate:,.0f} tokens/s)"


def _tool_table(tools: ToolTable) -> Table:
    columns = ["calls", "p50", "p90", "p99", "wait p50", "p99"]
    table = _table("Tools: milliseconds of a call, and of the wait before it", columns, first="tool")
    table.add_column("errors", no_wrap=True)
    for name, each in tools.tools.items():
        table.add_row(Text(printable(name)), str(each.calls), *_time_cells(each), _errors(each))
    if tools.unknown_calls:
        table.add_row(Text("(unknown)", style="dim"), str(tools.unknown_calls))
    return table


def _time_cells(tool: ToolFigures) -> list[str]:
    nothing = Percentiles(math.nan, math.nan, math.nan)
    latency, wait = tool.latency or nothing, tool.wait or nothing
    return [_milliseconds(value) for value in (*latency, wait.p50, wait.p99)]


def _milliseconds(seconds: float) -> str:
    if math.isnan(seconds):
        return "–"
    return f"{seconds * 1000:,.0f}" if seconds >= 0.1 else f"{seconds * 1000:.1f}"


def _errors(tool: ToolFigures) -> str:
    return "\n".join(f"{count} {kind}" for kind, count in tool.errors.items()) or "none"


def _table(title: str, columns: Sequence[str], *, first: str = "tasks") -> Table:
    heading = Text(title) if title else None
    table = Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(first, overflow="fold", min_width=9)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _score_cells(row: EvaluationRow, ks: Sequence[int], votes: Sequence[int]) -> list[str]:
    scored = row.accuracy is not None
    return [
        f"{row.accuracy:.3f}" if scored else "no score",
        f"{row.accuracy_low:.3f}–{row.accuracy_high:.3f}" if scored else "–",
        *(f"{row.pass_at_k[k]:.3f}" if k in row.pass_at_k else "–" for k in ks),
        *(f"{row.majority_at_k[k]:.3f}" if k in row.majority_at_k else "–" for k in votes),
    ]


def _is_graded(row: EvaluationRow) -> bool:
    return not math.isclose(row.mean_reward or 0.0, row.accuracy or 0.0, abs_tol=1e-9)


def _reward_cells(row: EvaluationRow, graded: bool) -> list[str]:
    if not graded:
        return []
    return ["–" if row.mean_reward is None else f"{row.mean_reward:.3f}"]


def _rate_cells(row: EvaluationRow) -> list[str]:
    rates = (row.tool_call_rate, row.tool_error_rate, row.malformed_call_rate, row.truncated_rate)
    return [str(row.episodes), *(f"{rate:.2f}" for rate in rates), str(row.failed)]
