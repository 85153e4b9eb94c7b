"""The wire between the host and a session, and the order in which a call's pieces come."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from miles_agents.contracts import ExecStatus
from miles_agents.errors import SandboxError
from miles_agents.tools.sandboxes import NamespaceSandboxes, probe, refusal
from miles_agents.tools.sandboxes.runner.frames import encode
from miles_agents.tools.sandboxes.wire import SocketChannel, Wire


def pair() -> tuple[Wire, socket.socket]:
    ours, theirs = socket.socketpair()
    return Wire(SocketChannel(ours), 64 << 20), theirs


async def answer(theirs: socket.socket, *messages: dict[str, object]) -> None:
    await asyncio.to_thread(theirs.sendall, b"".join(encode(each) for each in messages))


async def test_answers_come_in_order_and_one_question_has_one_answer():
    wire, theirs = pair()
    with theirs:
        await answer(theirs, {"n": 1}, {"n": 2})
        assert await wire.receive(5) == {"n": 1}
        assert await wire.ask({"question": 2}, 5) == {"n": 2}
        assert theirs.recv(1000) == encode({"question": 2})
        wire.close()


async def test_a_fast_sender_does_not_keep_the_event_loop_to_itself():
    ours, theirs = socket.socketpair()
    channel, turns, taken = SocketChannel(ours), 0, 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    size = 8 << 20
    sender = threading.Thread(target=theirs.sendall, args=(bytes(size),))
    task = asyncio.create_task(others())
    with theirs:
        sender.start()
        while taken < size:
            before = turns
            taken += len(await channel.receive())
            assert turns > before
        sender.join()
    task.cancel()
    channel.close()


async def test_the_other_ends_hanging_up_is_a_lost_session_whenever_it_happens():
    wire, theirs = pair()
    theirs.close()
    with pytest.raises(SandboxError, match="its processes ended"):
        await wire.receive(5)
    wire.close()


async def test_an_end_between_two_calls_is_noticed_by_the_next_and_does_not_keep_the_loop_busy():
    ours, theirs = socket.socketpair()
    wire = Wire(SocketChannel(ours), 1000)
    await answer(theirs, {"n": 1})
    assert await wire.receive(5) == {"n": 1}
    theirs.close()
    await asyncio.sleep(0.05)
    assert not asyncio.get_running_loop().remove_reader(ours)  # it is not watched any more
    with pytest.raises(SandboxError, match="was lost"):
        await wire.ask({"n": 2}, 5)
    wire.close()


async def test_no_answer_in_time_and_a_cancelled_wait_make_the_wire_useless():
    wire, theirs = pair()
    with theirs:
        with pytest.raises(SandboxError, match="no answer within 0.05 s"):
            await wire.ask({"n": 1}, 0.05)
        assert "no answer" in wire.dead
        wire.close()
    wire, theirs = pair()
    with theirs:
        task = asyncio.create_task(wire.ask({"n": 1}, 30))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert "cancelled" in wire.dead
        assert theirs.recv(1000) == encode({"n": 1})
        assert theirs.recv(1000) == b""  # the session sees the end
        wire.close()


@pytest.mark.sandbox
async def test_what_a_call_prints_is_whole_however_short_or_long_it_is_and_however_large_its_code():
    if why_not := refusal(probe()):
        pytest.skip(why_not.splitlines()[0])
    async with NamespaceSandboxes(preload=()) as provider, await provider.open() as sandbox:
        for size in (0, 1, 4096, 65_000):  # a pipe takes 65,536 at once, and as many are shown
            code = f"import sys; print('o' * {size}); print('e' * {size}, file=sys.stderr)"
            result = await sandbox.exec(code, timeout_s=30)
            printed = ("o" * size + "\n", "e" * size + "\n")
            assert (result.status, result.stdout, result.stderr) == (ExecStatus.OK, *printed)
        result = await sandbox.exec("print('o' * 300_000)", timeout_s=30)
        assert (result.stdout.count("o"), result.status) == (1 << 16, ExecStatus.OK)
        result = await sandbox.exec("import time; print(1, flush=True); time.sleep(0.05); print(2)", timeout_s=30)
        assert result.stdout == "1\n2\n"
        result = await sandbox.exec(f"{'# much' * 200_000}\nprint(7)", timeout_s=30)
        assert result.stdout == "7\n"
        result = await sandbox.exec("import time; time.sleep(9)", timeout_s=1e-6)
        assert result.status is ExecStatus.TIMEOUT
        assert (await sandbox.exec("print(3)", timeout_s=30)).stdout == "3\n"
