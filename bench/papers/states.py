"""Training rows before and after an edit: what the protocol flips, drops, removes, adds and corrupts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from rivals import Request
from torch import Tensor

from papers.loading import PaperData
from worker.data.tensors import LabelledImages
from worker.editing.edited_data import UNKNOWN, EditedData

CONCEPT_LABEL, CONCEPT, REMOVAL, ADDITION = "concept_label", "concept", "removal", "addition"
LEVELS = (CONCEPT_LABEL, CONCEPT, REMOVAL, ADDITION)
NOISY_LEVELS = (CONCEPT_LABEL, CONCEPT, REMOVAL)

NOISY_ROWS = 0.5
"""Share of rows in which a noisy concept is flipped; the paper says "a subset"."""


@dataclass(frozen=True)
class State:
    """A data set to train on.

    Attributes:
        name: the same for the same rows, labels and columns.
        everyone: rows with the labels of all concepts.
        columns: concepts that a model of it has.
        present: which rows there are, a mask; all if None. Their images are copied only where they are asked for.
    """

    name: str
    everyone: LabelledImages
    columns: tuple[int, ...]
    present: Tensor | None = None

    @property
    def rows(self) -> LabelledImages:
        return self.everyone if self.present is None else self.everyone.take(self.present)

    @property
    def training(self) -> LabelledImages:
        return in_columns(self.rows, self.columns)


@dataclass(frozen=True)
class Edit:
    """From a version that was trained on ``before`` to what training on ``after`` gives."""

    level: str
    before: State
    after: State


def in_columns(rows: LabelledImages, columns: Sequence[int]) -> LabelledImages:
    return replace(rows, concepts=rows.concepts[:, list(columns)])


def request_of(edit: Edit, calibration: LabelledImages) -> Request:
    """The edit as the engine takes it, in the columns of the version before.

    Args:
        calibration: in all columns.
    """
    frame, staying = edit.before.columns, set(edit.after.columns)
    dropped = tuple(i for i, column in enumerate(frame) if column not in staying)

    def without(rows: LabelledImages) -> LabelledImages:
        framed = in_columns(rows, frame)
        framed.concepts[:, list(dropped)] = UNKNOWN  # a copy: indexing by a list has made one
        return framed

    data = EditedData(edit.before.training, without(edit.after.rows), dropped)
    return Request(data, without(calibration))


class Draws:
    """One draw of everything random. Larger shares of one draw contain the smaller ones."""

    def __init__(self, data: PaperData, seed: int) -> None:
        self.data, self.seed = data, seed
        self.rows = data.train
        self.all = State("all", data.train, tuple(range(len(data.concepts))))

    def edit(self, level: str, share: float, concepts: int) -> Edit:
        """One edit of a level: ``share`` of the rows, or so many concepts."""
        match level:
            case "concept_label":
                return Edit(level, self._flipped(share), self.all)
            case "concept":
                return Edit(level, self.all, self.without_concepts(self._order(len(self.all.columns))[:concepts]))
            case "removal":
                return Edit(level, self.all, self.without_rows(self.leaving(self._count(share))))
            case _:
                return Edit(level, self.without_rows(self.leaving(self._count(share))), self.all)

    def noisy(self, level: str, share: float, rounds: int) -> list[State]:
        """A corrupted data set, then what is left of the noise after each round, at last nothing.

        ``concept_label``: that share of all known concept labels is flipped, and set right. ``concept``: so many
        concepts are flipped in half of the rows, and dropped. ``removal``: so many rows have a wrong class, and leave.
        """
        name = f"noise {level} {share} draw {self.seed}"
        match level:
            case "concept_label":
                known = (self.rows.concepts.flatten() != UNKNOWN).nonzero().squeeze(1).cpu()
                entries = known[self._permutation(len(known))[: max(1, round(share * len(known)))]]
                parts = _parts(entries, rounds)
                return [
                    self._with_flips(f"{name} part {t}/{len(parts)}", torch.cat([*parts[t:], entries[:0]]))
                    if t < len(parts)
                    else self.all
                    for t in range(len(parts) + 1)
                ]
            case "concept":
                columns = self._permutation(len(self.all.columns))[: self.noisy_concepts(share)]
                some = self._permutation(len(self.rows))[: round(NOISY_ROWS * len(self.rows))]
                entries = (some[:, None] * len(self.all.columns) + columns).flatten()
                noisy = self._with_flips(name, entries)
                parts = _parts(columns, rounds)
                gone = [torch.cat([*parts[:t], columns[:0]]).tolist() for t in range(len(parts) + 1)]
                left = [tuple(c for c in self.all.columns if c not in set(some_gone)) for some_gone in gone]
                # Without its noisy concepts a data set is clean, whatever it was before.
                states = [State(f"{name} without {sorted(g)}", noisy.rows, c) for g, c in zip(gone, left, strict=True)]
                return [noisy, *states[1:]]
            case _:
                wrong = self.leaving(self._count(share))
                classes = self.rows.classes.clone()
                shift = 1 + torch.randint(
                    max(1, len(self.data.classes) - 1), (len(wrong),), generator=self._generator()
                )
                at = wrong.to(classes.device)
                classes[at] = (classes[at] + shift.to(classes.device)) % len(self.data.classes)
                noisy_rows = replace(self.rows, classes=classes)
                parts = _parts(wrong, rounds)
                return [
                    State(
                        f"{name} part {t}/{len(parts)}",
                        noisy_rows,
                        self.all.columns,
                        self._others(torch.cat([*parts[:t], wrong[:0]])),
                    )
                    for t in range(len(parts) + 1)
                ]

    def noisy_concepts(self, share: float) -> int:
        return max(1, min(round(share * len(self.all.columns)), len(self.all.columns) // 2))

    def without_concepts(self, columns: Sequence[int]) -> State:
        left = tuple(column for column in self.all.columns if column not in set(columns))
        return State(f"without concepts {sorted(columns)}", self.rows, left)

    def without_rows(self, positions: Tensor) -> State:
        name = f"without {len(positions)} rows of draw {self.seed}"
        return State(name, self.rows, self.all.columns, self._others(positions))

    def leaving(self, count: int) -> Tensor:
        """Positions of rows that may leave: a class keeps a row, or no edit could follow retraining."""
        left = torch.bincount(self.rows.classes.cpu(), minlength=len(self.data.classes)).tolist()
        classes = self.rows.classes.tolist()
        found: list[int] = []
        for position in self._order(len(self.rows)):
            if len(found) == count:
                break
            if left[classes[position]] > 1:
                left[classes[position]] -= 1
                found.append(position)
        return torch.tensor(found, dtype=torch.long)

    def _flipped(self, share: float) -> State:
        """That share of rows has one of its known labels flipped."""
        known = (self.rows.concepts != UNKNOWN).cpu()
        column = torch.rand(known.shape, generator=self._generator()).masked_fill(~known, -1).argmax(dim=1)
        able = known.any(dim=1)
        rows = [row for row in self._order(len(self.rows)) if able[row]][: self._count(share)]
        entries = torch.tensor(rows) * known.shape[1] + column[rows]
        return self._with_flips(f"{len(rows)} flipped labels of draw {self.seed}", entries)

    def _with_flips(self, name: str, entries: Tensor) -> State:
        """Known labels turned into the other one; entries count row by row."""
        concepts = self.rows.concepts.clone()
        flat = concepts.view(-1)
        at = entries.to(flat.device)
        flat[at] = torch.where(flat[at] == UNKNOWN, UNKNOWN, 1 - flat[at])
        return State(name, replace(self.rows, concepts=concepts), self.all.columns)

    def _others(self, positions: Tensor) -> Tensor:
        mask = torch.ones(len(self.rows), dtype=torch.bool, device=self.rows.sample_ids.device)
        mask[positions.to(mask.device)] = False
        return mask

    def _count(self, share: float) -> int:
        return max(1, round(share * len(self.rows)))

    def _order(self, n: int) -> list[int]:
        order: list[int] = self._permutation(n).tolist()
        return order

    def _permutation(self, n: int) -> Tensor:
        return torch.randperm(n, generator=self._generator())

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)


def _parts(items: Tensor, rounds: int) -> list[Tensor]:
    """As many parts as rounds, fewer where there are fewer items."""
    return list(items.tensor_split(max(1, min(rounds, len(items)))))
