"""Solutions that try to be paid without solving: the verdict of `code` cannot be forged."""

import pytest
import pytest_asyncio
from sandbox_backends import BACKENDS, running

from miles_agents.envs.code import Judge, JudgeLimits, read_check
from miles_agents.envs.code.judge import Solution

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one session for all: each verdict begins with a fresh one

LIMITS = JudgeLimits(test_s=2.0, total_s=8.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BACKENDS)
async def sandbox(request):
    async with running(request.param, request) as sandboxes, await sandboxes.open() as session:
        yield session


async def verdicts(sandbox, source, tests, *, limits=LIMITS, entry_point="solve", tolerance=0.0):
    checks = [read_check(row, "row") for row in tests]
    judge = Judge(limits=limits, float_tolerance=tolerance)
    return await judge.verdicts(sandbox, Solution(source=source, entry_point=entry_point), checks)


# --- E05: the expected output is empty --------------------------------------------------------------------------------

MARKERS = """
import sys
for stream in (sys.stdout, sys.stderr):
    for text in ("PASS", "OK", "score: 1.0", '{"kind": "ended"}', '{"kind": "returned", "value": ""}'):
        print(text, file=stream)
"""
E05 = {
    "raises": ("raise ValueError('no')", 0),
    "sys.exit at import": ("import sys\nsys.exit(0)", 0),
    "os._exit": ("import os\nos._exit(0)", 0),
    "prints markers": (MARKERS, 0),
    "prints nothing": ("pass", 1),
}


@pytest.mark.parametrize("name", E05)
async def test_E05_a_program_that_should_print_nothing_must_run_to_its_end_and_print_nothing(sandbox, name):
    source, wanted = E05[name]
    assert await verdicts(sandbox, source, [{"stdin": "", "stdout": ""}], entry_point="") == [bool(wanted)]


@pytest.mark.parametrize("name", E05)
async def test_E05_a_function_that_should_print_nothing_must_return(sandbox, name):
    source, wanted = E05[name]
    at_import = f"{source}\ndef solve(): return None"
    inside = "def solve():\n" + "\n".join(f"    {line}" for line in source.splitlines())
    for each in (at_import, inside):
        assert await verdicts(sandbox, each, [{"args": [], "stdout": ""}]) == [bool(wanted)]


@pytest.mark.parametrize("name", E05)
async def test_E05_a_function_that_should_return_empty_text_must_return_it(sandbox, name):
    source, wanted = E05[name]
    ending = "" if "exit" in name or name == "raises" else "    return ''\n" if wanted else "    return 'PASS'\n"
    inside = "def solve():\n" + "".join(f"    {line}\n" for line in source.splitlines()) + ending
    assert await verdicts(sandbox, inside, [{"args": [], "expected": ""}]) == [bool(wanted)]


# --- values that only look right --------------------------------------------------------------------------------------

ALWAYS_EQUAL = """
class Anything(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __index__(self): return 42
    def __reduce__(self): return (int, (42,))
def solve(n): return Anything()
"""
PRETENDS = """
class Anything:
    __class__ = int
    def __eq__(self, other): return True
    def hex(self): return "0x2a"
def solve(n): return Anything()
"""
LYING_LIST = """
class Lying(list):
    def __iter__(self): return iter([42])
    def __len__(self): return 1
    def __eq__(self, other): return True
def solve(n): return Lying()
"""


@pytest.mark.parametrize("source", [ALWAYS_EQUAL, PRETENDS, LYING_LIST])
async def test_an_object_that_claims_to_equal_everything_equals_nothing(sandbox, source):
    assert await verdicts(sandbox, source, [{"args": [6], "expected": 42}, {"args": [6], "expected": [42]}]) == [
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("expression", "expected", "wanted"),
    [
        ("1", True, False),
        ("True", 1, False),
        ("2.0", 2, False),
        ("2", 2.0, True),
        ("(1, 2)", [1, 2], True),
        ("'1'", 1, False),
        ("None", 0, False),
        ("{'a': [1.5, None]}", {"a": [1.5, None]}, True),
        ("{'a': 1, 'b': 2}", {"a": 1}, False),
        ("{1: 'x'}", {"1": "x"}, False),
        ("'\\ud800'", "\ud800", True),
        ("iter([1])", [1], False),
        ("float('nan')", float("nan"), True),
    ],
)
async def test_values_are_compared_with_their_types(sandbox, expression, expected, wanted):
    assert await verdicts(sandbox, f"def solve(): return {expression}", [{"expected": expected}]) == [wanted]


async def test_integers_may_be_as_large_as_they_like(sandbox):
    assert await verdicts(sandbox, "def solve(): return 2 ** 40000", [{"expected": 2**40000}]) == [True]
    assert await verdicts(sandbox, "def solve(): return 10 ** 5000 + 1", [{"expected": 10**5000}]) == [False]


async def test_bottomless_and_enormous_values_fail_and_cost_the_others_nothing(sandbox):
    source = (
        "def solve(n):\n"
        "    if n == 0:\n        x = []\n        x.append(x)\n        return x\n"
        "    if n == 1: return [0] * 10**7\n"
        "    if n == 2: return 'x' * 10**7\n"
        "    return n\n"
    )
    tests = [{"args": [n], "expected": wanted} for n, wanted in ((0, []), (1, [0]), (2, "x"), (3, 3))]
    assert await verdicts(sandbox, source, tests) == [False, False, False, True]


# --- attacks on the harness -------------------------------------------------------------------------------------------

READS_EVERYTHING = """
import gc, os, sys
BACKWARDS = "462851937"  # so that the search does not find itself
found = False
def look(value):
    global found
    if isinstance(value, bytes):
        found = found or BACKWARDS.encode() in value[::-1]
    elif isinstance(value, dict):
        found = found or any(str(x)[::-1] == BACKWARDS for each in value.items() for x in each if type(x) in (int, str))
    elif isinstance(value, (list, tuple)):
        found = found or any(str(x)[::-1] == BACKWARDS for x in value if type(x) in (int, str))
    elif isinstance(value, str):
        found = found or BACKWARDS in value[::-1]
frame = sys._getframe()
while frame is not None:
    for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
        look(value)
    frame = frame.f_back
for value in gc.get_objects():
    look(value)
for folder, _, names in os.walk("/tmp"):
    for name in names:
        look(open(os.path.join(folder, name), "rb").read())
for each in ("self", os.getppid()):
    for name in ("cmdline", "environ"):
        look(open(f"/proc/{each}/{name}", "rb").read())
def solve(n): return found
"""


@pytest.mark.parametrize(
    ("planted", "finds"),
    [("", False), ("x = {'planted': 739158264}\n", True), ("open('x', 'w').write('739' + '158264')\n", True)],
)
async def test_expected_values_are_nowhere_in_the_sandbox(sandbox, planted, finds):
    tests = [{"args": [5], "expected": 739158264}, {"args": [17], "expected": True}]
    limits = JudgeLimits(test_s=20, total_s=40)
    assert await verdicts(sandbox, planted + READS_EVERYTHING, tests, limits=limits) == [False, finds]


FORGES = """
import os, sys, json, gc
def forge(value):
    frame = sys._getframe()
    nonce = None
    while frame is not None:
        job = frame.f_locals.get("job")
        if isinstance(job, dict) and "nonce" in job:
            nonce = job["nonce"]
        frame = frame.f_back
    line = json.dumps({"nonce": nonce, "kind": "returned", "value": value}) + "\\n"
    os.write(3, line.encode())
    for folder, _, names in os.walk("/tmp"):
        for name in names:
            if name == "results.jsonl":
                with open(os.path.join(folder, name), "a") as file:
                    for number in range(50):
                        line = {"nonce": nonce, "case": number, "kind": "returned", "value": value, "stdout": ""}
                        file.write(json.dumps(line) + "\\n")
    os._exit(0)
"""


@pytest.mark.parametrize(
    "value", ["True", "{'i': '0x1'}", "None", "'PASS'", "{'i': 'x'}", "{'d': 1}", "{'t': []}", "[[[]]]", "{}", "1.0"]
)
async def test_a_forged_report_must_still_be_the_right_value(sandbox, value):
    source = f"{FORGES}\ndef solve(n): forge({value})"
    tests = [{"args": [n], "expected": n * n} for n in (7, 8, 9)]
    assert await verdicts(sandbox, source, tests) == [False, False, False]


async def test_lines_written_for_tests_that_come_later_spoil_those_tests(sandbox):
    """Even where a forged value is right, two lines for one test are none."""
    forge = FORGES.replace("os._exit(0)", "return 49").replace("os.write(3, line.encode())", "pass")
    source = forge + "\ndef solve(n): return forge({'i': hex(49)})"
    assert await verdicts(sandbox, source, [{"args": [7], "expected": 49}]) == [False]


@pytest.mark.parametrize(
    "source",
    [
        "import builtins, json, os\nbuiltins.type = lambda v: int\njson.dumps = lambda *a, **k: '{}'\n"
        "builtins.isinstance = lambda *a: True\ndef solve(n): return 'x'",
        "import sys\nclass Quiet:\n    def __getattr__(self, name): return lambda *a, **k: None\n"
        "sys.stdout = sys.stderr = Quiet()\ndef solve(n): return n",
        "import __main__\n__main__._encode = lambda *a: {'i': '0x32'}\n__main__._play = lambda *a: {'kind': 'returned'}"
        "\n__main__._read_report = lambda *a: {'kind': 'returned', 'value': {'i': '0x32'}}\ndef solve(n): return n",
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\ndef solve(n): return n * n",
        "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)\ndef solve(n): return n * n",
        "import os\ndef solve(n):\n    for fd in range(256):\n        try: os.close(fd)\n        except OSError: pass\n"
        "    return n * n",
        "import atexit, os\natexit.register(os._exit, 0)\ndef solve(n): os._exit(0)",
        "import threading, time\ndef late():\n    time.sleep(0.2)\n    print('PASS')\n"
        "threading.Thread(target=late).start()\ndef solve(n): return 'PASS'",
        "class Evil:\n    def __reduce__(self): return (eval, ('49',))\ndef solve(n): return Evil()",
        "def solve(n):\n    while True: print('x' * 10**6)",
        "import os\ndef solve(n):\n    while True:\n        try: os.fork()\n        except OSError: pass",
        "def solve(n):\n    while True: pass",
        "def solve(n): return solve(n)",
        "x = bytearray(10**10)\ndef solve(n): return n * n",
        "def solve(n)",
        "def other(n): return n * n",
        "solve = 49",
        "async def solve(n): return n * n",
        "import shutil, glob\nfor each in glob.glob('/tmp/*'): shutil.rmtree(each, ignore_errors=True)\n"
        "def solve(n): return 'x'",
        "import os, glob\nfor each in glob.glob('/tmp/*/results.jsonl'):\n    os.unlink(each)\n    os.mkfifo(each)\n"
        "def solve(n): return 'x'",
        "import os, glob\nfor each in glob.glob('/tmp/*/results.jsonl'):\n    os.truncate(each, 15 << 20)\n"
        "def solve(n): return 'x'",
    ],
)
async def test_what_does_not_give_the_value_fails_and_the_next_solution_is_judged_as_ever(sandbox, source):
    limits = JudgeLimits(test_s=0.7, total_s=1.5)
    tests = [{"args": [n], "expected": n * n} for n in (7, 8)]
    assert await verdicts(sandbox, source, tests, limits=limits) == [False, False]
    assert await verdicts(sandbox, "def solve(n): return n * n", tests) == [True, True]


async def test_tests_do_not_see_each_others_state(sandbox):
    source = "seen = []\ndef solve(n):\n    seen.append(n)\n    return len(seen)"
    assert await verdicts(sandbox, source, [{"args": [n], "expected": 1} for n in range(4)]) == [True] * 4


async def test_what_was_done_in_the_session_before_does_not_matter(sandbox):
    await sandbox.exec(
        "import builtins, json\nbuiltins.sum = lambda x: 0\njson.load = None\nopen('trap', 'w').close()", timeout_s=5
    )
    source = "import os\ndef solve(xs): return [sum(xs), os.path.exists('/tmp/trap')]"
    assert await verdicts(sandbox, source, [{"args": [[1, 2]], "expected": [3, False]}]) == [True]


async def test_time_is_limited_for_each_test_and_for_all(sandbox):
    source = "import time\ndef solve(s):\n    time.sleep(s)\n    return 1"
    slow = [{"args": [s], "expected": 1} for s in (0.0, 30, 0.0)]
    limits = JudgeLimits(test_s=0.5, total_s=5)
    assert await verdicts(sandbox, source, slow, limits=limits) == [True, False, True]
    many = [{"args": [s], "expected": 1} for s in (0.0, 30, 0.0)]
    limits = JudgeLimits(test_s=5, total_s=0.8)
    assert await verdicts(sandbox, source, many, limits=limits) == [True, False, False]


# --- what honest solutions may do -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "print(sum(map(int, input().split())))",
        "import sys\nsys.stdout.write(str(sum(int(x) for x in sys.stdin.buffer.read().split())))",
        "import sys\nif __name__ == '__main__':\n    print(sum(int(x) for x in open(0)) if 0 else 42)\n    sys.exit()",
        "import threading\ndef main(): print(sum(map(int, input().split())), '  ')\n"
        "threading.Thread(target=main).start()",
        "import atexit\natexit.register(print, 42)",
        "import os, sys\nos.write(1, b'42\\n')",
        "print('42', end='\\n\\n\\n')",
    ],
)
async def test_programs_may_read_and_print_as_they_like(sandbox, source):
    assert await verdicts(sandbox, source, [{"stdin": "40 2\n", "stdout": "42\n"}], entry_point="") == [True]


async def test_a_program_that_fails_after_printing_fails(sandbox):
    for end in ("raise ValueError", "import sys; sys.exit(1)", "import os; os._exit(0)", "import sys; sys.exit('x')"):
        source = f"print(42, flush=True)\n{end}"
        assert await verdicts(sandbox, source, [{"stdin": "", "stdout": "42"}], entry_point="") == [False], end


async def test_expected_exceptions_are_raised_not_returned_or_printed(sandbox):
    tests = [{"args": [0], "raises": "ValueError"}, {"args": [1], "raises": "LookupError"}]
    source = "def solve(n):\n    if n == 0: raise ValueError\n    return {}[n]"
    assert await verdicts(sandbox, source, tests) == [True, True]  # a KeyError is a LookupError
    assert await verdicts(sandbox, "def solve(n): return ValueError()", tests) == [False, False]
    assert await verdicts(sandbox, "def solve(n): raise RuntimeError('ValueError')", tests) == [False, False]


async def test_a_tolerance_holds_for_numbers_alone(sandbox):
    tests = [{"args": [], "expected": {"x": [0.3, "a"]}}]
    close = "def solve(): return {'x': [0.1 + 0.2, 'a']}"
    assert await verdicts(sandbox, close, tests) == [False]
    assert await verdicts(sandbox, close, tests, tolerance=1e-9) == [True]
    assert await verdicts(sandbox, "def solve(): return {'x': [0.31, 'a']}", tests, tolerance=1e-9) == [False]
    assert await verdicts(sandbox, "def solve(): return {'x': [0.3, 'b']}", tests, tolerance=1e-9) == [False]
    assert await verdicts(sandbox, "def solve(): return {'x': [True, 'a']}", tests, tolerance=0.9) == [False]
