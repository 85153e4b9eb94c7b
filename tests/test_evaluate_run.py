"""`python -m miles_agents.evaluate` from end to end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_runs import PLAIN_ENV, command

from miles_agents.evaluation import pass_at_k
from miles_agents.runs.trajectories import read_trajectories
from miles_agents.tools.sandboxes import probe, refusal

FOUND = probe()
needs_sandbox = [pytest.mark.sandbox, pytest.mark.skipif(not FOUND.works, reason=refusal(FOUND))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.py").write_text(PLAIN_ENV)
    return tmp_path


def _results(run: Path | str) -> dict[str, Any]:
    return json.loads((Path(run) / "results.json").read_text())


def _plain(model: Path) -> list[str]:
    return ["env=./plain.py:Plain", f"model={model}", "rollout.max_new_tokens=12", "cluster.threads=1"]


class TestPythonMath:
    pytestmark = needs_sandbox

    def test_the_same_command_twice_gives_the_same_file_whatever_the_layout(self, starter: Path, folder: Path) -> None:
        words = ["env=python_math", "model=starter", "tasks=8", "samples=2", "cluster.threads=1"]
        first = command("evaluate", *words)
        assert first.code == 0, first.err
        [one] = (folder / "outputs").iterdir()
        second = command("evaluate", *words, "run_dir=again", "rollout.concurrency=3", "engine.slots=5")
        assert second.code == 0, second.err
        assert (one / "results.json").read_bytes() == (folder / "again" / "results.json").read_bytes()
        # What the clock says is beside the results, over the same calls.
        for each in (one, folder / "again"):
            times = json.loads((each / "times.json").read_text())
            assert set(times["tools"]) == set(_results(each)["tools"]) == {"python"}
            assert 0 < times["tools"]["python"]["latency_s"]["p50"] < times["wall_s"]
            assert times["sandbox"]["starts"] >= 1
        played = [read_trajectories(each / "trajectories" / "eval_step_000000.jsonl") for each in (one, Path("again"))]
        texts = [[turn.text for trajectory in each for turn in trajectory.turns] for each in played]
        assert texts[0] == texts[1]
        # another seed samples other episodes
        assert command("evaluate", *words, "run_dir=other", "seed=1").code == 0
        other = read_trajectories(Path("other/trajectories/eval_step_000000.jsonl"))
        assert [turn.text for trajectory in other for turn in trajectory.turns] != texts[0]

        assert f"results: {one}/results.json" in first.out.replace("\n", "")
        assert one.name.startswith("eval-python_math-")
        assert not (folder / "outputs" / "last").exists()  # that is the newest training run

    def test_its_figures_are_those_of_its_episodes_with_a_row_per_level(self, starter: Path, folder: Path) -> None:
        words = ["env=python_math", "env.level=1", "model=starter", "tasks=6", "samples=3", "cluster.threads=1"]
        done = command("evaluate", *words, "split=validation", "run_dir=run")
        assert done.code == 0, done.err
        results = _results("run")
        total = results["total"]
        assert (results["env"], results["split"]) == ("python_math-v0", "validation")
        assert (total["tasks"], total["episodes"], total["scored"], total["failed"]) == (6, 18, 18, 0)
        played = read_trajectories(Path("run/trajectories/eval_step_000000.jsonl"))
        right: dict[str, int] = {}
        for trajectory in played:
            right[trajectory.task_id] = right.get(trajectory.task_id, 0) + int(trajectory.rewards["answer"] == 1.0)
        assert total["accuracy"] == pytest.approx(sum(right.values()) / 18)
        for k in ("1", "2"):
            assert total["pass_at_k"][k] == pytest.approx(sum(pass_at_k(3, n, int(k)) for n in right.values()) / 6)
        assert total["accuracy_low"] <= total["accuracy"] <= total["accuracy_high"]
        assert total["tool_call_rate"] == pytest.approx(sum(bool(t.tool_events()) for t in played) / 18)
        level = next(row for row in results["rows"] if row["name"] == "level=1")
        assert level["accuracy"] == total["accuracy"]
        assert "level=1 (6)" in done.out
        assert "pass@2" in done.out
        assert "95 % interval" in done.out

    def test_without_its_tools_the_starter_model_solves_nothing_and_no_code_is_run(
        self, starter: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def never(self: object, *arguments: object, **named: object) -> None:
            raise AssertionError("code was run")

        monkeypatch.setattr("miles_agents.tools.sandboxes.RunnerSandbox.exec", never)
        done = command(
            "evaluate", "env=python_math", "tasks=24", "refuse_tools=true", "run_dir=run", "cluster.threads=1"
        )
        assert done.code == 0, done.err
        total = _results("run")["total"]
        assert total["accuracy"] < 0.05
        assert total["tool_call_rate"] > 0.2  # it tries
        assert total["tool_error_rate"] == 1.0


def test_the_model_is_a_run_a_checkpoint_or_a_hugging_face_folder(tiny_model: Path, folder: Path) -> None:
    train = [*_plain(tiny_model), "rollout.groups_per_step=2", "rollout.group_size=4", "eval.tasks=2"]
    assert command("train", *train, "eval.final_tasks=2", "steps=2", "logging.checkpoint_every=1").code == 0
    last = Path("outputs/last")
    copied = folder / "copied"
    shutil.copytree(last / "checkpoints" / "step_000002", copied, ignore=shutil.ignore_patterns("manifest.json"))
    found = {}
    for name, model in {
        "run": last,
        "checkpoint": last / "checkpoints" / "step_000002",
        "older": last / "checkpoints" / "step_000001",
        "folder": copied,
        "start": tiny_model,
    }.items():
        done = command("evaluate", *_plain(model), "samples=2", f"run_dir=eval_{name}")
        assert done.code == 0, (name, done.err)
        assert _results(f"eval_{name}")["model"].endswith(
            {"older": "step_000001", "folder": "copied", "start": "tiny"}.get(name, "step_000002")
        )
        played = read_trajectories(Path(f"eval_{name}/trajectories/eval_step_000000.jsonl"))
        found[name] = [turn.logprobs.tobytes() for trajectory in played for turn in trajectory.turns]
    assert found["run"] == found["checkpoint"] == found["folder"]
    assert len({tuple(each) for each in (found["run"], found["older"], found["start"])}) == 3
    assert last.resolve().name.startswith("Plain-")  # evaluating changed no link


def test_greedy_evaluation_does_not_depend_on_the_seed(tiny_model: Path, folder: Path) -> None:
    for seed in (0, 1):
        words = ["temperature=0", f"seed={seed}", f"run_dir=run{seed}"]
        assert command("evaluate", *_plain(tiny_model), *words).code == 0
    assert _results("run0") == _results("run1")


LOSING = PLAIN_ENV.replace(
    "return float(", "if episode.task.id == 'test1':\n            raise KeyError('no such city')\n        return float("
)


def test_lost_episodes_are_counted_apart_and_too_many_give_exit_code_1(tiny_model: Path, folder: Path) -> None:
    (folder / "plain.py").write_text(LOSING)
    done = command("evaluate", *_plain(tiny_model), "max_failure_rate=0.5", "run_dir=few")
    assert done.code == 0, done.err
    total = _results("few")["total"]
    assert (total["tasks"], total["episodes"], total["scored"], total["failed"]) == (6, 6, 5, 1)
    assert _results("few")["failures_by_cause"] == {"grader": 1}
    assert total["accuracy_over_all"] == pytest.approx(total["accuracy"] * 5 / 6)

    done = command("evaluate", *_plain(tiny_model), "run_dir=many")  # at most 0.1 by default
    assert done.code == 1
    assert "1 of 6 evaluation episodes were lost, more than max_failure_rate=0.1 allows" in done.err
    assert "no such city" in done.err
    assert "Traceback" not in done.err
    assert _results("many") == _results("few")  # the results are there all the same


def test_nothing_scored_is_no_score_and_not_zero(tiny_model: Path, folder: Path) -> None:
    (folder / "plain.py").write_text(PLAIN_ENV.replace("return float(", "raise KeyError\n        return float("))
    done = command("evaluate", *_plain(tiny_model), "max_failure_rate=1", "run_dir=run")
    assert done.code == 1
    assert "no score" in done.out
    assert _results("run")["total"]["accuracy"] is None


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("rollout.temperature=0", "temperature=…"),
        ("rollout.group_size=4", "samples=…"),
        ("rollout.retries=2", "leave it out"),
    ],
)
def test_words_that_mean_nothing_to_an_evaluation_are_refused_not_ignored(word: str, said: str, folder: Path) -> None:
    done = command("evaluate", word)
    assert (done.code, done.out) == (2, "")
    assert word.partition("=")[0] in done.err
    assert said in done.err
