"""The edit gradient ``u(θ) = ∇J_before(θ̂) − ∇J_after(θ)``: one definition for every operation.

``J`` is the mean over samples of ``Σ_j m_j BCE(z_j, c_j)`` plus ``(λ/2)‖θ‖²``. The L2 terms cancel at ``θ = θ̂``. Sums
over rows that the edit leaves alone are estimated on a fixed sample of them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from worker.cbm.arithmetic import batches
from worker.cbm.training import concept_losses
from worker.curvature import vectors
from worker.curvature.vectors import ParameterVector
from worker.data.tensors import LabelledImages
from worker.editing.edited_data import UNKNOWN, EditedData


def loss_gradient(model: nn.Module, rows: LabelledImages) -> ParameterVector:
    """``Σ_i ∇L_C(z_i, c_i)`` over the given rows, in eval mode, for all trainable parameters.

    Losses and sums are at least in single precision, whatever the model's type.
    """
    return _gradient(model, rows.images, [(rows.concepts, _weights(1.0, len(rows), rows.images))])


def edit_gradient(model: nn.Module, data: EditedData, sample: Tensor) -> ParameterVector:
    """``u(θ̂)`` at the model's present parameters.

    With ``S`` sums of per-sample gradients, ``n`` rows before and ``n'`` after, ``u = S_before/n − S_after/n'``.
    Touched rows enter exactly. The untouched rows' part is ``(1/n − 1/n') S`` where no concept is dropped or new:
    small, and nothing at all where as many rows came as left. (At a stationary point ``S_before/n = −λθ``: the forms
    of the theorems.) Each row goes forward and backward once, with the difference of its two residuals.

    Args:
        sample: positions in ``data.after`` of untouched rows, which stand for all of them; exact if they are all.
    """
    n, n_after = len(data.before), len(data.after)
    if not (data.dropped or data.new or n != n_after):
        sample = sample[:0]
    shared = torch.cat([data.fixed, sample])
    leaving, staying, coming = data.before.take(data.removed), data.after.take(shared), data.after.take(data.added)
    unknown = [torch.full_like(rows.concepts, UNKNOWN) for rows in (leaving, coming)]
    labels_before = torch.cat([leaving.concepts, data.before.concepts[data.before_of(shared)], unknown[1]])
    labels_after = torch.cat([unknown[0], staying.concepts, coming.concepts])
    weights = _weights(1.0, len(labels_before), data.after.images)
    sampled = slice(len(leaving) + len(data.fixed), len(leaving) + len(shared))
    weights[sampled] = len(data.untouched) / max(1, len(sample))
    images = torch.cat([rows.images for rows in (leaving, staying, coming)])
    return _gradient(model, images, [(labels_before, weights / n), (labels_after, -weights / n_after)])


def after_gradient(model: nn.Module, data: EditedData, sample: Tensor, weight_decay: float) -> ParameterVector:
    """``∇J_after`` at the model's present parameters: touched rows exactly, the rest estimated on the sample."""
    touched = torch.cat([data.fixed, data.added])
    rows = data.after.take(torch.cat([touched, sample]))
    weights = _weights(1 / len(data.after), len(rows), rows.images)
    weights[len(touched) :] *= len(data.untouched) / max(1, len(sample))
    gradient = _gradient(model, rows.images, [(rows.concepts, weights)])
    own = dict(model.named_parameters())
    return {name: value + weight_decay * own[name].detach().to(value.dtype) for name, value in gradient.items()}


def objective_gradient_norm(model: nn.Module, rows: LabelledImages, weight_decay: float) -> float:
    """``‖∇J‖`` over the given rows."""
    everyone = torch.arange(len(rows), device=rows.images.device)
    return vectors.norm(after_gradient(model, EditedData(rows, rows), everyone, weight_decay))


def _weights(value: float, rows: int, images: Tensor) -> Tensor:
    return torch.full((rows,), value, dtype=torch.float64, device=images.device)


def _gradient(model: nn.Module, images: Tensor, objectives: list[tuple[Tensor, Tensor]]) -> ParameterVector:
    """``Σ_i Σ_o w_oi ∇L_C(z_i, c_oi)`` for objectives ``(c [n, k], w [n])``."""
    model.eval()
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    first = next(iter(parameters.values()))
    wide = torch.promote_types(first.dtype, torch.float32)
    total = {name: torch.zeros_like(value, dtype=wide) for name, value in parameters.items()}
    for part in batches(len(images), images.device):
        logits = model(images[part].to(first.dtype)).to(wide)
        losses = [(w[part].to(wide) * concept_losses(logits, labels[part])).sum() for labels, w in objectives]
        gradients = torch.autograd.grad(torch.stack(losses).sum(), list(parameters.values()))
        for name, gradient in zip(total, gradients, strict=True):
            total[name] += gradient
    return total
