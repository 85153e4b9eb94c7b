"""`shapes`: pictures in messages, from the task to a server and into files; training it is refused."""

import base64
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from command_runs import command
from openai_server import says, serving

from miles_agents import Reply
from miles_agents.checks.env import check_env, check_tasks, play
from miles_agents.envs.shapes.env import Shapes
from miles_agents.envs.shapes.pictures import CELLS, COLOURS, KINDS, PALETTE, SIZE, Shape, draw, encode_png, place
from miles_agents.errors import ConfigError
from miles_agents.play import main as play_main
from miles_agents.runs.trajectories import read_trajectories

SMALL = {"train_size": 60, "validation_size": 20, "test_size": 20}


def decoded(data):
    """The pixels (H, W, 3) of a PNG of indices, read by the standard's rules and none of the code that wrote it."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(name + body)
        chunks[name] = body
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"PLTE", b"IDAT", b"IEND"]
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, colour, rest) == (8, 3, [0, 0, 0])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not rows[:, 0].any()
    return np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)[rows[:, 1:]]


def picture_of(task):
    return task.prompt[0].images[0].data


def blobs(mask):
    """How many connected areas a mask has."""
    left, count = {tuple(each) for each in np.argwhere(mask).tolist()}, 0
    while left:
        count += 1
        around = [left.pop()]
        while around:
            y, x = around.pop()
            near = {(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)} & left
            left -= near
            around += near
    return count


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_a_picture_is_a_png_whose_pixels_are_what_was_drawn():
    drawn = draw([Shape("square", "red", 0, 12, (0, 0)), Shape("circle", "blue", 24, 11, (2, -3))])
    pixels = decoded(encode_png(drawn))
    assert pixels.shape == (SIZE, SIZE, 3)
    assert tuple(pixels[0, 0]) == PALETTE[0]
    assert tuple(pixels[20, 20]) == COLOURS["red"]  # the middle of the first cell
    assert (pixels == COLOURS["red"]).all(axis=2).sum() == 25 * 25
    middle_y, middle_x = 180 - 3, 180 + 2
    assert tuple(pixels[middle_y, middle_x]) == tuple(pixels[middle_y + 11, middle_x]) == COLOURS["blue"]
    assert tuple(pixels[middle_y + 12, middle_x]) == tuple(pixels[middle_y + 9, middle_x + 9]) == PALETTE[0]


@pytest.mark.parametrize(("kind", "corner", "below"), [("triangle", False, True), ("cross", False, False)])
def test_kinds_look_different(kind, corner, below):
    drawn = draw([Shape(kind, "red", 12, 12, (0, 0))]) > 0
    assert drawn[100, 100]
    assert drawn[88, 88] == corner
    assert drawn[112, 88] == below


def test_shapes_lie_apart_and_within_the_picture():
    rng = np.random.default_rng(3)
    for _ in range(20):
        kinds = [(str(rng.choice(KINDS)), "red") for _ in range(CELLS * CELLS)]
        drawn = draw(place(kinds, rng)) > 0
        assert blobs(drawn) == CELLS * CELLS
        assert not any(edge.any() for edge in (drawn[0], drawn[-1], drawn[:, 0], drawn[:, -1]))


# --- tasks ------------------------------------------------------------------------------------------------------------


async def test_it_keeps_the_contract_of_environments():
    await check_env(Shapes(**SMALL), tasks_per_split=4)


def test_pictures_are_the_same_every_time_and_in_one_split_each():
    tasks = check_tasks(Shapes())
    assert {split: len(each) for split, each in tasks.items()} == {"train": 1024, "validation": 128, "test": 256}
    pictures = {split: {picture_of(task) for task in each} for split, each in tasks.items()}
    assert sum(map(len, pictures.values())) == 1024 + 128 + 256
    assert not pictures["train"] & (pictures["validation"] | pictures["test"])
    again = Shapes(test_size=3).tasks("test")
    assert [picture_of(task) for task in again] == [picture_of(task) for task in tasks["test"][:3]]


def test_the_answer_is_what_can_be_counted_in_the_picture():
    """Areas of a colour are counted in the decoded pixels: shapes never touch."""
    counted = 0
    for task in Shapes(**SMALL).tasks("train"):
        pixels = decoded(picture_of(task))
        assert blobs((pixels != PALETTE[0]).any(axis=2)) == task.metadata["shapes"]
        if task.metadata["asked"] == ["colour"]:
            (name,) = [name for name in COLOURS if f"many {name} shapes" in task.prompt[0].text]
            assert blobs((pixels == COLOURS[name]).all(axis=2)) == task.answer
            counted += 1
    assert counted > 10


def test_every_number_is_asked_for_about_as_often():
    answers = [task.answer for task in Shapes().tasks("train")]
    shares = np.bincount(answers) / len(answers)
    assert len(shares) == 10
    assert shares.min() > 0.07
    assert shares.max() < 0.13


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ("Answer: {n}", 1.0),
        ("I count {n}.\nAnswer: {n}.", 1.0),
        ("Answer: **{n}**", 1.0),
        ("Answer: {other}", 0.0),
        ("{n}", 0.0),
        ("Answer: {n} or {other}", 0.0),
        ("Answer: -{n}", 0.0),
        ("Answer:", 0.0),
        ("", 0.0),
    ],
)
async def test_the_last_line_is_the_answer(said, reward):
    env = Shapes(**SMALL)
    task = next(task for task in env.tasks("train") if task.answer > 1)
    text = said.format(n=task.answer, other=task.answer + 1)
    assert (await play(env, task, [Reply.of(text)], seed=0))[-1].reward == reward


def test_values_out_of_range_are_refused():
    with pytest.raises(ConfigError, match=r"env\.max_count=2: it must be from 3 to 15; env\.test_size=0"):
        Shapes(max_count=2, test_size=0)
    with pytest.raises(ConfigError, match="unknown split 'tests'"):
        Shapes().tasks("tests")


# --- who plays it -----------------------------------------------------------------------------------------------------


def picture_sent(request):
    """The bytes of the one picture of a request."""
    (message,) = request["messages"]
    (part,) = [part for part in message["content"] if part["type"] == "image_url"]
    head, _, data = part["image_url"]["url"].partition(",")
    assert head == "data:image/png;base64"
    return base64.b64decode(data)


def test_the_bytes_arrive_at_a_server_and_are_exported_with_the_trajectory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answers = {picture_of(task): task.answer for task in Shapes(**SMALL).tasks("test")}

    def sees(request):
        return says(f"Answer: {answers[picture_sent(request)]}")

    sizes = [f"env.{name}={size}" for name, size in SMALL.items()]
    with serving(sees) as server:
        words = ["engine=openai", "model=m", f"engine.base_url={server.base_url}", "tasks=20", "run_dir=run", *sizes]
        done = command("evaluate", "env=shapes", *words)
    assert done.code == 0, done.err
    assert json.loads(Path("run/results.json").read_text())["total"]["accuracy"] == 1.0
    assert {picture_sent(request) for request in server.requests} == set(answers)
    assert all(request["messages"][0]["content"][1]["text"].startswith("How many ") for request in server.requests)
    (file,) = Path("run/trajectories").glob("*.jsonl")
    exported = list(read_trajectories(file))
    assert len(exported) == 20
    for trajectory in exported:
        (image,) = trajectory.prompt[0].images
        assert trajectory.rewards == {"reward": 1.0}
        assert answers[image.data] == int(trajectory.turns[0].text.removeprefix("Answer: "))


def test_training_it_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("miles_agents.training.make_model", lambda *a: pytest.fail("a model was made"))
    done = command("train", "env=shapes", "run_dir=run")
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") <= 4
    assert "hold image parts; models that run or train here take text alone" in " ".join(done.err.split())
    assert "engine=openai" in done.err
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []


def test_play_says_where_the_picture_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert play_main(["env=shapes", "split=test", "task=0", "oracle=true"]) == 0
    shown = capsys.readouterr().out
    (saved,) = [Path(line.partition(" is in ")[2]) for line in shown.splitlines() if "the picture is in" in line]
    task = Shapes().tasks("test")[0]
    assert saved.read_bytes() == picture_of(task)
    assert saved.is_relative_to(tmp_path)
    assert task.prompt[0].text in shown
    assert "reward 1" in shown
