"""The command line: composition, `--help`, and one clear message with exit code 2 for bad input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from miles_agents.command import EXIT_PIPE, Invocation, exit_code_of, run_command


def _run(
    capsys: pytest.CaptureFixture[str], *words: str, name: str = "train"
) -> tuple[int, str, str, list[Invocation]]:
    seen: list[Invocation] = []

    def body(invocation: Invocation) -> int:
        seen.append(invocation)
        return 0

    code = run_command(name, "summary", body, words=list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err, seen


# case H03: a misspelt or impossible option is refused in every spelling, with the nearest valid name
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trainer.lrr=3"], "trainer.lr"),
        (["+trainer.lrr=3"], "trainer.lr"),
        (["++trainer.lrr=3"], "trainer.lr"),
        (["trainer.lr=abc"], "Float"),
        (["rollout.lr=1"], "trainer.lr"),  # right key, wrong section
        (["seed=1", "seed=2"], "twice"),
        (["trainer.lr=1", "+trainer.lr=2"], "twice"),
        (["~trainer.lr"], "key=value"),
        (["nonsense"], "key=value"),
        (["engine=locall"], "local"),
        (["env=pythn_math"], "python_math"),
        (["env=./no_such_file.py:MyEnv"], "no file"),
        (["env=./no_such_file.py"], "name the class"),
        (["env.level=high"], "Integer"),
        (["env.levle=2"], "env.level"),
        (["rollout.max_staleness=null"], "not Optional"),
        (["hydra.ouput_subdir=x"], "Hydra"),
        (["--frobnicate"], "--help"),
        (["--cfg", "jbo"], "--cfg job"),
        (["--config-dir", "/no/such/folder"], "no such folder"),
    ],
)
def test_H03_bad_words_are_refused_with_one_message(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    code, out, err, seen = _run(capsys, *words)
    assert code == 2
    assert seen == []
    assert out == ""
    assert said in err
    assert "Traceback" not in err


def test_H03_a_float_in_scientific_notation_is_a_float(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, _, seen = _run(capsys, "trainer.lr=1e-5")
    assert code == 0
    assert seen[0].config.trainer.lr == 1e-5


def test_H03_a_path_with_an_equals_sign_works(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err, seen = _run(capsys, "run_dir=run/epoch=3-step=10.ckpt")
    assert code == 0, err
    assert seen[0].config.run_dir == "run/epoch=3-step=10.ckpt"


@pytest.mark.parametrize(
    "value",
    [
        "data/{split}.csv",
        "{split}.csv",
        "[1].csv",
        "~/a.csv",
        "a(1).csv",
        "a#1;b.csv",
        "é.csv",
        "C:\\a b\\'c'\\",
        "'tis",
    ],
)
def test_a_path_means_what_it_says_whatever_characters_it_has(capsys: pytest.CaptureFixture[str], value: str) -> None:
    code, _, err, seen = _run(capsys, f"env.data={value}")
    assert code == 0, err
    assert seen[0].config.env.data == value


def test_H03_plus_signs_before_known_keys_are_taken_as_plain_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, _, seen = _run(capsys, "++trainer.lr=2e-4", "+steps=7")
    assert code == 0
    assert seen[0].config.trainer.lr == 2e-4
    assert seen[0].config.steps == 7


def test_H03_an_unknown_key_in_a_yaml_file_of_the_users_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tmp_path = tmp_path / "my configs (1)"
    (tmp_path / "trainer").mkdir(parents=True)
    (tmp_path / "trainer" / "mine.yaml").write_text("defaults: [_LocalTrainerConfig, _self_]\nlr: 0.1\n")
    (tmp_path / "trainer" / "wrong.yaml").write_text("defaults: [_LocalTrainerConfig, _self_]\nlrr: 0.1\n")
    code, _, err, seen = _run(capsys, "--config-dir", str(tmp_path), "trainer=mine")
    assert code == 0, err
    assert seen[0].config.trainer.lr == 0.1
    code, _, err, _ = _run(capsys, "--config-dir", str(tmp_path), "trainer=wrong")
    assert code == 2
    assert "lrr" in err


def test_H03_the_composed_configuration_is_printed_as_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _, seen = _run(capsys, "--cfg", "job", "trainer.lr=1e-5", "env.level=1")
    assert code == 0
    assert seen == []
    config = yaml.safe_load(out)
    assert config["trainer"]["lr"] == 1e-5
    assert config["env"] == config["env"] | {"id": "python_math-v0", "level": 1}


def test_a_configuration_and_the_id_it_names_are_the_same_environment(capsys: pytest.CaptureFixture[str]) -> None:
    named, registered = (_run(capsys, "--cfg", "job", f"env={env}")[1] for env in ("python_math", "python_math-v0"))
    assert yaml.safe_load(named) == yaml.safe_load(registered)
    assert yaml.safe_load(named)["env"]["level"] == 3


def test_help_lists_every_group_and_key_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _, _ = _run(capsys, "--help")
    assert code == 0
    assert "sandbox=auto | docker | namespace" in out
    line = next(line for line in out.splitlines() if "rollout.max_staleness=0" in line)
    assert "asynchronous" in line


@pytest.mark.parametrize("command", ["train", "evaluate"])
@pytest.mark.parametrize("flags", [["--help"], ["--cfg", "job"]])
def test_help_and_cfg_load_no_heavy_library(command: str, flags: list[str]) -> None:
    heavy = ["torch", "transformers", "ray", "sglang", "vllm", "megatron", "matplotlib", "tensorboard"]
    code = (
        "import sys, runpy\n"
        f"sys.argv = ['{command}', *{flags!r}]\n"
        "try:\n"
        f"    runpy.run_module('miles_agents.{command}', run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0, end.code\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip().splitlines()[-1] == "[]"


MY_ENV = """
import miles_agents as ma

class Plain(ma.ToolEnv):
    max_turns = 3
    def __init__(self, *, size: int = 4, names: list[str] = ["a"], odd: object = None):
        self.size = size
    def tasks(self, split):
        return [ma.Task(id="t", prompt=(ma.Message.user("hi"),))]
    def reward(self, episode):
        return 1.0

class NoEnv:
    pass
"""


def test_an_environment_in_a_file_gets_its_keys_from_its_init(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(MY_ENV)
    monkeypatch.chdir(tmp_path)
    code, _, err, seen = _run(capsys, "env=./mine.py:Plain", "env.size=5", "env.names=[x,y]", "env.max_turns=2")
    assert code == 0, err
    env = seen[0].config.env
    assert (env.size, env.names, env.max_turns) == (5, ["x", "y"], 2)
    code, _, err, _ = _run(capsys, "env=./mine.py:Plian")
    assert code == 2
    assert "'Plain'" in err
    code, _, err, _ = _run(capsys, "env=./mine.py:NoEnv")
    assert code == 2
    assert "not a subclass" in err


@pytest.mark.parametrize(
    "words",
    [
        ["miles_agents.play", "env=guess_number", "oracle=true"],
        ["miles_agents.environments", "list"],
        ["miles_agents.train", "--cfg", "job"],
    ],
    ids=lambda words: words[0],
)
def test_a_reader_that_leaves_ends_the_command_without_a_traceback(words: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
        assert (process.wait(60), errors) == (EXIT_PIPE, "")


def test_a_broken_pipe_that_is_not_the_readers_is_a_fault() -> None:
    def lose_a_connection() -> int:
        raise BrokenPipeError("a socket")

    with pytest.raises(BrokenPipeError, match="a socket"):
        exit_code_of(lose_a_connection)
