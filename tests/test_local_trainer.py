"""The local trainer's numbers: logprobs, layouts, empty steps, learning."""

from __future__ import annotations

import asyncio
import math
import time

import numpy as np
import pytest
import torch
from tiny_training import (
    VOCAB,
    batch_of,
    one_thread,  # noqa: F401 — a fixture
    plain_logprobs,
    random_batch,
    sample,
    select_weights,
    tiny_model,
)

from miles_agents.algorithms import GRPO, Supervised
from miles_agents.checks.trainer import check_trainer
from miles_agents.contracts import Algorithm, Annotation
from miles_agents.errors import UsageError
from miles_agents.trainers.local.attention import IMPLEMENTATION
from miles_agents.trainers.local.layout import micro_batches
from miles_agents.trainers.local.rank import LocalTrainerRank
from miles_agents.trainers.local.settings import Execution, OptimizerSettings, Packing
from miles_agents.trainers.local.trainer import LocalTrainer
from miles_agents.types import Batch

KINDS = ["qwen2", "qwen3", "llama"]

pytestmark = pytest.mark.usefixtures("one_thread")


def make_rank(
    model=None,
    algorithm: Algorithm | None = None,
    *,
    optimizer: OptimizerSettings | None = None,
    reference=None,
    **execution,
) -> LocalTrainerRank:
    return LocalTrainerRank(
        model=model or tiny_model(),
        algorithm=algorithm or GRPO(),
        optimizer=optimizer or OptimizerSettings(lr=1e-3),
        execution=Execution(**execution),
        reference=reference,
    )


def ready(algorithm: Algorithm, batch: Batch) -> Batch:
    algorithm.advantages(batch)
    return batch


def gradients(rank: LocalTrainerRank, batch: Batch) -> dict[str, torch.Tensor]:
    rank.accumulate(batch)
    return {name: weight.grad.clone() for name, weight in rank.module.named_parameters()}


async def test_the_local_trainer_keeps_the_contract_of_trainers(tmp_path):
    batch = random_batch()
    batch.rollout_logprobs = plain_logprobs(tiny_model(), batch)

    def make(token_budget: int) -> LocalTrainer:
        return LocalTrainer(model=tiny_model(), algorithm=GRPO(), token_budget=token_budget)

    await check_trainer(make, batch=batch, folder=tmp_path, max_logprob_abs_diff=1e-5)


# --- logprobs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", ["packed", "padded"])
@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_are_those_of_a_plain_forward_pass(kind, packing):
    model, batch = tiny_model(kind), random_batch()
    expected = plain_logprobs(model, batch)
    for budget in (1, 40, 10_000):
        found = make_rank(model, packing=packing, token_budget=budget).logprobs(batch)
        assert np.abs(found - expected).max() <= 1e-5
    assert np.array_equal(found != 0, batch.mask != 0)


def test_logprobs_are_under_the_sampling_temperature():
    model, batch = tiny_model(), random_batch()
    found = make_rank(model, temperature=0.7).logprobs(batch)
    assert np.abs(found - plain_logprobs(model, batch, temperature=0.7)).max() <= 1e-5
    assert np.abs(found - plain_logprobs(model, batch)).max() > 0.01


def test_bfloat16_logprobs_are_near_and_weights_stay_float32():
    model, batch = tiny_model(), ready(Supervised(), random_batch())
    rank = make_rank(model, Supervised(), dtype="bfloat16")
    gap = np.abs(rank.logprobs(batch) - plain_logprobs(model, batch)).max()
    assert 0 < gap < 0.05  # 8 bits of logits near 0.1, and it is not float32
    rank.step(batch)
    assert {weight.dtype for _, weight in rank.export()} == {torch.float32}


def test_D07_the_first_response_token_is_trained():
    # case D07: tokens P P P R R are predicted by positions 2 and 3: over the 4 predictions the mask is [0, 0, 1, 1]
    batch = batch_of([sample([5, 6, 7, 8, 9], [0, 0, 0, 1, 1])], [1.0])
    model = tiny_model(tied=False)
    whole = make_rank(model).logprobs(batch)
    assert np.flatnonzero(whole).tolist() == [3, 4]
    # the first response token's logprob depends on the last prompt token, and not on the tokens after it
    changed = batch.select([0])
    changed.ids = np.asarray([5, 6, 7, 8, 20], np.int32)
    moved = make_rank(model).logprobs(changed)
    assert moved[3] == pytest.approx(whole[3], abs=1e-6)
    assert abs(moved[4] - whole[4]) > 1e-4
    # of the output rows of a head that no input embedding shares, those of both response tokens are pushed up
    rank = make_rank(model, Supervised())
    rank.accumulate(ready(Supervised(), batch))
    only_first = batch_of([sample([5, 6, 7, 8, 9], [0, 0, 0, 1, 0])], [1.0])
    first = gradients(rank, ready(Supervised(), only_first))["lm_head.weight"]
    assert torch.linalg.vector_norm(first[8]) > 10 * torch.linalg.vector_norm(first[9])


def test_D07_trained_tokens_are_counted_by_the_mask_not_by_the_span():
    # case D07: action mask 0 0 1 1 1 0 0 0 0 1 1 has 5 sampled tokens, not 9
    batch = batch_of([sample(range(3, 14), [0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1])], [1.0])
    assert batch.trainable_tokens == 5
    assert make_rank(algorithm=Supervised()).step(ready(Supervised(), batch))["trained_tokens"] == 5


# --- layouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_D04_any_micro_batch_layout_gives_the_same_gradient(kind, aggregation):
    # case D04: the same 8 samples as 1×8, 2×4, 4×2 and 8×1, packed and padded
    algorithm = GRPO(aggregation=aggregation)
    batch = ready(algorithm, _equal_lengths())
    model = tiny_model(kind)
    expected: dict[str, torch.Tensor] | None = None
    for packing in ("packed", "padded"):
        for size, packs in ((8, 1), (4, 2), (2, 4), (1, 8)):
            rank = make_rank(model, algorithm, packing=packing, token_budget=12 * size)
            assert rank.accumulate(batch)["packs"] == packs
            found = gradients(rank, batch)
            expected = expected or found
            for name, gradient in found.items():
                assert (gradient - expected[name]).abs().max() <= 1e-6, (packing, size, name)


def test_D04_samples_of_unequal_lengths_pack_and_pad_to_the_same_gradient():
    # case D04
    batch, model = ready(GRPO(), random_batch(1, samples=12)), tiny_model()
    packed = gradients(make_rank(model, token_budget=64), batch)
    padded = gradients(make_rank(model, packing="padded", token_budget=100), batch)
    for name, gradient in packed.items():
        assert (gradient - padded[name]).abs().max() <= 1e-6


def test_D04_the_order_of_samples_does_not_change_the_gradient():
    # case D04
    batch, model = ready(GRPO(), random_batch(2)), tiny_model()
    expected = gradients(make_rank(model), batch)
    shuffled = gradients(make_rank(model), batch.select(np.random.default_rng(0).permutation(len(batch))))
    for name, gradient in expected.items():
        assert (gradient - shuffled[name]).abs().max() <= 1e-6


def test_positions_start_again_at_every_sample_of_a_pack():
    batch = batch_of([sample([5, 6, 7], [0, 1, 1]), sample([8, 9], [0, 1])], [1.0, 0.0])
    (micro,) = micro_batches(batch, batch.mask != 0, token_budget=5, packing=Packing.PACKED, device=torch.device("cpu"))
    assert micro.ids_BL.tolist() == [[5, 6, 7, 8, 9]]
    assert micro.positions_BL.tolist() == [[0, 1, 2, 0, 1]]
    assert micro.predictors_M.tolist() == [0, 1, 3]
    assert micro.targets_M.tolist() == [6, 7, 9]


@pytest.mark.parametrize("packing", ["packed", "padded"])
def test_packed_samples_do_not_see_each_other(packing):
    model, batch = tiny_model(), random_batch()
    rank = make_rank(model, packing=packing)
    before = rank.logprobs(batch)
    changed = batch.select(np.arange(len(batch)))
    changed.ids = batch.ids.copy()
    changed.ids[: batch.offsets[1]] = 7
    after = rank.logprobs(changed)
    assert np.abs(after - before)[batch.offsets[1] :].max() <= 1e-6
    assert np.abs(after - before)[: batch.offsets[1]].max() > 1e-4


def test_packing_leaves_the_models_own_attention_in_place():
    model = tiny_model()
    own = model.config._attn_implementation
    make_rank(model, Supervised()).step(ready(Supervised(), random_batch()))
    assert model.config._attn_implementation == own != IMPLEMENTATION


def test_a_model_whose_samples_would_see_each_other_is_refused():
    model = tiny_model()
    attention = model.model.layers[0].self_attn
    plain = attention.forward
    attention.forward = lambda *args, **kwargs: (plain(*args, **kwargs)[0].cumsum(1), None)  # mixes along the row
    with pytest.raises(UsageError, match="packing=padded"):
        make_rank(model)
    make_rank(model, packing="padded")


# --- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adamw", "muon_adamw"])
def test_D01_a_step_without_trainable_tokens_is_a_counted_no_op(name):
    # case D01: after a first step, so that momentum would move the weights
    rank = make_rank(optimizer=OptimizerSettings(name=name, lr=1e-2, weight_decay=0.1))
    batch = ready(GRPO(), random_batch())
    assert rank.step(batch)["empty_steps"] == 0
    before = select_weights(rank.module)
    batch.mask = np.zeros_like(batch.mask)
    metrics = rank.step(batch)
    assert metrics["empty_steps"] == 1
    assert metrics["loss"] == metrics["grad_norm"] == metrics["trained_tokens"] == 0
    assert all(math.isfinite(value) for value in metrics.values())
    assert rank.updates == 1
    assert all(torch.equal(weight, before[name]) for name, weight in rank.export())


@pytest.mark.parametrize("masked", [1, 8])
def test_D01_masked_samples_change_no_gradient(masked):
    # case D01
    model = tiny_model()
    plain = batch_of([sample([5, 6, 7, 8], [0, 1, 1, 1]), sample([9, 6, 7], [0, 0, 1])], [1.0, 0.0], group_size=2)
    extended = batch_of(
        [sample([5, 6, 7, 8], [0, 1, 1, 1]), sample([9, 6, 7], [0, 0, 1])] + [sample([3] * 9, [0] * 9)] * masked,
        [1.0, 0.0] + [0.5] * masked,
        group_size=2,
    )
    expected = gradients(make_rank(model), ready(GRPO(), plain))
    found = gradients(make_rank(model), ready(GRPO(), extended))
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())


def test_the_loss_and_its_metrics_agree_with_float64():
    model, batch = tiny_model(), ready(GRPO(), random_batch())
    logprobs = plain_logprobs(model, batch).astype(np.float64)
    sampled = batch.mask != 0
    ratio = np.exp(logprobs - batch.rollout_logprobs)[sampled]
    advantages = batch.advantages[sampled].astype(np.float64)
    loss = -np.minimum(ratio * advantages, np.clip(ratio, 0.8, 1.28) * advantages).mean()
    gap = np.abs(logprobs - batch.rollout_logprobs)[sampled]
    metrics = make_rank(model, token_budget=50).step(batch)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
    assert metrics["ratio"] == pytest.approx(ratio.mean(), rel=1e-5)
    assert metrics["logprob_abs_diff_mean"] == pytest.approx(gap.mean(), rel=1e-4)
    assert metrics["logprob_abs_diff_max"] == pytest.approx(gap.max(), rel=1e-4)
    assert metrics["clip_fraction"] == pytest.approx(
        ((ratio > 1.28) & (advantages > 0) | (ratio < 0.8) & (advantages < 0)).mean(), abs=1e-6
    )
    assert 0.9 * math.log(VOCAB) < metrics["entropy"] <= math.log(VOCAB)  # an untrained model is nearly uniform
    assert metrics["packs"] > 1


def test_what_was_sampled_is_compared_with_the_engine_and_what_was_written_is_not():
    texts = [sample([5, 6, 7], [0, 1, 1]), sample([5, 7, 6], [0, 1, 1])]  # sampled with certainty: logprobs of 0
    batch = ready(GRPO(), batch_of(texts, [1.0, 0.0], group_size=2))
    assert make_rank(tiny_model()).step(batch)["logprob_abs_diff_max"] > 1.0
    batch.versions[:] = -1
    assert "logprob_abs_diff_max" not in make_rank(tiny_model()).step(batch)


def test_the_same_inputs_give_bit_equal_weights():
    finals = []
    for _ in range(2):
        rank = make_rank(optimizer=OptimizerSettings(name="muon_adamw"), token_budget=50)
        for seed in range(3):
            rank.step(ready(GRPO(), random_batch(seed)))
        finals.append(select_weights(rank.module))
    assert all(torch.equal(weight, finals[1][name]) for name, weight in finals[0].items())


def test_gradients_are_clipped_to_the_limit():
    model, batch = tiny_model(), ready(Supervised(), random_batch())
    norm = torch.linalg.vector_norm(
        torch.stack([g.norm() for g in gradients(make_rank(model, Supervised()), batch).values()])
    )
    rank = make_rank(model, Supervised(), max_grad_norm=1e-3, optimizer=OptimizerSettings(lr=0.0))
    rank.accumulate(batch)
    assert rank._clip() == pytest.approx(norm.item(), rel=1e-5)
    clipped = torch.stack([weight.grad.norm() for weight in rank.module.parameters()])
    assert torch.linalg.vector_norm(clipped).item() == pytest.approx(1e-3, rel=1e-2)


def test_a_loss_that_is_not_finite_stops_before_the_weights_change():
    rank = make_rank()
    batch = ready(GRPO(), random_batch())
    before = select_weights(rank.module)
    batch.advantages[:] = np.where(batch.mask != 0, np.nan, 0)
    with pytest.raises(FloatingPointError, match=r"the loss is nan.*t0"):
        rank.step(batch)
    with torch.no_grad():
        assert all(torch.equal(weight, before[name]) for name, weight in rank.export())
    rank.step(ready(GRPO(), random_batch()))  # the failed step left no gradient behind


def test_a_step_without_advantages_is_refused():
    with pytest.raises(ValueError, match="advantages"):
        make_rank().step(random_batch())


# --- annotations ------------------------------------------------------------------------------------------------------


async def test_reference_logprobs_are_those_of_the_reference_and_stay_while_the_policy_moves(tmp_path):
    reference = tiny_model(seed=1)
    reference.save_pretrained(tmp_path)
    trainer = LocalTrainer(model=tiny_model(), algorithm=GRPO(kl_coefficient=0.1), reference_model=tmp_path)
    await trainer.start()
    batch = random_batch()
    await trainer.annotate(batch)
    expected = plain_logprobs(reference, batch)
    assert np.abs(batch.reference_logprobs - expected).max() <= 1e-5
    metrics = await trainer.step(ready(trainer.algorithm, batch))
    assert metrics["kl_to_reference"] != 0
    await trainer.annotate(batch)
    assert np.abs(batch.reference_logprobs - expected).max() <= 1e-5
    await trainer.close()


def test_the_kl_to_the_model_itself_is_zero():
    model = tiny_model()
    rank = make_rank(model, GRPO(kl_coefficient=0.5), reference=tiny_model())
    batch = random_batch()
    rank.annotate(batch)
    assert abs(rank.step(ready(rank.algorithm, batch))["kl_to_reference"]) <= 1e-6


def test_what_the_algorithm_needs_and_the_trainer_lacks_is_refused():
    class Critic(GRPO):
        def __init__(self) -> None:
            super().__init__()
            self.needs = frozenset({Annotation.VALUES})

    class Old(GRPO):
        def __init__(self) -> None:
            super().__init__()
            self.needs = frozenset({Annotation.OLD_LOGPROBS})

    with pytest.raises(UsageError, match="critic"):
        make_rank(algorithm=Critic())
    with pytest.raises(UsageError, match="reference model"):
        make_rank(algorithm=GRPO(kl_coefficient=0.1))
    rank, batch = make_rank(algorithm=Old()), random_batch()
    rank.annotate(batch)
    assert np.array_equal(batch.old_logprobs, rank.logprobs(batch))


# --- learning ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adamw", "muon_adamw"])
def test_a_tiny_model_learns_a_text_by_heart(name):
    batch = ready(Supervised(), random_batch(4, samples=4))
    settings = OptimizerSettings(name=name, lr=1e-2, warmup_steps=5, schedule="linear", total_steps=60)
    rank = make_rank(algorithm=Supervised(), optimizer=settings)
    losses = [rank.step(batch)["loss"] for _ in range(60)]
    assert losses[0] == pytest.approx(math.log(VOCAB), rel=0.05)
    assert losses[-1] < 0.3


def test_grpo_raises_the_probability_of_the_rewarded_token():
    """A bandit: after the prompt, token 11 pays 1 and every other 0; samples are drawn from the policy itself."""
    model = tiny_model()
    algorithm = GRPO()
    rank = make_rank(model, algorithm, optimizer=OptimizerSettings(lr=2e-3))
    rng = np.random.default_rng(0)
    prompt = [5, 6, 7]

    def policy() -> np.ndarray:
        with torch.no_grad():
            return model(input_ids=torch.tensor([prompt])).logits[0, -1].double().softmax(-1).numpy()

    before = policy()[11]
    for _ in range(80):
        probabilities = policy()
        actions = rng.choice(VOCAB, 32, p=probabilities)
        samples = [
            sample([*prompt, action], [0, 0, 0, 1], [0, 0, 0, math.log(probabilities[action])]) for action in actions
        ]
        batch = batch_of(samples, [float(action == 11) for action in actions], group_size=32)
        algorithm.advantages(batch)
        kept = algorithm.keeps(batch)
        if kept is not None:
            metrics = rank.step(kept)
            assert metrics["logprob_abs_diff_max"] <= 1e-5
    assert before < 0.05
    assert policy()[11] > 0.9


# --- the asynchronous half --------------------------------------------------------------------------------------------


async def test_the_event_loop_runs_on_while_the_trainer_steps():
    trainer = LocalTrainer(model=tiny_model(), algorithm=Supervised(), token_budget=64)
    await trainer.start()
    batch = ready(Supervised(), random_batch(samples=400))
    gaps, last = [], time.perf_counter()
    step = asyncio.create_task(trainer.step(batch))
    while not step.done():
        await asyncio.sleep(0.005)
        now = time.perf_counter()
        gaps.append(now - last)
        last = now
    await step
    assert len(gaps) > 5  # the loop woke many times during the one step
    await trainer.close()


async def test_calls_before_start_say_so_and_close_may_be_called_twice():
    trainer = LocalTrainer(model=tiny_model(), algorithm=Supervised())
    with pytest.raises(UsageError, match="start"):
        _ = trainer.module
    await trainer.start()
    module = trainer.module
    await trainer.start()
    assert trainer.module is module
    await trainer.close()
    await trainer.close()


def test_exported_weights_are_the_live_ones_and_tied_ones_come_once():
    tied, untied = make_rank(tiny_model()), make_rank(tiny_model(tied=False))
    names = [name for name, _ in tied.export()]
    assert "lm_head.weight" not in names
    assert len(names) == len(set(names))
    assert {name for name, _ in untied.export()} == {*names, "lm_head.weight"}
    exported = dict(tied.export())
    assert exported["model.embed_tokens.weight"] is tied.module.get_input_embeddings().weight


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"dtype": "float16"}, "dtype"),
        ({"packing": "packd"}, "Did you mean 'packed'"),
        ({"temperature": 0.0}, "temperature"),
        ({"max_grad_norm": 0.0}, "max_grad_norm"),
        ({"token_budget": 0}, "token_budget"),
    ],
)
def test_bad_settings_are_usage_errors(setting, message):
    with pytest.raises(UsageError, match=message):
        LocalTrainer(model=tiny_model(), algorithm=GRPO(), **setting)


def test_a_model_that_is_not_float32_is_refused():
    with pytest.raises(UsageError, match="float32"):
        make_rank(tiny_model().to(torch.bfloat16))


def _equal_lengths() -> Batch:
    rng = np.random.default_rng(5)
    masks = [np.repeat([0, 1, 0, 1], [3, int(n), 5 - int(n), 4]) for n in rng.integers(1, 5, 8)]
    samples = [sample(rng.integers(0, VOCAB, 12), mask, np.where(mask != 0, -3.5, 0)) for mask in masks]
    return batch_of(samples, rng.random(8).tolist())
