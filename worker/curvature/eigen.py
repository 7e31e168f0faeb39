"""Eigendecomposition of positive semi-definite matrices, built not to fail on the ones that occur in fitted
networks.

Bases may be thin: ``vectors`` is ``[D, r]`` with orthonormal columns, and the matrix is zero on the
    orthogonal complement. Dead
inputs (whole rows and columns of zeros: padding, dead units) therefore cost nothing, in time or in the stored
factor.
"""

from dataclasses import dataclass

import scipy.linalg
import torch
from torch import Tensor

from worker.curvature.errors import DecompositionError, NonFiniteError


@dataclass(frozen=True, eq=False)
class Eigenbasis:
    """``M = vectors · diag(values) · vectorsᵀ`` with ``vectors`` ``[D, r]`` (columns) and ``values`` ``[r]``,
    ascending, ≥ 0; or a stack of such bases along a first axis."""

    vectors: Tensor
    values: Tensor

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "Eigenbasis":
        return Eigenbasis(self.vectors.to(device, dtype), self.values.to(device, dtype))


def decompose(matrix: Tensor, name: str) -> Eigenbasis:
    """Eigenbasis of a symmetric positive semi-definite ``matrix`` ``[D, D]``, in float64 on the matrix's
    device.

    The input is symmetrised and freed of all-zero rows and columns first, because LAPACK's divide and conquer
    fails to converge on wide rank-deficient matrices; should it fail all the same, LAPACK's MRRR driver
    (``evr``) decides. Negative eigenvalues (rounding) become zero.

    Raises:
        NonFiniteError: the matrix holds NaN or infinity; the message gives ``name``.
        DecompositionError: both drivers failed.
    """
    matrix = matrix.double()
    _require_finite(matrix, name)
    alive = matrix.ne(0).any(dim=1) | matrix.ne(0).any(dim=0)
    kept = matrix[alive][:, alive]
    values, vectors = _eigh((kept + kept.mT) / 2, name)
    embedded = vectors.new_zeros(matrix.shape[0], vectors.shape[1])
    embedded[alive] = vectors
    return Eigenbasis(embedded, values.clamp_min(0))


def decompose_gram(rows: Tensor, name: str) -> Eigenbasis:
    """Eigenbasis of ``rowsᵀ rows`` for ``rows`` ``[N, D]`` with N < D, from the N×N Gram matrix: O(N²D)
    instead of O(D³).

    Directions whose eigenvalue is lost in the rounding of the Gram matrix are left out of the basis.
    """
    rows = rows.double()
    _require_finite(rows, name)
    values, vectors = _eigh(rows @ rows.mT, name)
    threshold = (
        values.amax() * rows.shape[0] * torch.finfo(values.dtype).eps if values.numel() else values.new_zeros(())
    )
    kept = values > threshold
    # One QR step, largest first, restores the orthogonality that small eigenvalues lose; R is diagonal up to rounding.
    basis, triangle = torch.linalg.qr((rows.mT @ vectors[:, kept]).flip(1))
    return Eigenbasis(basis.flip(1).contiguous(), triangle.diagonal().square().flip(0))


def decompose_each(matrices: Tensor, name: str) -> Eigenbasis:
    """Eigenbases of many small symmetric positive semi-definite ``matrices`` ``[G, D, D]``: vectors ``[G, D, D]``,
    values ``[G, D]``.

    Raises:
        NonFiniteError, DecompositionError: as :func:`decompose`.
    """
    matrices = matrices.double()
    _require_finite(matrices, name)
    values, vectors = _eigh((matrices + matrices.mT) / 2, name)
    return Eigenbasis(vectors, values.clamp_min(0))


def _require_finite(matrix: Tensor, name: str) -> None:
    if not bool(torch.isfinite(matrix).all()):
        raise NonFiniteError(f"the second moment of {name} holds NaN or infinite entries")


def _eigh(matrix: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of one matrix ``[D, D]`` or several ``[G, D, D]``."""
    if matrix.shape[-1] == 0:
        return matrix.new_zeros(matrix.shape[:-1]), torch.zeros_like(matrix)
    try:
        values, vectors = torch.linalg.eigh(matrix)
        if bool(torch.isfinite(values).all()) and bool(torch.isfinite(vectors).all()):
            return values, vectors
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # missing in torch's __all__
        pass
    if matrix.dim() == 3:
        each = [_evr(single, name) for single in matrix]
        return torch.stack([values for values, _ in each]), torch.stack([vectors for _, vectors in each])
    return _evr(matrix, name)


def _evr(matrix: Tensor, name: str) -> tuple[Tensor, Tensor]:
    try:
        arrays = scipy.linalg.eigh(matrix.cpu().numpy(), driver="evr", check_finite=False)
    except scipy.linalg.LinAlgError as error:
        raise DecompositionError(f"no eigensolver converged on the second moment of {name}: {error}") from error
    return torch.from_numpy(arrays[0]).to(matrix.device), torch.from_numpy(arrays[1]).to(matrix.device)
