"""Which training labels made the model what it is, measured by their influence on a target.

A label's loss ``ℓ_ij`` is one of the ``n`` rows' summed terms. Without it the objective would be ``J − ℓ_ij/n``, and
its minimiser, to first order, ``θ̂ + (1/n) (F + dI)⁻¹ ∇ℓ_ij``. So a target ``t`` has, for the label's being there,

    influence_ij = −(1/n) ∇tᵀ (F + dI)⁻¹ ∇ℓ_ij = −(1/n) (p_ij − c_ij) (J_i s)_j,    s = (F + dI)⁻¹ ∇t:

negative where the label lowers the target (helpful, when the target is a loss), positive where it raises it. One solve
gives ``s``; one forward-mode pass along ``s`` gives ``J_i s`` for every row and concept (Koh and Liang 2017, with the
solve on the target's side).
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from worker.cbm.arithmetic import batches
from worker.cbm.concept_predictor import ConceptPredictor
from worker.curvature import vectors
from worker.curvature.linearization import Linearization
from worker.curvature.vectors import ParameterMapping, ParameterVector
from worker.data.tensors import LabelledImages
from worker.editing.gradients import loss_gradient

UNKNOWN = -1


def mean_loss_gradient(model: ConceptPredictor, rows: LabelledImages) -> ParameterVector:
    """``∇t`` for ``t`` the mean concept loss of the rows, in eval mode."""
    return vectors.scale(1 / len(rows), loss_gradient(model, rows))


def slopes(
    model: ConceptPredictor,
    images: Tensor,
    direction: ParameterMapping,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Tensor, Tensor]:
    """Logits ``z`` and their slopes ``J s`` along a direction, both ``[n, k]``, by one forward-mode pass.

    Args:
        direction: with all of the model's trainable parameters.
        progress: called with (rows done, rows).
    """
    model = copy.deepcopy(model).eval()  # a linearisation wants a model of its own
    names = vectors.trainable(model)
    dtype = next(model.parameters()).dtype
    along = {name: direction[name].to(dtype) for name in names}
    logits, changes = [], []
    for part in batches(len(images), images.device):
        linearization = Linearization(model, images[part].to(dtype), names)
        logits.append(linearization.logits)
        changes.append(linearization.jvp(along))
        progress(min(part.stop, len(images)), len(images))
    return torch.cat(logits), torch.cat(changes)


def label_influences(logits: Tensor, changes: Tensor, concepts: Tensor) -> Tensor:
    """Influence of every label's being there on the target, ``[n, k]``; 0 for unknown labels.

    Args:
        logits: ``z`` of the ``n`` training rows.
        changes: ``J s`` of the same rows.
        concepts: their labels, 0, 1 or −1.
    """
    residuals = torch.sigmoid(logits.double()) - concepts.double()
    return torch.where(concepts == UNKNOWN, 0.0, -residuals * changes.double() / len(concepts))


def flip_effects(changes: Tensor, concepts: Tensor) -> Tensor:
    """Change of the target if each label were the other one, ``[n, k]``; 0 for unknown labels.

    The flip's gradient is ``(1/n) (c̃ − c) J_iᵀ e_j``: what the label itself says of its loss cancels.
    """
    turned = 1 - 2 * concepts.double()
    return torch.where(concepts == UNKNOWN, 0.0, turned * changes.double() / len(concepts))
