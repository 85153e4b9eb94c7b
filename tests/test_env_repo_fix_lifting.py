"""Test files of `repo_fix`: which assertions are judged on the host, and what a run must show to pass."""

import ast
import json
from pathlib import Path

import pytest

from miles_agents.envs.repo_fix.lifting import REPORTER, TestFile, TestId

DATA = Path(__file__).parent / "data" / "repo_fix" / "problems.jsonl"


def test_the_text_for_the_sandbox_holds_no_literal_that_the_host_compares_with():
    row = json.loads(DATA.read_text().splitlines()[0])
    file = TestFile(path="tests/test_sums.py", source=row["tests"]["tests/test_sums.py"], place="x")
    assert "60)" not in file.lifted
    assert "20.0" not in file.lifted
    assert "assertEqual" not in file.lifted
    test = file.test(TestId.parse("tests/test_sums.py::SumsTest::test_total", "x"))
    assert test.wanted == {1: 60, 2: True}  # 0 is that of a test before
    assert test.certain == {1}  # the other is in a loop
    ast.parse(file.lifted)


@pytest.mark.parametrize(
    ("statement", "wanted"),
    [
        ("assert f(1) == [2, 'x']", [2, "x"]),
        ("assert 3 == f(1)", 3),
        ("assert f(1) is None", None),
        ("assert not f(1)", False),
        ("assert f(1)", True),
        ("assert f(1) in (1, 2)", True),
        ("assert 0 < f(1) < 3", True),
        ("self.assertEqual(f(1), {'a': (1, 2.5)}, 'said')", {"a": (1, 2.5)}),
        ("self.assertListEqual(f(1), [1], msg='said')", [1]),
        ("self.assertIsNone(f(1))", None),
        ("self.assertFalse(f(1))", False),
    ],
)
def test_assertions_are_lifted(statement, wanted):
    file = TestFile(path="t.py", source=f"def test_a(self=None):\n    {statement}\n", place="x")
    assert file._literals["", "test_a"] == {0: wanted}
    assert file._certain["", "test_a"] == {0}
    assert REPORTER in file.lifted
    assert "assert" not in file.lifted.lower()


@pytest.mark.parametrize(
    "statement",
    [
        "self.assertEqual(f(1), g(2))",
        "self.assertAlmostEqual(f(1), 2.5)",
        "self.assertEqual(*f(1))",
        "self.assertEqual(f(1), second=3)",
        "other.assertEqual(f(1), 3)",
        "assert f(1) == g(2)",
        "assert (x := f(1))",
    ],
)
def test_other_assertions_stay_where_they_are(statement):
    file = TestFile(path="t.py", source=f"def test_a(self=None):\n    {statement}\n", place="x")
    assert file._literals["", "test_a"] == {}
    assert ast.unparse(ast.parse(statement)) in file.lifted


@pytest.mark.parametrize(
    ("body", "certain"),
    [
        ("assert f() == 1\nfor x in y: assert f(x) == 2\nassert f() == 3", {0, 2}),
        ("if f(): assert f() == 1\nassert f() == 2", {1}),
        ("with self.subTest(): assert f() == 1", {0}),
        ("with self.assertRaises(E): assert f() == 1\nassert f() == 2", {1}),
        ("if f(): return\nassert f() == 1", set()),
        ("try: assert f() == 1\nfinally: g()", set()),
        ("def g(): assert f() == 1\ng()\nassert f() == 2", {1}),
    ],
)
def test_only_what_every_run_comes_by_is_certain(body, certain):
    source = "def test_a():\n" + "".join(f"    {line}\n" for line in body.splitlines())
    assert TestFile(path="t.py", source=source, place="x")._certain["", "test_a"] == certain


@pytest.mark.parametrize(
    ("record", "passes"),
    [
        ({"kind": "returned", "value": [[1, {"i": "0x3c"}], [2, True], [2, True]]}, True),
        ({"kind": "returned", "value": [[1, {"i": "0x3c"}]]}, True),  # the loop had no round
        ({"kind": "returned", "value": [[2, True]]}, False),
        ({"kind": "returned", "value": []}, False),
        ({"kind": "returned", "value": [[1, {"i": "0x3c"}], [1, {"i": "0x3c"}]]}, False),
        ({"kind": "returned", "value": [[1, {"i": "0x3d"}], [2, True]]}, False),
        ({"kind": "returned", "value": [[1, {"i": "0x3c"}], [2, False]]}, False),
        ({"kind": "returned", "value": [[1, {"i": "0x3c"}], [7, True]]}, False),
        ({"kind": "returned", "value": [[False, {"i": "0x3c"}]]}, False),
        ({"kind": "returned", "value": [0]}, False),
        ({"kind": "returned", "value": {"0": 60}}, False),
        ({"kind": "returned"}, False),
        ({"kind": "raised", "value": [[1, {"i": "0x3c"}]]}, False),
        ({"kind": "exited", "code": 0, "value": [[1, {"i": "0x3c"}]]}, False),
        ({}, False),
    ],
)
def test_a_record_passes_only_with_every_certain_value(record, passes):
    row = json.loads(DATA.read_text().splitlines()[0])
    file = TestFile(path="tests/test_sums.py", source=row["tests"]["tests/test_sums.py"], place="x")
    test = file.test(TestId.parse("tests/test_sums.py::SumsTest::test_total", "x"))
    assert test.fulfilled(record) is passes
