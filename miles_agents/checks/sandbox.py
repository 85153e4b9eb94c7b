"""The sandbox contract as a suite: what every `SandboxProvider` must keep.

    findings = await check_sandbox(provider)     # a started provider; [] means it passes

Each check opens its own sessions. A finding names the check and what was seen instead of what must be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from miles_agents.contracts import ExecResult, ExecStatus, Language, Sandbox, SandboxProvider
from miles_agents.errors import SandboxError

Check = Callable[[SandboxProvider], Awaitable[None]]

_LIMIT_S = 20.0  # of ordinary calls: generous, so that a busy machine changes nothing
_SHORT_S = 0.5
_SLOW_S = 15.0  # a call with a short limit must have ended by then


class CheckFailedError(AssertionError):
    """A sandbox broke the contract."""


def _expect(holds: bool, must: str, seen: object) -> None:
    if not holds:
        raise CheckFailedError(f"{must}; seen: {seen!r}")


async def _run(sandbox: Sandbox, code: str, *, timeout_s: float = _LIMIT_S) -> ExecResult:
    return await sandbox.exec(code, timeout_s=timeout_s)


async def _command(sandbox: Sandbox, command: str, *, timeout_s: float = _LIMIT_S) -> ExecResult:
    return await sandbox.exec(command, timeout_s=timeout_s, language=Language.SHELL)


async def _shell_prints(sandbox: Sandbox, command: str, text: str, must: str) -> None:
    result = await _command(sandbox, command)
    fine = (result.status, result.exit_code, result.stdout) == (ExecStatus.OK, 0, text)
    _expect(fine, f"{must} (stdout {text!r}, exit code 0)", result)


async def _prints(sandbox: Sandbox, code: str, text: str, must: str) -> None:
    result = await _run(sandbox, code)
    _expect(result.status is ExecStatus.OK and result.stdout == text, f"{must} (stdout {text!r})", result)


async def _fails(sandbox: Sandbox, code: str, error: str, must: str) -> None:
    result = await _run(sandbox, code)
    _expect(result.status is ExecStatus.ERROR and error in result.stderr, f"{must} (a {error})", result)


async def check_state_is_kept(provider: SandboxProvider) -> None:
    """Variables and imports live from call to call, and the last expression is echoed."""
    async with await provider.open() as sandbox:
        await _prints(sandbox, "x = 20\nimport math", "", "assignments print nothing")
        await _prints(sandbox, "x + math.floor(1.5)", "21\n", "the last expression is echoed, state is kept")
        await _prints(sandbox, "None", "", "None is not echoed")
        await _fails(sandbox, "1 / 0", "ZeroDivisionError", "an exception is an error")
        await _prints(sandbox, "print(x)", "20\n", "an exception costs no state")


async def check_traceback_points_at_the_code(provider: SandboxProvider) -> None:
    """Line numbers are the code's own, and no frame of the runner shows."""
    async with await provider.open() as sandbox:
        result = await _run(sandbox, "def f():\n    return 1 / 0\n\nf()")
        _expect("line 2, in f" in result.stderr and "line 4" in result.stderr, "right line numbers", result.stderr)
        _expect(result.stderr.count("File ") == 2, "no frames but the code's own", result.stderr)


async def check_sessions_are_isolated(provider: SandboxProvider) -> None:
    """Two sessions see neither each other's variables nor files nor processes."""
    async with await provider.open() as one, await provider.open() as two:
        await _run(one, "secret = 1\nimport math\nmath.pi = 3\nopen('mine.txt', 'w').write('1')")
        await _fails(two, "secret", "NameError", "variables of another session are unknown")
        await _fails(two, "open('mine.txt')", "FileNotFoundError", "files of another session are not there")
        await _prints(
            two, "import math\nprint(math.pi)", "3.141592653589793\n", "patched modules stay in their session"
        )


async def check_reset_leaves_nothing(provider: SandboxProvider) -> None:
    """After `reset` a session is as fresh as a new one."""
    async with await provider.open() as sandbox:
        await _run(sandbox, "import os\nfoo = 41\nos.environ['LEAK'] = '1'\nos.mkdir('d')\nos.chdir('d')")
        await _run(
            sandbox, "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
        )
        await sandbox.reset()
        await _fails(sandbox, "foo", "NameError", "no variable survives reset")
        code = "import os, threading\nprint(os.environ.get('LEAK'), os.listdir('.'), threading.active_count())"
        await _prints(sandbox, code, "None [] 1\n", "no environment, file or thread survives reset")


async def check_timeout_keeps_or_says_lost(provider: SandboxProvider) -> None:
    """An endless loop ends at the limit with its state; one that ignores the interrupt is killed and says so."""
    async with await provider.open() as sandbox:
        await _run(sandbox, "x = 1")
        started = time.monotonic()
        result = await _run(sandbox, "while True: pass", timeout_s=_SHORT_S)
        _expect(result.status is ExecStatus.TIMEOUT, "an endless loop times out", result)
        _expect(not result.state_lost, "an interrupted loop keeps its state", result)
        await _prints(sandbox, "print(x)", "1\n", "state is kept after an interrupt")
        stubborn = "import time\nwhile True:\n    try:\n        time.sleep(60)\n    except BaseException: pass"
        result = await _run(sandbox, stubborn, timeout_s=_SHORT_S)
        _expect(result.status is ExecStatus.TIMEOUT and result.state_lost, "a stubborn loop is killed", result)
        await _fails(sandbox, "x", "NameError", "lost state is really gone")
        _expect(time.monotonic() - started < 2 * _SLOW_S, "timeouts come in time", time.monotonic() - started)


async def check_timeout_in_a_child_keeps_the_state(provider: SandboxProvider) -> None:
    """A call that waits for a child of its own is interrupted as by Ctrl-C: both of them, and the state is kept."""
    async with await provider.open() as sandbox:
        await _run(sandbox, "import subprocess\nx = 1")
        for code in ("subprocess.run(['sleep', '60'])", "subprocess.run('sleep 60', shell=True, capture_output=True)"):
            result = await _run(sandbox, code, timeout_s=_SHORT_S)
            _expect(result.status is ExecStatus.TIMEOUT, f"{code} times out", result)
            await _prints(sandbox, "print(x)", "1\n", f"state is kept after {code}")


async def check_exit_codes_of_children(provider: SandboxProvider) -> None:
    """The code can tell how its children ended, also those that run to the end of the call's own code."""
    async with await provider.open() as sandbox:
        fork = "import os, sys\npid = os.fork()\nif pid == 0:\n    {end}\nprint(os.waitpid(pid, 0)[1] >> 8)"
        for end, code in (
            ("sys.exit(3)", 3),
            ("sys.exit('no')", 1),
            ("1 / 0", 1),
            ("sys.exit()", 0),
            ("os._exit(7)", 7),
        ):
            await _prints(sandbox, fork.format(end=end), f"{code}\n", f"exit code of a child that ends with {end}")


async def check_output_is_bounded(provider: SandboxProvider) -> None:
    """Long output is cut to head and tail; endless output is stopped; odd bytes are shown as escapes."""
    async with await provider.open() as sandbox:
        result = await _run(sandbox, "print('a' * 100); print('b' * 1_000_000); print('z' * 100)")
        _expect(
            result.status is ExecStatus.OK and len(result.stdout) < 500_000, "long output is cut", len(result.stdout)
        )
        ends = result.stdout.startswith("aaa") and result.stdout.endswith("zzz\n") and "omitted" in result.stdout
        _expect(ends, "head, tail and the omitted size are shown", result.stdout[:200])
        result = await _run(sandbox, "while True: print('x' * 1000)")
        _expect(result.status is ExecStatus.OUTPUT_LIMIT, "endless output is stopped", result.status)
        result = await _run(sandbox, "import os\n_ = os.write(1, b'\\xff\\n')\nprint('\\ud800')")
        _expect(result.stdout == "\\xff\n\\ud800\n", "undecodable output becomes escapes", result)


async def check_crash_is_survived(provider: SandboxProvider) -> None:
    """The interpreter's death is a result, not the end of the session."""
    async with await provider.open() as sandbox:
        result = await _run(sandbox, "import os\nprint('before', flush=True)\nos._exit(3)")
        _expect(result.status is ExecStatus.CRASHED and result.state_lost, "os._exit is a crash", result)
        _expect(result.exit_code == 3 and result.stdout == "before\n", "exit code and output are kept", result)
        result = await _run(sandbox, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
        _expect(result.status is ExecStatus.CRASHED and result.exit_code == -9, "a kill is a crash", result)
        await _prints(sandbox, "print('alive')", "alive\n", "the session goes on")


async def check_strays_are_killed(provider: SandboxProvider) -> None:
    """A process that outlives its call is killed, however it hid."""
    code = (
        "import os, time\n"
        "read, write = os.pipe()\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        os.write(write, b'x')\n        time.sleep(300)\n    os._exit(0)\n"
        "os.wait()\n_ = os.read(read, 1)"
    )
    async with await provider.open() as sandbox:
        result = await _run(sandbox, code)
        _expect(result.status is ExecStatus.OK and result.strays_killed == 1, "a hidden child is killed", result)
        result = await _run(sandbox, "os.close(write)\nos.read(read, 1)")
        _expect(result.stdout == "b''\n", "the stray is dead: its pipe is closed", result)


async def check_stdin_is_empty(provider: SandboxProvider) -> None:
    """Reading from standard input ends at once."""
    async with await provider.open() as sandbox:
        await _fails(sandbox, "input()", "EOFError", "input() finds the end of the file")


async def check_nothing_of_the_host(provider: SandboxProvider) -> None:
    """No root, no capabilities, no network, no host environment, no writable place but its own."""
    async with await provider.open() as sandbox:
        await _prints(sandbox, "import os\nprint(os.getuid() == 0 or os.geteuid() == 0)", "False\n", "not root")
        code = "print(next(l.split()[1].strip('0') for l in open('/proc/self/status') if l.startswith('CapEff')))"
        await _prints(sandbox, code, "\n", "no capabilities")
        reach = (
            "import socket\ns = socket.socket()\ns.settimeout(2)\ntry:\n    s.connect(('192.0.2.1', 80))\n"
            "except OSError as error:\n    print(type(error).__name__ != 'TimeoutError')"
        )
        await _prints(sandbox, reach, "True\n", "no route to any network")
        places = "('/etc/x', '/usr/x', '/x', '/dev/x', '/proc/sys/kernel/core_pattern', '/var/x', '/root/x', '/home/x')"
        code = (
            f"found = []\nfor place in {places}:\n    try:\n        open(place, 'w')\n        found.append(place)\n"
            "    except OSError:\n        pass\nprint(found)"
        )
        await _prints(sandbox, code, "[]\n", "nothing but the working folder is writable")
        await _fails(sandbox, "open('/etc/shadow')", "Error", "the host's /etc is not readable")


async def check_files(provider: SandboxProvider) -> None:
    """Files go in and out, with folders made on the way; a missing one is a FileNotFoundError."""
    async with await provider.open() as sandbox:
        data = bytes(range(256))
        await sandbox.write_file("folder/in.bin", data)
        await _prints(sandbox, "print(sum(open('folder/in.bin', 'rb').read()))", "32640\n", "written files are there")
        await _run(sandbox, "_ = open('out.txt', 'w').write('hello')")
        seen = await sandbox.read_file("out.txt")
        _expect(seen == b"hello", "files of the code can be read", seen)
        await _raises(sandbox.read_file("missing"), FileNotFoundError, "a missing file")
        await _raises(sandbox.write_file("/usr/x", b""), OSError, "a read-only place")
        await _run(sandbox, "import os\nos.mkfifo('pipe')\nos.symlink('/proc/self/mem', 'link')")
        await _raises(sandbox.read_file("pipe"), OSError, "a pipe")
        await _raises(sandbox.read_file("link"), OSError, "a link into /proc")


async def _raises(call: Awaitable[object], kind: type[Exception], what: str) -> None:
    try:
        seen = await asyncio.wait_for(call, _LIMIT_S)
    except kind:
        return
    raise CheckFailedError(f"{what} must raise {kind.__name__}; seen: {seen!r}")


async def check_closed_session_refuses(provider: SandboxProvider) -> None:
    """`close` may be called twice, and a closed session raises SandboxError."""
    sandbox = await provider.open()
    await sandbox.close()
    await sandbox.close()
    await _raises(_run(sandbox, "1"), SandboxError, "exec after close")


async def check_calls_take_turns(provider: SandboxProvider) -> None:
    """Calls made at the same time run one after the other, in order."""
    async with await provider.open() as sandbox:
        await _run(sandbox, "seen = []")
        await asyncio.gather(*(_run(sandbox, f"seen.append({number})") for number in range(5)))
        await _prints(sandbox, "print(seen)", "[0, 1, 2, 3, 4]\n", "first come, first served")


async def check_shell_exit_codes(provider: SandboxProvider) -> None:
    """Exit code 0 is ok, another one an error with that code, a signal a crash."""
    async with await provider.open() as sandbox:
        for command, status, exit_code in (
            ("true", ExecStatus.OK, 0),
            ("exit 3", ExecStatus.ERROR, 3),
            ("(exit 4)", ExecStatus.ERROR, 4),
            ("no-such-program", ExecStatus.ERROR, 127),
            ("if then", ExecStatus.ERROR, None),
            ("kill -KILL $$", ExecStatus.CRASHED, -9),
        ):
            result = await _command(sandbox, command)
            right = result.status is status and exit_code in (None, result.exit_code)
            _expect(right, f"{command!r} is {status} with exit code {exit_code}", result)
        result = await _run(sandbox, "1")
        _expect(result.exit_code is None, "Python code that ends has no exit code", result)


async def check_shell_keeps_its_folder(provider: SandboxProvider) -> None:
    """A command begins where the last one ended, whatever its exit code; Python stays where it is."""
    async with await provider.open() as sandbox:
        home = (await _command(sandbox, "pwd")).stdout
        await _command(sandbox, "mkdir -p 'a b/c' && cd 'a b/c'; exit 3")
        await _shell_prints(sandbox, "pwd", f"{home.rstrip()}/a b/c\n", "the working folder is kept")
        await _command(sandbox, "cd nowhere")
        await _shell_prints(sandbox, "pwd", f"{home.rstrip()}/a b/c\n", "a failed cd leads nowhere")
        await _prints(sandbox, "import os\nprint(os.getcwd())", home, "Python's folder is its own")
        await sandbox.reset()
        await _shell_prints(sandbox, "pwd", home, "reset leads back to the first folder")


async def check_shell_survives_a_deleted_folder(provider: SandboxProvider) -> None:
    """A command whose folder is gone begins in the session's working folder."""
    async with await provider.open() as sandbox:
        home = (await _command(sandbox, "pwd")).stdout
        await _command(sandbox, "mkdir gone && cd gone && rmdir ../gone")
        await _shell_prints(sandbox, "pwd -P", home, "a deleted folder is left behind")
        await _shell_prints(sandbox, "pwd -P", home, "and forgotten")


async def check_shell_keeps_no_variables(provider: SandboxProvider) -> None:
    """Variables, functions, aliases and options end with their command."""
    async with await provider.open() as sandbox:
        await _command(sandbox, "x=1; export y=2; f() { echo f; }; export -f f; alias g=echo; set -e; umask 000")
        command = 'false; echo "[$x$y]"; type f >/dev/null 2>&1 || echo no f; [ "$(umask)" = 0000 ] || echo own umask'
        await _shell_prints(sandbox, command, "[]\nno f\nown umask\n", "a fresh shell each time")


async def check_shell_stdin_is_empty(provider: SandboxProvider) -> None:
    """Reading from standard input ends at once."""
    async with await provider.open() as sandbox:
        await _shell_prints(sandbox, "cat; read line; echo $?", "1\n", "standard input is at its end")


async def check_shell_streams_are_apart(provider: SandboxProvider) -> None:
    """Output and errors are shown apart, pipes and quotes work."""
    async with await provider.open() as sandbox:
        result = await _command(sandbox, 'echo "it\'s out" | tr a-z A-Z\necho err >&2')
        _expect((result.stdout, result.stderr) == ("IT'S OUT\n", "err\n"), "streams apart", result)


async def check_shell_strays_are_killed(provider: SandboxProvider) -> None:
    """A process that outlives its command is killed, and holds nothing up."""
    async with await provider.open() as sandbox:
        started = time.monotonic()
        result = await _command(sandbox, "sleep 300 & (setsid sleep 300 &) ; echo started")
        ended = result.status is ExecStatus.OK and result.stdout == "started\n" and result.strays_killed >= 2
        _expect(ended and time.monotonic() - started < _SLOW_S, "background processes are killed", result)
        code = "import os\nprint(len([name for name in os.listdir('/proc') if name.isdigit()]))"
        await _prints(sandbox, code, "2\n", "supervisor and interpreter alone are left")


async def check_shell_timeout_keeps_the_interpreter(provider: SandboxProvider) -> None:
    """A command over its limit is interrupted, then killed; the interpreter and its variables live on."""
    async with await provider.open() as sandbox:
        await _run(sandbox, "x = 1")
        for command in ("sleep 60", "trap '' INT TERM HUP; while :; do sleep 60; done", "echo said; exec sleep 60"):
            started = time.monotonic()
            result = await _command(sandbox, command, timeout_s=_SHORT_S)
            _expect(result.status is ExecStatus.TIMEOUT and not result.state_lost, f"{command!r} times out", result)
            _expect(time.monotonic() - started < _SLOW_S, "timeouts come in time", time.monotonic() - started)
        _expect(result.stdout == "said\n", "what was printed before is shown", result)
        await _prints(sandbox, "print(x)", "1\n", "variables live on")


async def check_shell_output_is_bounded(provider: SandboxProvider) -> None:
    """Long output is cut to head and tail; endless output is stopped; the interpreter lives on."""
    async with await provider.open() as sandbox:
        await _run(sandbox, "x = 1")
        result = await _command(sandbox, "echo aaa; head -c 1000000 /dev/zero | tr '\\0' b; echo zzz")
        cut = result.stdout.startswith("aaa") and result.stdout.endswith("zzz\n") and "omitted" in result.stdout
        _expect(cut and len(result.stdout) < 500_000, "head, tail and the omitted size are shown", result.stdout[:200])
        result = await _command(sandbox, "yes")
        stopped = result.status is ExecStatus.OUTPUT_LIMIT and not result.state_lost
        _expect(stopped, "endless output is stopped", (result.status, result.state_lost))
        await _prints(sandbox, "print(x)", "1\n", "variables live on")


async def check_shell_shares_files_with_python(provider: SandboxProvider) -> None:
    """Python, shell and the host see the same files."""
    async with await provider.open() as sandbox:
        await sandbox.write_file("in/host.txt", b"host\n")
        await _run(sandbox, "_ = open('in/python.txt', 'w').write('python\\n')")
        await _shell_prints(sandbox, "cat in/*.txt", "host\npython\n", "a shell sees the files of both")
        await _command(sandbox, "cd in && printf 'shell\\n' > shell.txt")
        await _prints(sandbox, "print(open('in/shell.txt').read(), end='')", "shell\n", "Python sees the shell's file")
        seen = await sandbox.read_file("in/shell.txt")
        _expect(seen == b"shell\n", "the host's paths begin at the session's working folder, wherever cd went", seen)


CHECKS: tuple[Check, ...] = (
    check_state_is_kept,
    check_traceback_points_at_the_code,
    check_sessions_are_isolated,
    check_reset_leaves_nothing,
    check_timeout_keeps_or_says_lost,
    check_timeout_in_a_child_keeps_the_state,
    check_exit_codes_of_children,
    check_output_is_bounded,
    check_crash_is_survived,
    check_strays_are_killed,
    check_stdin_is_empty,
    check_nothing_of_the_host,
    check_files,
    check_closed_session_refuses,
    check_calls_take_turns,
    check_shell_exit_codes,
    check_shell_keeps_its_folder,
    check_shell_survives_a_deleted_folder,
    check_shell_keeps_no_variables,
    check_shell_stdin_is_empty,
    check_shell_streams_are_apart,
    check_shell_strays_are_killed,
    check_shell_timeout_keeps_the_interpreter,
    check_shell_output_is_bounded,
    check_shell_shares_files_with_python,
)


async def check_sandbox(provider: SandboxProvider) -> list[str]:
    """Run every check against a started provider; what was found wrong, empty if it keeps the contract."""
    findings = []
    for check in CHECKS:
        try:
            await check(provider)
        except (CheckFailedError, SandboxError, OSError) as error:
            findings.append(f"{getattr(check, '__name__', check)}: {type(error).__name__}: {error}")
    return findings
