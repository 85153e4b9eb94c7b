"""Checkpoints on disk. Case G07 is here and in test_checkpoints_crash.py."""

import asyncio
import errno
import hashlib
import json
import logging
import os
import shutil
import subprocess
import threading
from pathlib import Path
from types import ModuleType

import pytest

from miles_agents.errors import CheckpointError, ConfigError
from miles_agents.runs import CheckpointStore, RunFolder, resolve_model_folder


def store_in(folder: Path, *, keep_last: int = 100, keep_best: int = 0, run_id: str = "this run") -> CheckpointStore:
    return CheckpointStore(folder, keep_last=keep_last, keep_best=keep_best, run_id=run_id)


async def save(store: CheckpointStore, step: int, *, score: float | None = None, content: str = "weights") -> None:
    async with store.writing(step, score=score) as folder:
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_text(f"{content} {step}")
        (folder / "trainer").mkdir()
        (folder / "trainer" / "state.pt").write_text("optimizer")


def steps(store: CheckpointStore) -> list[int]:
    return [checkpoint.step for checkpoint in store.scan().complete]


async def test_G07_steps_compare_as_numbers_not_as_text(tmp_path: Path) -> None:  # case G07
    store = store_in(tmp_path)
    for step in (9, 100, 10, 1_000_000, 999_999):
        await save(store, step)
    assert steps(store) == [9, 10, 100, 999_999, 1_000_000]
    newest = store.latest_complete()
    assert newest is not None
    assert newest.step == 1_000_000


def manifest_missing(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def manifest_cut(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"format": 1, "st')


def manifest_is_a_list(folder: Path) -> None:
    (folder / "manifest.json").write_text("[]")


def file_missing(folder: Path) -> None:
    (folder / "trainer" / "state.pt").unlink()


def file_short(folder: Path) -> None:
    (folder / "model.safetensors").write_text("wei")


def file_of_right_size_but_zeroed(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(bytes(path.stat().st_size))


def named_as_another_step(folder: Path) -> None:
    folder.rename(folder.with_name("step_000099"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (manifest_missing, "no manifest.json"),
        (manifest_cut, "manifest.json is broken"),
        (manifest_is_a_list, "manifest.json is broken"),
        (file_missing, "trainer/state.pt is missing"),
        (file_short, "model.safetensors has 3 bytes instead of 10"),
        (file_of_right_size_but_zeroed, "the content of model.safetensors is not what was written"),
        (named_as_another_step, "manifest.json is of step 20"),
    ],
)
async def test_G07_resume_uses_the_newest_complete_checkpoint_and_logs_the_skipped_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage, said: str
) -> None:  # case G07
    store = store_in(tmp_path)
    await save(store, 10)
    await save(store, 20)
    damage(tmp_path / "step_000020")
    with caplog.at_level(logging.WARNING):
        newest = store.latest_complete()
    assert newest is not None
    assert newest.path == tmp_path / "step_000010"
    assert said in caplog.text


async def test_G07_a_new_run_in_a_folder_with_old_steps_keeps_its_own_step_10(tmp_path: Path) -> None:  # case G07
    old = store_in(tmp_path, run_id="old run")
    for step in (500, 600, 700):
        await save(old, step)
    new = store_in(tmp_path, keep_last=3, run_id="new run")
    await save(new, 10)
    assert steps(new) == [10, 500, 600, 700]
    newest = new.latest_complete()
    assert newest is not None
    assert newest.step == 10  # its own, although 700 is the larger number
    for step in (20, 30, 40):
        await save(new, step)
    assert steps(new) == [20, 30, 40, 500, 600, 700]
    assert store_in(tmp_path, run_id="a third run").latest_complete().step == 700


async def test_G07_rotation_keeps_the_last_k_and_the_best(tmp_path: Path) -> None:  # case G07
    store = store_in(tmp_path, keep_last=2, keep_best=1)
    for step, score in ((1, 0.2), (2, 0.9), (3, 0.4), (4, float("nan")), (5, 0.9), (6, None), (7, 0.1)):
        await save(store, step, score=score)
    # last two: 6 and 7; best: 5 (0.9 like step 2, and newer)
    assert steps(store) == [5, 6, 7]
    best = store.best()
    assert best is not None
    assert (best.step, best.score) == (5, 0.9)


async def test_rotation_goes_by_order_of_writing_so_that_a_rewound_run_keeps_what_it_writes(tmp_path: Path) -> None:
    store = store_in(tmp_path, keep_last=2)
    for step in (500, 600, 700):
        await save(store, step)
    await save(store, 510)
    assert steps(store) == [510, 700]


async def test_rotation_leaves_incomplete_checkpoints_to_a_person(tmp_path: Path) -> None:
    store = store_in(tmp_path, keep_last=1)
    await save(store, 1)
    file_short(tmp_path / "step_000001")
    await save(store, 2)
    await save(store, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000001", "step_000003"]


async def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    store = store_in(tmp_path, keep_last=1)
    await save(store, 5, content="first")
    await save(store, 5, content="second")
    assert (tmp_path / "step_000005" / "model.safetensors").read_text() == "second 5"
    assert [path.name for path in tmp_path.iterdir()] == ["step_000005"]
    assert store.latest_complete() is not None


async def test_G07_a_full_disk_is_reported_and_the_former_checkpoint_is_intact(tmp_path: Path) -> None:  # case G07
    store = store_in(tmp_path / "checkpoints", keep_last=1)
    await save(store, 10)

    async def save_onto_full_device() -> None:
        async with store.writing(20) as folder:
            (folder / "model.safetensors").symlink_to("/dev/full")  # every write fails with ENOSPC
            (folder / "model.safetensors").write_text("weights")

    with pytest.raises(
        CheckpointError, match=r"no space left.*step_000020.*step_000010 is intact.*resume=true"
    ) as caught:
        await save_onto_full_device()
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert [path.name for path in store.folder.iterdir()] == ["step_000010"]
    assert store.latest_complete().step == 10


@pytest.fixture
def small_disk(tmp_path: Path):
    """A real file system of 1 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if mount is None or subprocess.run([mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=False).returncode:
        pytest.skip("this user may not mount a tmpfs")
    yield disk
    subprocess.run(["umount", disk], check=True)


async def test_G07_a_really_full_disk_costs_only_the_new_checkpoint(small_disk: Path) -> None:  # case G07
    store = store_in(small_disk / "checkpoints", keep_last=1)

    async def save_bytes(step: int, size: int, *, swallow: bool = False) -> None:
        async with store.writing(step) as folder:
            failed = False
            try:
                (folder / "model.safetensors").write_bytes(bytes(size))
            except OSError:
                failed = True
                if not swallow:
                    raise
            if failed:
                raise RuntimeError("file write failed")  # what torch.save's C++ writer says of it: no errno, no cause

    await save_bytes(10, 400_000)
    for swallow in (False, True):
        with pytest.raises(CheckpointError, match=r"no space left.*step_000010 is intact"):
            await save_bytes(20, 900_000, swallow=swallow)
        assert [path.name for path in store.folder.iterdir()] == ["step_000010"]
    await save_bytes(30, 400_000)
    assert steps(store) == [30]


async def test_G07_without_room_for_the_manifest_the_checkpoint_does_not_count(small_disk: Path) -> None:  # case G07
    store = store_in(small_disk / "checkpoints", keep_last=1)

    async def fill() -> None:
        async with store.writing(1) as folder:
            with pytest.raises(OSError, match="No space left"):  # full to the last page; the body goes on
                (folder / "model.safetensors").write_bytes(bytes(2_000_000))

    with pytest.raises(CheckpointError, match="there is no former checkpoint"):
        await fill()
    assert list(store.folder.iterdir()) == []


async def test_an_error_while_writing_goes_on_and_leaves_nothing(tmp_path: Path) -> None:
    store = store_in(tmp_path)

    async def fail() -> None:
        async with store.writing(1) as folder:
            (folder / "model.safetensors").write_text("half")
            raise KeyError("lm_head.weight")

    with pytest.raises(KeyError, match=r"lm_head\.weight"):
        await fail()
    assert list(tmp_path.iterdir()) == []


async def test_a_cancelled_writer_leaves_nothing_before_the_end_of_the_body(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    inside = asyncio.Event()

    async def write_for_ever() -> None:
        async with store.writing(1) as folder:
            (folder / "model.safetensors").write_text("half")
            inside.set()
            await asyncio.sleep(3600)

    writer = asyncio.create_task(write_for_ever())
    await inside.wait()
    writer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writer
    assert list(tmp_path.iterdir()) == []


async def test_a_writer_cancelled_while_it_hashes_completes_the_checkpoint(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    written = asyncio.Event()

    async def write() -> None:
        async with store.writing(1) as folder:
            (folder / "model.safetensors").write_bytes(bytes(30_000_000))
            written.set()

    writer = asyncio.create_task(write())
    await written.wait()
    for _ in range(2):  # pressing Ctrl-C twice
        writer.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await writer
    assert steps(store) == [1]


async def test_hashing_flushing_and_deleting_stay_off_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: dict[str, set[int]] = {}

    def watch(name: str, module: ModuleType) -> None:
        original = getattr(module, name)

        def watched(*arguments, **options):
            used.setdefault(name, set()).add(threading.get_ident())
            return original(*arguments, **options)

        monkeypatch.setattr(module, name, watched)

    for name, module in (("file_digest", hashlib), ("fsync", os), ("rmtree", shutil)):
        watch(name, module)
    store = store_in(tmp_path, keep_last=1)
    await save(store, 1)
    await save(store, 2)
    assert used.keys() == {"file_digest", "fsync", "rmtree"}
    assert all(threading.get_ident() not in threads for threads in used.values())


async def test_an_empty_checkpoint_is_an_error(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    with pytest.raises(CheckpointError, match="nothing was written"):
        async with store.writing(1):
            pass
    assert list(tmp_path.iterdir()) == []


async def test_the_manifest_names_every_file_with_size_and_content(tmp_path: Path) -> None:
    await save(store_in(tmp_path), 7, score=0.5)
    manifest = json.loads((tmp_path / "step_000007" / "manifest.json").read_text())
    assert (manifest["step"], manifest["score"], manifest["run_id"]) == (7, 0.5, "this run")
    # sha256 of the nine bytes "optimizer", from coreutils' sha256sum
    assert manifest["files"]["trainer/state.pt"] == {
        "size": 9,
        "sha256": "23732d00643137c9b14b11bdb90f47a8e97b4da42cdfc0887912f4ff732c689c",
    }
    assert sorted(manifest["files"]) == ["config.json", "model.safetensors", "trainer/state.pt"]


@pytest.mark.parametrize(("keep_last", "keep_best"), [(0, 1), (-1, 0), (1, -1)])
def test_keeping_less_than_the_newest_is_refused(tmp_path: Path, keep_last: int, keep_best: int) -> None:
    with pytest.raises(ConfigError, match="keep_last must be ≥ 1"):
        store_in(tmp_path, keep_last=keep_last, keep_best=keep_best)


async def test_a_model_path_may_be_a_run_a_checkpoint_or_a_hugging_face_folder(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "outputs", "first") as run:
        store = run.checkpoints(keep_last=5)
        with pytest.raises(CheckpointError, match="has no checkpoint yet"):
            resolve_model_folder(run.path)
        await save(store, 9)
        await save(store, 10)
        newest = store.folder / "step_000010"
        for given in (run.path, tmp_path / "outputs" / "last", store.folder, newest):
            assert resolve_model_folder(given).resolve() == newest
        assert resolve_model_folder(store.folder / "step_000009") == store.folder / "step_000009"
        file_short(newest)
        assert resolve_model_folder(run.path) == store.folder / "step_000009"
        with pytest.raises(CheckpointError, match=r"step_000010 is incomplete: model\.safetensors has 3 bytes"):
            resolve_model_folder(newest)
        file_missing(store.folder / "step_000009")
        with pytest.raises(
            CheckpointError, match=r"no complete checkpoint .*step_000009: trainer/state\.pt is missing"
        ):
            resolve_model_folder(run.path)
    plain = tmp_path / "smollm2"
    plain.mkdir()
    with pytest.raises(CheckpointError, match="neither a run folder, a checkpoint, nor a Hugging Face folder"):
        resolve_model_folder(plain)
    (plain / "config.json").write_text("{}")
    assert resolve_model_folder(plain) == plain
    with pytest.raises(CheckpointError, match="no folder"):
        resolve_model_folder(tmp_path / "nothing")
