"""Case G07: the saver is ended before each of its file operations in turn; what is left is always usable.

The points come from Python's audit events (open, rename, mkdir, remove, rmdir), so that a new write in the saver
becomes a new point by itself. Each point runs in a forked child, from one fresh interpreter.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

SCRIPT = r"""
import asyncio, errno, json, os, shutil, signal, sys
from pathlib import Path
from miles_agents.runs import CheckpointStore

how, over, root = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
RELATIVE = {"os.remove", "os.rmdir"}  # rmtree names them relative to a folder it holds open
WATCHED = {"open", "os.rename", "os.mkdir"} | RELATIVE

def store():
    return CheckpointStore(root / "checkpoints", keep_last=1, keep_best=0, run_id="run")

async def save(step, content):
    async with store().writing(step) as folder:
        for name in ("config.json", "model-00001.safetensors", "model-00002.safetensors", "trainer/state.pt"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(f"{content} {name}")

def content(checkpoint):
    texts = [path.read_text() for path in checkpoint.path.rglob("*") if path.is_file() and path.name != "manifest.json"]
    first = {text.split()[0] for text in texts}
    assert len(texts) == 4 and len(first) == 1, texts
    return first.pop()

def child(point):
    seen = -1
    def hook(event, arguments):
        nonlocal seen
        if event not in WATCHED or not (str(root) in str(arguments[0]) or event in RELATIVE):
            return
        if how == "raise" and event == "open" and arguments[1] in ("r", "rb"):
            return  # a manifest that cannot be read is that of an incomplete checkpoint, not an error
        if event == "os.mkdir" and os.path.isdir(arguments[0]):
            return
        seen += 1
        if seen == point and how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif seen == point:
            raise OSError(errno.EIO, "Input/output error")
    sys.addaudithook(hook)
    try:
        asyncio.run(save(over, "new"))
    except OSError as error:
        assert error.errno == errno.EIO
        os._exit(3)
    os._exit(0 if seen < point else 4)  # 4: the error was swallowed

outcomes = []
for point in range(200):
    shutil.rmtree(root, ignore_errors=True)
    asyncio.run(save(10, "old"))
    pid = os.fork()
    if pid == 0:
        child(point)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    newest = store().latest_complete()
    left = sorted(p.name for p in (root / "checkpoints").iterdir())
    found = {"step": newest and newest.step, "content": newest and content(newest)}
    outcomes.append({"ended": ended, "left": left, **found})
    asyncio.run(save(30, "next"))
    outcomes[-1]["then"] = sorted(p.name for p in (root / "checkpoints").iterdir())
    if ended == 0:
        break
print(json.dumps(outcomes))
"""


def outcomes_of(how: str, over: int, root: Path) -> list[dict]:
    # In memory: a killed process loses nothing that the kernel has, so waiting for the disk would show nothing more.
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else root) as folder:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, how, str(over), f"{folder}/run"], capture_output=True, text=True, timeout=100
        )
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes = json.loads(done.stdout)
    assert outcomes[-1]["ended"] == 0, "the last point lies behind the saver's end"
    assert len(outcomes) > 15, "one point per file operation"
    return outcomes


@pytest.mark.parametrize(("how", "code"), [("kill", -9), ("raise", 3)])
def test_G07_ended_at_any_point_of_a_save_the_newest_complete_checkpoint_is_there(
    tmp_path: Path, how: str, code: int
) -> None:  # case G07
    outcomes = outcomes_of(how, 20, tmp_path)
    assert {outcome["ended"] for outcome in outcomes[:-1]} == {code}
    found = [(outcome["step"], outcome["content"]) for outcome in outcomes]
    assert set(found) == {(10, "old"), (20, "new")}
    assert found == sorted(found), "once the new one is in place it stays"
    assert all(outcome["then"] == ["step_000030"] for outcome in outcomes), "the next save clears what was left"
    if how == "raise":
        assert not any(name.startswith(".tmp-") for outcome in outcomes for name in outcome["left"])


def test_G07_killed_at_any_point_of_replacing_a_step_the_old_or_the_new_one_is_there(
    tmp_path: Path,
) -> None:  # case G07
    outcomes = outcomes_of("kill", 10, tmp_path)
    found = [(outcome["step"], outcome["content"]) for outcome in outcomes]
    assert set(found) == {(10, "old"), (10, "new")}
    assert all(outcome["then"] == ["step_000030"] for outcome in outcomes)
