"""The benchmark of environments: the same episodes, bounded memory, its arithmetic; nothing is timed."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import tracemalloc

import pytest

from benchmarks import envs, envs_process, envs_work
from benchmarks.envs_loop import HandWritten
from benchmarks.envs_process import SubjectProcess, UnavailableError
from benchmarks.envs_rounds import SUBJECTS, Plan, Round, measure
from benchmarks.envs_server import serving
from benchmarks.envs_subjects import Ours, facts
from miles_agents.types import EpisodeStatus

# What an episode leaves behind (its record) and needs while it runs (task, request, connection) was 40 KB; the loop
# by hand takes 24.
_MOST_KB_PER_EPISODE = 80


@pytest.fixture(scope="module")
def base_url():
    with serving() as url:
        yield url


async def test_32_episodes_at_a_time_are_as_one_at_a_time(base_url):
    together = await Ours().trajectories(Plan(base_url, 32, 32))
    alone = await Ours().trajectories(Plan(base_url, 3, 1))
    assert [facts(each) for each in together[:3]] == [facts(each) for each in alone]
    assert len({each.id for each in together}) == 32
    for each in together:
        assert each.status is EpisodeStatus.COMPLETED
        assert each.reward == 1.0
        assert len(each.turns) == envs_work.TURNS
        assert [event.call.arguments["place"] for event in each.tool_events()] == list(envs_work.PLACES)
        assert each.turns[-1].text == envs_work.ANSWER
        # What the server says of each turn: 100 + 30 k tokens given, 20 sampled.
        assert (each.prompt_tokens, each.sampled_tokens) == (100 + 130 + 160 + 190 + 220, 100)


async def test_the_loop_by_hand_plays_the_same_episodes(base_url):
    plan = Plan(base_url, 8, 4)
    assert await HandWritten().play(plan) == await Ours().play(plan) == [envs_work.EXPECTED] * 8


@pytest.mark.timeout(400)  # busy machines are slow, and the tracer is on
def test_memory_stays_bounded_with_1024_episodes_in_play(base_url):
    envs_work.allow_many_files()
    measure(Ours(), Plan(base_url, 32, 32))  # what is made once is no part of it
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        measure(Ours(), Plan(base_url, 1024, 1024))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (peak - before) / 1024 < _MOST_KB_PER_EPISODE * 1024


def test_a_subject_whose_episodes_come_to_something_else_is_refused(base_url):
    class Wrong:
        description = ""

        async def play(self, plan):
            return [*[envs_work.EXPECTED] * (plan.episodes - 1), envs_work.Outcome(calls=3, final=envs_work.ANSWER)]

    with pytest.raises(RuntimeError, match="of 4 episodes"):
        measure(Wrong(), Plan(base_url, 4, 4))


def test_what_other_projects_load_needs_nothing_of_this_one():
    code = (
        "import sys, benchmarks.envs_peers; print([m for m in sys.modules if m.startswith(('miles_agents', 'torch'))])"
    )

    async def run():
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, cwd=envs_process.ROOT, stdout=asyncio.subprocess.PIPE
        )
        return (await process.communicate())[0]

    assert asyncio.run(run()).strip() == b"[]"


def test_a_subject_in_its_own_process_answers_rounds_and_says_why_it_ended(base_url):
    subject = SubjectProcess("loop", envs._python("loop"))
    try:
        found = subject.round(Plan(base_url, 4, 4))
        assert found.cpu_ms > 0
        with pytest.raises(UnavailableError, match="its process ended"):
            subject.round(Plan("http://127.0.0.1:1/v1", 1, 1))
    finally:
        subject.stop()


def test_a_peer_that_does_not_start_is_a_row_that_says_why(monkeypatch, tmp_path):
    def refuse(peer):
        raise UnavailableError(f"{peer}: not installed")

    monkeypatch.setattr(envs, "python_of", refuse)
    [entry] = envs.measure(["gem"], [1], repeats=1)
    assert entry.why_not == "gem: not installed"
    assert "not measured to the end: gem: not installed" in envs.markdown([entry], [1])
    monkeypatch.setattr(envs, "_python", lambda name: tmp_path / "no-python")
    [entry] = envs.measure(["loop"], [1], repeats=1)
    assert "no-python" in entry.why_not


def entry(name, cpu):
    rounds = {count: [Round(cpu_ms=each, wall_s=1.0, peak_kb=None) for each in found] for count, found in cpu.items()}
    return envs.Entry(name, description=f"{name}!", rounds=rounds, peak_kb=12.5)


def test_the_table_shows_medians_ratios_and_growth():
    entries = [entry("loop", {32: [1, 9, 2], 1024: [2, 2, 2]}), entry("miles_agents", {32: [3], 1024: [5]})]
    table = envs.markdown(entries, [32, 1024]).splitlines()
    assert table[2] == "| `loop` | 2 | 2 |  |  | 1 | 12.5 |"
    # 3 / 2 and 5 / 2 times the loop; 5 / 3 of its own
    assert table[3] == "| `miles_agents` | 3 | 5 | 1.5 | 2.5 | 1.67 | 12.5 |"
    assert table[1].count("|") == table[2].count("|")
    assert list(envs.targets(entries).values()) == [False, False]  # 2.5 × is above 2.2, 5 ms above 3
    held = [entry("loop", {32: [1]}), entry("miles_agents", {32: [2]})]
    assert list(envs.targets(held).values()) == [True, True]
    assert envs.targets(held[:1]) == {}
    written = json.loads(json.dumps(envs.as_json(entries, {"repeats": 3})))
    assert written["subjects"]["loop"]["cpu_ms"] == {"32": 2, "1024": 2}


def test_the_command_line_writes_the_figures(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(envs, "_LEAST_EPISODES", 4)
    file = tmp_path / "out" / "figures.json"
    words = ["--no-peers", "--repeats", "1", "--together", "1", "2", "--json", str(file)]
    assert envs.main(words) == 0
    shown = capsys.readouterr().out
    assert "| `miles_agents` |" in shown
    written = json.loads(file.read_text())
    assert set(written["subjects"]) == {"loop", "miles_agents"}
    assert set(written["subjects"]["loop"]["rounds"]) == {"1", "2"}


def test_every_peer_has_its_list_of_packages():
    for peer in envs_process.PEERS:
        assert peer in SUBJECTS
        lines = (envs_process.ROOT / "benchmarks" / f"envs_peers_{peer}.txt").read_text().splitlines()
        assert all("==" in line for line in lines if not line.startswith("#"))
