"""Replacing all weights of a model at once, checked completely before the first byte changes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from miles_agents.errors import WeightSyncError, did_you_mean


def replace_weights(module: nn.Module, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Copy `tensors` (Hugging Face names) into `module`, converting between floating-point widths.

    Every parameter must be given under one of its names (tied weights have several); persistent buffers may be.

    Raises:
        WeightSyncError: a name is unknown, missing or given twice, a shape or kind of dtype differs, or two names of
            one tied weight bring different values. Nothing was changed then.
    """
    targets: dict[str, Tensor] = module.state_dict()
    given: dict[str, Tensor] = {}
    for name, tensor in tensors:
        if name in given:
            raise WeightSyncError(f"weight '{name}' was sent twice")
        _check(name, tensor, targets)
        given[name] = tensor
    required = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    for names in _tied(targets):
        sent = [name for name in names if name in given]
        if not sent and required.intersection(names):
            raise WeightSyncError(f"weight '{names[0]}' was not sent ({len(given)} others were)")
        for other in sent[1:]:
            if not torch.equal(given[sent[0]], given[other]):
                raise WeightSyncError(f"weights '{sent[0]}' and '{other}' are tied here but were sent with two values")
    with torch.no_grad():
        for name, tensor in given.items():
            targets[name].copy_(tensor)


def _check(name: str, tensor: Tensor, targets: dict[str, Tensor]) -> None:
    target = targets.get(name)
    if target is None:
        raise WeightSyncError(f"weight '{name}' is unknown to the engine's model. {did_you_mean(name, targets)}")
    if tensor.shape != target.shape:
        raise WeightSyncError(
            f"weight '{name}' was sent with shape {tuple(tensor.shape)}; the engine's is {tuple(target.shape)}"
        )
    if tensor.dtype != target.dtype and not (tensor.is_floating_point() and target.is_floating_point()):
        raise WeightSyncError(f"weight '{name}' was sent as {tensor.dtype}; the engine's is {target.dtype}")


def _tied(targets: dict[str, Tensor]) -> list[list[str]]:
    groups: dict[tuple[int, torch.Size], list[str]] = {}
    for name, tensor in targets.items():
        groups.setdefault((tensor.data_ptr(), tensor.shape), []).append(name)
    return list(groups.values())
