"""The edits of the fidelity benchmark, on one draw of generated data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from generated import TEXTURES, Generated
from rivals import Request
from torch import Tensor

from worker.data.tensors import LabelledImages
from worker.editing.edited_data import UNKNOWN, EditedData


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        base: name of the data set that the base version is trained on.
        goal: name of the data set that it is retrained on.
        requests: the edits, one after another; all in the frame of the first.
        columns: of the full data set, that the frame has.
        base_columns: of the frame, that the base version has.
    """

    name: str
    base: str
    goal: str
    requests: tuple[Request, ...]
    columns: tuple[int, ...]
    base_columns: tuple[int, ...]

    @property
    def last(self) -> Request:
        return self.requests[-1]

    def whole(self) -> EditedData:
        """The sequence as one edit."""
        return replace(self.last.data, before=self.requests[0].data.before)


class Draw:
    """One draw's data sets by name, and its cases.

    Attributes:
        sets: training rows by name, in their own columns.
        held_out: calibration rows by the name of the training set, in the same columns.
    """

    def __init__(self, data: Generated, seed: int) -> None:
        self.data = data
        self.sets: dict[str, LabelledImages] = {}
        self.held_out: dict[str, LabelledImages] = {}
        self.all = tuple(range(data.train.concepts.shape[1]))
        self._generator = torch.Generator().manual_seed(seed)
        self.add("all", data.train)

    def add(self, name: str, rows: LabelledImages, columns: Sequence[int] | None = None) -> LabelledImages:
        chosen = list(self.all if columns is None else columns)
        self.sets[name] = replace(rows, concepts=rows.concepts[:, chosen])
        self.held_out[name] = replace(self.data.calibration, concepts=self.data.calibration.concepts[:, chosen])
        return self.sets[name]

    def case(self, name: str, base: str, goal: str) -> Case:
        """A case between two data sets with all columns."""
        data = EditedData(self.sets[base], self.sets[goal])
        return Case(name, base, goal, (Request(data, self.data.calibration),), self.all, self.all)

    def five(self) -> list[Case]:
        """One of each operation, and a single person's removal."""
        return [
            self.fix(0.10),
            self.drop(),
            self.add_concepts(),
            self.remove(0.06),
            self.add_samples(0.10),
            self.remove_subject(5),
        ]

    def fix(self, share: float, name: str = "fix_concept_labels") -> Case:
        """That share of rows has one part labelled as another texture, and is corrected."""
        rows = self._some(share)
        concepts = self.data.train.concepts.clone()
        for row, group in zip(rows.tolist(), self._groups(len(rows)), strict=True):
            part = slice(TEXTURES * group, TEXTURES * (group + 1))
            concepts[row, part] = concepts[row, part].roll(1)
        wrong = f"wrong {share}"
        self.add(wrong, replace(self.data.train, concepts=concepts))
        return self.case(name, wrong, "all")

    def drop(self) -> Case:
        """The last group's concepts."""
        dropped = self.all[-TEXTURES:]
        self.add("fewer concepts", self.data.train, self.all[:-TEXTURES])
        calibration = _unknown(self.data.calibration, dropped)
        data = EditedData(self.data.train, _unknown(self.data.train, dropped), dropped)
        return Case("drop_concepts", "all", "fewer concepts", (Request(data, calibration),), self.all, self.all)

    def add_concepts(self) -> Case:
        """The last group's concepts, to a version without them."""
        new = self.all[-TEXTURES:]
        self.add("fewer concepts", self.data.train, self.all[:-TEXTURES])
        data = EditedData(_unknown(self.data.train, new), self.data.train, new=new)
        request = Request(data, self.data.calibration)
        return Case("add_concepts", "fewer concepts", "all", (request,), self.all, self.all[:-TEXTURES])

    def remove(self, share: float, name: str = "remove_samples") -> Case:
        leaving = self._some(share)
        goal = f"without {share}"
        self.add(goal, self.data.train.take(_others(len(self.data.train), leaving)))
        return self.case(name, "all", goal)

    def remove_subject(self, rows: int) -> Case:
        """Few rows of one class: a single person's deletion."""
        of_class = (self.data.train.classes == self.data.train.classes[0]).nonzero().squeeze(1)
        self.add("without subject", self.data.train.take(_others(len(self.data.train), of_class[:rows])))
        return self.case("remove_subject", "all", "without subject")

    def add_samples(self, share: float) -> Case:
        held_back = self._some(share)
        base = f"before {share}"
        self.add(base, self.data.train.take(_others(len(self.data.train), held_back)))
        return self.case("add_samples", base, "all")

    def removals(self, share: float, times: int) -> Case:
        """That share of the rows removed, that many times."""
        parts = self._some(share * times).tensor_split(times)
        requests, rows = [], self.data.train
        for part in parts:
            leaving = torch.isin(rows.sample_ids, self.data.train.sample_ids[part])
            after = rows.take(~leaving)
            requests.append(Request(EditedData(rows, after), self.data.calibration))
            rows = after
        goal = f"without {times} × {share}"
        self.add(goal, rows)
        return Case(f"sequence:remove_{share:.0%}_x{times}", "all", goal, tuple(requests), self.all, self.all)

    def _some(self, share: float) -> Tensor:
        n = len(self.data.train)
        order = torch.randperm(n, generator=self._generator)[: round(share * n)]
        return order.to(self.data.train.sample_ids.device)

    def _groups(self, count: int) -> list[int]:
        return torch.randint(len(self.all) // TEXTURES, (count,), generator=self._generator).tolist()


def _others(n: int, positions: Tensor) -> Tensor:
    mask = torch.ones(n, dtype=torch.bool, device=positions.device)
    mask[positions] = False
    return mask


def _unknown(rows: LabelledImages, columns: Sequence[int]) -> LabelledImages:
    concepts = rows.concepts.clone()
    concepts[:, list(columns)] = UNKNOWN
    return replace(rows, concepts=concepts)
