"""Corrected eigenvalues: sums over samples of the squared entries of ``Q_Sᵀ G Q_A``, ``G = Σ_t s_t a_tᵀ``.

Three orders of the same contraction, chosen by cost per layer:

- *form*: the gradient ``G``, then its projection;
- *project*: ``s`` and ``a`` are projected, then the gradient is formed from them;
- *gram*: ``(Σ_t s_t a_t)² = Σ_tu (s_t s_u)(a_t a_u)`` from the projected ``s`` and ``a``, one large product that forms
  no gradient per sample at all. With ``|T| = 1`` that is a product of squares.

For ResNet-18's last block, and likewise between *project* and *gram* at four positions, they differ by a factor of ten.
"""

from typing import Literal

import torch
from torch import Tensor

CHUNK_ELEMENTS = 2**24
"""Intermediate results are kept below about this many numbers by working through the samples in chunks."""

CACHED_ELEMENTS = 2**20
"""The same for gradients per sample on a CPU, whose cache then holds them between being formed and being squared."""

TRAFFIC = 32
"""Cost of writing, squaring and summing one number in memory, in multiplications of a large matrix product. Measured on
a CPU with AVX-512: at 2, 4, 8 and 16 positions *gram* takes 0.1, 0.2, 0.6–1 and 1.6–3 of the time of *project*."""

Order = Literal["form", "project", "gram"]


def squared_projections(a: Tensor, s: list[Tensor], Q_A: Tensor, Q_S: Tensor) -> Tensor:
    """``Σ_n Σ_draws (Q_Sᵀ G_n Q_A)²``, elementwise square, ``[r_S, r_A]``.

    Args:
        a: patches ``[B, T, d_in]``.
        s: per draw the pre-activation gradients ``[B, T, d_out]``.
        Q_A: input basis ``[d_in, r_A]`` (columns).
        Q_S: gradient basis ``[d_out, r_S]`` (columns).
    """
    total = a.new_zeros(Q_S.shape[1], Q_A.shape[1])
    if not total.numel():
        return total
    order = cheapest_order(a.shape[1], Q_A, Q_S, draws=len(s))
    if order == "form":
        for gradient in s:
            _add_squares_of_projected_gradients(total, a, gradient, Q_A, Q_S)
        return total
    projected_a, projected_s = a @ Q_A, [gradient @ Q_S for gradient in s]
    if order == "gram":
        _add_gram_products(total, projected_a, projected_s)
    else:
        for gradient in projected_s:
            _add_squares(total, projected_a, gradient)
    return total


def squared_projections_of_groups(a: Tensor, s: list[Tensor], Q_A: Tensor, Q_S: Tensor) -> Tensor:
    """The same for each of ``G`` groups, ``[G, d_out, d_in]``; every argument has the groups before its last axis, or
    first in the bases: ``a`` ``[B, T, G, d_in]``, ``Q_A`` ``[G, d_in, d_in]``."""
    total = a.new_zeros(Q_S.shape[0], Q_S.shape[1], Q_A.shape[1])
    for gradient in s:
        for part in as_chunks(len(a), rows_per_chunk(total.numel())):
            gradients = gradient[part].permute(0, 2, 3, 1) @ a[part].transpose(1, 2)
            total += (Q_S.mT @ gradients @ Q_A).square_().sum(0)
    return total


def cheapest_order(positions: int, Q_A: Tensor, Q_S: Tensor, *, draws: int = 1) -> Order:
    """The order that costs least per sample, in multiplications."""
    (d_in, r_A), (d_out, r_S) = Q_A.shape, Q_S.shape
    projecting = positions * (d_in * r_A + draws * d_out * r_S)
    pairs = positions * (positions + 1) // 2
    costs: dict[Order, int] = {
        "form": draws * (positions * d_in * d_out + r_S * d_in * (d_out + r_A) + TRAFFIC * (d_out * d_in + r_S * r_A)),
        "project": projecting + draws * (positions + TRAFFIC) * r_S * r_A,
        "gram": projecting + pairs * (draws * r_S * r_A + TRAFFIC * (draws * r_S + r_A)),
    }
    return min(costs, key=lambda order: costs[order])


def _add_squares(total: Tensor, a: Tensor, s: Tensor) -> None:
    """``total += Σ_n (Σ_t s_nt a_ntᵀ)²`` for ``a`` ``[B, T, r_A]`` and ``s`` ``[B, T, r_S]``."""
    for part in as_chunks(len(a), _gradients_per_chunk(total.numel(), a)):
        total += (s[part].mT @ a[part]).square_().sum(0)


def _add_gram_products(total: Tensor, a: Tensor, s: list[Tensor]) -> None:
    """The same sum, over all draws, from the products of pairs of positions."""
    first, second = torch.triu_indices(a.shape[1], a.shape[1], device=a.device)
    often = (2 - (first == second).to(a.dtype))[:, None]  # a pair of different positions counts twice
    for part in as_chunks(len(a), rows_per_chunk(len(first) * (a.shape[2] + total.shape[0]))):
        of_a = (a[part, first] * a[part, second]).flatten(0, 1)
        for gradient in s:
            of_s = (gradient[part, first] * gradient[part, second]).mul_(often)
            total.addmm_(of_s.flatten(0, 1).mT, of_a)


def _add_squares_of_projected_gradients(total: Tensor, a: Tensor, s: Tensor, Q_A: Tensor, Q_S: Tensor) -> None:
    """The same with ``G`` formed first."""
    for part in as_chunks(len(a), _gradients_per_chunk(a.shape[2] * s.shape[2], a)):
        gradients = s[part].mT @ a[part]
        total += (Q_S.mT @ gradients @ Q_A).square_().sum(0)


def rows_per_chunk(elements_per_row: int) -> int:
    """Samples to unfold at once."""
    return max(1, CHUNK_ELEMENTS // max(1, elements_per_row))


def as_chunks(count: int, step: int) -> list[slice]:
    """Slices of at most ``step`` that cover ``range(count)``."""
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def _gradients_per_chunk(elements: int, like: Tensor) -> int:
    limit = min(CHUNK_ELEMENTS, CACHED_ELEMENTS) if like.device.type == "cpu" else CHUNK_ELEMENTS
    return max(1, limit // max(1, elements))
