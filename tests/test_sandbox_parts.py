"""The sandbox's parts that need no namespaces: frames, capture, filter tables, refusals, the scripted fake."""

import json
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_agents.contracts import ExecResult, ExecStatus
from miles_agents.errors import SandboxError, SandboxUnavailableError
from miles_agents.tools.sandboxes import NamespaceSandboxes, SandboxProbe, ScriptedSandboxes, refusal
from miles_agents.tools.sandboxes.runner.capture import Capture
from miles_agents.tools.sandboxes.runner.frames import FrameBuffer, FrameError, encode
from miles_agents.tools.sandboxes.runner.seccomp import build_filter

OK = ExecResult(status=ExecStatus.OK, stdout="1\n")


@given(
    st.lists(st.dictionaries(st.text(), st.one_of(st.none(), st.integers(), st.text()))),
    st.lists(st.integers(1, 7), min_size=1),
)
def test_frames_survive_any_way_of_cutting_the_stream(messages, cuts):
    stream = b"".join(encode(message) for message in messages)
    buffer, got = FrameBuffer(1 << 20), []
    while stream:
        for cut in cuts:
            buffer.feed(stream[:cut])
            stream = stream[cut:]
            while (message := buffer.pop()) is not None:
                got.append(message)
    assert got == messages
    assert len(buffer) == 0


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 101) + b"x",  # longer than allowed: refused before it is read
        struct.pack(">I", 3) + b"{{{",
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 90) + b"[" * 90,
        struct.pack(">I", 2) + b"\xff\xff",
    ],
)
def test_bytes_that_are_no_frame_are_an_error(data):
    buffer = FrameBuffer(100)
    buffer.feed(data)
    with pytest.raises(FrameError):
        buffer.pop()


def test_capture_keeps_head_and_tail_and_says_what_is_missing():
    capture = Capture(10)
    for piece in (b"abc", b"defgh", b"i" * 100, b"vwxyz"):
        capture.add(piece)
    # 113 bytes in all, 5 + 5 shown
    assert capture.text() == "abcde\n… [103 bytes omitted] …\nvwxyz"
    assert capture.total == 113


def test_capture_shows_short_output_whole_and_bad_bytes_as_escapes():
    capture = Capture(10)
    capture.add(b"a\xffb")
    assert capture.text() == "a\\xffb"


def test_capture_never_splits_a_character():
    capture = Capture(8)
    capture.add("ééé".encode() + b"x" * 50 + "ééé".encode())  # 4 bytes each side: two whole é each
    assert capture.text() == "éé\n… [54 bytes omitted] …\néé"
    capture = Capture(6)
    capture.add("ééé".encode() + b"x" * 50 + "ééé".encode())  # 3 bytes: one é and half of the next
    assert capture.text() == "é\n… [58 bytes omitted] …\né"


@given(st.lists(st.binary(max_size=50)), st.integers(2, 40))
def test_capture_does_not_depend_on_how_the_output_arrives(pieces, shown_bytes):
    whole, cut = Capture(shown_bytes), Capture(shown_bytes)
    whole.add(b"".join(pieces))
    for piece in pieces:
        cut.add(piece)
    assert whole.text() == cut.text()


def _run_filter(program: bytes, audit: int, number: int, *arguments: int) -> int:
    """A small interpreter of classic BPF: what the kernel would answer."""
    data = struct.pack("=IIQ6Q", number, audit, 0, *arguments, *[0] * (6 - len(arguments)))
    code = [struct.unpack_from("=HBBI", program, offset) for offset in range(0, len(program), 8)]
    at, register = 0, 0
    while True:
        operation, true, false, value = code[at]
        at += 1
        match operation:
            case 0x20:
                register = struct.unpack_from("=I", data, value)[0]
            case 0x06:
                return value
            case 0x15:
                at += true if register == value else false
            case 0x35:
                at += true if register >= value else false
            case 0x45:
                at += true if register & value else false


ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
X86, ARM = ("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)


@pytest.mark.parametrize(
    ("machine", "number", "argument", "verdict"),
    [
        (X86, 0, 0, ALLOW),  # read
        (X86, 101, 0, EPERM),  # ptrace
        (X86, 165, 0, EPERM),  # mount
        (X86, 272, 0, EPERM),  # unshare
        (X86, 435, 0, ENOSYS),  # clone3
        (X86, 56, 0x11, ALLOW),  # clone: a fork
        (X86, 56, 0x10000011, EPERM),  # clone: a new user namespace
        (X86, 56, 0x20000011, EPERM),  # clone: a new pid namespace
        (X86, 41, 1, ALLOW),  # socket: unix
        (X86, 41, 2, ALLOW),
        (X86, 41, 10, ALLOW),
        (X86, 41, 40, EPERM),  # socket: vsock
        (X86, 41, 16, EPERM),  # socket: netlink
        (X86, 0x40000000 | 165, 0, EPERM),  # the x32 way in
        (ARM, 63, 0, ALLOW),  # read
        (ARM, 117, 0, EPERM),  # ptrace
        (ARM, 40, 0, EPERM),  # mount
        (ARM, 435, 0, ENOSYS),
        (ARM, 220, 0x11, ALLOW),
        (ARM, 220, 0x10000011, EPERM),
        (ARM, 198, 1, ALLOW),
        (ARM, 198, 40, EPERM),
    ],
)
def test_filter_refuses_what_reaches_beyond_the_session(machine, number, argument, verdict):
    name, audit = machine
    assert _run_filter(build_filter(name), audit, number, argument) == verdict


@pytest.mark.parametrize(
    ("machine", "number", "arguments", "verdict"),
    [
        *((machine, number, (pid,), ALLOW if pid == 0 else EPERM)
          for machine, numbers in ((X86, (302, 144, 142, 314, 203)), (ARM, (261, 119, 118, 274, 122)))
          for number in numbers for pid in (0, 1, 77)),
        *((machine, number, arguments, ALLOW if arguments == (0, 0) else EPERM)
          for machine, number in ((X86, 141), (ARM, 140))
          for arguments in ((0, 0), (0, 1), (1, 0), (2, 0), (2, 1000))),
        (X86, 302, (1 << 32,), ALLOW),  # the kernel, too, looks at the low half alone
    ],
)  # fmt: skip
def test_filter_lets_a_process_set_its_own_limits_and_priority_only(machine, number, arguments, verdict):
    name, audit = machine
    assert _run_filter(build_filter(name), audit, number, *arguments) == verdict


@pytest.mark.parametrize(("machine", "fcntl", "socket", "socketpair"), [(X86, 72, 41, 53), (ARM, 25, 198, 199)])
def test_filter_looks_at_the_arguments_of_sockets_and_descriptors(machine, fcntl, socket, socketpair):
    def verdict(number, *arguments):
        return _run_filter(build_filter(machine[0]), machine[1], number, *arguments)

    assert {command for command in range(1100) if verdict(fcntl, 3, command) == EPERM} == {1026}  # F_NOTIFY
    assert {family for family in range(64) if verdict(socketpair, family, 1, 0) == ALLOW} == {1}
    passed = {(family, protocol) for family in range(64) for protocol in range(300)
              if verdict(socket, family, 1, protocol) == ALLOW}  # fmt: skip
    assert passed == {(family, protocol) for family in (1, 2, 10) for protocol in (0, 6, 17)}


# Every call the filter knows, with its numbers on x86_64 and aarch64, as `asm/unistd_64.h` of each architecture in the
# headers of Linux 7.2 (Debian's linux-libc-dev) has them; `-`: aarch64 has no such call.
NUMBERS = """
    ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272, mount 165 40, umount2 166 39,
    pivot_root 155 41, chroot 161 51, unshare 272 97, setns 308 268, add_key 248 217, request_key 249 218,
    keyctl 250 219, bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, kexec_load 246 104,
    kexec_file_load 320 294, init_module 175 105, delete_module 176 106, finit_module 313 273,
    open_by_handle_at 304 265, reboot 169 142, swapon 167 224, swapoff 168 225, acct 163 89, syslog 103 116,
    quotactl 179 60, personality 135 92, settimeofday 164 170, clock_settime 227 112, clock_adjtime 305 266,
    adjtimex 159 171, sethostname 170 161, setdomainname 171 162, memfd_create 319 279, shmget 29 194, msgget 68 186,
    semget 64 190, mq_open 240 180, fanotify_init 300 262, lookup_dcookie 212 18, iopl 172 -, ioperm 173 -,
    modify_ldt 154 -, uselib 134 -, vhangup 153 58, io_setup 206 0, ioprio_set 251 30,
    inotify_init 253 -, inotify_init1 294 26, prlimit64 302 261,
    sched_setscheduler 144 119, sched_setparam 142 118, sched_setattr 314 274, sched_setaffinity 203 122,
    setpriority 141 140, io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427, open_tree 428 428,
    move_mount 429 429, fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433, pidfd_getfd 438 438,
    process_madvise 440 440, mount_setattr 442 442, quotactl_fd 443 443, memfd_secret 447 447, open_tree_attr 467 467
"""


@pytest.mark.parametrize(("machine", "column"), [(X86, 1), (ARM, 2)])
def test_filter_refuses_exactly_the_calls_of_its_tables_by_the_kernels_numbers(machine, column):
    name, audit = machine
    numbers = {int(call.split()[column]) for call in NUMBERS.split(",") if call.split()[column] != "-"}
    verdicts = {number: _run_filter(build_filter(name), audit, number, 1) for number in range(512)}
    assert {number for number, verdict in verdicts.items() if verdict == EPERM} == numbers
    flock = 73 if machine is X86 else 32
    assert {number for number, verdict in verdicts.items() if verdict == ENOSYS} == {435, flock}  # 435: clone3
    assert sorted(set(verdicts.values())) == [EPERM, ENOSYS, ALLOW]


def test_filter_kills_calls_of_a_foreign_architecture():
    assert _run_filter(build_filter("x86_64"), 0x40000003, 0) == KILL  # i386


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (
            SandboxProbe(failed_step="mount", error_number=13, apparmor_restricts=1),
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        (
            SandboxProbe(failed_step="unshare_user", error_number=28, max_user_namespaces=0),
            "sudo sysctl -w user.max_user_namespaces=15000",
        ),
        (
            SandboxProbe(failed_step="unshare_user", error_number=1, unprivileged_userns_clone=0),
            "sudo sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        (
            SandboxProbe(failed_step="unshare_user", error_number=1, in_container=True, max_user_namespaces=9),
            "docker run --rm -it --cap-add SYS_ADMIN --security-opt seccomp=unconfined",
        ),
        (
            SandboxProbe(failed_step="unshare", error_number=1, root=True),
            "docker run --rm -it --cap-add SYS_ADMIN --security-opt seccomp=unconfined",
        ),
        (
            SandboxProbe(failed_step="mount_proc", error_number=1, in_container=True),
            "--security-opt systempaths=unconfined",
        ),
        (SandboxProbe(failed_step="pivot_root", error_number=1, root=True), "--security-opt seccomp=unconfined"),
        (SandboxProbe(failed_step="pivot_root", error_number=22, root=True), "mount --bind FOLDER FOLDER"),
        (SandboxProbe(failed_step="mount", error_number=22), "mount --bind FOLDER FOLDER"),
        (SandboxProbe(system="Darwin"), "docker run --rm -it --cap-add SYS_ADMIN"),
        (SandboxProbe(machine_supported=False), "x86_64 or aarch64"),
        (SandboxProbe(failed_step="unshare_user", error_number=1), "run it as root"),
    ],
)
def test_refusal_prints_the_way_out_of_each_case(found, says):
    message = refusal(found)
    assert says in message
    assert "never run without isolation" in message


def test_refusal_names_the_step_and_the_error():
    assert "'unshare_user' was refused (EPERM)" in refusal(SandboxProbe(failed_step="unshare_user", error_number=1))


def test_a_machine_that_works_is_not_refused():
    assert refusal(SandboxProbe(apparmor_restricts=1, max_user_namespaces=0)) == ""


async def test_start_refuses_where_the_probe_fails(monkeypatch):
    monkeypatch.setattr("miles_agents.tools.sandboxes.namespace.probe", lambda: SandboxProbe(system="Darwin"))
    with pytest.raises(SandboxUnavailableError, match="Darwin has no Linux namespaces"):
        await NamespaceSandboxes(preload=()).start()


async def test_scripted_sandbox_answers_in_order_for_each_session_and_records_the_calls():
    provider = ScriptedSandboxes([OK, ExecResult(status=ExecStatus.ERROR)])
    for _ in range(2):
        sandbox = await provider.open()
        assert (await sandbox.exec("a", timeout_s=1)).status is ExecStatus.OK
        assert (await sandbox.exec("b", timeout_s=2)).status is ExecStatus.ERROR
        assert [(call.code, call.timeout_s) for call in sandbox.calls] == [("a", 1), ("b", 2)]
        with pytest.raises(AssertionError, match="no answer to call 3"):
            await sandbox.exec("c", timeout_s=1)


async def test_scripted_sandbox_answers_by_code_or_function():
    by_code = await ScriptedSandboxes({"1": OK}).open()
    assert await by_code.exec("1", timeout_s=1) is OK
    with pytest.raises(AssertionError):
        await by_code.exec("2", timeout_s=1)
    by_function = await ScriptedSandboxes(lambda code: ExecResult(status=ExecStatus.OK, stdout=code * 2)).open()
    assert (await by_function.exec("ab", timeout_s=1)).stdout == "abab"


async def test_scripted_sandbox_can_fail_to_open_and_be_lost():
    provider = ScriptedSandboxes([OK, OK], fail_opens=[0], lost_after=1)
    with pytest.raises(SandboxError):
        await provider.open()
    sandbox = await provider.open()
    await sandbox.exec("1", timeout_s=1)
    with pytest.raises(SandboxError, match="lost"):
        await sandbox.exec("1", timeout_s=1)


async def test_scripted_sandbox_keeps_files_until_reset_and_refuses_after_close():
    sandbox = await ScriptedSandboxes(()).open()
    await sandbox.write_file("a", b"1")
    assert await sandbox.read_file("a") == b"1"
    await sandbox.reset()
    with pytest.raises(FileNotFoundError):
        await sandbox.read_file("a")
    await sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.exec("1", timeout_s=1)


def test_the_runner_loads_only_the_standard_library():
    code = (
        "import json, sys\nimport miles_agents.tools.sandboxes.namespace as n\n"
        "sys.argv = ['', str(n.Path(n.__file__).parent), '0']\nprint(json.dumps([n._BOOTSTRAP, sys.argv[1]]))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    bootstrap, folder = json.loads(shown)
    bootstrap = bootstrap.replace("main(int(sys.argv[2]))", "")
    probe = bootstrap + "\nprint([m for m in ('numpy', 'pydantic', 'torch', 'asyncio', 'site') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", probe, folder], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
