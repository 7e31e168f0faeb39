"""From names in a request to rows and columns of the version it is applied to.

Used twice: when an edit is posted, against the newest version, to refuse what is wrong already; and when it starts,
against the version it is bound to, which decides. Edits in between may have changed what the names mean.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.artifacts import ArtifactStore
from app.datasets.repository import among
from app.datasets.snapshots import SPLITS, UNKNOWN, AddedSample, Snapshot, SnapshotChanges
from app.edits.findings import Code, Finding, Findings
from app.edits.schemas import AddSamples, DropConcepts, EditRequest, FixConceptLabels, NewSample, RemoveSamples
from app.tables import Dataset, Job, Model, Sample, Subject, Upload, Version

_SHOWN_FINDINGS = 5


class ResolutionError(Exception):
    """The job does not apply to the version it is bound to; it fails with this code and detail."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


@dataclass(frozen=True)
class Resolution:
    """What a request means for one version. ``changes`` holds only what differs, and no added rows before staging."""

    changes: SnapshotChanges
    counts: dict[str, int]
    findings: Sequence[Finding]


def target_version(session: Session, job: Job) -> Version:
    """The version a job works on: the one its request names, else the one bound at its start."""
    number = job.request.get("version") or job.base_version
    version = session.get(Version, (job.model_id, number)) if number is not None else None
    if version is None or version.state != "ready":
        raise ResolutionError("model_has_no_version", "There is no ready version to work on.")
    return version


def resolve(session: Session, store: ArtifactStore, job: Job) -> tuple[Version, SnapshotChanges]:
    """Base version and changes of an edit that starts; its added rows were staged when it was accepted.

    Raises:
        ResolutionError: ``base_version_changed``, ``edit_no_longer_applies`` or ``model_has_no_version``.
    """
    version = target_version(session, job)
    request = EditRequest.model_validate(job.request)
    if request.base_version is not None and request.base_version != version.number:
        raise ResolutionError(
            "base_version_changed",
            f"The edit asked for version {request.base_version}; version {version.number} is the newest by now.",
        )
    model = session.get_one(Model, job.model_id)
    resolution = examine(session, store, request, version, model.dataset_id, staged_for=job.id)
    if resolution.findings:
        shown = "; ".join(f"{finding.pointer}: {finding.code}" for finding in resolution.findings[:_SHOWN_FINDINGS])
        more = len(resolution.findings) - _SHOWN_FINDINGS
        raise ResolutionError("edit_no_longer_applies", shown + (f"; and {more} more" if more > 0 else ""))
    return version, resolution.changes


def examine(
    session: Session,
    store: ArtifactStore,
    request: EditRequest,
    version: Version,
    dataset_id: str,
    *,
    staged_for: UUID | None = None,
    caller_id: UUID | None = None,
) -> Resolution:
    """Resolve ``request`` against ``version`` and list everything that is wrong with it.

    Args:
        staged_for: the job whose added rows are staged; without it keys and uploads of added rows are checked.
        caller_id: whose uploads may be used; any when absent.
    """
    findings = Findings()
    names = _Names(session, request, dataset_id, Snapshot.load(store.fetch(version.snapshot_digest)))
    dropped = _dropped(request, version.concepts, findings)
    removed = _removed(request, names, findings)
    fixes, unchanged = _fixes(request, version.concepts, names, findings)
    fixes = [fix for fix in fixes if fix[0] not in removed and fix[1] not in dropped]
    new = _checked_additions(request, version, findings)
    if staged_for is None:
        _check_keys_and_uploads(session, new, dataset_id, caller_id, findings)
    _check_splits(names.snapshot, removed, [sample.split for *_, sample in new], findings)
    if not findings.all and not (dropped or removed or fixes or new):
        findings.add(Code.CHANGES_NOTHING)
    added = [] if staged_for is None or findings.all else _staged(session, staged_for, dataset_id, version)
    return Resolution(
        SnapshotChanges(tuple(fixes), tuple(sorted(dropped)), tuple(sorted(removed)), tuple(added)),
        {
            "labels_changed": len(fixes),
            "labels_unchanged": unchanged,
            "concepts_dropped": len(dropped),
            "samples_removed": len(removed),
            "samples_added": len(new),
        },
        findings.all,
    )


class _Names:
    """Ids of the samples and subjects that a request names, and what the version's data holds of them."""

    def __init__(self, session: Session, request: EditRequest, dataset_id: str, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        keys = {label.sample for _, fix in request.named(FixConceptLabels) for label in fix.labels}
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


def _dropped(request: EditRequest, concepts: Sequence[str], findings: Findings) -> set[int]:
    columns = {name: column for column, name in enumerate(concepts)}
    dropped: set[int] = set()
    for index, operation in request.named(DropConcepts):
        for item, name in enumerate(operation.concepts):
            column = columns.get(name)
            if column is None:
                findings.add(Code.UNKNOWN_CONCEPT, index, "concepts", item)
            elif column in dropped:
                findings.add(Code.DUPLICATE_CONCEPT, index, "concepts", item)
            else:
                dropped.add(column)
                if len(dropped) == len(concepts):
                    findings.add(Code.DROPS_EVERY_CONCEPT, index, "concepts")
    return dropped


def _removed(request: EditRequest, names: _Names, findings: Findings) -> set[int]:
    removed: set[int] = set()
    for index, operation in request.named(RemoveSamples):
        for item, key in enumerate(operation.samples):
            sample_id = names.row(key, findings, index, "samples", item)
            if sample_id is not None:
                removed.add(sample_id)
        for item, reference in enumerate(operation.subjects):
            if reference not in names.subject_rows:
                findings.add(Code.UNKNOWN_SUBJECT, index, "subjects", item)
                continue
            held = [row for row in names.subject_rows[reference] if row in names.positions]
            if not held:
                findings.add(Code.SUBJECT_WITHOUT_ROWS, index, "subjects", item)
            removed.update(held)
    return removed


def _fixes(
    request: EditRequest, concepts: Sequence[str], names: _Names, findings: Findings
) -> tuple[list[tuple[int, int, int]], int]:
    """The fixes that change a label, and the number of those that do not."""
    columns = {name: column for column, name in enumerate(concepts)}
    wanted: dict[tuple[int, int], int] = {}
    for index, operation in request.named(FixConceptLabels):
        for item, label in enumerate(operation.labels):
            place = (index, "labels", item)
            sample_id = names.row(label.sample, findings, *place, "sample")
            column = columns.get(label.concept)
            if column is None:
                findings.add(Code.UNKNOWN_CONCEPT, *place, "concept")
            if sample_id is None or column is None:
                continue
            value = UNKNOWN if label.value is None else label.value
            if wanted.setdefault((sample_id, column), value) != value:
                findings.add(Code.CONTRADICTORY_FIX, *place, "value")
    labels = names.snapshot.concepts
    changed = [
        (sample_id, column, value)
        for (sample_id, column), value in wanted.items()
        if labels[names.positions[sample_id], column] != value
    ]
    return changed, len(wanted) - len(changed)


_Addition = tuple[int, int, NewSample]  # operation, item, sample


def _checked_additions(request: EditRequest, version: Version, findings: Findings) -> list[_Addition]:
    concepts, classes = set(version.concepts), set(version.classes)
    new: list[_Addition] = []
    for index, operation in request.named(AddSamples):
        for item, sample in enumerate(operation.samples):
            new.append((index, item, sample))
            if sample.class_ not in classes:
                findings.add(Code.UNKNOWN_CLASS, index, "samples", item, "class")
            # The names of members are the caller's data: the pointer stops above them.
            for _ in set(sample.concepts) - concepts:
                findings.add(Code.UNKNOWN_CONCEPT, index, "samples", item, "concepts")
    return new


def _check_keys_and_uploads(
    session: Session, new: Sequence[_Addition], dataset_id: str, caller_id: UUID | None, findings: Findings
) -> None:
    if not new:
        return
    keys = {sample.key for *_, sample in new}
    taken = set(session.scalars(select(Sample.key).where(Sample.dataset_id == dataset_id, among(Sample.key, keys))))
    waiting = select(Upload.id).where(
        among(Upload.id, {sample.upload for *_, sample in new}),
        Upload.kind == "image",
        Upload.expires_at > func.now(),
    )
    if caller_id is not None:
        waiting = waiting.where(Upload.created_by == caller_id)
    uploads = set(session.scalars(waiting))
    used: set[str] = set()
    for index, item, sample in new:
        if sample.key in taken:
            findings.add(Code.DUPLICATE_KEY, index, "samples", item, "key")
        if sample.upload in used:
            findings.add(Code.DUPLICATE_UPLOAD, index, "samples", item, "upload")
        elif sample.upload not in uploads:
            findings.add(Code.UNKNOWN_UPLOAD, index, "samples", item, "upload")
        taken.add(sample.key)
        used.add(sample.upload)


def _staged(session: Session, job_id: UUID, dataset_id: str, version: Version) -> list[AddedSample]:
    """The rows staged for a job, with the columns of ``version``: it may have fewer concepts than the data set."""
    dataset = session.get_one(Dataset, dataset_id)
    columns = [dataset.concepts.index(name) for name in version.concepts]
    class_of = {dataset.classes.index(name): number for number, name in enumerate(version.classes)}
    rows = session.scalars(select(Sample).where(Sample.pending_job_id == job_id).order_by(Sample.id))
    return [
        AddedSample(
            row.id,
            SPLITS.index(row.split),
            class_of[row.class_index],
            tuple(UNKNOWN if row.concepts[column] is None else int(row.concepts[column]) for column in columns),
        )
        for row in rows
    ]


def _check_splits(snapshot: Snapshot, removed: set[int], added: Iterable[str], findings: Findings) -> None:
    gone = snapshot.splits[np.isin(snapshot.sample_ids, np.fromiter(removed, np.int64, len(removed)))]
    new = set(added)
    for code, split in enumerate(SPLITS):
        before = snapshot.counts[split]
        if before and before == int((gone == code).sum()) and split not in new:
            findings.add(Code.SPLIT_LEFT_EMPTY)
