"""One layer's share of a fitted curvature, and functions of it.

Every kind of block is a matrix ``F`` known through an eigenbasis, so that any ``f(F)`` costs two changes of
basis. Where the basis is thin, ``F`` is zero on its complement and ``f(F)`` is ``f(0)`` there.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.curvature.eigen import Eigenbasis
from worker.curvature.layers import JointMatrix
from worker.curvature.vectors import ParameterMapping, ParameterVector

SpectralFunction = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class LayerFactor:
    """Eigenvalue-corrected Kronecker factor of a Linear or Conv2d (George et al. 2018).

    ``F ≈ (Q_S ⊗ Q_A) diag(Λ*) (Q_S ⊗ Q_A)ᵀ`` on the joint matrix ``[W | b]``.

    Attributes:
        name: qualified name of the layer.
        parameters: names and shape of its parameters.
        A: eigenbasis of ``E[Σ_t a_t a_tᵀ]``; vectors ``Q_A`` ``[d_in, r_A]``.
        S: eigenbasis of ``E[(1/|T|) Σ_t s_t s_tᵀ]``; vectors ``Q_S`` ``[d_out, r_S]``.
        corrected: ``Λ* = E[(Q_Sᵀ G Q_A)²]``, ``[r_S, r_A]``. The outer product of ``S.values`` and
            ``A.values`` in its place is the uncorrected K-FAC.
    """

    name: str
    parameters: JointMatrix
    A: Eigenbasis
    S: Eigenbasis
    corrected: Tensor

    def apply(self, function: SpectralFunction, vector: ParameterMapping) -> ParameterVector:
        """``f(F) v`` for the layer's entries of ``vector``; ``function`` acts elementwise on eigenvalues."""
        V = self.parameters.join(vector)
        coefficients = self.S.vectors.mT @ V @ self.A.vectors
        d_out, d_in = self.parameters.shape
        if self.corrected.shape == (d_out, d_in):
            result = self.S.vectors @ (function(self.corrected) * coefficients) @ self.A.vectors.mT
        else:
            at_zero = function(self.corrected.new_zeros(()))
            change = (function(self.corrected) - at_zero) * coefficients
            result = at_zero * V + self.S.vectors @ change @ self.A.vectors.mT
        return self.parameters.split(result)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "LayerFactor":
        return LayerFactor(
            self.name,
            self.parameters,
            self.A.to(device, dtype),
            self.S.to(device, dtype),
            self.corrected.to(device, dtype),
        )


@dataclass(frozen=True, eq=False)
class GroupedFactor:
    """The factors of a Conv2d with ``G`` groups: one eigenvalue-corrected Kronecker factor per group, zero between
    groups.

    Where a group has one output, ``A`` is the eigenbasis of the group's gradients ``E[g gᵀ]`` instead of its
    patches, which makes the group's block exact.

    Attributes:
        name: qualified name of the layer.
        parameters: names and shape of its parameters.
        A: vectors ``[G, d_in, d_in]``, values ``[G, d_in]``.
        S: vectors ``[G, d_out, d_out]``, values ``[G, d_out]``; ``d_out`` is that of one group.
        corrected: ``Λ*``, ``[G, d_out, d_in]``.
    """

    name: str
    parameters: JointMatrix
    A: Eigenbasis
    S: Eigenbasis
    corrected: Tensor

    def apply(self, function: SpectralFunction, vector: ParameterMapping) -> ParameterVector:
        """``f(F) v`` for the layer's entries of ``vector``."""
        V = self.parameters.join(vector).view(self.corrected.shape)
        coefficients = self.S.vectors.mT @ V @ self.A.vectors
        result = self.S.vectors @ (function(self.corrected) * coefficients) @ self.A.vectors.mT
        return self.parameters.split(result.flatten(0, 1))

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "GroupedFactor":
        return GroupedFactor(
            self.name,
            self.parameters,
            self.A.to(device, dtype),
            self.S.to(device, dtype),
            self.corrected.to(device, dtype),
        )


@dataclass(frozen=True, eq=False)
class NormFactor:
    """Exact block of a BatchNorm's (scale, shift): the eigenbasis of ``E[g gᵀ]`` with ``g`` ``[2C]`` the
    gradient per sample."""

    name: str
    weight: str
    bias: str
    block: Eigenbasis

    def apply(self, function: SpectralFunction, vector: ParameterMapping) -> ParameterVector:
        """``f(F) v`` for the layer's entries of ``vector``."""
        v = torch.cat([vector[self.weight], vector[self.bias]])
        coefficients = self.block.vectors.mT @ v
        at_zero = function(self.block.values.new_zeros(()))
        result = at_zero * v + self.block.vectors @ ((function(self.block.values) - at_zero) * coefficients)
        scale, shift = result.chunk(2)
        return {self.weight: scale, self.bias: shift}

    @property
    def names(self) -> tuple[str, str]:
        return self.weight, self.bias

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "NormFactor":
        return NormFactor(self.name, self.weight, self.bias, self.block.to(device, dtype))
