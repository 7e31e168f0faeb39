"""What an importer makes of a directory."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.datasets.names import is_key
from app.datasets.schemas import FIXED_COLUMNS
from app.datasets.snapshots import SPLITS, UNKNOWN
from app.datasets.votes import MIN_CLASSES, Votes

_NAMED = 5  # of many things that are wrong, as many are named


class SourceProblem(Exception):
    """The directory is not what the layout expects: every finding is one sentence that says where and what to do."""

    def __init__(self, title: str, findings: Sequence[str]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join([title, *(f"  - {finding}" for finding in findings)]))


@dataclass(frozen=True)
class ImportedRow:
    """One image. ``image`` is its path below the plan's root, ``labels`` one of 0, 1, ``UNKNOWN`` per concept."""

    key: str
    split: str
    class_name: str
    image: str
    subject: str | None
    labels: Sequence[int]


@dataclass(frozen=True, eq=False)
class VoteBook:
    """Annotations of single images, where the labels of rows are votes of their classes.

    Attributes:
        attributes: names of all attributes that were voted on, the concepts among them.
        votes: one row per row of the plan, in its order; one column per attribute.
        min_classes: that an attribute had to be present in to be a concept.
    """

    attributes: tuple[str, ...]
    votes: Votes
    min_classes: int = MIN_CLASSES


@dataclass(frozen=True)
class ImportPlan:
    """A data set ready to be sent.

    Attributes:
        root: directory that the images' paths start from.
        notes: what the user should know of how it was made, a sentence each.
    """

    title: str
    concepts: tuple[str, ...]
    classes: tuple[str, ...]
    rows: Sequence[ImportedRow]
    root: Path
    notes: tuple[str, ...] = ()
    votes: VoteBook | None = field(default=None, compare=False, repr=False)

    @property
    def counts(self) -> dict[str, int]:
        """Rows per split."""
        found = Counter(row.split for row in self.rows)
        return {split: found[split] for split in SPLITS}

    def definition(self, dataset_id: str | None = None, title: str | None = None) -> dict[str, Any]:
        """Body of the part ``definition``."""
        rule = {} if self.votes is None else {"vote_rule": {"rule": "majority", "min_classes": self.votes.min_classes}}
        return {
            "id": dataset_id,
            "title": title or self.title,
            "concepts": list(self.concepts),
            "classes": list(self.classes),
            **rule,
        }

    def manifest(self) -> bytes:
        """Part ``manifest``, as CSV."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*FIXED_COLUMNS, *self.concepts])
        cells = {0: "0", 1: "1", UNKNOWN: ""}
        for row in self.rows:
            fixed = (row.key, row.split, row.class_name, row.image, row.subject or "")
            writer.writerow([*fixed, *(cells[label] for label in row.labels)])
        return text.getvalue().encode()


def checked(plan: ImportPlan) -> ImportPlan:
    """``plan``, with notes about splits and classes that later steps will miss.

    Raises:
        SourceProblem: it has no rows, fewer than two classes, no concepts, or keys that cannot be used.
    """
    findings = []
    if not plan.rows:
        findings.append("There is no row.")
    if len(plan.classes) < 2:
        findings.append(f"It has {counted(len(plan.classes), 'class')}; a model needs at least two.")
    if not plan.concepts:
        findings.append("There is no concept left.")
    keys = Counter(row.key for row in plan.rows)
    if repeated := [key for key, count in keys.items() if count > 1]:
        findings.append(f"{counted(len(repeated), 'key')} would name several rows: {some(repeated)}.")
    if unusable := [key for key in keys if not is_key(key)]:
        findings.append(
            f"{counted(len(unusable), 'file name')} cannot be keys (1 to 200 characters, none of them control, no "
            f"blank at either end): {some(unusable)}."
        )
    if findings:
        raise SourceProblem(f"Nothing can be imported from {plan.root}:", findings)
    trained = {row.class_name for row in plan.rows if row.split == "train"}
    notes = [f"The split {split} has no rows." for split, count in plan.counts.items() if not count]
    if untrained := [name for name in plan.classes if name not in trained]:
        notes.append(f"{counted(len(untrained), 'class')} without a training row: {some(untrained)}.")
    return ImportPlan(plan.title, plan.concepts, plan.classes, plan.rows, plan.root, (*plan.notes, *notes), plan.votes)


def counted(count: int, noun: str) -> str:
    """``1 file``, ``3 files``, ``2 classes``; nouns are regular."""
    return f"{count:,} {noun if count == 1 else noun + ('es' if noun.endswith('s') else 's')}"


def some(names: Sequence[str], limit: int = _NAMED) -> str:
    """The first few of ``names``."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown}, …"
