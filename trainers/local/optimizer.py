"""The optimisers behind one step, and the schedule that sets their rates."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from miles_agents.errors import CheckpointError
from miles_agents.trainers.local.settings import OptimizerName, OptimizerSettings


class ScheduledOptimizer:
    """One or two torch optimisers stepped together.

    Rates are a function of `updates` alone, so that nothing but this counter and the moments is needed to go on.
    """

    def __init__(self, model: PreTrainedModel, settings: OptimizerSettings) -> None:
        self._settings = settings
        self.updates = 0  # applied so far
        matrices, rest = _split_parameters(model, settings)
        self._optimizers: list[torch.optim.Optimizer] = [_adamw(rest, settings)]
        if matrices:
            muon = torch.optim.Muon(
                matrices,
                lr=settings.muon_lr,
                momentum=settings.muon_momentum,
                weight_decay=settings.muon_weight_decay,
            )
            self._optimizers.append(muon)
        self._rates = [[float(group["lr"]) for group in optimizer.param_groups] for optimizer in self._optimizers]

    @property
    def lr(self) -> float:
        """AdamW's rate in the next update."""
        return self._settings.lr * self._settings.lr_factor(self.updates)

    def step(self) -> None:
        """Apply one update with the scheduled rates and clear the gradients."""
        factor = self._settings.lr_factor(self.updates)
        for optimizer, rates in zip(self._optimizers, self._rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimizer.step()
        self.zero_grad()
        self.updates += 1

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Everything the next update depends on beside weights, gradients and settings."""
        return {"updates": self.updates, "optimizers": [optimizer.state_dict() for optimizer in self._optimizers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave. Settings are not taken back: a resumed run may change its rates.

        Raises:
            CheckpointError: it is the state of another optimiser or another model.
        """
        states = state["optimizers"]
        if len(states) != len(self._optimizers):
            raise CheckpointError(
                f"the checkpoint has {len(states)} optimisers, {self._settings.name} has another number"
            )
        for optimizer, saved in zip(self._optimizers, states, strict=True):
            groups = [{**group, "params": old["params"]} for group, old in _paired(optimizer, saved)]
            try:
                optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})
            except ValueError as error:
                raise CheckpointError(f"the checkpoint's optimiser is of another model: {error}") from error
        self.updates = int(state["updates"])


def _paired(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    own, old = optimizer.param_groups, saved["param_groups"]
    if len(own) != len(old):
        raise CheckpointError(f"the checkpoint's optimiser has {len(old)} parameter groups, this one {len(own)}")
    return list(zip(own, old, strict=True))


def _split_parameters(
    model: PreTrainedModel, settings: OptimizerSettings
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Muon's parameters and AdamW's."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if settings.name == OptimizerName.ADAMW:
        return [], parameters
    ends = [module.weight for module in (model.get_input_embeddings(), model.get_output_embeddings()) if module]
    matrices = [p for p in parameters if p.dim() == 2 and not any(p is end for end in ends)]
    return matrices, [p for p in parameters if not any(p is matrix for matrix in matrices)]


def _adamw(parameters: list[nn.Parameter], settings: OptimizerSettings) -> torch.optim.AdamW:
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        fused=True,
    )
