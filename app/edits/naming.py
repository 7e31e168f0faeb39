"""Names of a request, looked up in a version's data."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.datasets.repository import among
from app.datasets.snapshots import Snapshot
from app.edits.findings import Code, Findings
from app.edits.schemas import AddConcepts, EditRequest, FixConceptLabels, RemoveSamples
from app.tables import Sample, Subject


class Names:
    """Ids of the samples and subjects that a request names, and what the version's data holds of them."""

    def __init__(self, session: Session, request: EditRequest, dataset_id: str, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        keys = {label.sample for _, fix in request.named(FixConceptLabels) for label in fix.labels}
        keys |= {label.sample for _, addition in request.named(AddConcepts) for label in addition.labels}
        keys |= {key for _, removal in request.named(RemoveSamples) for key in removal.samples}
        references = {name for _, removal in request.named(RemoveSamples) for name in removal.subjects}
        found = select(Sample.key, Sample.id).where(Sample.dataset_id == dataset_id, among(Sample.key, keys))
        self.ids: dict[str, int] = dict(session.execute(found).all()) if keys else {}
        self.subject_rows: dict[str, list[int]] = {}
        if references:
            rows = select(Subject.reference, Sample.id).outerjoin(
                Sample, (Sample.subject_id == Subject.id) & (Sample.dataset_id == dataset_id)
            )
            for reference, sample_id in session.execute(rows.where(among(Subject.reference, references))):
                ids = self.subject_rows.setdefault(reference, [])
                if sample_id is not None:
                    ids.append(sample_id)
        named = {*self.ids.values(), *(row for ids in self.subject_rows.values() for row in ids)}
        self.positions = _positions(snapshot, named)

    def row(self, key: str, findings: Findings, *place: str | int) -> int | None:
        """Id of the sample ``key`` if the version holds it; else a finding at ``place``."""
        sample_id = self.ids.get(key)
        if sample_id is None:
            findings.add(Code.UNKNOWN_SAMPLE, *place)
        elif sample_id not in self.positions:
            findings.add(Code.SAMPLE_NOT_IN_VERSION, *place)
        else:
            return sample_id
        return None


def _positions(snapshot: Snapshot, ids: Collection[int]) -> dict[int, int]:
    wanted = np.fromiter(ids, np.int64, len(ids))
    places = np.searchsorted(snapshot.sample_ids, wanted)
    held = np.isin(wanted, snapshot.sample_ids, assume_unique=True)
    return dict(zip(wanted[held].tolist(), places[held].tolist(), strict=True))
