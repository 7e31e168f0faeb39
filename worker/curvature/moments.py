"""Sums with counts. Partial fits over disjoint rows add up to the fit over all of them, in any order."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from worker.curvature.eigen import Eigenbasis, decompose, decompose_gram


class Summable(Protocol):
    """What :class:`Moments` can hold: tensors and :class:`SecondMoment`."""

    def __add__(self, other: Self, /) -> Self: ...


T = TypeVar("T", bound=Summable)


@dataclass(frozen=True, eq=False)
class Moments(Generic[T]):
    """Named sums over ``count`` samples."""

    count: int
    sums: Mapping[str, T]

    def __add__(self, other: "Moments[T]") -> "Moments[T]":
        """The sums over both sets of samples; raises ``ValueError`` if they are not sums of the same
        quantities."""
        if self.sums.keys() != other.sums.keys():
            raise ValueError(f"moments differ in {', '.join(sorted(self.sums.keys() ^ other.sums.keys()))}")
        sums = {name: value + other.sums[name] for name, value in self.sums.items()}
        return Moments(self.count + other.count, sums)


@dataclass(eq=False)
class SecondMoment:
    """``Σ_r r rᵀ`` over rows of length ``width``.

    While there are fewer rows than the width the rows themselves are kept, which takes less memory and allows
    the eigenbasis to come from the small Gram matrix; from then on only the ``[width, width]`` sum is.
    """

    width: int
    rows: list[Tensor] = field(default_factory=list)
    total: Tensor | None = None

    def add_rows(self, rows: Tensor) -> None:
        """Add the rows ``[N, width]`` in place."""
        if self.total is None and self._held() + rows.shape[0] < self.width:
            self.rows.append(rows)
            return
        if self.total is None:
            self.total = rows.new_zeros(self.width, self.width)
            for held in self.rows:
                self.total.addmm_(held.mT, held)
            self.rows = []
        self.total.addmm_(rows.mT, rows)

    def __add__(self, other: "SecondMoment") -> "SecondMoment":
        if self.width != other.width:
            raise ValueError(f"second moments of widths {self.width} and {other.width} do not add")
        result = SecondMoment(self.width, list(self.rows), None if self.total is None else self.total.clone())
        for rows in other.rows:
            result.add_rows(rows)
        if other.total is not None:
            result = SecondMoment(self.width, [], result.matrix().to(other.total) + other.total)
        return result

    def matrix(self) -> Tensor:
        """The sum, ``[width, width]``."""
        if self.total is not None:
            return self.total
        if not self.rows:
            return torch.zeros(self.width, self.width)
        rows = torch.cat(self.rows)
        return rows.mT @ rows

    def decompose(self, count: int, name: str) -> Eigenbasis:
        """Eigenbasis of the mean ``matrix() / count``; ``name`` is for error messages."""
        if self.total is None and self.rows:
            return decompose_gram(torch.cat(self.rows) / count**0.5, name)
        return decompose(self.matrix() / count, name)

    def _held(self) -> int:
        return sum(rows.shape[0] for rows in self.rows)
