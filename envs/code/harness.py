"""Runs a solution on inputs, inside the sandbox. Expected values never come here: the host compares what comes back.

The text of this module is executed in a fresh session (standard library only). It forks one process for each case;
that process loads the solution, runs the case and reports; it is the solution's to corrupt, and all it can gain by
that is to report something else, which then has to equal a value it was never told.

    job file ─► this process ─fork─► case 0: load, run, report ──┐
                       ▲  │   ─fork─► case 1 …                    │ pipe: one line, with the job's nonce
                       │  └─► results file, a line per case       │
                       └──────────────────────────────────────────┘

Values travel as JSON with types kept: see `encode_value`.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import select
import signal
import sys
import tempfile
import threading
import time
import types
from typing import Any, NoReturn

MAX_DEPTH = 60  # of a value
MAX_NODES = 200_000  # of a value
MAX_REPORT_BYTES = 1 << 20  # of one case: its report, and likewise what it prints
MAX_RESULTS_BYTES = 12 << 20  # of all cases together

_READ_BYTES = 1 << 16
_POLL_S = 0.05
_REAP_S = 0.001


class UnreadableValueError(Exception):
    """A value that is no plain data, or too much of it."""


def encode_value(value: Any) -> Any:
    """A value as JSON, by its exact type: subclasses and objects that only look like plain data are refused.

    `None`, booleans and text are themselves, a list is a list; everything else is an object of one key: `i` integer
    and `f` float (hexadecimal), `c` complex, `b` bytes, `t` tuple, `s` set, `z` frozenset, `d` dict as pairs.

    Raises:
        UnreadableValueError: another type is in it, or it is too large or too deep.
    """
    budget = [MAX_NODES]
    return _encode(value, budget, MAX_DEPTH)


def _encode(value: Any, budget: list[int], depth: int) -> Any:
    budget[0] -= 1
    if budget[0] < 0 or depth < 0:
        raise UnreadableValueError("too large")
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind in _SCALARS:
        return _SCALARS[kind](value)
    if kind is dict:
        pairs = [[_encode(key, budget, depth - 1), _encode(each, budget, depth - 1)] for key, each in value.items()]
        return {"d": pairs}
    if kind in _COLLECTIONS:
        items = [_encode(each, budget, depth - 1) for each in value]
        return items if kind is list else {_COLLECTIONS[kind]: items}
    raise UnreadableValueError(kind.__name__)


_SCALARS: dict[type, Any] = {
    int: lambda value: {"i": hex(value)},
    float: lambda value: {"f": value.hex()},
    complex: lambda value: {"c": [value.real.hex(), value.imag.hex()]},
    bytes: lambda value: {"b": value.hex()},
}
_COLLECTIONS: dict[type, str] = {list: "", tuple: "t", set: "s", frozenset: "z"}


def decode_value(encoded: Any) -> Any:
    """The value behind `encode_value`'s JSON.

    Raises:
        ValueError: it is not of that form.
    """
    if encoded is None or isinstance(encoded, (bool, str)):
        return encoded
    if isinstance(encoded, list):
        return [decode_value(each) for each in encoded]
    if not isinstance(encoded, dict) or len(encoded) != 1:
        raise ValueError(f"no encoded value: {str(encoded)[:80]}")
    ((tag, inner),) = encoded.items()
    try:
        return _DECODERS[tag](inner)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"no encoded value: {str(encoded)[:80]}") from error


_DECODERS: dict[str, Any] = {
    "i": lambda text: int(text, 16),
    "f": float.fromhex,
    "c": lambda parts: complex(float.fromhex(parts[0]), float.fromhex(parts[1])),
    "b": bytes.fromhex,
    "t": lambda items: tuple(decode_value(each) for each in items),
    "s": lambda items: {decode_value(each) for each in items},
    "z": lambda items: frozenset(decode_value(each) for each in items),
    "d": lambda pairs: {decode_value(key): decode_value(each) for key, each in pairs},
}


def main(job_file: str, results_file: str) -> None:
    """Run the cases of a job and write a line for each, in order, as it ends."""
    with open(job_file, encoding="utf-8") as file:  # noqa: PTH123 — pathlib is not loaded in every session
        job = json.load(file)
    results = os.open(results_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    if job["folder"]:
        job["folder"] = os.path.abspath(job["folder"])  # noqa: PTH100
    print(job["nonce"], flush=True)  # noqa: T201 — so that the host knows: what goes wrong from now on is the solution's
    written = 0
    deadline = time.monotonic() + job["total_s"]
    for number, case in enumerate(job["cases"]):
        left = deadline - time.monotonic()
        if left <= 0 or written > MAX_RESULTS_BYTES:
            break
        record = _run_case(job, case, min(left, job["case_s"]))
        written += _write_line(results, {"nonce": job["nonce"], "case": number, **record})


def _write_line(fd: int, record: dict[str, Any]) -> int:
    data = (json.dumps(record) + "\n").encode()
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return len(data)


def _run_case(job: dict[str, Any], case: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """What one case did: `kind` and more of its report, and `stdout`."""
    deadline = time.monotonic() + limit_s
    out_read, out_write = os.pipe()
    report_read, report_write = os.pipe()
    stdin = _stdin_file(case.get("stdin", ""))
    pid = os.fork()
    if pid == 0:
        _be_case(job, case, (stdin, out_write, report_write))
    for fd in (stdin, out_write, report_write):
        os.close(fd)
    try:
        ended_by, printed, report = _watch(pid, out_read, report_read, deadline)
    finally:
        _end(pid)
        os.close(out_read)
        os.close(report_read)
    stdout = printed.decode("utf-8", "backslashreplace")
    return {**(_read_report(report, job["nonce"]) if not ended_by else {"kind": ended_by}), "stdout": stdout}


def _stdin_file(text: str) -> int:
    with tempfile.TemporaryFile() as file:
        file.write(text.encode("utf-8", "surrogatepass"))
        file.seek(0)
        return os.dup(file.fileno())


def _watch(pid: int, out_fd: int, report_fd: int, deadline: float) -> tuple[str, bytes, bytes]:
    """Take in what a case prints and reports, until it has reported or died: why it was stopped ("" if it was not)."""
    taken = {out_fd: bytearray(), report_fd: bytearray()}
    poller = select.poll()
    for fd in taken:
        os.set_blocking(fd, False)
        poller.register(fd, select.POLLIN)
    ended_by = ""
    while not taken[report_fd].endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0:
            ended_by = "timeout"
            break
        ended = [fd for fd, _ in poller.poll(1000 * min(left, _POLL_S)) if not _take(fd, taken[fd])]
        for fd in ended:
            poller.unregister(fd)
        if any(len(data) > MAX_REPORT_BYTES for data in taken.values()):
            ended_by = "too_much_output"
            break
        if ended:
            time.sleep(_REAP_S)  # the descriptors close a moment before the process can be waited for
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            break
    for fd, data in taken.items():
        while len(data) <= MAX_REPORT_BYTES and _take(fd, data):
            pass
    return ended_by, bytes(taken[out_fd][:MAX_REPORT_BYTES]), bytes(taken[report_fd])


def _take(fd: int, data: bytearray) -> bool:
    """Read what is there; False at the end, and where there is nothing now."""
    try:
        piece = os.read(fd, _READ_BYTES)
    except BlockingIOError:
        return False
    data += piece
    return bool(piece)


def _end(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # its group, and the process itself in case it has no group of its own yet
        try:
            kill(pid, signal.SIGKILL)
        except OSError:
            continue
    os.waitpid(pid, 0)


def _read_report(report: bytes, nonce: str) -> dict[str, Any]:
    try:
        read = json.loads(report)
        if read.pop("nonce") == nonce and isinstance(read["kind"], str):
            return {name: read[name] for name in ("kind", "value", "types", "code") if name in read}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return {"kind": "died"}


def _be_case(job: dict[str, Any], case: dict[str, Any], fds: tuple[int, int, int]) -> NoReturn:
    """The forked process of one case. Never returns."""
    try:
        os.setsid()
        stdin, stdout, report = fds
        null = os.open(os.devnull, os.O_WRONLY)
        for target, source in ((0, stdin), (1, stdout), (2, null)):
            os.dup2(source, target)
        kept = os.dup2(report, 3)
        os.closerange(4, 1 << 12)
        _begin(job)
        line = json.dumps({"nonce": job["nonce"], **_play(job, case)}) + "\n"
        view = memoryview(line.encode())
        while view:
            view = view[os.write(kept, view) :]
    finally:
        os._exit(0)


def _begin(job: dict[str, Any]) -> None:
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)), encoding="utf-8")
    for name, fd in (("stdout", 1), ("stderr", 2)):
        raw = io.BufferedWriter(io.FileIO(fd, "w", closefd=False))
        stream = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", newline="\n")
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.dont_write_bytecode = True
    atexit._clear()
    if any(case["run"] == "test" for case in job["cases"]):
        import unittest.async_case  # noqa: F401 — before a file of the folder can stand in its place
    if job.get("folder"):
        os.chdir(job["folder"])
        sys.path.insert(0, job["folder"])
    else:
        os.chdir(tempfile.mkdtemp())


def _play(job: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """Run the case: what came of it, as the report says it."""
    stdout = sys.stdout
    runner = {"call": _call, "program": _program, "expression": _expression, "test": _test}[case["run"]]
    try:
        report = runner(job, case)
    except SystemExit as error:
        report = {"kind": "exited", "code": error.code if type(error.code) is int else int(error.code is not None)}
    except UnreadableValueError as error:
        report = {"kind": "unreadable", "types": [str(error)[:100]]}
    except BaseException as error:  # noqa: BLE001 — whatever the solution raises
        report = {"kind": "raised", "types": [str(each.__name__)[:100] for each in type(error).__mro__[:20]]}
    if case["run"] == "program":
        _finish_program()
    for stream in (sys.stdout, stdout):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001, S112 — it was closed, or is an object of the solution's
            continue
    return report


def _module(name: str, source: str) -> dict[str, Any]:
    """The names of a new module, once its source has run."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    file = f"{name.strip('_')}.py"
    exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 — the purpose of this process
    return module.__dict__


def _call(job: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    names = _module("solution", job["source"])
    function = names[job["entry_point"]]
    arguments = decode_value(case["args"])
    value = function(*arguments, **decode_value(case["kwargs"]))
    return {"kind": "returned", "value": encode_value(value)}


def _program(job: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    sys.argv = ["main.py"]
    _module("__main__", job["source"])
    return {"kind": "ended"}


def _finish_program() -> None:
    """What an interpreter does at its end: threads are waited for, functions registered for the exit are called."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()


def _expression(job: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    names = _module("check", case["setup"])
    value = eval(compile(case["expression"], "check.py", "eval", dont_inherit=True), names)  # noqa: S307 — likewise
    return {"kind": "returned", "value": encode_value(value)}


def _test(job: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """One test function, or method of a class; what it reports by number while it runs is its value."""
    import unittest

    seen: list[Any] = []
    module = types.ModuleType(case["module"])
    module.__dict__.update(
        __file__=os.path.join(job["folder"], case["path"]),  # noqa: PTH118
        __package__=case["module"].rpartition(".")[0],
    )
    module.__dict__[case["reporter"]] = lambda number, value: seen.append([number, encode_value(value)])
    sys.modules[case["module"]] = module
    names = module.__dict__
    exec(compile(case["source"], case["path"], "exec", dont_inherit=True), names)  # noqa: S102
    if not case["class"]:
        names[case["name"]]()
    elif issubclass(kind := names[case["class"]], unittest.TestCase):
        names.get("setUpModule", int)()
        kind.setUpClass()
        kind(case["name"]).debug()
        kind.tearDownClass()
        kind.doClassCleanups()
    else:
        getattr(kind(), case["name"])()
    return {"kind": "returned", "value": seen}
