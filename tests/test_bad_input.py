"""What bad input gets: exit code 2, one message that says what to type, no traceback, and nothing is written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_runs import PLAIN_ENV, SMALL, command

from miles_agents.errors import SandboxUnavailableError

NO_SANDBOX = ("env=./plain.py:Plain", *SMALL, "steps=1", "rollout.max_new_tokens=12")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.py").write_text(PLAIN_ENV)
    return tmp_path


def _refused(*words: str, name: str = "train", said: tuple[str, ...]) -> str:
    before = sorted(Path().rglob("*"))
    done = command(name, *words)
    assert done.code == 2, (done.code, done.err)
    for part in said:
        assert part in done.err, done.err
    assert "Traceback" not in done.err
    assert done.err.count("\n") <= 8, done.err
    after = [path for path in sorted(Path().rglob("*")) if "__pycache__" not in path.parts]
    assert after == [path for path in before if "__pycache__" not in path.parts]
    return done.err


@pytest.mark.parametrize("name", ["train", "evaluate"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["env=pythn_math"], ("pythn_math", "'python_math'")),
        (["model=startr"], ("startr", "model=starter")),
        (["rollout.max_tokns=9"], ("rollout.max_tokns", "rollout.max_tokens")),
        (["env.levl=2"], ("env.level",)),
        (["engine=lokal"], ("'local'",)),
        (["env=./missing.py:MyEnv"], ("no file",)),
        (["seed=-1"], ("seed=-1", "at least 0")),
        (["rollout.max_new_tokens=320"], ("no room for a prompt",)),
        (["cluster.threads=0"], ("cluster.threads=0", "at least 1")),
        (["engine.slots=0"], ("engine.slots=0",)),
        (["rollout.episode_deadline_s=0"], ("above 0",)),
        (["rollout.concurrency=-1"], ("rollout.concurrency",)),
        (["model.dtype=float16"], ("float16", "bfloat16")),
        (["sandbox.memory_mb=0"], ("sandbox.memory_mb",)),
        (["env.level=7"], ("env.level", "7")),
        (["model=./nothing_here"], ("nothing_here",)),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_words_that_cannot_be_meant(folder: Path, name: str, words: list[str], said: tuple[str, ...]) -> None:
    _refused(*words, name=name, said=said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trainer.minibatches=5"], ("more than the 4 episodes",)),
        (["rollout.group_size=1"], ("a group of one has no baseline",)),
        (["rollout.max_tokens=2000", "trainer.token_budget=4000"], ("context of 1024", "rollout.max_tokens=1024")),
        (["trainer.token_budget=100"], ("cannot hold one trajectory",)),
        (["rollout.max_tokens=10", "rollout.max_new_tokens=8"], ("prompts have", "rollout.max_tokens=")),
        (["rollout.group_size=0"], ("rollout.group_size=0",)),
        (["rollout.max_staleness=-1"], ("rollout.max_staleness=-1",)),
        (["rollout.top_p=0.9"], ("whole distribution",)),
        (["rollout.temperature=0"], ("greedy",)),
        (["eval.tasks=0"], ("eval.tasks=0", "at least 1")),
        (["eval.samples=0"], ("eval.samples",)),
        (["eval.temperature=-1"], ("eval.temperature",)),
        (["eval.split=tset"], ("tset", "'test'")),
        (["eval.final_split=tset"], ("tset", "'test'")),
        (["steps=0"], ("steps=0",)),
        (["rollout.retries=-1"], ("rollout.retries",)),
        (["rollout.max_failure_rate=1.5"], ("at most 1",)),
        (["trainer.lr=-1"], ("trainer.lr",)),
        (["trainer.lr=nan"], ("trainer.lr",)),
        (["trainer.betas=[0.9]"], ("two numbers",)),
        (["trainer.betas=[0.9,1.5]"], ("below 1",)),
        (["trainer.optimizer=adam"], ("optimizer", "'adamw'")),
        (["trainer.dtype=float64"], ("float64",)),
        (["trainer.packing=pact"], ("packing",)),
        (["algorithm.clip_low=-1"], ("clip_low",)),
        (["algorithm.aggregation=tokens"], ("aggregation", "'token'")),
        (["algorithm.kl_estimator=k4"], ("kl_estimator",)),
        (["logging.keep_last=0"], ("logging.keep_last",)),
        (["logging.progress=loud"], ("logging.progress", "live")),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_training_that_cannot_come_out(folder: Path, tiny_model: Path, words: list[str], said: tuple[str, ...]) -> None:
    given = {word.partition("=")[0] for word in words}
    small = [word for word in ("rollout.group_size=2", *NO_SANDBOX) if word.partition("=")[0] not in given]
    if "rollout.group_size" not in given:
        small.remove("rollout.group_size=4")
    _refused(*small, f"model={tiny_model}", *words, said=said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["samples=0"], ("samples=0",)),
        (["tasks=0"], ("tasks=0",)),
        (["temperature=0", "samples=2"], ("samples=1",)),
        (["split=tset"], ("tset", "'test'")),
        (["rollout.max_tokens=2000"], ("context of 1024",)),
        (["rollout.max_tokens=10", "rollout.max_new_tokens=8"], ("prompts have",)),
        (["top_p=0"], ("top_p=0",)),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_evaluation_that_cannot_come_out(
    folder: Path, tiny_model: Path, words: list[str], said: tuple[str, ...]
) -> None:
    _refused("env=./plain.py:Plain", f"model={tiny_model}", *words, name="evaluate", said=said)


# ---------------------------------------------------------------------- models


REWRITES_HISTORY = """
{%- for m in messages %}{% if m.role == 'assistant' and not loop.last %}<|im_start|>assistant
(said)<|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
NO_END_OF_TURN = """
{%- for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""
DAMAGE: dict[str, dict[str, str | None]] = {  # file → its new text; None: it is gone
    "no config": {"config.json": None},
    "config is no JSON": {"config.json": "{"},
    "config is no transformer": {"config.json": '{"model_type": "resnet"}'},
    "no weights": {"model.safetensors": None},
    "no tokenizer": {"tokenizer.json": None},
    "no template": {"chat_template.jinja": None},
    "template that rewrites history": {"chat_template.jinja": REWRITES_HISTORY},
    "template that is no Jinja": {"chat_template.jinja": "{% for m in %}"},
    "template without an end of turn": {"chat_template.jinja": NO_END_OF_TURN, "generation_config.json": None},
}


def _spoil(tiny: Path, target: Path, how: str) -> None:
    shutil.copytree(tiny, target)
    for name, text in DAMAGE.get(how, {}).items():
        (target / name).unlink()
        if text is not None:
            (target / name).write_text(text)
    if how == "weights cut short":
        weights = (target / "model.safetensors").read_bytes()
        (target / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    if how == "weights of another shape":
        _change_json(target / "config.json", intermediate_size=64)
    if how == "template without an end of turn":
        _change_json(target / "tokenizer_config.json", eos_token=None)
        _change_json(target / "config.json", eos_token_id=None)


def _change_json(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("no config", ("config.json",)),
        ("config is no JSON", ("config.json",)),
        ("config is no transformer", ("config.json",)),
        ("no weights", ("broken",)),
        ("weights cut short", ("broken",)),
        ("weights of another shape", ("another shape",)),
        ("no tokenizer", ("tokenizer.json",)),
        ("no template", ("template",)),
        ("template that rewrites history", ("template",)),
        ("template that is no Jinja", ("template", "Jinja")),
        ("template without an end of turn", ("end",)),
    ],
)
@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_models_that_cannot_be_used(folder: Path, tiny_model: Path, name: str, how: str, said: tuple[str, ...]) -> None:
    _spoil(tiny_model, folder / "broken", how)
    words = NO_SANDBOX if name == "train" else NO_SANDBOX[:1]
    _refused(*words, "model=./broken", name=name, said=said)


def test_a_run_without_a_checkpoint_is_no_model(folder: Path, tiny_model: Path) -> None:
    run = folder / "run"
    assert command("train", *NO_SANDBOX, f"model={tiny_model}", "run_dir=run").code == 0
    shutil.rmtree(run / "checkpoints" / "step_000001")
    _refused("env=./plain.py:Plain", "model=run", name="evaluate", said=("no checkpoint",))


# ---------------------------------------------------------------------- data files


@pytest.mark.parametrize("name", ["train", "evaluate"])
@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("d.jsonl", '{"question": "1+1?", "result": 2}\n', ("d.jsonl", "answer", "env.answer_column")),
        ("d.jsonl", '{"question": "1+1?", "answer": 2}\n{"question": \n', ("d.jsonl:2", "broken JSON")),
        ("d.csv", "question,answer\n1+1?,2\n2+2?\n", ("d.csv:3", "broken line")),
        ("d.jsonl", "", ("d.jsonl",)),
        ("d.txt", "hello", ("d.txt",)),
        (None, "", ("d.missing",)),
    ],
    ids=["missing column", "broken line", "short row", "empty", "unknown kind", "missing file"],
)
def test_data_files_that_cannot_be_read(
    folder: Path, name: str, file: str | None, content: str, said: tuple[str, ...]
) -> None:
    if file is not None:
        (folder / file).write_text(content)
    _refused("env=python_math", f"env.data=./{file or 'd.missing'}", name=name, said=said)


# ---------------------------------------------------------------------- folders, disks, sandboxes, environments


@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_a_run_folder_with_something_in_it_is_not_overwritten(folder: Path, tiny_model: Path, name: str) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.txt").write_text("the only copy")
    words = [*(NO_SANDBOX if name == "train" else NO_SANDBOX[:1]), f"model={tiny_model}"]
    _refused(*words, "run_dir=mine", name=name, said=("mine", "exists"))
    (folder / "file").write_text("x")
    _refused(*words, "run_dir=file", name=name, said=("file", "exists"))
    _refused(*words, "run_dir=file/below", name=name, said=("file/below",))
    assert (folder / "mine" / "thesis.txt").read_text() == "the only copy"


@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_without_a_sandbox_nothing_is_run_unprotected(
    folder: Path, starter: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(self: object) -> None:
        raise SandboxUnavailableError("this machine allows no user namespaces. Type: sudo sysctl …=0")

    monkeypatch.setattr("miles_agents.tools.sandboxes.namespace.NamespaceSandboxes.start", refuse)
    err = _refused("env=python_math", name=name, said=("sudo sysctl",))
    assert "SandboxUnavailable" in err
    _refused("env=python_math", "sandbox=namespace", name=name, said=("sudo sysctl",))


def test_a_disk_that_fills_up_while_a_checkpoint_is_written_costs_that_checkpoint_only(
    folder: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from miles_agents.trainers.local.rank import LocalTrainerRank

    save, saved = LocalTrainerRank.save, []

    def save_once(self: LocalTrainerRank, target: Path) -> None:
        save(self, target)
        saved.append(target)
        if len(saved) == 2:
            (target / "more").symlink_to("/dev/full")
            (target / "more").write_text("x")

    monkeypatch.setattr(LocalTrainerRank, "save", save_once)
    words = [*NO_SANDBOX, f"model={tiny_model}", "run_dir=run", "logging.checkpoint_every=1"]
    words[words.index("steps=1")] = "steps=3"
    done = command("train", *words)
    assert done.code == 2
    assert "no space left" in done.err
    assert "step_000001 is intact" in done.err
    assert "resume=true" in done.err
    assert "Traceback" not in done.err
    assert [path.name for path in (folder / "run" / "checkpoints").iterdir()] == ["step_000001"]
    done = command("train", "resume=true", "run_dir=run")
    assert done.code == 0, done.err
    assert json.loads((folder / "run" / "summary.json").read_text())["steps"] == 3


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [("range(6)", "range(0)", "is empty"), ('id=f"{split}{n}"', 'id="same"', "two tasks have the id 'same'")],
    ids=["no tasks", "two tasks of one id"],
)
def test_environments_that_cannot_be_used(folder: Path, tiny_model: Path, old: str, new: str, said: str) -> None:
    (folder / "plain.py").write_text(PLAIN_ENV.replace(old, new))
    _refused(*NO_SANDBOX, f"model={tiny_model}", said=(said,))


def test_the_plan_is_printed_without_torch_and_writes_nothing(folder: Path) -> None:
    for name, words in (("train", ["steps=7"]), ("evaluate", ["samples=3", "split=test"])):
        code = (
            f"import sys\nfrom miles_agents.{name} import main\n"
            f"code = main(['env=python_math', 'dry_run=true', *{words!r}])\n"
            "print([m for m in ('torch', 'transformers') if m in sys.modules], file=sys.stderr)\n"
            "sys.exit(code)\n"
        )
        line = [sys.executable, "-c", code]
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stderr.strip() == "[]"
        assert "per trajectory" in done.stdout
        assert sorted(path.name for path in folder.iterdir()) == ["plain.py"]
    train = command("train", "dry_run=true", "steps=7").out
    assert "16 tasks × 8 episodes = 128 episodes a step" in train
    assert "7 steps = 896 episodes" in train
    assert "synchronous" in train
    assert "of this machine's" in train
