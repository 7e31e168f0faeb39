"""The edit gradient ``u(θ) = ∇J_before(θ̂) − ∇J_after(θ)``: one definition for every operation.

``J`` is the mean over samples of ``Σ_j m_j BCE(z_j, c_j)`` plus ``(λ/2)‖θ‖²``. The L2 terms cancel at ``θ = θ̂``. Sums
over rows that the edit leaves alone are estimated on a fixed sample of them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from worker.cbm.training import concept_losses
from worker.curvature import vectors
from worker.curvature.vectors import ParameterVector
from worker.data.tensors import LabelledImages
from worker.editing.edited_data import EditedData


def loss_gradient(model: nn.Module, rows: LabelledImages, batch_size: int = 256) -> ParameterVector:
    """``Σ_i ∇L_C(z_i, c_i)`` over the given rows, in eval mode, for all trainable parameters."""
    model.eval()
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    total = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for images, concepts in rows.batches(batch_size):
        loss = concept_losses(model(images), concepts).sum()
        for name, gradient in zip(total, torch.autograd.grad(loss, list(parameters.values())), strict=True):
            total[name] += gradient
    return total


def edit_gradient(model: nn.Module, data: EditedData, sample: Tensor) -> ParameterVector:
    """``u(θ̂)`` at the model's present parameters.

    With ``S`` sums of per-sample gradients, ``n`` rows before and ``n'`` after, ``u = S_before/n − S_after/n'``.
    Touched rows enter exactly. The untouched rows' part is ``(1/n − 1/n') S`` where no concept is dropped or new:
    small, and nothing at all where as many rows came as left. (At a stationary point ``S_before/n = −λθ``: the forms
    of the theorems.)

    Args:
        sample: positions in ``data.after`` of untouched rows, which stand for all of them; exact if they are all.
    """
    n, n_after = len(data.before), len(data.after)
    leaving = data.before.take(torch.cat([data.removed, data.before_of(data.fixed)]))
    coming = data.after.take(torch.cat([data.fixed, data.added]))
    u = vectors.scale(1 / n, loss_gradient(model, leaving))
    u = vectors.axpy(-1 / n_after, loss_gradient(model, coming), u)
    if not len(sample):
        return u
    share = len(data.untouched) / len(sample)
    as_before = data.before.take(data.before_of(sample))
    if data.dropped or data.new:
        u = vectors.axpy(share / n, loss_gradient(model, as_before), u)
        u = vectors.axpy(-share / n_after, loss_gradient(model, data.after.take(sample)), u)
    elif n != n_after:
        u = vectors.axpy(share * (1 / n - 1 / n_after), loss_gradient(model, as_before), u)
    return u


def after_gradient(model: nn.Module, data: EditedData, sample: Tensor, weight_decay: float) -> ParameterVector:
    """``∇J_after`` at the model's present parameters: touched rows exactly, the rest estimated on the sample."""
    touched = data.after.take(torch.cat([data.fixed, data.added]))
    total = loss_gradient(model, touched)
    if len(sample):
        share = len(data.untouched) / len(sample)
        total = vectors.axpy(share, loss_gradient(model, data.after.take(sample)), total)
    total = vectors.scale(1 / len(data.after), total)
    return vectors.axpy(weight_decay, vectors.from_parameters(model), total)
