"""Concepts that a request adds: which names they may have, and what is known of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from app.datasets.snapshots import SPLITS, NewConcept
from app.edits.findings import Code, Findings
from app.edits.naming import Names
from app.edits.schemas import AddConcepts, EditRequest, NewSample


def new_concepts(
    request: EditRequest,
    concepts: Collection[str],
    names: Names,
    *,
    removed: Collection[int],
    added: Iterable[NewSample],
    findings: Findings,
) -> tuple[NewConcept, ...]:
    """The concepts that the request adds, with their known labels in the rows that stay.

    A name is refused when the version has it, even if the same request drops it: one column would have to be two things
    in one edit. So is a concept of which the train rows know one value only: whatever the image, its answer would be
    that value, and no score could tell whether it was learned.

    Args:
        concepts: of the base version.
        removed: ids of rows that the request removes; labels of theirs count for nothing.
        added: rows that the request adds, with their own labels.
    """
    given: dict[str, dict[int, int | None]] = {}
    places: dict[str, tuple[str | int, ...]] = {}
    for index, operation in request.named(AddConcepts):
        own = {concept.name for concept in operation.concepts}
        for item, concept in enumerate(operation.concepts):
            place = (index, "concepts", item, "name")
            if concept.name in concepts:
                findings.add(Code.CONCEPT_EXISTS, *place)
            elif concept.name in given:
                findings.add(Code.DUPLICATE_CONCEPT, *place)
            else:
                given[concept.name], places[concept.name] = {}, place
        for item, label in enumerate(operation.labels):
            sample_id = names.row(label.sample, findings, index, "labels", item, "sample")
            if label.concept not in own:
                findings.add(Code.CONCEPT_NOT_ADDED, index, "labels", item, "concept")
                continue
            labels = given.get(label.concept)
            if labels is None or sample_id is None:
                continue
            if labels.setdefault(sample_id, label.value) != label.value:
                findings.add(Code.CONTRADICTORY_LABEL, index, "labels", item, "value")
    found = tuple(
        NewConcept(
            name,
            tuple(
                (sample_id, value)
                for sample_id, value in sorted(labels.items(), key=lambda label: label[0])
                if value is not None and sample_id not in removed
            ),
        )
        for name, labels in given.items()
    )
    if not findings.all:  # else labels may be missing because of a mistake that is told already
        arriving = [sample for sample in added if sample.split == SPLITS[0]]
        for concept in found:
            values = _train_values(names, concept) | {sample.concepts.get(concept.name) for sample in arriving}
            if not values >= {0, 1}:
                findings.add(Code.CONCEPT_NOT_LEARNABLE, *places[concept.name])
    return found


def _train_values(names: Names, concept: NewConcept) -> set[int | None]:
    if not concept.labels:
        return set()
    positions = np.array([names.positions[sample_id] for sample_id, _ in concept.labels])
    values = np.array([value for _, value in concept.labels])
    return set(np.unique(values[names.snapshot.splits[positions] == 0]).tolist())
