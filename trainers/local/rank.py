"""The synchronous half of the local trainer: one process, one model, one optimiser.

Shape legend: N tokens of the minibatch, M trainable tokens of one micro-batch.
"""

from __future__ import annotations

import io
import pickle
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from miles_agents.contracts import Algorithm, Annotation, LossInputs, TrainerRank
from miles_agents.errors import CheckpointError, UsageError
from miles_agents.models.loading import load_causal_lm, save_causal_lm
from miles_agents.trainers.local.attention import check_packing
from miles_agents.trainers.local.forward import entropies, selected_logprobs, trainable_logits
from miles_agents.trainers.local.layout import MicroBatch, micro_batches
from miles_agents.trainers.local.optimizer import ScheduledOptimizer
from miles_agents.trainers.local.settings import Execution, OptimizerSettings, Packing
from miles_agents.types import Batch, FloatArray

STATE_FILE = "trainer_state.pt"
_STATE_FORMAT = 1


class LocalTrainerRank(TrainerRank):
    """Trains a live model in place. Weights are float32; dropout is off, as it was when the tokens were sampled.

    The same inputs give bit-equal weights on CPU as long as the number of threads stays the same.

    Args:
        model: with float32 weights; trained in place.
        algorithm: what the loss is.
        optimizer: which optimiser, and its schedule.
        execution: how forward and backward are run.
        reference: the frozen reference model, where the algorithm needs one.
        tokenizer_from: folder whose tokenizer files go into every checkpoint.

    Raises:
        UsageError: weights that are not float32, a model that cannot be packed, or something the algorithm needs
            and this trainer has not.
    """

    def __init__(
        self,
        *,
        model: PreTrainedModel,
        algorithm: Algorithm,
        optimizer: OptimizerSettings,
        execution: Execution,
        reference: PreTrainedModel | None = None,
        tokenizer_from: Path | None = None,
    ) -> None:
        _check_model(model, execution)
        if Annotation.VALUES in algorithm.needs:
            raise UsageError(f"trainer=local has no critic, which {type(algorithm).__name__} needs")
        if Annotation.REFERENCE_LOGPROBS in algorithm.needs and reference is None:
            raise UsageError(f"{type(algorithm).__name__} needs a reference model and none was given")
        self.module = model.eval()
        self.algorithm = algorithm
        self._execution = execution
        self._reference = reference
        self._tokenizer_from = tokenizer_from
        self._optimizer = ScheduledOptimizer(self.module, optimizer)

    @property
    def updates(self) -> int:
        """Optimiser updates applied to the weights so far."""
        return self._optimizer.updates

    def annotate(self, batch: Batch) -> None:
        """Fill the logprob columns the algorithm needs, on trainable tokens (0 elsewhere)."""
        if Annotation.OLD_LOGPROBS in self.algorithm.needs:
            batch.old_logprobs = self.logprobs(batch)
        if Annotation.REFERENCE_LOGPROBS in self.algorithm.needs and self._reference is not None:
            batch.reference_logprobs = self.logprobs(batch, model=self._reference)

    @torch.no_grad()
    def logprobs(self, batch: Batch, *, model: PreTrainedModel | None = None) -> FloatArray:
        """(N,) logprobs of the trainable tokens under the model (the trained one by default), 0 elsewhere."""
        model = model or self.module
        filled = np.zeros(len(batch.ids), np.float32)
        for micro in self._micro_batches(batch, batch.mask != 0):
            logits_MV = trainable_logits(model, micro, self._execution)
            filled[micro.tokens_M] = selected_logprobs(logits_MV, micro.targets_M).cpu().numpy()
        return filled

    def step(self, minibatch: Batch) -> dict[str, float]:
        """One optimiser update.

        A minibatch in which no token has a weight is a no-op that changes neither weights, moments nor schedule, and
        says so with `empty_steps` 1.

        Raises:
            FloatingPointError: the loss or a gradient is not finite; the weights are those before the step.
        """
        lr = self._optimizer.lr
        metrics = self.accumulate(minibatch)
        if not metrics["trained_tokens"]:
            return {**metrics, "lr": lr, "grad_norm": 0.0, "empty_steps": 1.0}
        grad_norm = self._clip()
        if not np.isfinite(grad_norm):
            self._optimizer.zero_grad()
            raise FloatingPointError(f"the gradient's norm is {grad_norm}; {_advice(minibatch)}")
        self._optimizer.step()
        return {**metrics, "lr": lr, "grad_norm": grad_norm, "empty_steps": 0.0}

    def accumulate(self, minibatch: Batch) -> dict[str, float]:
        """Set the parameters' gradients to those of the minibatch's loss, and return its metrics.

        `loss` and the algorithm's metrics are sums of the micro-batches' shares; `entropy` (nats) and
        `logprob_abs_diff_*` (recomputed against sampled logprobs, before the update; left out where no trained token
        was sampled) are over trained tokens.
        """
        weights_N = self.algorithm.token_weights(minibatch)
        if len(minibatch.advantages) != len(minibatch.ids):
            raise ValueError("the minibatch has no advantages: call algorithm.advantages(batch) first")
        self._optimizer.zero_grad()
        tally = _Tally()
        for micro in self._micro_batches(minibatch, weights_N != 0):
            logits_MV = trainable_logits(self.module, micro, self._execution)
            inputs = _loss_inputs(minibatch, micro, weights_N, selected_logprobs(logits_MV, micro.targets_M))
            output = self.algorithm.loss(inputs)
            if not torch.isfinite(output.loss):
                self._optimizer.zero_grad()
                raise FloatingPointError(
                    f"the loss is {output.loss.item()}; {_advice(minibatch.select(micro.samples))}"
                )
            output.loss.backward()  # type: ignore[no-untyped-call]
            tally.add(output.loss, output.metrics, inputs, entropies(logits_MV))
            tally.sampled = tally.sampled or bool((minibatch.versions[micro.tokens_M] >= 0).any())
        return tally.metrics()

    def export(self) -> Iterator[tuple[str, Tensor]]:
        """The live parameters under their Hugging Face names, tied ones once; no copies."""
        yield from self.module.named_parameters()

    def save(self, folder: Path) -> None:
        """Write weights, config, tokenizer and trainer state.

        Raises:
            OSError: the disk is full or refuses the write.
        """
        save_causal_lm(self.module, folder, tokenizer_from=self._tokenizer_from)
        state = {"format": _STATE_FORMAT, "optimizer": self._optimizer.state_dict(), "rng": torch.get_rng_state()}
        # By way of memory: a full disk under torch.save itself is a RuntimeError about its zip writer.
        buffer = io.BytesIO()
        torch.save(state, buffer)
        (folder / STATE_FILE).write_bytes(buffer.getbuffer())

    def load(self, folder: Path) -> None:
        """Take back weights (into the live model), optimiser, counters and PyTorch's random state.

        Raises:
            CheckpointError: a file is missing or broken, or it is of another model or optimiser.
        """
        state = _read_state(folder)
        try:
            weights = load_causal_lm(folder, dtype="float32").state_dict()
        except UsageError as error:
            raise CheckpointError(str(error)) from error
        try:
            self.module.load_state_dict(weights)
        except RuntimeError as error:
            raise CheckpointError(f"{folder} is a checkpoint of another model: {error}") from error
        self._optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])

    def _micro_batches(self, batch: Batch, trained_N: NDArray[np.bool_]) -> Iterator[MicroBatch]:
        return micro_batches(
            batch,
            trained_N,
            token_budget=self._execution.token_budget,
            packing=Packing(self._execution.packing),
            device=_device(self.module),
        )

    def _clip(self) -> float:
        limit = self._execution.max_grad_norm
        bound = float("inf") if limit is None else limit
        return float(torch.nn.utils.clip_grad_norm_(self.module.parameters(), bound))


class _Tally:
    """Sums over the micro-batches of one step."""

    def __init__(self) -> None:
        self._shares: defaultdict[str, float] = defaultdict(float)
        self._tokens = self._packs = 0
        self._entropy = self._gap = self._max_gap = 0.0
        self.sampled = False  # whether a token has a policy version: written ones have no logprob to compare with

    def add(self, loss: Tensor, shares: dict[str, Tensor], inputs: LossInputs, entropy_M: Tensor) -> None:
        self._packs += 1
        self._tokens += len(entropy_M)
        self._entropy += float(entropy_M.double().sum())
        self._shares["loss"] += float(loss.detach())
        for name, share in shares.items():
            self._shares[name] += float(share.detach())
        gap_M = (inputs.logprobs_M.detach() - inputs.rollout_logprobs_M).abs()
        self._gap += float(gap_M.double().sum())
        self._max_gap = max(self._max_gap, float(gap_M.max()))

    def metrics(self) -> dict[str, float]:
        tokens = max(1, self._tokens)
        found = {
            "loss": 0.0,
            **self._shares,
            "entropy": self._entropy / tokens,
            "trained_tokens": float(self._tokens),
            "packs": float(self._packs),
        }
        if self.sampled:
            found |= {"logprob_abs_diff_mean": self._gap / tokens, "logprob_abs_diff_max": self._max_gap}
        return found


def _loss_inputs(batch: Batch, micro: MicroBatch, weights_N: FloatArray, logprobs_M: Tensor) -> LossInputs:
    def column(values_N: FloatArray) -> Tensor:
        return torch.from_numpy(values_N[micro.tokens_M].astype(np.float32)).to(logprobs_M.device)

    def optional(values_N: FloatArray | None) -> Tensor | None:
        return None if values_N is None else column(values_N)

    return LossInputs(
        logprobs_M=logprobs_M,
        rollout_logprobs_M=column(batch.rollout_logprobs),
        advantages_M=column(batch.advantages),
        weights_M=column(weights_N),
        old_logprobs_M=optional(batch.old_logprobs),
        reference_logprobs_M=optional(batch.reference_logprobs),
        values_M=optional(batch.values),
    )


def _check_model(model: PreTrainedModel, execution: Execution) -> None:
    other = next((name for name, weight in model.named_parameters() if weight.dtype != torch.float32), None)
    if other is not None:
        raise UsageError(f"'{other}' is not float32: load the model with dtype=float32, also to train in bfloat16")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError("no parameter of the model requires a gradient")
    if execution.packing == Packing.PACKED:
        check_packing(model)


def _device(model: PreTrainedModel) -> torch.device:
    device: torch.device = next(model.parameters()).device
    return device


def _advice(batch: Batch) -> str:
    names = ", ".join(sorted(set(batch.trajectory_ids.tolist()))[:4])
    return f"the weights are unchanged. Trajectories concerned: {names}. A lower learning rate is the usual cure"


def _read_state(folder: Path) -> dict[str, Any]:
    file = folder / STATE_FILE
    if not file.is_file():
        raise CheckpointError(f"{folder} has no {STATE_FILE}: a model, but no checkpoint to go on from")
    try:
        state = torch.load(file, weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{file} is broken: {str(error).splitlines()[0]}") from error
    if not isinstance(state, dict) or state.get("format") != _STATE_FORMAT:
        raise CheckpointError(f"{file} is not of format {_STATE_FORMAT}, the only one read here")
    return state
