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


def sample_rows(rows: LabelledImages, size: int, seed: int) -> LabelledImages:
    """At most ``size`` of the rows, chosen by ``seed`` alone."""
    if len(rows) <= size:
        return rows
    generator = torch.Generator().manual_seed(seed)
    return rows.take(torch.randperm(len(rows), generator=generator)[:size].to(rows.sample_ids.device))


def mean_gradient(model: nn.Module, rows: LabelledImages) -> ParameterVector:
    """``(1/n) Σ_i ∇L_C`` over the given rows."""
    return vectors.scale(1 / len(rows), loss_gradient(model, rows))


def edit_gradient(model: nn.Module, data: EditedData, sample: Tensor) -> ParameterVector:
    """``u(θ̂)`` at the model's present parameters.

    With ``S`` the sums of per-sample gradients, ``n`` rows before and ``n'`` after,
    ``u = S_before/n − S_after/n' = (S_before − S_after)/n' − (n/n' − 1) S_before/n``. The first difference needs the
    touched rows only; the mean in the second is that of the sample, ``(n/n' − 1)`` being small. (At a stationary
    point ``S_before/n = −λθ``: the forms of the theorems.) Where concepts are dropped every row is touched, and the
    difference of the untouched ones is estimated on the sample.

    Args:
        sample: positions in ``data.after`` of untouched rows.
    """
    n, n_after = len(data.before), len(data.after)
    fixed_before = data.before.take(data.before_of(data.fixed))
    u = loss_gradient(model, data.before.take(data.removed).joined(fixed_before))
    u = vectors.axpy(-1.0, loss_gradient(model, data.after.take(torch.cat([data.fixed, data.added]))), u)
    sampled_before = data.before.take(data.before_of(sample))
    if data.dropped and len(sample):
        share = len(data.untouched) / len(sample)
        difference = vectors.axpy(
            -1.0, loss_gradient(model, data.after.take(sample)), loss_gradient(model, sampled_before)
        )
        u = vectors.axpy(share, difference, u)
    u = vectors.scale(1 / n_after, u)
    if n != n_after and len(sample):
        u = vectors.axpy(-(n / n_after - 1), mean_gradient(model, sampled_before), u)
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
