"""Corrected eigenvalues: sums over samples of the squared entries of ``Q_Sᵀ G Q_A``, ``G = Σ_t s_t a_tᵀ``.

Three orders of the same contraction, chosen by cost per layer. For ResNet-18's last block they differ by a
factor of ten.
"""

from torch import Tensor

CHUNK_ELEMENTS = 2**24
"""Intermediate results are kept below about this many numbers by working through the samples in chunks."""


def squared_projections(a: Tensor, s: list[Tensor], Q_A: Tensor, Q_S: Tensor) -> Tensor:
    """``Σ_n Σ_draws (Q_Sᵀ G_n Q_A)²``, elementwise square, ``[r_S, r_A]``.

    Args:
        a: patches ``[B, T, d_in]``.
        s: per draw the pre-activation gradients ``[B, T, d_out]``.
        Q_A: input basis ``[d_in, r_A]`` (columns).
        Q_S: gradient basis ``[d_out, r_S]`` (columns).
    """
    total = a.new_zeros(Q_S.shape[1], Q_A.shape[1])
    if project_first(a.shape[1], Q_A, Q_S, draws=len(s)):
        projected_a = a @ Q_A
        for gradient in s:
            _add_squares(total, projected_a, gradient @ Q_S)
    else:
        for gradient in s:
            _add_squares_of_projected_gradients(total, a, gradient, Q_A, Q_S)
    return total


def project_first(positions: int, Q_A: Tensor, Q_S: Tensor, *, draws: int = 1) -> bool:
    """True where projecting a and s costs fewer multiplications per sample than forming G and projecting
    that."""
    (d_in, r_A), (d_out, r_S) = Q_A.shape, Q_S.shape
    projecting = positions * (d_in * r_A + draws * (d_out * r_S + r_S * r_A))
    forming = draws * (positions * d_in * d_out + r_S * d_out * d_in + r_S * d_in * r_A)
    return projecting <= forming


def _add_squares(total: Tensor, a: Tensor, s: Tensor) -> None:
    """``total += Σ_n (Σ_t s_nt a_ntᵀ)²`` for ``a`` ``[B, T, r_A]`` and ``s`` ``[B, T, r_S]``."""
    if a.shape[1] == 1:  # (s aᵀ)² = s² (a²)ᵀ: no gradient per sample is formed
        total.addmm_(s[:, 0].square().mT, a[:, 0].square())
        return
    step = max(1, CHUNK_ELEMENTS // total.numel()) if total.numel() else len(a)
    for start in range(0, len(a), step):
        gradients = s[start : start + step].mT @ a[start : start + step]
        total += gradients.square_().sum(0)


def _add_squares_of_projected_gradients(total: Tensor, a: Tensor, s: Tensor, Q_A: Tensor, Q_S: Tensor) -> None:
    """The same with ``G`` formed first."""
    step = max(1, CHUNK_ELEMENTS // max(1, a.shape[2] * s.shape[2]))
    for start in range(0, len(a), step):
        gradients = s[start : start + step].mT @ a[start : start + step]
        total += (Q_S.mT @ gradients @ Q_A).square_().sum(0)


def rows_per_chunk(elements_per_row: int) -> int:
    """Samples to unfold at once."""
    return max(1, CHUNK_ELEMENTS // max(1, elements_per_row))


def as_chunks(count: int, step: int) -> list[slice]:
    """Slices of at most ``step`` that cover ``range(count)``."""
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]
