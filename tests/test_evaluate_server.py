"""`python -m miles_agents.evaluate` on a server, end to end: results, several environments, parts, seeds, secrets."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from command_runs import command
from evaluated import evaluate, number_in, records, results, successor, write_envs
from openai_server import KEY, Answer, refuses, says, serving

from miles_agents.evaluation import pass_at_k
from miles_agents.runs.trajectories import read_trajectories


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("miles_agents.engines.openai.client._FIRST_PAUSE_S", 0.01)
    write_envs(tmp_path)
    return tmp_path


def test_a_model_on_a_server_is_scored_and_its_tokens_counted() -> None:
    with serving(successor) as server:
        done = evaluate(server, "samples=4", "run_dir=run")
    assert done.code == 0, done.err
    found = results("run")
    assert (found["model"], found["name"], found["env"]) == ("m", "Sums", "./envs_here.py:Sums")
    total = found["total"]
    assert (total["tasks"], total["episodes"], total["scored"]) == (4, 16, 16)
    assert (total["sampled_tokens"], total["prompt_tokens"], total["tool_calls"]) == (9.0, 60.0, 1.0)
    right: dict[str, int] = defaultdict(int)
    for trajectory in read_trajectories(Path("run/trajectories/eval_step_000000.jsonl")):
        right[trajectory.task_id] += trajectory.rewards["answer"] == 1.0
        assert trajectory.sampled_tokens == 9
    assert 0 < sum(right.values()) < 16
    assert total["accuracy"] == pytest.approx(sum(right.values()) / 16)
    assert total["pass_at_k"]["2"] == pytest.approx(sum(pass_at_k(4, right[f"test{n}"], 2) for n in range(4)) / 4)
    assert {task: signs.count("1") for task, signs in found["outcomes"].items()} == right
    assert found["outcomes"].keys() == {"test0", "test1", "test2", "test3"}
    # a wrong answer is always the same one: the vote is right where more than half are
    votes = [1.0 if right[f"test{n}"] > 2 else 0.5 if right[f"test{n}"] == 2 else 0.0 for n in range(4)]
    assert total["majority_at_k"] == {"4": pytest.approx(sum(votes) / 4)}
    assert [row["name"] for row in found["rows"]] == ["level=1", "level=2", "tags=large", "tags=small"]
    assert [row["tasks"] for row in found["rows"]] == [2, 2, 2, 4]  # a task is in the row of each of its tags
    times = json.loads(Path("run/times.json").read_text())
    assert times["sampled_tokens"] == 16 * 9
    assert times["tokens_per_s"] == pytest.approx(16 * 9 / times["wall_s"])
    assert max(len(line) for line in done.out.splitlines() if "results:" not in line) <= 80
    assert "maj@4" in done.out
    assert "16 played in" in done.out


def test_equal_evaluations_give_the_same_file_whatever_the_order_of_ends() -> None:
    def uneven(request: Mapping[str, Any]) -> Answer:
        answer = successor(request)
        return Answer(body=answer.body, delay_s=(request["seed"] % 5) / 200)

    with serving(uneven) as server:
        for name, more in {"one": [], "two": ["rollout.concurrency=3"], "other": ["seed=1"]}.items():
            assert evaluate(server, "samples=4", f"run_dir={name}", *more).code == 0
    assert Path("one/results.json").read_bytes() == Path("two/results.json").read_bytes()
    assert results("one")["outcomes"] != results("other")["outcomes"]
    ids = [record["id"] for record in records("one")]
    assert ids == [f"eval/test{n}/{sample}" for n in range(4) for sample in range(4)]


# --- several environments ---------------------------------------------------------------------------------------------


def test_several_environments_have_a_block_each_and_one_folder() -> None:
    with serving(lambda request: says("0") if "hello" in str(request) else successor(request)) as server:
        done = evaluate(server, "env.size=2", "env.gold=0", "run_dir=both", env="Sums,Plain")
        assert done.code == 0, done.err
        alone = evaluate(server, "env.size=2", "run_dir=alone")
        assert alone.code == 0, alone.err
    found = results("both")["environments"]
    assert list(found) == ["Sums", "Plain"]
    assert (found["Sums"]["total"]["tasks"], found["Plain"]["total"]["accuracy"]) == (2, 1.0)
    assert {**found["Sums"], "model": "m", "split": "test"} == results("alone")  # as if it had been alone
    assert (len(records("both", "Sums")), len(records("both", "Plain"))) == (2, 1)
    for name in ("Sums", "Plain"):
        assert f"{name} (./envs_here.py:{name}), test split" in done.out
    config = Path("both/config.yaml").read_text()
    assert config.count("size: 2") == 1  # Plain has no such key


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["env=[gsm8k,svamp]", "env.levle=1"], "None of gsm8k, svamp has it"),
        (["env=[gsm8k,svamp]", "env.level=high"], "Integer"),
        (["env=[gsm8k,svmp]"], "svamp"),
        (["env=[gsm8k,gsm8k]"], "given twice"),
        (["env=[]"], "write the environments"),
        (["env=[gsm8k,]"], "write the environments"),
    ],
)
def test_H03_several_environments_refuse_what_none_of_them_has(words: list[str], said: str) -> None:
    done = command("evaluate", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Traceback" not in done.err


def test_training_takes_one_environment_and_no_server() -> None:
    done = command("train", "env=[gsm8k,svamp]")
    assert done.code == 2
    assert "only an evaluation takes several" in done.err
    done = command("train", "engine=openai", "env=./envs_here.py:Sums")
    assert (done.code, done.out) == (2, "")
    assert "gives no token ids" in done.err
    assert not Path("outputs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["smaples=3"], "samples"),
        (["+smaples=3"], "samples"),
        (["++smaples=3"], "samples"),
        (["samples=many"], "Integer"),
        (["steps=3"], "steps"),
        (["eval.samples=3"], "samples"),
        (["engine.base_ulr=http://h/v1"], "engine.base_url"),
        (["engine.slots=3"], "engine.slots"),
        (["interval=bayes"], "bootstrap, wilson"),
        (["shard=2/2"], "shard=0/2"),
        (["shard=half"], "shard=0/2"),
        (["shard=0/5"], "there are 4 tasks"),
        (["resume=true"], "run_dir="),
        (["resume=true", "run_dir=nothing"], "no run folder"),
        (["merge=[nothing]"], "no run folder"),
        (["contamination=true", "split=train"], "another split"),
        (["seed=1", "seed=2"], "twice"),
        (["engine.extra_body={n: 2}"], "engine.extra_body.n"),
        (["sandbox.docker={imag: x}"], "imag"),
    ],
)
def test_H03_words_that_cannot_be_meant_are_refused(words: list[str], said: str) -> None:
    with serving([]) as server:
        done = evaluate(server, *words)
        assert server.requests == []
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Traceback" not in done.err
    assert not Path("outputs").exists()


def test_mappings_are_given_on_the_command_line() -> None:
    with serving(successor) as server:
        done = evaluate(server, "engine.extra_body={min_p: 0.1}", "env.shaping={per_turn: -0.5}", "run_dir=run")
        assert done.code == 0, done.err
        assert server.requests[0]["min_p"] == 0.1
    assert results("run")["total"]["mean_reward"] < results("run")["total"]["accuracy"]


def test_H03_the_resolved_configuration_is_saved_and_printed() -> None:
    with serving(successor) as server:
        assert evaluate(server, "top_p=9e-1", "run_dir=run/epoch=3", "env.size=1").code == 0
    saved = Path("run/epoch=3/config.yaml").read_text()
    assert "top_p: 0.9\n" in saved
    printed = command("evaluate", "engine=openai", "model=m", "top_p=9e-1", "--cfg", "job")
    assert "top_p: 0.9\n" in printed.out
    assert "base_url: http://127.0.0.1:30000/v1" in printed.out


def test_H07_the_run_folder_names_the_parsers_runtime_that_the_constraints_pin() -> None:
    with serving(successor) as server:
        assert evaluate(server, "run_dir=run", "env.size=1").code == 0
    packages = json.loads(Path("run/environment.json").read_text())["packages"]
    pinned = (Path(__file__).parents[1] / "constraints.txt").read_text().splitlines()
    assert f"antlr4-python3-runtime=={packages['antlr4-python3-runtime']}" in pinned
    assert f"latex2sympy2_extended=={packages['latex2sympy2_extended']}".replace("_", "-") in [
        line.replace("_", "-") for line in pinned
    ]


# --- sizes and parts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 8, 9])
def test_H02_every_task_counts_once_whatever_the_size_and_the_number_of_parts(size: int) -> None:
    words = [f"env.size={size}", "rollout.concurrency=8", "samples=2"]
    with serving(successor) as server:
        assert evaluate(server, *words, "run_dir=whole").code == 0
        assert results("whole")["total"]["tasks"] == size
        assert results("whole")["total"]["episodes"] == 2 * size
        parts = min(2, size)
        for part in range(parts):
            assert evaluate(server, *words, f"shard={part}/{parts}", f"run_dir=part{part}").code == 0
        taken = [set(results(f"part{part}")["outcomes"]) for part in range(parts)]
        assert sorted(id for each in taken for id in each) == sorted(f"test{n}" for n in range(size))
        asked = len(server.requests)
        merged = evaluate(server, *words, f"merge=[{','.join(f'part{part}' for part in range(parts))}]", "run_dir=all")
        assert merged.code == 0, merged.err
        assert len(server.requests) == asked  # nothing is played again
    assert f"{2 * size} of {2 * size} episodes are recorded; none is left to play" in merged.out
    assert Path("all/results.json").read_bytes() == Path("whole/results.json").read_bytes()


def test_H02_scores_are_averaged_over_tasks_not_over_batches_or_parts() -> None:
    # 3 samples, batch 2, scores 1, 1, 0: 2/3. 5 samples on 2 ranks, scores 1, 0, 0, 0, 0: 1/5.
    def first(count: int, request: Mapping[str, Any]) -> Answer:
        n = number_in(request)
        return says(f"\\boxed{{{n + 1 if n < count else 0}}}")

    with serving(lambda request: first(2, request)) as server:
        assert evaluate(server, "env.size=3", "rollout.concurrency=2", "run_dir=three").code == 0
    assert results("three")["total"]["accuracy"] == pytest.approx(2 / 3)
    with serving(lambda request: first(1, request)) as server:
        for part in (0, 1):
            assert evaluate(server, "env.size=5", f"shard={part}/2", f"run_dir=p{part}").code == 0
        assert evaluate(server, "env.size=5", "merge=[p0,p1]", "run_dir=five").code == 0
    assert results("five")["total"]["accuracy"] == pytest.approx(1 / 5)


def test_H02_an_empty_set_is_an_error() -> None:
    with serving([]) as server:
        done = evaluate(server, "env.size=0")
    assert (done.code, done.out) == (2, "")
    assert "split 'test' is empty" in done.err


def test_what_a_part_lacks_is_played_when_parts_are_merged() -> None:
    with serving(successor) as server:
        assert evaluate(server, "run_dir=whole").code == 0
        assert evaluate(server, "shard=0/2", "run_dir=p0").code == 0
        asked = len(server.requests)
        done = evaluate(server, "merge=[p0]", "run_dir=all")
        assert done.code == 0, done.err
        assert "2 of 4 episodes are recorded; 2 are played now" in done.out
        assert len(server.requests) == asked + 4
        other = evaluate(server, "merge=[p0]", "seed=1", "run_dir=seed1")
    assert Path("all/results.json").read_bytes() == Path("whole/results.json").read_bytes()
    assert other.code == 2
    assert "other values of: seed" in other.err


def test_H05_every_episode_has_a_stream_of_its_own_whatever_the_order_the_parts_and_the_base_seed() -> None:
    def seeds(*words: str) -> dict[tuple[str, int], int]:
        with serving(lambda request: says("\\boxed{1}")) as server:
            assert evaluate(server, "env.size=2", "samples=4", *words).code == 0
            assert len({request["seed"] for request in server.requests}) == len(server.requests)
        run = next(word.partition("=")[2] for word in words if word.startswith("run_dir="))
        return {(record["task_id"], record["sample_index"]): record["seed"] for record in records(run)}

    base = seeds("seed=7", "run_dir=a")
    assert len(base) == len(set(base.values())) == 8  # 4 samples of 2 prompts: all differ
    assert seeds("seed=7", "run_dir=b", "rollout.concurrency=1") == base  # again, and in another order
    assert not set(seeds("seed=8", "run_dir=c").values()) & set(base.values())
    ranks = [seeds("seed=7", f"shard={part}/2", f"run_dir=r{part}") for part in (0, 1)]
    assert not set(ranks[0].values()) & set(ranks[1].values())
    assert ranks[0] | ranks[1] == base


# --- lost episodes ----------------------------------------------------------------------------------------------------


def test_H06_rewards_1_0_1_and_one_infrastructure_error() -> None:
    broken = [True]

    def flaky(request: Mapping[str, Any]) -> Answer:
        n = number_in(request)
        if n == 3 and broken[0]:
            return refuses(500, "out of memory")
        return says(f"\\boxed{{{n + 1 if n != 1 else 0}}}")

    with serving(flaky) as server:
        words = ["engine.retries=0", "max_failure_rate=0.5", "run_dir=run"]
        done = evaluate(server, *words)
        assert done.code == 0, done.err
        total = results("run")["total"]
        assert total["accuracy"] == pytest.approx(2 / 3)
        assert total["accuracy_over_all"] == pytest.approx(2 / 4)
        assert (total["failed"], total["scored"], total["episodes"]) == (1, 3, 4)
        said = "lost: 1 of 4 episodes (25.0 %), by cause: 1 engine; accuracy 0.667 over the others, 0.500 over all"
        assert said in " ".join(done.out.split())
        assert results("run")["failures_by_cause"] == {"engine": 1}
        assert results("run")["outcomes"] == {"test0": "1", "test1": "0", "test2": "1", "test3": "-"}
        assert [record["status"] for record in records("run")].count("failed") == 1

        broken[0] = False
        server.requests.clear()
        again = evaluate(server, *words, "resume=true")
        assert again.code == 0, again.err
        assert [number_in(request) for request in server.requests] == [3]  # the lost one alone
        ids = [record["id"] for record in records("run")]
        assert (len(ids), len(set(ids))) == (4, 4)  # 3 + 1 records, no duplicates
        assert results("run")["total"]["accuracy"] == pytest.approx(3 / 4)
        assert evaluate(server, "max_failure_rate=0.5", "engine.retries=0", "run_dir=calm").code == 0
        assert Path("run/results.json").read_bytes() == Path("calm/results.json").read_bytes()


def test_H06_a_task_whose_samples_are_all_lost_has_no_score_and_too_many_give_exit_code_1() -> None:
    def flaky(request: Mapping[str, Any]) -> Answer:
        return refuses(500, "oops") if number_in(request) == 0 else says(f"\\boxed{{{number_in(request) + 1}}}")

    with serving(flaky) as server:
        done = evaluate(server, "samples=4", "engine.retries=0", "run_dir=run")
        assert done.code == 1  # 4 of 16 are above max_failure_rate=0.1
        assert "4 of 16 evaluation episodes were lost" in done.err
        total = results("run")["total"]
        assert (total["accuracy"], total["accuracy_over_all"]) == (1.0, 0.75)
        assert results("run")["outcomes"]["test0"] == "----"
        assert total["pass_at_k"]["4"] == 1.0  # over tasks with a score
        server.requests.clear()
        done = evaluate(server, "env.size=1", "samples=4", "engine.retries=0", "max_failure_rate=1", "run_dir=none")
    assert done.code == 1
    assert "no score" in done.out
    assert results("none")["total"]["accuracy"] is None


def test_a_grader_that_breaks_is_no_wrong_answer() -> None:
    with serving(lambda request: says("crash" if number_in(request) == 0 else "\\boxed{0}")) as server:
        assert evaluate(server, "max_failure_rate=0.5", "run_dir=run").code == 0
    assert results("run")["failures_by_cause"] == {"grader": 1}
    assert results("run")["outcomes"]["test0"] == "-"


# --- the server -------------------------------------------------------------------------------------------------------


def test_what_no_episode_gets_past_is_one_message_and_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "wrong")
    key = "engine.api_key_env=MY_KEY"
    with serving(successor, key=KEY) as server:
        refused = [evaluate(server), evaluate(server, key), evaluate(server, "engine.api_key_env=NO_SUCH_KEY")]
        for each in refused:
            assert (each.code, each.out) == (2, "")
            assert "engine.api_key_env" in each.err
            assert each.err.count("\n") == 1
        assert server.requests == []
    with serving(lambda _: refuses(401, "bad key"), models=None) as server:  # only requests are refused
        done = evaluate(server, "rollout.concurrency=1")
        assert done.code == 2
        assert len(server.requests) <= 2  # another may be on its way
    gone = evaluate(server)
    assert gone.code == 2
    assert "no answer from" in gone.err
    assert gone.err.count("\n") == 1
    with serving(successor, models=["other"]) as server:
        done = evaluate(server)
        assert "no model 'm'" in done.err
    assert not Path("outputs").exists()


def test_the_key_is_in_no_file_and_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", f" {KEY}\n")  # as a file with a line break gives it

    def repeating(request: Mapping[str, Any]) -> Answer:
        return refuses(500, f"Bearer {KEY}") if number_in(request) == 0 else says(f"your key is {KEY}")

    with serving(repeating, key=KEY) as server:
        words = ["engine.api_key_env=MY_KEY", "engine.retries=0", "max_failure_rate=0.5", "run_dir=run"]
        done = evaluate(server, *words)
        assert done.code == 0, done.err
        written = [path.read_text() for path in sorted(Path("run").rglob("*")) if path.is_file()]
        assert KEY not in "".join([*written, done.out, done.err])
        assert "MY_KEY" in "".join(written)
        typed = evaluate(server, f"engine.api_key_env={KEY}")  # the key itself in the place of its variable's name
        assert typed.code == 2
        assert KEY not in typed.err


# --- seats, rewards of groups, contamination --------------------------------------------------------------------------


def test_seats_have_rows_and_siblings_are_compared_also_when_it_is_gone_on_with() -> None:
    with serving(lambda request: says("word " * (1 + request["seed"] % 7))) as server:
        done = evaluate(server, "samples=3", "run_dir=run", env="Duel")
        assert done.code == 0, done.err
        found = results("run")
        assert [(row["name"], row["accuracy"], row["episodes"]) for row in found["rows"]] == [
            ("seat=left", 1.0, 9),
            ("seat=right", 0.0, 9),
        ]
        assert found["total"]["accuracy"] == 0.5
        assert found["outcomes"]["d0"] == "111/000"
        assert [record["rewards"]["longest"] for record in records("run")[:6:2]] == [0.0, 1.0, 2.0]
        before = Path("run/results.json").read_bytes()
        # the rewards that compare siblings are added once, however often it is gone on with
        again = evaluate(server, "samples=3", "run_dir=run", "resume=true", env="Duel")
        assert again.code == 0, again.err
    assert Path("run/results.json").read_bytes() == before
    assert [record["rewards"] for record in records("run")[:6:2]] == [{"longest": n} for n in (0.0, 1.0, 2.0)]


def test_an_opponent_is_not_scored() -> None:
    source = Path("envs_here.py").read_text()
    Path("envs_here.py").write_text(
        source.replace(
            'seats = ("left", "right")', 'seats = ("left", "right")\n    opponents = {"mute": lambda text, rng: "..."}'
        )
    )
    with serving(lambda _: says("ha")) as server:
        done = evaluate(server, "rollout.opponents={left: mute}", "run_dir=run", env="Duel")
        assert done.code == 0, done.err
        assert len(server.requests) == 3
    assert {record["seat"] for record in records("run")} == {"right"}
    assert results("run")["total"]["accuracy"] == 0.0


def test_contamination_is_counted_with_rows_and_a_line() -> None:
    # Of the train tasks "say 1" … only the first has a test task's words; the system prompt is no overlap.
    with serving(successor) as server:
        done = evaluate(server, "contamination=true", "run_dir=run")
        assert done.code == 0, done.err
        found = results("run")
        shared = found["contamination"]
        assert (shared["exact"], shared["overlaps"], shared["tasks"], shared["train_tasks"]) == (1, 0, 4, 4)
        [row] = shared["rows"]
        assert (row["task"], row["train"], row["kind"]) == ("test0", "train0", "exact")
        assert [(each["name"], each["tasks"]) for each in found["rows"][-2:]] == [
            ("contaminated", 1),
            ("not contaminated", 3),
        ]
        assert "contamination: 1 exact, 0 by 13 words, of 4 tasks (25.0 %)" in done.out
        refused = evaluate(server, "contamination=true", env="Plain")
    assert refused.code == 2
    assert "no train split" in refused.err


def test_limits_that_cut_off_much_are_named() -> None:
    with serving(lambda _: says("so", finish="length")) as server:
        done = evaluate(server, "run_dir=run")
    assert results("run")["truncated_by"] == {"max_new_tokens": 4}
    assert "4 by rollout.max_new_tokens" in done.out


def test_the_bootstrap_interval_is_seeded() -> None:
    with serving(successor) as server:
        words = ["interval=bootstrap", "samples=2", "env.size=9"]
        for name in ("a", "b"):
            assert evaluate(server, *words, f"run_dir={name}").code == 0
    assert Path("a/results.json").read_bytes() == Path("b/results.json").read_bytes()
    total = results("a")["total"]
    assert total["accuracy_low"] < total["accuracy"] < total["accuracy_high"]
