"""Saving, loading and schedules of the local trainer."""

from __future__ import annotations

import errno
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_training import one_thread, random_batch, select_weights, tiny_model  # noqa: F401 — one is a fixture
from transformers import AutoModelForCausalLM

from miles_agents.algorithms import GRPO, Supervised
from miles_agents.errors import CheckpointError, UsageError
from miles_agents.trainers.local.rank import STATE_FILE, LocalTrainerRank
from miles_agents.trainers.local.settings import Execution, OptimizerSettings
from miles_agents.trainers.local.trainer import LocalTrainer

pytestmark = pytest.mark.usefixtures("one_thread")


def make_rank(settings: OptimizerSettings, *, seed: int = 0, tied: bool = True) -> LocalTrainerRank:
    return LocalTrainerRank(
        model=tiny_model(seed=seed, tied=tied), algorithm=Supervised(), optimizer=settings, execution=Execution()
    )


def train(rank: LocalTrainerRank, seeds: range) -> list[dict[str, float]]:
    metrics = []
    for seed in seeds:
        batch = random_batch(seed)
        rank.algorithm.advantages(batch)
        metrics.append(rank.step(batch))
    return metrics


@pytest.mark.parametrize("name", ["adamw", "muon_adamw"])
def test_G04_a_resumed_run_goes_on_bit_for_bit(tmp_path, name):
    # case G04: rates, moments, weights and metrics after resume are those of the uninterrupted run
    settings = OptimizerSettings(
        name=name, lr=1e-3, schedule="linear", total_steps=12, warmup_steps=3, weight_decay=0.1
    )
    whole = make_rank(settings)
    train(whole, range(5))
    whole.save(tmp_path)
    expected = train(whole, range(5, 10))
    resumed = make_rank(settings, seed=1)  # other weights, all replaced
    train(resumed, range(2))
    resumed.load(tmp_path)
    assert resumed.updates == 5
    assert train(resumed, range(5, 10)) == expected
    weights = select_weights(whole.module)
    assert all(torch.equal(weight, weights[key]) for key, weight in resumed.export())


def test_G04_the_rate_follows_updates_not_rollouts(tmp_path):
    # case G04: linear from 1e-3 to 0 over 100 updates, resumed after 40: 1e-3·(1 − 40/100) = 6e-4
    settings = OptimizerSettings(lr=1e-3, schedule="linear", total_steps=100)
    assert settings.lr_factor(0) == 1.0
    assert settings.lr_factor(40) == pytest.approx(0.6)
    assert settings.lr_factor(99) == pytest.approx(0.01)
    assert settings.lr_factor(100) == settings.lr_factor(500) == 0.0
    rank = make_rank(settings)
    rank._optimizer.updates = 40
    rank.save(tmp_path)
    resumed = make_rank(settings)
    resumed.load(tmp_path)
    assert [metrics["lr"] for metrics in train(resumed, range(2))] == pytest.approx([6.0e-4, 5.9e-4])


def test_the_warm_start_schedule_warms_up_stays_and_falls_over_the_last_part():
    # 50 warm-up updates, then the whole rate until 300 of 500, then linear to 5 %
    settings = OptimizerSettings(
        warmup_steps=50, schedule="linear", total_steps=500, decay_fraction=0.4, min_lr_fraction=0.05
    )
    expected = {0: 0.02, 24: 0.5, 49: 1.0, 50: 1.0, 300: 1.0, 400: 0.5, 499: 0.05}
    assert {step: settings.lr_factor(step) for step in expected} == pytest.approx(expected)


def test_the_rate_reported_is_the_rate_applied():
    """With plain sign-like first updates of Adam, weights move by just about the rate."""
    settings = OptimizerSettings(lr=1e-3, warmup_steps=4, eps=1e-20)
    rank = make_rank(settings)
    before = select_weights(rank.module)
    (metrics,) = train(rank, range(1))
    moved = max((weight - before[name]).abs().max().item() for name, weight in rank.export())
    assert metrics["lr"] == pytest.approx(2.5e-4)
    assert moved == pytest.approx(2.5e-4, rel=1e-2)


def test_muon_takes_the_hidden_matrices_and_adamw_the_rest():
    rank = make_rank(OptimizerSettings(name="muon_adamw", lr=0.0), tied=False)
    before = select_weights(rank.module)
    train(rank, range(1))
    moved = {name for name, weight in rank.export() if not torch.equal(weight, before[name])}
    matrices = {name for name, weight in before.items() if weight.dim() == 2}
    assert moved == matrices - {"model.embed_tokens.weight", "lm_head.weight"}


async def test_checkpoints_load_in_transformers_with_their_tokenizer_files(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    target.mkdir()
    tiny_model().save_pretrained(source)
    for name, text in {"tokenizer.json": "{}", "chat_template.jinja": "{{ messages }}", "notes.txt": "no"}.items():
        (source / name).write_text(text)
    trainer = LocalTrainer(model=source, algorithm=Supervised())
    await trainer.start()
    batch = random_batch()
    trainer.algorithm.advantages(batch)
    await trainer.step(batch)
    await trainer.save(target)
    assert (target / "chat_template.jinja").read_text() == "{{ messages }}"
    assert (target / "tokenizer.json").is_file()
    assert not (target / "notes.txt").exists()
    loaded = AutoModelForCausalLM.from_pretrained(target)
    weights = dict(loaded.named_parameters())
    assert all(torch.equal(weight, weights[name]) for name, weight in trainer.export())
    module = trainer.module
    await trainer.load(target)
    assert trainer.module is module  # in place: whoever holds it sees the loaded weights
    await trainer.close()


def test_checkpoints_of_something_else_are_refused(tmp_path):
    good = tmp_path / "good"
    good.mkdir()
    rank = make_rank(OptimizerSettings())
    train(rank, range(1))
    rank.save(good)
    with pytest.raises(CheckpointError, match="optimisers"):
        make_rank(OptimizerSettings(name="muon_adamw")).load(good)
    with pytest.raises(CheckpointError, match="another model"):
        make_rank(OptimizerSettings(), tied=False).load(_with_wider_mlp(good, tmp_path / "wide"))
    weights = (good / "model.safetensors").read_bytes()
    (good / "model.safetensors").write_bytes(weights[:-8])
    with pytest.raises(CheckpointError, match="cannot load a model"):
        rank.load(good)
    (good / "model.safetensors").write_bytes(weights)
    rank.load(good)
    (good / STATE_FILE).write_bytes((good / STATE_FILE).read_bytes()[:-200])
    with pytest.raises(CheckpointError, match="broken"):
        rank.load(good)
    (good / STATE_FILE).unlink()
    with pytest.raises(CheckpointError, match="no trainer_state"):
        rank.load(good)


@pytest.mark.parametrize("file", ["model.safetensors", STATE_FILE])
def test_a_disk_that_refuses_the_write_is_an_os_error(tmp_path, file):
    """A limit on file sizes stands for a full disk; the state, with two moments a weight, is the larger file."""
    rank = make_rank(OptimizerSettings())
    train(rank, range(1))
    rank.save(tmp_path)
    limit = (tmp_path / file).stat().st_size - 1
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        with pytest.raises(OSError) as caught:
            rank.save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert caught.value.errno == errno.EFBIG


def test_bad_optimizer_settings_are_usage_errors():
    with pytest.raises(UsageError, match="total_steps"):
        OptimizerSettings(schedule="linear")
    with pytest.raises(UsageError, match="Did you mean 'adamw'"):
        OptimizerSettings(name="adam")
    with pytest.raises(UsageError, match="learning rates"):
        OptimizerSettings(lr=float("nan"))


async def test_a_kl_term_with_a_live_model_needs_a_reference_folder():
    trainer = LocalTrainer(model=tiny_model(), algorithm=GRPO(kl_coefficient=0.1))
    with pytest.raises(UsageError, match="reference_model"):
        await trainer.start()
    await trainer.close()


def test_weight_decay_leaves_vectors_alone():
    rank = make_rank(OptimizerSettings(lr=0.1, weight_decay=1.0))
    batch = random_batch()
    rank.algorithm.advantages(batch)
    for weight in rank.module.parameters():
        weight.grad = torch.zeros_like(weight)
    before = select_weights(rank.module)
    rank._optimizer.step()
    for name, weight in rank.export():
        expected = before[name] * (0.9 if weight.dim() == 2 else 1.0)  # 1 − lr·decay
        assert np.allclose(weight.detach().numpy(), expected.numpy(), rtol=1e-6)


def _with_wider_mlp(checkpoint: Path, folder: Path) -> Path:
    folder.mkdir()
    model = tiny_model("llama")
    model.save_pretrained(folder)
    (folder / STATE_FILE).write_bytes((checkpoint / STATE_FILE).read_bytes())
    return folder
