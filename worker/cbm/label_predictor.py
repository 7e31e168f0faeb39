"""The label predictor ``f``: softmax regression on concept probabilities, converged by Newton-CG.

The objective over ``n`` rows is ``(1/n) Σ_i CE(W p_i + b, y_i) + (λ/2)(‖W‖² + ‖b‖²)``: strictly convex for ``λ > 0``,
so its minimiser does not depend on where a solver starts. Everything is float64.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LabelPredictor:
    """Weights ``[classes, k]`` and bias ``[classes]`` of the linear softmax on concept probabilities."""

    weight: Tensor
    bias: Tensor

    def logits(self, probabilities: Tensor) -> Tensor:
        """Class logits ``[B, classes]`` of concept probabilities ``[B, k]``."""
        return probabilities.to(self.weight.dtype) @ self.weight.T + self.bias

    @staticmethod
    def zeros(num_classes: int, num_concepts: int, device: torch.device | str = "cpu") -> LabelPredictor:
        weight = torch.zeros(num_classes, num_concepts, dtype=torch.float64, device=device)
        return LabelPredictor(weight, weight.new_zeros(num_classes))

    def without_concepts(self, dropped: list[int]) -> LabelPredictor:
        """The same predictor without the columns of the dropped concepts."""
        kept = [j for j in range(self.weight.shape[1]) if j not in set(dropped)]
        return LabelPredictor(self.weight[:, kept].clone(), self.bias.clone())


class LabelObjective:
    """Value, gradient and Hessian products of the objective; parameters are ``[classes, k + 1]`` (bias last).

    Args:
        probabilities: ``[n, k]``, values in [0, 1].
        classes: ``[n]`` integer labels.
        num_classes: number of classes.
        weight_decay: ``λ``.
    """

    def __init__(self, probabilities: Tensor, classes: Tensor, num_classes: int, weight_decay: float) -> None:
        inputs = probabilities.to(torch.float64)
        self.inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)
        self.targets = torch.nn.functional.one_hot(classes.long(), num_classes).to(torch.float64)
        self.weight_decay = weight_decay

    def value(self, theta: Tensor) -> Tensor:
        logits = self.inputs @ theta.T
        loss = torch.logsumexp(logits, dim=1) - (logits * self.targets).sum(dim=1)
        return loss.mean() + 0.5 * self.weight_decay * theta.square().sum()

    def posterior(self, theta: Tensor) -> Tensor:
        """Class probabilities ``[n, classes]``."""
        return torch.softmax(self.inputs @ theta.T, dim=1)

    def gradient(self, theta: Tensor, posterior: Tensor | None = None) -> Tensor:
        posterior = self.posterior(theta) if posterior is None else posterior
        return (posterior - self.targets).T @ self.inputs / len(self.inputs) + self.weight_decay * theta

    def hessian_product(self, posterior: Tensor, direction: Tensor) -> Tensor:
        """``H v`` with ``H = (1/n) Σ_i (diag(π_i) − π_i π_iᵀ) ⊗ x_i x_iᵀ + λI``."""
        change = self.inputs @ direction.T
        curved = posterior * (change - (posterior * change).sum(dim=1, keepdim=True))
        return curved.T @ self.inputs / len(self.inputs) + self.weight_decay * direction

    def newton_direction(self, gradient: Tensor, posterior: Tensor, tolerance: float) -> Tensor:
        """``H⁻¹ gradient`` by conjugate gradients, to a residual of ``tolerance · ‖gradient‖``."""
        solution = torch.zeros_like(gradient)
        residual = gradient.clone()
        direction = residual.clone()
        energy = residual.square().sum()
        target = tolerance**2 * energy
        for _ in range(10 * gradient.numel()):
            if energy <= target:
                break
            product = self.hessian_product(posterior, direction)
            step = energy / (direction * product).sum()
            solution += step * direction
            residual -= step * product
            energy, previous = residual.square().sum(), energy
            direction = residual + (energy / previous) * direction
        return solution


def fit_label_predictor(
    probabilities: Tensor,
    classes: Tensor,
    num_classes: int,
    *,
    weight_decay: float,
    start: LabelPredictor | None = None,
    tolerance: float = 1e-8,
    max_iterations: int = 100,
) -> LabelPredictor:
    """The minimiser of the objective, by Newton's method with backtracking, warm-started from ``start``.

    Stops when the gradient's largest entry is at most ``tolerance``.

    Raises:
        ValueError: ``weight_decay`` is not positive, so there may be no minimiser.
        RuntimeError: not converged within ``max_iterations``.
    """
    if weight_decay <= 0:
        raise ValueError("the label predictor needs a positive weight decay")
    objective = LabelObjective(probabilities, classes, num_classes, weight_decay)
    start = start or LabelPredictor.zeros(num_classes, probabilities.shape[1], probabilities.device)
    theta = torch.cat([start.weight, start.bias[:, None]], dim=1).to(torch.float64)
    value = objective.value(theta)
    for _ in range(max_iterations):
        posterior = objective.posterior(theta)
        gradient = objective.gradient(theta, posterior)
        size = float(gradient.abs().max())
        if size <= tolerance:
            return LabelPredictor(theta[:, :-1].clone(), theta[:, -1].clone())
        # A looser solve far away and a tighter one near the end keeps Newton superlinear at less cost.
        direction = objective.newton_direction(gradient, posterior, tolerance=min(0.1, size**0.5))
        slope = float((gradient * direction).sum())
        length = 1.0
        while float(objective.value(theta - length * direction)) > float(value) - 1e-4 * length * slope:
            length /= 2
            if length < 1e-10:  # round-off: the value cannot fall measurably any more
                return LabelPredictor(theta[:, :-1].clone(), theta[:, -1].clone())
        theta = theta - length * direction
        value = objective.value(theta)
    raise RuntimeError(f"label predictor: no convergence in {max_iterations} Newton iterations")


def closed_form_edit(
    start: LabelPredictor,
    *,
    before: tuple[Tensor, Tensor],
    intermediate: Tensor,
    after: tuple[Tensor, Tensor],
    weight_decay: float,
    dropped: Collection[int] = (),
) -> LabelPredictor:
    """The paper's two Newton steps, with exact Hessians: first the rows change (``A``), then the concepts (``B``).

    With ``J_D,g`` the objective on data ``D`` under concept predictor ``g``:
    ``f* = f̂ + H⁻¹ (∇J_before,ĝ(f̂) − ∇J_after,ĝ(f̂))``, then ``f = f* − H*⁻¹ (∇J_after,ḡ(f*) − ∇J_after,ĝ(f*))``
    (theorems on ``f`` for labels, removal and addition). Dropped concepts leave with the rows' change: their columns
    are deleted, and what they carried is in the gradient of ``J_after``, which no longer vanishes without them.

    Args:
        start: ``f̂``, with all ``k`` columns.
        before: probabilities ``[n, k]`` under ``ĝ`` and classes ``[n]`` of the rows before.
        intermediate: probabilities ``[n', k']`` of the kept concepts of the rows after, under ``ĝ``.
        after: probabilities ``[n', k']`` under the edited ``ḡ`` and classes ``[n']``.
        weight_decay: ``λ``.
        dropped: the ``k − k'`` columns that are deleted.
    """
    num_classes = len(start.bias)
    kept = [j for j in range(before[0].shape[1]) if j not in set(dropped)]
    old = LabelObjective(before[0][:, kept], before[1], num_classes, weight_decay)
    rows_changed = LabelObjective(intermediate, after[1], num_classes, weight_decay)
    concepts_changed = LabelObjective(*after, num_classes, weight_decay)
    theta = torch.cat([start.weight, start.bias[:, None]], dim=1).to(torch.float64)
    unfinished = LabelObjective(*before, num_classes, weight_decay).gradient(theta)
    theta, unfinished = theta[:, [*kept, -1]], unfinished[:, [*kept, -1]]
    change = unfinished - rows_changed.gradient(theta)
    theta = theta + old.newton_direction(change, old.posterior(theta), tolerance=1e-10)
    change = concepts_changed.gradient(theta) - rows_changed.gradient(theta)
    theta = theta - rows_changed.newton_direction(change, rows_changed.posterior(theta), tolerance=1e-10)
    return LabelPredictor(theta[:, :-1].clone(), theta[:, -1].clone())
