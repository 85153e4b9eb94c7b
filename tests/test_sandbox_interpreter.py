"""What programs of good will run into in a session's interpreter, with every launcher."""

import errno

import pytest
from sandbox_backends import BACKENDS, running

from miles_agents.contracts import ExecStatus, Language
from miles_agents.tools.sandboxes import NamespaceSandboxes, probe, refusal

FOUND = probe()
needs_namespaces = pytest.mark.skipif(not FOUND.works, reason=refusal(FOUND))


@pytest.fixture(params=BACKENDS)
async def sandbox(request):
    async with running(request.param, request) as provider, await provider.open() as opened:
        yield opened


async def prints(sandbox, code: str, wanted: str) -> None:
    result = await sandbox.exec(code, timeout_s=30)
    assert (result.status, result.stdout) == (ExecStatus.OK, wanted), result


async def test_exit_codes_of_a_few_children_that_ended_in_an_earlier_call_are_kept(sandbox):
    begin = "import subprocess, time\na = subprocess.Popen(['false']); b = subprocess.Popen(['sleep', '60']); a.wait"
    result = await sandbox.exec(begin + "\ntime.sleep(0.3)", timeout_s=30)
    assert result.strays_killed == 1
    await prints(sandbox, "a.poll(), b.poll()", "(1, -9)\n")


async def test_help_is_there(sandbox):
    result = await sandbox.exec("help(len)", timeout_s=30)
    assert "number of items" in result.stdout


async def test_an_exit_that_cannot_be_shown_is_an_error_of_the_code(sandbox):
    await prints(sandbox, "x = 1", "")
    code = "class Broken:\n    def __str__(self): return 1 / 0\nraise SystemExit(Broken())"
    result = await sandbox.exec(code, timeout_s=30)
    assert (result.status, result.state_lost) == (ExecStatus.ERROR, False)
    assert "ZeroDivisionError" in result.stderr
    await prints(sandbox, "x", "1\n")


async def test_streams_can_be_deleted_and_put_back(sandbox):
    await prints(sandbox, "import sys\ndel sys.stdout, sys.stderr", "")
    await prints(sandbox, "sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__\nprint(1)", "1\n")


async def test_an_interpreter_that_lost_its_folder_is_replaced_all_the_same(sandbox):
    result = await sandbox.exec("import os\nos.chmod('/tmp', 0)\nos.kill(os.getpid(), 9)", timeout_s=30)
    assert result.status in (ExecStatus.CRASHED, ExecStatus.ERROR)  # in a container it cannot close that folder
    await prints(sandbox, "1 + 1", "2\n")


async def test_a_file_too_large_to_be_sent_is_refused_and_the_session_goes_on(sandbox):
    with pytest.raises(OSError, match="too large") as caught:
        await sandbox.write_file("large", bytes(80 << 20))
    assert caught.value.errno == errno.EFBIG
    await prints(sandbox, "1 + 1", "2\n")


async def test_a_database_can_be_locked_and_a_file_of_the_host_cannot(sandbox):
    database = "import sqlite3\ndb = sqlite3.connect('x.db')\ndb.execute('create table t (a)')\ndb.commit()"
    await prints(sandbox, database, "")
    result = await sandbox.exec("import fcntl\nfcntl.flock(open('/usr/bin/env'), fcntl.LOCK_EX)", timeout_s=30)
    assert "Function not implemented" in result.stderr


async def test_text_in_the_shell_is_utf_8(sandbox):
    result = await sandbox.exec("printf é | wc -m", timeout_s=30, language=Language.SHELL)
    assert result.stdout.strip() == "1", result


@needs_namespaces
@pytest.mark.sandbox
async def test_what_sympy_imports_late_is_there_when_a_session_begins():
    async with NamespaceSandboxes(preload=("numpy", "sympy")) as provider, await provider.open() as sandbox:
        late = "import sys, sympy\nbefore = set(sys.modules)\nassert sympy.pi > 3\nsorted(set(sys.modules) - before)"
        await prints(sandbox, late, "[]\n")


@needs_namespaces
@pytest.mark.sandbox
async def test_a_device_cannot_be_changed():
    async with NamespaceSandboxes(preload=()) as provider, await provider.open() as sandbox:
        result = await sandbox.exec("import os\nos.utime('/dev/null')", timeout_s=30)
        assert "Read-only file system" in result.stderr
        await prints(sandbox, "open('/dev/null', 'w').write('x')", "1\n")
