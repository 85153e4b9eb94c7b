"""`repo_fix`: its tasks, data files, patches, and what an honest fix and a useless one score."""

import json
import random
import shutil
from pathlib import Path

import pytest

from miles_agents import Reply
from miles_agents.checks.env import check_env, check_tasks, play
from miles_agents.contracts import EnvResources
from miles_agents.envs.code.judge import Judge, Solution
from miles_agents.envs.repo_fix.env import RepoFix, calling
from miles_agents.envs.repo_fix.patches import apply_patch, make_patch
from miles_agents.envs.repo_fix.problems import generated_problems
from miles_agents.errors import ConfigError, DataError
from miles_agents.tools.sandboxes import NamespaceSandboxes, probe, refusal

FOUND = probe()
DATA = Path(__file__).parent / "data" / "repo_fix" / "problems.jsonl"
in_sandbox = [pytest.mark.sandbox, pytest.mark.skipif(not FOUND.works, reason=refusal(FOUND))]


@pytest.fixture
async def sandboxes():
    async with NamespaceSandboxes(preload=()) as provider:
        yield provider


def bound(sandboxes, **settings):
    env = RepoFix(**settings)
    env.bind(EnvResources(sandboxes=sandboxes))
    return env


def rows():
    return [json.loads(line) for line in DATA.read_text().splitlines()]


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_the_generated_tasks_are_the_same_every_time_and_no_repository_is_in_two_splits():
    tasks = check_tasks(RepoFix())
    assert {split: len(each) for split, each in tasks.items()} == {"train": 135, "validation": 34, "test": 36}
    templates = {split: {task.metadata["template"] for task in each} for split, each in tasks.items()}
    assert templates["validation"] == {"router"}
    assert templates["test"] == {"text_tables"}
    assert not templates["train"] & (templates["validation"] | templates["test"])


def test_the_prompt_says_what_is_wrong_and_gives_neither_the_fix_nor_the_tests():
    for split in RepoFix.splits:
        for task in RepoFix().tasks(split):
            shown = task.prompt[-1].text
            changed = apply_patch(task.answer["files"], task.answer["patch"])
            added = [line for line in task.answer["patch"].splitlines() if line.startswith("+ ")]
            assert changed
            assert all(path in shown for path in task.answer["files"])
            assert not any(line[1:].strip() in shown for line in added)
            assert task.answer["setup"].strip().splitlines()[0] not in shown
            assert task.answer["patch"] not in shown


def test_values_out_of_range_are_refused():
    with pytest.raises(ConfigError, match=r"env\.max_turns=0: it must be at least 1; env\.test_size=0"):
        RepoFix(max_turns=0, test_size=0)
    with pytest.raises(ConfigError, match=r"env\.test_timeout_s=0"):
        RepoFix(test_timeout_s=0)
    with pytest.raises(ConfigError, match="unknown split 'tests'"):
        RepoFix().tasks("tests")


# --- patches ----------------------------------------------------------------------------------------------------------

LINES = "".join(f"line {number}\n" for number in range(1, 31))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (LINES, LINES.replace("line 3\n", "").replace("line 20\n", "20\nand more\n")),
        ("", "one\n"),
        ("one\n", ""),
        ("one", "one\n"),
        ("one\ntwo\n", "one\ntwo"),
        ("a\x0cb\u2028c\nd", "a\x0cb\u2028c\ne"),
        ("-- a\n++ b\n", "++ b\n-- a\n"),
        (LINES, "line 0\n" + LINES + "line 31"),
    ],
)
def test_a_patch_leads_from_one_text_to_the_other(before, after):
    patch = make_patch({"x.py": before, "y": "same\n"}, {"x.py": after, "y": "same\n"})
    assert apply_patch({"x.py": before, "y": "same\n"}, patch) == {"x.py": after}


def test_patches_as_git_writes_them_add_change_and_remove_files():
    patch = (
        "diff --git a/new.py b/new.py\nnew file mode 100644\nindex 0000000..1111111\n--- /dev/null\n+++ b/new.py\n"
        "@@ -0,0 +1,2 @@\n+x = 1\n+\ndiff --git a/old.py b/old.py\ndeleted file mode 100644\n--- a/old.py\n"
        "+++ /dev/null\n@@ -1 +0,0 @@\n-y = 1\ndiff --git a/z.py b/z.py\n--- a/z.py\n+++ b/z.py\n"
        "@@ -1,3 +1,3 @@ def f():\n a\n\n-b\n+c\n"
    )
    files = {"old.py": "y = 1\n", "z.py": "a\n\nb\nd\n"}
    assert apply_patch(files, patch) == {"new.py": "x = 1\n\n", "old.py": None, "z.py": "a\n\nc\nd\n"}


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("", "changes nothing"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-two\n+three\n", "does not fit 'x' at line 1"),
        ("--- a/x\n+++ b/x\n@@ -2 +2 @@\n-one\n+three\n", "does not fit 'x' at line 2"),
        ("--- a/w\n+++ b/w\n@@ -1 +1 @@\n-one\n+three\n", "changes 'w', which is not among the files"),
        ("--- a/x\n+++ b/w\n@@ -1 +1 @@\n-one\n+three\n", "renames a file"),
        ("--- a/x\n+++ b/x\n@@ -1,3 +1 @@\n-one\n", "ends within the hunk"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n*one\n", "has '*one' within a hunk"),
        ("--- a/x\n@@ -1 +1 @@\n-one\n", "has no line '+++"),
        ("diff --git a/x b/w\nrename from x\nrename to w\n", "renames, copies or is binary"),
    ],
)
def test_a_patch_that_does_not_fit_is_refused(patch, message):
    with pytest.raises(DataError) as caught:
        apply_patch({"x": "one\n"}, patch)
    assert message in str(caught.value)


# --- data files -------------------------------------------------------------------------------------------------------

TEST = "tests/test_sums.py"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"problem_statement": " "}, "has no 'problem_statement'"),
        ({"files": {}}, "'files' is an object of texts by path"),
        ({"files": {"../x": ""}}, "it must be a relative path"),
        ({"files": {"/x": ""}}, "it must be a relative path"),
        ({"files": {"x": 1}}, "and its value text"),
        ({"FAIL_TO_PASS": []}, "'fail_to_pass' names no test"),
        ({"FAIL_TO_PASS": "test_x"}, "text that is no JSON list"),
        ({"FAIL_TO_PASS": [f"{TEST}::SumsTest::test_totl"]}, "Did you mean 'SumsTest::test_total'"),
        ({"FAIL_TO_PASS": ["tests/test_sum.py::test_x"]}, "Did you mean 'tests/test_sums.py'"),
        ({"FAIL_TO_PASS": ["test_total (tests.SumsTest)"]}, "there is no test"),
        ({"FAIL_TO_PASS": [f"{TEST}::SumsTest::test_total[1]"]}, "names no test"),
        ({"PASS_TO_PASS": [f"{TEST}::SumsTest::test_total"]}, "is in 'fail_to_pass' and in 'pass_to_pass'"),
        ({"tests": {TEST: "def"}}, "is no Python"),
        ({"tests": {TEST: "def test_a(tmp_path): pass"}, "FAIL_TO_PASS": [f"{TEST}::test_a"]}, "needs pytest"),
        ({"tests": {TEST: "async def test_a(): assert 1"}, "FAIL_TO_PASS": [f"{TEST}::test_a"]}, "needs pytest"),
        ({"tests": {TEST: "def test_a(): f()"}, "FAIL_TO_PASS": [f"{TEST}::test_a"]}, "env.allow_forgeable=true"),
        ({"patch": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"}, "not among the files"),
        ({"checks": {"a": 1}}, "'checks' is an object of objects"),
        ({"file": {}}, "Did you mean 'files'"),
    ],
)
def test_a_broken_row_is_named_by_file_and_line(tmp_path, change, message):
    good = rows()[0]
    changed = {**good, "PASS_TO_PASS": [], "problem_statement": "Another.", **change}
    (tmp_path / "train.jsonl").write_text(f"{json.dumps(good)}\n{json.dumps(changed)}\n")
    with pytest.raises(DataError, match=r"train\.jsonl:2") as caught:
        RepoFix(data=str(tmp_path)).tasks("train")
    assert message in str(caught.value)


def test_tests_that_could_be_forged_are_taken_where_that_is_allowed(tmp_path):
    row = {**rows()[0], "tests": {TEST: "def test_a(): f()"}, "FAIL_TO_PASS": [f"{TEST}::test_a"], "PASS_TO_PASS": []}
    (tmp_path / "test.jsonl").write_text(json.dumps(row))
    assert len(RepoFix(data=str(tmp_path), allow_forgeable=True).tasks("test")) == 1


async def test_a_row_without_a_patch_has_no_oracle(tmp_path):
    (tmp_path / "test.jsonl").write_text(json.dumps({**rows()[0], "patch": ""}))
    env = RepoFix(data=str(tmp_path))
    with pytest.raises(DataError, match="has no 'patch'"):
        list(env.oracle(env.tasks("test")[0]))


# --- episodes ---------------------------------------------------------------------------------------------------------

END = Reply.of("It is mended.")


class TestInASandbox:
    pytestmark = in_sandbox

    async def test_it_keeps_the_contract_of_environments(self, sandboxes):
        await check_env(bound(sandboxes), tasks_per_split=1)

    async def test_each_bug_makes_just_the_tests_fail_that_are_said_to_and_its_fix_makes_all_pass(self, sandboxes):
        """Every single bug, and every fifth pair."""
        async with await sandboxes.open() as sandbox:
            for split in RepoFix.splits:
                problems = sorted(generated_problems(split), key=lambda each: each.id)
                pairs = [each for each in problems if "+" in each.id]
                for problem in (*(each for each in problems if "+" not in each.id), *pairs[::5]):
                    checks = problem.judged()
                    failed = [
                        name for name, passed in await self._verdicts(sandbox, problem.files, checks) if not passed
                    ]
                    assert sorted(failed) == sorted(problem.fail_to_pass), problem.id
            template = {each.metadata["template"]: each for name in RepoFix.splits for each in generated_problems(name)}
            for problem in template.values():
                fixed = {**problem.files, **apply_patch(problem.files, problem.patch)}
                assert all(passed for _, passed in await self._verdicts(sandbox, fixed, problem.judged())), problem.id

    @staticmethod
    async def _verdicts(sandbox, files, checks):
        solution = Solution(files={path: text.encode() for path, text in files.items()}, folder="repository")
        return zip(checks, await Judge().verdicts(sandbox, solution, list(checks.values())), strict=True)

    async def test_the_fix_scores_one_and_doing_nothing_or_something_else_scores_nothing(self, sandboxes):
        env = bound(sandboxes, fraction_weight=0.25)
        for split in env.splits:
            task = env.tasks(split)[0]
            assert (await play(env, task, env.oracle(task), seed=0))[-1].info["rewards"]["tests"] == 1.0, task.id
            nothing = (await play(env, task, [END], seed=0))[-1]
            assert nothing.info["rewards"] == {"tests": 0.0, "fraction": 0.0, "kept": 1.0}
            assert nothing.reward == 0.0
            junk = calling([("shell", {"command": "rm -rf ./* .[a-z]*; echo PASS"})])
            assert (await play(env, task, [junk, END], seed=0))[-1].info["rewards"] == {
                "tests": 0.0,
                "fraction": 0.0,
                "kept": 0.0,
            }

    async def test_half_a_fix_is_a_fraction_and_one_that_breaks_a_passing_test_is_nothing(self, sandboxes):
        env = bound(sandboxes, fraction_weight=0.5)
        name = "ledger/cents_padding+until_excluded"
        task = next(task for task in env.tasks("train") if task.metadata["bugs"] == name.partition("/")[2].split("+"))
        edit = {"path": "ledger/amounts.py", "old_text": "int(part or 0)", "new_text": 'int(part.ljust(2, "0") or 0)'}
        half = calling([("edit", edit)])
        last = (await play(env, task, [half, END], seed=0))[-1]
        assert last.info["rewards"] == {"tests": 0.0, "fraction": 0.5, "kept": 1.0}  # of two failing tests one
        assert last.reward == 0.25
        fix, _ = env.oracle(task)
        breaking = {"command": "sed -i 's/-each.cents/each.cents/' ledger/book.py"}
        last = (await play(env, task, [fix, calling([("shell", breaking)]), END], seed=0))[-1]
        kept = len(task.answer["pass_to_pass"])
        assert last.info["rewards"] == {"tests": 0.0, "fraction": 0.0, "kept": (kept - 1) / kept}  # `largest` fails

    async def test_a_model_can_look_around_run_the_visible_tests_and_mend_by_hand(self, sandboxes):
        env = bound(sandboxes)
        task = next(task for task in env.tasks("train") if task.metadata["bugs"] == ["zero_allowed"])
        looks = [
            calling([("shell", {"command": "ls && python -m unittest discover -s tests -t . 2>&1 | tail -1"})]),
            calling([("read", {"path": "ledger/book.py", "start_line": 20, "end_line": 30})]),
            calling([("edit", {"path": "ledger/book.py", "old_text": "cents < 0:", "new_text": "cents <= 0:"})]),
        ]
        results = await play(env, task, [*looks, END], seed=0)
        assert results[0].observation[0].text.split() == ["README.md", "ledger", "tests", "OK"]
        assert "posting.cents < 0" in results[1].observation[0].text
        assert results[-1].reward == 1.0

    async def test_rows_of_a_file_are_mended_by_their_patches_alone(self, sandboxes, tmp_path):
        shutil.copy(DATA, tmp_path / "test.jsonl")
        env = bound(sandboxes, data=str(tmp_path))
        for task in env.tasks("test"):
            assert (await play(env, task, env.oracle(task), seed=0))[-1].reward == 1.0, task.id
            assert (await play(env, task, [END], seed=0))[-1].info["rewards"] == {
                "tests": 0.0,
                "fraction": 0.0,
                "kept": 1.0,
            }, task.id

    async def test_removed_and_added_files_count(self, sandboxes, tmp_path):
        row = rows()[1]
        row["files"] = {"greet/__init__.py": "from greet.old import greet\n", "greet/old.py": row["files"]["greet.py"]}
        row["patch"] = (
            "--- a/greet/__init__.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-from greet.old import greet\n--- /dev/null\n"
            '+++ b/greet.py\n@@ -0,0 +1,2 @@\n+def greet(name="you"):\n+    return f"Hello, {name}!"\n'
            "--- a/greet/old.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n"
            + "".join(f"-{line}\n" for line in row["files"]["greet/old.py"].splitlines())
        )
        (tmp_path / "test.jsonl").write_text(json.dumps(row))
        env = bound(sandboxes, data=str(tmp_path))
        (task,) = env.tasks("test")
        assert (await play(env, task, env.oracle(task), seed=0))[-1].reward == 1.0


def test_the_order_of_tasks_does_not_touch_the_global_generator():
    random.seed(5)
    before = random.getstate()
    generated_problems("train")
    assert random.getstate() == before
