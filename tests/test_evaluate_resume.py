"""An evaluation that is killed goes on where it was: nothing is played twice, and the results are the same bytes."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_runs import Running, command
from evaluated import evaluate, number_in, records, results, successor, write_envs
from openai_server import Answer, OpenAIServer, serving

from miles_agents.errors import DataError, FailureCause, RunFolderError
from miles_agents.evaluation.records import EpisodeLog, read_log, write_log
from miles_agents.types import EpisodeStatus, ImagePart, Message, Role, Trajectory


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_envs(tmp_path)
    return tmp_path


def _words(server: OpenAIServer, *more: str) -> list[str]:
    address = f"engine.base_url={server.base_url}"
    words = ["env=./envs_here.py:Sums", "env.size=6", "engine=openai", "model=m", "samples=3", address]
    return [*words, "rollout.max_tokens=1000", "rollout.concurrency=2", *more]


def _recorded(run: Path) -> int:
    file = run / "trajectories" / "eval_step_000000.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_killed_half_way_it_goes_on_to_the_same_bytes_and_plays_nothing_twice(
    folder: Path, number: signal.Signals
) -> None:
    slow = [0.1]

    def answer(request: Mapping[str, Any]) -> Answer:
        return Answer(body=successor(request).body, delay_s=slow[0])

    with serving(answer) as server:
        running = Running("evaluate", *_words(server, "run_dir=run"), cwd=folder)
        running.wait_for(lambda: _recorded(folder / "run") >= 4)
        running.send(number)
        killed = running.done()
        assert killed.code == {signal.SIGKILL: -9}.get(number, 130)
        assert not (folder / "run" / "results.json").exists()
        if number is not signal.SIGKILL:
            assert "resume=true run_dir=" in killed.out
        kept = _recorded(folder / "run")
        assert 4 <= kept < 18

        slow[0] = 0.0
        server.requests.clear()
        done = command("evaluate", *_words(server, "run_dir=run", "resume=true"))
        assert done.code == 0, done.err
        assert f"{kept} of 18 episodes are recorded; {18 - kept} are played now" in done.out
        assert len(server.requests) == 2 * (18 - kept)  # two turns each

        server.requests.clear()
        assert command("evaluate", "run_dir=run", "resume=true").code == 0  # its words are known; it is complete
        assert server.requests == []
        assert command("evaluate", *_words(server, "run_dir=whole")).code == 0
    assert (folder / "run/results.json").read_bytes() == (folder / "whole/results.json").read_bytes()
    ids = [record["id"] for record in records("run")]
    assert ids == [record["id"] for record in records("whole")]
    assert len(set(ids)) == 18


def test_a_line_that_a_crash_left_unfinished_is_played_again() -> None:
    with serving(successor) as server:
        assert evaluate(server, "run_dir=run").code == 0
        before = Path("run/results.json").read_bytes()
        file = Path("run/trajectories/eval_step_000000.jsonl")
        lines = file.read_bytes().splitlines(keepends=True)
        for torn in (lines[3][:200], lines[3][:-1], b"{", lines[3][:3] + b"\xff"):
            file.write_bytes(b"".join(lines[:3]) + torn)
            server.requests.clear()
            assert evaluate(server, "run_dir=run", "resume=true").code == 0
            assert {number_in(request) for request in server.requests} == {3}
            assert Path("run/results.json").read_bytes() == before
        file.write_bytes(lines[0] + b"{broken}\n" + lines[2])
        done = evaluate(server, "run_dir=run", "resume=true")
    assert done.code == 2
    assert "line 2: not a trajectory" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["temperature=0.5"], "temperature"),
        (["samples=2", "seed=3"], "samples, seed"),
        (["tasks=2"], "tasks"),
        (["env.gold=1"], "env.gold"),
        (["rollout.max_new_tokens=9"], "rollout.max_new_tokens"),
        (["model=other"], "model (m, now other)"),
        (["shard=0/2"], "shard"),
    ],
)
def test_other_settings_are_refused_by_their_keys(words: list[str], said: str) -> None:
    with serving(successor, models=["m", "other"]) as server:
        assert evaluate(server, "run_dir=run").code == 0
        server.requests.clear()
        done = command("evaluate", "run_dir=run", "resume=true", *words)
        assert server.requests == []
    assert (done.code, done.out) == (2, "")
    assert f"was begun with other values of: {said};" in done.err


def test_how_much_is_played_together_may_change() -> None:
    with serving(successor) as server:
        assert evaluate(server, "run_dir=run").code == 0
        words = ["rollout.concurrency=1", "max_failure_rate=0.5", "engine.retries=1"]
        done = command("evaluate", "run_dir=run", "resume=true", *words)
    assert done.code == 0, done.err


def test_a_folder_that_is_there_is_refused_without_resume_and_another_runs_with_it() -> None:
    with serving(successor) as server:
        assert evaluate(server, "run_dir=run").code == 0
        done = evaluate(server, "run_dir=run")
        assert (done.code, done.out) == (2, "")
        assert "resume=true" in done.err
        Path("run/evaluation.json").unlink()
        done = command("evaluate", "run_dir=run", "resume=true")
    assert done.code == 2
    assert "holds no evaluation" in done.err


def test_a_task_that_has_changed_is_refused() -> None:
    with serving(successor) as server:
        assert evaluate(server, "run_dir=run").code == 0
        file = Path("run/trajectories/eval_step_000000.jsonl")
        [first, *others] = file.read_text().splitlines()
        for key, value in (("metadata", {"answer": "77"}), ("seed", 1)):
            file.write_text("\n".join([json.dumps({**json.loads(first), key: value}), *others, ""]))
            done = evaluate(server, "run_dir=run", "resume=true")
            assert done.code == 2
            assert "task test0 was another" in done.err
        file.write_text("\n".join([json.dumps({**json.loads(first), "task_id": "gone"}), *others, ""]))
        done = evaluate(server, "run_dir=run", "resume=true")
    assert done.code == 2
    assert "no episode of this evaluation" in done.err


def test_two_environments_go_on_too() -> None:
    with serving(lambda request: successor(request)) as server:
        assert evaluate(server, "run_dir=run", "split=test", env="Sums,Duel").code in (0, 1)
        before = Path("run/results.json").read_bytes()
        file = Path("run/trajectories/eval_step_000000_Sums.jsonl")
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(lines[1])
        duel = Path("run/trajectories/eval_step_000000_Duel.jsonl")
        two_seats = duel.read_bytes().splitlines(keepends=True)
        duel.write_bytes(b"".join(two_seats[:3]))  # of the second duel one seat alone: it is played again
        server.requests.clear()
        done = command("evaluate", "run_dir=run", "resume=true")
        assert done.code == 0, done.err
        assert "2 of 7 episodes are recorded; 5 are played now" in done.out
    assert results("run")["environments"]["Duel"]["outcomes"] == {"d0": "1/0", "d1": "1/0", "d2": "1/0"}
    assert Path("run/results.json").read_bytes() == before
    assert len(records("run", "Duel")) == 6


# --- the file ---------------------------------------------------------------------------------------------------------


def _trajectory(name: str, **more: Any) -> Trajectory:
    common = {"id": name, "task_id": name, "group_id": name, "turns": ()}
    return Trajectory(**{**common, "status": EpisodeStatus.COMPLETED, "reward": 0.1, **more})


async def test_what_is_appended_is_read_back_and_of_equal_ids_the_last(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path / "log.jsonl")
    assert read_log(log.path) == []
    lost = {"status": EpisodeStatus.FAILED, "reward": None, "cause": FailureCause.ENGINE}
    image = ImagePart(data=b"\x00\xff", media_type="image/png")
    await log.append([_trajectory("a", **lost), _trajectory("b", prompt=(Message(role=Role.USER, parts=(image,)),))])
    log.close()
    log.close()
    await log.append([_trajectory("a", metadata={"$": float("nan"), "text": "\ud800"})])
    log.close()
    first, second = read_log(log.path)
    assert (first.id, first.reward, first.metadata["text"]) == ("a", 0.1, "\ud800")
    assert np.isnan(first.metadata["$"])
    assert second.prompt[0].images == (image,)


async def test_appending_cuts_off_what_a_crash_left(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for left in (b"x" * 200_000, b'{"half', b""):
        path.unlink(missing_ok=True)
        whole = EpisodeLog(path)
        await whole.append([_trajectory("a")])
        whole.close()
        with path.open("ab") as file:
            file.write(left)
        log = EpisodeLog(path)
        await log.append([_trajectory("b")])
        log.close()
        assert [each.id for each in read_log(path)] == ["a", "b"]


async def test_a_full_disk_is_one_message_and_what_was_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EpisodeLog(tmp_path / "log.jsonl")
    await log.append([_trajectory("a")])
    write = __import__("os").write

    def full(file: int, data: memoryview) -> int:
        write(file, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("miles_agents.evaluation.records.os.write", full)
    with pytest.raises(RunFolderError, match="No space left"):
        await log.append([_trajectory("b")])
    log.close()
    assert [each.id for each in read_log(log.path)] == ["a"]
    with pytest.raises(DataError, match="no JSON value"):
        await log.append([_trajectory("c", metadata={"x": object()})])


def test_rewards_that_compare_samples_are_kept_beside_what_was_before(tmp_path: Path) -> None:
    alone = _trajectory("a", rewards={"answer": 1.0})
    rewarded = _trajectory("a", reward=0.6, rewards={"answer": 1.0, "longest": 1.0})
    lost = _trajectory("b", status=EpisodeStatus.FAILED, reward=None, cause=FailureCause.GRADER, error="no order")
    write_log(tmp_path / "log.jsonl", [(rewarded, alone), (lost, _trajectory("b"))])
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert (lines[0]["reward"], lines[1]["status"]) == (0.6, "failed")
    read = read_log(tmp_path / "log.jsonl")
    assert [(each.reward, each.rewards, each.status.value) for each in read] == [
        (0.1, {"answer": 1.0}, "completed"),
        (0.1, {}, "completed"),
    ]
