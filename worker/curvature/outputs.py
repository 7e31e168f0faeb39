"""The loss at the logits: its curvature, and labels drawn from the model's own distribution.

For the concept loss ``Σ_j m_j BCE(z_j, c_j)`` the Hessian in the logits is ``diag(m_j p_j (1 − p_j))`` with
``p = σ(z)``, which is also the covariance of the gradient ``m_j (p_j − c_j)`` when ``c_j ~ Bernoulli(p_j)``:
Gauss-Newton and Fisher agree.
"""

from collections.abc import Callable

import torch
from torch import Tensor

OutputCurvature = Callable[[Tensor], Tensor]
"""Maps logits ``[B, k]`` to the diagonal ``[B, k]`` of the loss Hessian in the logits, before masking."""

# SplitMix64 (Steele, Lea, Flood 2014), as signed 64-bit integers because torch has no full unsigned arithmetic.
_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB


def bernoulli_variance(logits: Tensor) -> Tensor:
    """``p (1 − p)``, the curvature of binary cross-entropy with logits."""
    probabilities = logits.sigmoid()
    return probabilities * (1 - probabilities)


def masked_curvature(logits: Tensor, mask: Tensor | None, curvature: OutputCurvature) -> Tensor:
    """``m ⊙ curvature(logits)``, shape ``[B, k]``; ``mask`` is ``[B, k]``, ``[k]`` or None (all known)."""
    diagonal = curvature(logits)
    return diagonal if mask is None else diagonal * mask.to(diagonal)


def sampled_residual(logits: Tensor, mask: Tensor | None, rows: Tensor, *, seed: int, draw: int) -> Tensor:
    """``m ⊙ (p − y)`` with ``y ~ Bernoulli(p)``: the gradient of the concept loss under labels of the model,
    ``[B, k]``.

    The draw depends on ``seed``, ``draw``, the row's global index in ``rows`` ``[B]`` and the concept alone,
    hence not on batch size, order, partition or device.
    """
    probabilities = logits.sigmoid()
    labels = uniforms(rows.to(logits.device), logits.shape[1], seed=seed, draw=draw) < probabilities
    residual = probabilities - labels.to(probabilities)
    return residual if mask is None else residual * mask.to(residual)


def uniforms(rows: Tensor, columns: int, *, seed: int, draw: int) -> Tensor:
    """Independent uniforms in ``[0, 1)``, float64 ``[B, columns]``: a counter-based generator keyed by every
    argument."""
    key = _mix(torch.tensor(_signed(seed), dtype=torch.int64, device=rows.device) + _signed(_GAMMA))
    key = _mix(key + _signed((draw + 1) * _GAMMA))
    per_row = _mix(key + (rows.to(torch.int64) + 1) * _signed(_GAMMA))
    column = torch.arange(1, columns + 1, dtype=torch.int64, device=rows.device) * _signed(_GAMMA)
    bits = _shift_right(_mix(per_row[:, None] + column[None, :]), 11)
    return bits.to(torch.float64) * 2.0**-53


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """Logical shift: ``>>`` on int64 copies the sign bit."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix(value: Tensor) -> Tensor:
    value = (value ^ _shift_right(value, 30)) * _signed(_MULTIPLIER_1)
    value = (value ^ _shift_right(value, 27)) * _signed(_MULTIPLIER_2)
    return value ^ _shift_right(value, 31)
