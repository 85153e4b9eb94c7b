"""Test files whose assertions are judged on the host.

The tested code runs in the process of the test that calls it: there it could make `assertEqual` do nothing. So what an
assertion compares with a literal is *lifted*: in the text that goes to the sandbox

    self.assertEqual(total([1, 2]), 3)      becomes      _seen_by_host(0, total([1, 2]))

The host keeps the 3 and compares. Lifted are `assert X == LITERAL`, `assert X is None|True|False`, `assert X`,
`assert not X`, and the unittest methods `assertEqual` (`assertListEqual` …), `assertIs`, `assertIsNone`, `assertTrue`
and `assertFalse`. Every other assertion stays where it is, and a test fails by what it raises.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from miles_agents.envs.code.checks import same_value
from miles_agents.envs.code.harness import UnreadableValueError, encode_value
from miles_agents.errors import DataError, did_you_mean

REPORTER = "_seen_by_host"
_EQUAL = frozenset({"assertEqual", "assertEquals", "assertIs"}) | {
    f"assert{kind}Equal" for kind in ("List", "Tuple", "Dict", "Set", "MultiLine", "Sequence")
}
_FIXED = {"assertIsNone": None, "assertTrue": True, "assertFalse": False}
_UNCERTAIN = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.Try, ast.Match, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestId:
    """`tests/test_x.py::TestCase::test_name`, or without a class."""

    __test__ = False  # for pytest: not a class of tests

    path: str
    owner: str  # the class; "" for a function of the module
    name: str

    @classmethod
    def parse(cls, text: str, place: str) -> TestId:
        """From its text.

        Raises:
            DataError: it is no name of a test.
        """
        path, *names = text.split("::")
        if not 1 <= len(names) <= 2 or not all(each.isidentifier() for each in names) or not path.endswith(".py"):
            raise DataError(f"{place}: {text!r} names no test; write path.py::test_name or path.py::Class::test_name")
        return cls(path=path, owner=names[0] if len(names) == 2 else "", name=names[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftedTest:
    """One test of a test file, and what its lifted assertions must see, which stays on the host."""

    case: Mapping[str, Any]  # what the harness is told
    wanted: Mapping[int, Any]  # the literals of this test, by number
    certain: frozenset[int]  # of them, those that every run to the end comes by just once

    def fulfilled(self, record: Mapping[str, Any], *, float_tolerance: float = 0.0) -> bool:
        """True if the test ran to its end, every lifted assertion saw its literal, and none was left out."""
        seen = record.get("value")
        if record.get("kind") != "returned" or not isinstance(seen, list):
            return False
        if not all(isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int for pair in seen):
            return False
        numbers = [number for number, _ in seen]
        if any(numbers.count(number) != 1 for number in self.certain):
            return False
        try:
            return all(
                number in self.wanted and same_value(self.wanted[number], value, float_tolerance)
                for number, value in seen
            )
        except RecursionError:  # nested too deep to be any of our values
            return False


@dataclass(slots=True)
class TestFile:
    """A test file in two parts: the text for the sandbox, and the literals for the host.

    Args:
        path: within the repository.
        source: as it was written.
        place: file and line of the row, for messages.

    Raises:
        DataError: it is no Python.
    """

    __test__ = False

    path: str
    source: str
    place: str
    lifted: str = ""
    _tests: dict[tuple[str, str], ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    _literals: dict[tuple[str, str], dict[int, Any]] = field(default_factory=dict)
    _certain: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    _async_owners: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        try:
            tree = ast.parse(self.source)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise DataError(f"{self.place}: {self.path} is no Python: {error}") from error
        count = 0
        for owner, body in _bodies(tree):
            for node in body:
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test"):
                    key = (owner, node.name)
                    lifter = _Lifter(count)
                    node.body = [lifter.statement(each) for each in node.body]
                    count = lifter.count
                    self._tests[key] = node
                    self._literals[key], self._certain[key] = lifter.literals, lifter.certain
        for each in tree.body:
            if isinstance(each, ast.ClassDef) and any("Async" in ast.unparse(base) for base in each.bases):
                self._async_owners.add(each.name)
        self.lifted = ast.unparse(ast.fix_missing_locations(tree))

    def test(self, test_id: TestId) -> LiftedTest:
        """One of its tests.

        Raises:
            DataError: there is none of that name, or one that needs fixtures or an event loop of pytest's.
        """
        key = (test_id.owner, test_id.name)
        node = self._tests.get(key)
        if node is None:
            known = ["::".join(part for part in each if part) for each in self._tests]
            asked = "::".join(part for part in key if part)
            raise DataError(f"{self.place}: {self.path} has no test {asked!r}. {did_you_mean(asked, known)}")
        arguments = len(node.args.args) - bool(test_id.owner)
        coroutine = isinstance(node, ast.AsyncFunctionDef) and test_id.owner not in self._async_owners
        if arguments or node.args.kwonlyargs or coroutine:
            raise DataError(
                f"{self.place}: {test_id.name} of {self.path} needs pytest (it takes fixtures or parameters, or is a "
                "coroutine); tests are methods of unittest classes, or functions without arguments"
            )
        case = {
            "run": "test",
            "path": self.path,
            "module": ".".join(PurePosixPath(self.path).with_suffix("").parts),
            "class": test_id.owner,
            "name": test_id.name,
            "source": self.lifted,
            "reporter": REPORTER,
        }
        return LiftedTest(case=case, wanted=self._literals[key], certain=frozenset(self._certain[key]))


def _bodies(tree: ast.Module) -> Sequence[tuple[str, list[ast.stmt]]]:
    """The module's statements under "", those of its classes under their names."""
    classes = [(each.name, each.body) for each in tree.body if isinstance(each, ast.ClassDef)]
    return [("", tree.body), *classes]


class _Lifter(ast.NodeTransformer):
    """Lifts the assertions of one test.

    Args:
        count: assertions lifted before in the file.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.literals: dict[int, Any] = {}
        self.certain: set[int] = set()
        self._sure = True  # the statement is run just once in a test that ends

    def statement(self, node: ast.stmt) -> Any:
        """A statement of the test's body, with its assertions lifted."""
        changed = self.visit(node)
        if any(isinstance(each, (ast.Return, ast.Break, ast.Continue)) for each in ast.walk(node)):
            self._sure = False  # what follows may not be come by
        return changed

    def visit(self, node: ast.AST) -> Any:
        """As the base class; inside loops, branches and handlers nothing is certain."""
        before = self._sure
        if isinstance(node, _UNCERTAIN) or (isinstance(node, (ast.With, ast.AsyncWith)) and _may_swallow(node)):
            self._sure = False
        try:
            return super().visit(node)
        finally:
            self._sure = before

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """`assert …`."""
        test = node.test
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self._as_bool(test.operand, False, node)
        if isinstance(test, ast.Compare):
            one_of = len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.Is))
            return self._compared(test.left, test.comparators[0], node) if one_of else self._as_bool(test, True, node)
        return self._as_bool(test, True, node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """`self.assert…(…)`."""
        call = node.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return node
        if any(each.arg != "msg" for each in call.keywords):
            return node
        name, arguments = call.func.attr, call.args
        if not isinstance(call.func.value, ast.Name) or call.func.value.id not in ("self", "cls"):
            return node
        if any(isinstance(each, ast.Starred) for each in arguments):
            return node
        if name in _EQUAL and len(arguments) >= 2:
            return self._compared(arguments[0], arguments[1], node)
        if name in _FIXED and arguments:
            wanted = _FIXED[name]
            return self._report(arguments[0], None) if wanted is None else self._as_bool(arguments[0], wanted, node)
        return node

    def _compared(self, left: ast.expr, right: ast.expr, node: ast.stmt) -> ast.AST:
        for value, literal in ((left, right), (right, left)):
            try:
                wanted = ast.literal_eval(literal)
                encode_value(wanted)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, UnreadableValueError):
                continue
            return self._report(value, wanted)
        return node

    def _as_bool(self, value: ast.expr, wanted: bool, node: ast.stmt) -> ast.AST:
        if any(isinstance(each, (ast.Await, ast.NamedExpr)) for each in ast.walk(node)):
            return node
        truth = ast.UnaryOp(op=ast.Not(), operand=ast.UnaryOp(op=ast.Not(), operand=value))
        return self._report(truth, wanted)

    def _report(self, value: ast.expr, wanted: Any) -> ast.AST:
        number = self.count
        self.count += 1
        self.literals[number] = wanted
        if self._sure:
            self.certain.add(number)
        call = ast.Call(
            func=ast.Name(id=REPORTER, ctx=ast.Load()), args=[ast.Constant(value=number), value], keywords=[]
        )
        return ast.Expr(value=call)


def _may_swallow(node: ast.With | ast.AsyncWith) -> bool:
    """A context may end its block early; `subTest` does not."""
    calls = [each.context_expr for each in node.items]
    return not all(
        isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "subTest"
        for call in calls
    )
