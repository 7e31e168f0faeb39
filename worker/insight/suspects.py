"""Labels that are likely wrong: learned one by one if at all, while held-out rows speak against them.

A label's *self-influence* ``∇ℓᵀ (F + dI)⁻¹ ∇ℓ`` is how much its loss would rise, times ``n``, had it not been there.
It is ``(p − c)²`` times the *leverage* ``Jᵀ (F + dI)⁻¹ J`` of its logit: a wrong label that the model has learned by
heart shows no large residual, but a large leverage. Both are taken in the last layer, under EK-FAC. There the per-label
gradients ``e_j ⊗ φ_i`` factor, so that all leverages are one matrix product. Over all layers they cost ``k`` backward
passes per row and found no more of the planted labels: within a hundredth of the same precision, on a dozen nets.

Where much is learned by heart, residual and leverage fade alike. The *gain*, by how much the held-out loss would fall
were the label the other one (:func:`worker.insight.labels.flip_effects`), does not fade with the residual. Alone it
judges poorly where little is wrong. :func:`suspicion` joins the two.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from worker.curvature.blocks import LayerFactor

UNKNOWN = -1
GAIN_WEIGHT = 0.2
"""Of the gain's rank against that of self-influence. Of 10 % planted labels it finds one in a hundred more than the
loss where held-out labels are as wrong; where they are right, three, or ten in a net that had learned the wrong ones by
heart; of one label in 200, one or two in 48 more or less (docs/insights.md)."""


def leverages(head: LayerFactor, features: Tensor, damping: float) -> Tensor:
    """``J_ijᵀ (F + dI)⁻¹ J_ij`` in the head's parameters, ``[n, k]``, of logits ``z_ij = W_j φ_i + b_j``.

    With ``a = Q_Aᵀ [φ_i; 1]`` and ``s`` the ``j``-th row of ``Q_S`` it is ``Σ_uv s_u² a_v² / (Λ*_uv + d)``; where a
    basis is thin, ``F`` is 0 on its complement.

    Args:
        head: EK-FAC factor of the head.
        features: what the head sees, ``[n, d]``.
        damping: ``d > 0``.
    """
    basis = head.A.vectors
    inputs = features.to(basis)
    if head.parameters.bias is not None:
        inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)
    outside = 1 / damping
    inside = head.S.vectors.square() @ (1 / (head.corrected + damping) - outside)
    squares: Tensor = (inputs @ basis).square()
    return outside * inputs.square().sum(dim=1, keepdim=True) + squares @ inside.T


def self_influences(logits: Tensor, concepts: Tensor, leverage: Tensor) -> Tensor:
    """``(p − c)² · leverage``, ``[n, k]``; 0 for unknown labels."""
    residuals = torch.sigmoid(logits) - concepts.to(logits.dtype)
    return torch.where(concepts == UNKNOWN, 0.0, residuals.square() * leverage.to(logits.dtype))


def suspicion(self_influence: Tensor, gain: Tensor, concepts: Tensor, gain_weight: float = GAIN_WEIGHT) -> Tensor:
    """``1 / (rank_s · rank_g ^ weight)``, ``[n, k]``: 1 for a label that is first in both; 0 for unknown labels.

    Ranks, because the two have no common unit.

    Args:
        self_influence: ``[n, k]``.
        gain: fall of the held-out loss if the label were the other one, ``[n, k]``.
        concepts: the labels.
    """
    order = falling_ranks(self_influence).double() * falling_ranks(gain).double() ** gain_weight
    return torch.where(concepts == UNKNOWN, 0.0, 1 / order)


def falling_ranks(scores: Tensor) -> Tensor:
    """1 for the highest score, and so on; the shape of ``scores``, equal scores in their order."""
    order = scores.flatten().argsort(descending=True, stable=True)
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(1, len(order) + 1, device=order.device)
    return ranks.view(scores.shape)


def label_losses(logits: Tensor, concepts: Tensor) -> Tensor:
    """The loss of every label, ``[n, k]``, the ranking that both have to beat; 0 for unknown labels."""
    targets = concepts.clamp_min(0).to(logits.dtype)
    losses = binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return torch.where(concepts == UNKNOWN, 0.0, losses)


def precision_at(scores: Tensor, wrong: Tensor, m: int) -> float:
    """The share of truly wrong labels among the ``m`` of highest score; ``wrong`` is a mask like ``scores``."""
    return float(wrong.flatten()[scores.flatten().topk(m).indices].double().mean())
