"""The inverse and the product of the fitted curvature, damped."""

import math
from collections.abc import Callable

from torch import Tensor

from worker.curvature.factors import Factors, block_names
from worker.curvature.vectors import ParameterMapping, ParameterVector


class EKFAC:
    """``F + damping·I`` with ``F`` block-diagonal over the covered layers.

    Its domain are the covered parameters. A vector may hold any whole layers of them; an entry that no factor
    covers raises ``ValueError``, because neither leaving it (a step that forgets a parameter) nor dividing by
    the damping (a step of the size of a flat direction, for one of unknown curvature) would be right.

    Args:
        factors: fitted factors, on the vectors' device and in their floating type.
        damping: > 0, in units of the mean per-sample curvature (section 1 of the engine's conventions).
    """

    def __init__(self, factors: Factors, damping: float) -> None:
        if not (damping > 0 and math.isfinite(damping)):
            raise ValueError(f"damping must be positive and finite, not {damping}")
        self.factors = factors
        self.damping = damping

    def solve(self, vector: ParameterMapping) -> ParameterVector:
        """``(F + dI)⁻¹ v``: per layer ``Q_S [ (Q_Sᵀ V Q_A) / (Λ* + d) ] Q_Aᵀ``."""
        return self._apply(lambda eigenvalues: 1 / (eigenvalues + self.damping), vector)

    def matmul(self, vector: ParameterMapping) -> ParameterVector:
        """``(F + dI) v``."""
        return self._apply(lambda eigenvalues: eigenvalues + self.damping, vector)

    def _apply(self, function: Callable[[Tensor], Tensor], vector: ParameterMapping) -> ParameterVector:
        if foreign := vector.keys() - set(self.factors.parameter_names):
            raise ValueError(f"no curvature factor covers {', '.join(sorted(foreign))}")
        result: ParameterVector = {}
        for block in self.factors.blocks:
            present = [name for name in block_names(block) if name in vector]
            if not present:
                continue
            if len(present) != len(block_names(block)):
                raise ValueError(f"{block.name} needs all of {', '.join(block_names(block))}")
            result |= block.apply(function, vector)
        return {name: result[name] for name in vector}
