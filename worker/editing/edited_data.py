"""The training rows before and after an edit, in one frame: which rows left, came, or changed their labels.

Both sides have the base version's concept columns and then the new ones. A dropped concept is unknown (−1) after the
edit, and a new one before it, so masks in loss, residual and curvature do all that dropping and adding mean; the head
gains rows at the start and loses rows at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from worker.data.tensors import LabelledImages

UNKNOWN = -1


@dataclass(frozen=True)
class EditedData:
    """Attributes:
    before: the training rows the base version was trained on.
    after: the training rows of the edited data set.
    dropped: concept columns that the edit drops.
    new: concept columns that the edit adds, the last ones.
    """

    before: LabelledImages
    after: LabelledImages
    dropped: tuple[int, ...] = ()
    new: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.new and bool((self.before.concepts[:, list(self.new)] != UNKNOWN).any()):
            raise ValueError("new concepts must be unknown before the edit")
        if self.dropped and bool((self.after.concepts[:, list(self.dropped)] != UNKNOWN).any()):
            raise ValueError("dropped concepts must be unknown after the edit")

    @cached_property
    def _shared(self) -> tuple[Tensor, Tensor]:
        """Positions (before, after) of the rows on both sides, in the same order."""
        positions = {sample: i for i, sample in enumerate(self.before.sample_ids.tolist())}
        pairs = [(positions[s], j) for j, s in enumerate(self.after.sample_ids.tolist()) if s in positions]
        table = torch.tensor(pairs, dtype=torch.long, device=self.before.sample_ids.device).reshape(-1, 2)
        return table[:, 0], table[:, 1]

    @cached_property
    def removed(self) -> Tensor:
        """Positions in ``before`` of rows that leave."""
        return _others(len(self.before), self._shared[0])

    @cached_property
    def added(self) -> Tensor:
        """Positions in ``after`` of rows that come."""
        return _others(len(self.after), self._shared[1])

    @cached_property
    def fixed(self) -> Tensor:
        """Positions in ``after`` of rows of which a label other than a dropped or new concept's changed."""
        return self._shared[1][self._changed.any(dim=1)]

    @cached_property
    def corrected(self) -> Tensor:
        """Those of the fixed rows in which a label became known or another one: there is something to learn."""
        _, after = self._shared
        return after[(self._changed & (self.after.concepts[after] != UNKNOWN)).any(dim=1)]

    @cached_property
    def withdrawn(self) -> Tensor:
        """Those of the fixed rows in which a known label became unknown: there is something to forget."""
        _, after = self._shared
        return after[(self._changed & (self.after.concepts[after] == UNKNOWN)).any(dim=1)]

    @cached_property
    def _changed(self) -> Tensor:
        """Which labels of the shared rows changed, ``[m, k]``; those of dropped and new concepts did not."""
        before, after = self._shared
        changed = self.before.concepts[before] != self.after.concepts[after]
        changed[:, [*self.dropped, *self.new]] = False
        return changed

    @cached_property
    def untouched(self) -> Tensor:
        """Positions in ``after`` of rows that the edit leaves as they are, dropped and new concepts aside."""
        touched = torch.cat([self.fixed, self.added])
        return _others(len(self.after), touched)

    def before_of(self, after_positions: Tensor) -> Tensor:
        """Positions in ``before`` of shared rows given by their positions in ``after``."""
        before, after = self._shared
        lookup = torch.full((len(self.after),), -1, dtype=torch.long, device=after.device)
        lookup[after] = before
        return lookup[after_positions]

    def lessons(self) -> EditedData:
        """What is to be learned from rows and nothing else: rows that leave are still there and withdrawn labels known,
        dropped concepts are gone before, new ones there.

        Otherwise the whole of these concepts' gradient would be in the edit's, and drown the lessons.
        """
        before = self.extended(self.masked(self.before))
        concepts = self.after.concepts.clone()
        labels = self.withdrawals().concepts
        concepts[self.withdrawn] = torch.where(labels == UNKNOWN, concepts[self.withdrawn], labels)
        after = replace(self.after, concepts=concepts)
        return replace(self, before=before, after=after.joined(before.take(self.removed)), new=())

    def withdrawals(self) -> LabelledImages:
        """The rows of :attr:`withdrawn` with the labels that they lose, and no others."""
        rows = self.after.take(self.withdrawn)
        old = self.before.concepts[self.before_of(self.withdrawn)]
        lost = (old != UNKNOWN) & (rows.concepts == UNKNOWN)
        lost[:, [*self.dropped, *self.new]] = False
        return replace(rows, concepts=torch.where(lost, old, torch.full_like(old, UNKNOWN)))

    def extension(self) -> EditedData:
        """What is to be learned from new concepts and nothing else: rows and other labels are as before."""
        before = self.masked(self.before)
        return replace(self, before=before, after=self.extended(before))

    def extended(self, rows: LabelledImages) -> LabelledImages:
        """Rows before, in their order, with the labels of new concepts; unknown in rows that leave."""
        concepts = rows.concepts.clone()
        before, after = self._shared
        for j in self.new:
            concepts[before, j] = self.after.concepts[after, j]
        return replace(rows, concepts=concepts)

    def masked(self, rows: LabelledImages) -> LabelledImages:
        """Rows with the dropped concepts made unknown."""
        concepts = rows.concepts.clone()
        concepts[:, list(self.dropped)] = UNKNOWN
        return replace(rows, concepts=concepts)


def _others(n: int, positions: Tensor) -> Tensor:
    mask = torch.ones(n, dtype=torch.bool, device=positions.device)
    mask[positions] = False
    return mask.nonzero().squeeze(1)
