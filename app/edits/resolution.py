"""From names in a request to rows and columns of the version it is applied to.

Used twice: when an edit is posted, against the newest version, to refuse what is wrong already; and when it starts,
against the version it is bound to, which decides. Edits in between may have changed what the names mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.artifacts import ArtifactStore
from app.datasets.elections import flips
from app.datasets.repository import among
from app.datasets.snapshots import SPLITS, UNKNOWN, AddedSample, Snapshot, SnapshotChanges
from app.edits.findings import Code, Finding, Findings
from app.edits.naming import Names
from app.edits.new_concepts import new_concepts
from app.edits.schemas import AddSamples, DropConcepts, EditRequest, FixConceptLabels, NewSample, RemoveSamples
from app.tables import Job, Model, Sample, Upload, Version

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
    names = Names(session, request, dataset_id, Snapshot.load(store.fetch(version.snapshot_digest)))
    dropped = _dropped(request, version.concepts, findings)
    removed = _removed(request, names, findings)
    fixes, unchanged = _fixes(request, version.concepts, names, findings)
    fixes = [fix for fix in fixes if fix[0] not in removed and fix[1] not in dropped]
    added = [sample for _, operation in request.named(AddSamples) for sample in operation.samples]
    new = new_concepts(request, version.concepts, names, removed=removed, added=added, findings=findings)
    concepts = [*version.concepts, *(concept.name for concept in new)]
    _check_additions(request, set(concepts), set(version.classes), findings)
    if staged_for is None:
        _check_keys_and_uploads(session, request, dataset_id, caller_id, findings)
    _check_splits(names.snapshot, removed, [sample.split for sample in added], findings)
    if not findings.all and not (dropped or removed or fixes or added or new):
        findings.add(Code.CHANGES_NOTHING)
    rows = [] if staged_for is None or findings.all else _staged(session, staged_for, added, concepts, version.classes)
    changes = SnapshotChanges(tuple(fixes), tuple(sorted(dropped)), tuple(sorted(removed)), tuple(rows), new)
    arriving = [] if findings.all else _unstaged(names.snapshot, added, concepts, version.classes)
    return Resolution(
        changes,
        {
            "labels_changed": len(fixes),
            "labels_unchanged": unchanged,
            "labels_changed_by_vote": _changed_by_vote(
                names.snapshot, replace(changes, added=tuple(arriving)), findings
            ),
            "concepts_dropped": len(dropped),
            "concepts_added": len(new),
            "labels_added": sum(
                len(concept.labels) + sum(sample.concepts.get(concept.name) is not None for sample in added)
                for concept in new
            ),
            "samples_removed": len(removed),
            "samples_added": len(added),
        },
        findings.all,
    )


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


def _removed(request: EditRequest, names: Names, findings: Findings) -> set[int]:
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
    request: EditRequest, concepts: Sequence[str], names: Names, findings: Findings
) -> tuple[list[tuple[int, int, int]], int]:
    """The fixes that change what a row says of itself, its label or its vote, and the number of those that do not."""
    own = names.snapshot.own_labels
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
    changed = [
        (sample_id, column, value)
        for (sample_id, column), value in wanted.items()
        if own[names.positions[sample_id], column] != value
    ]
    return changed, len(wanted) - len(changed)


def _check_additions(request: EditRequest, concepts: set[str], classes: set[str], findings: Findings) -> None:
    for index, operation in request.named(AddSamples):
        for item, sample in enumerate(operation.samples):
            if sample.class_ not in classes:
                findings.add(Code.UNKNOWN_CLASS, index, "samples", item, "class")
            # The names of members are the caller's data: the pointer stops above them.
            for _ in set(sample.concepts) - concepts:
                findings.add(Code.UNKNOWN_CONCEPT, index, "samples", item, "concepts")


def _check_keys_and_uploads(
    session: Session, request: EditRequest, dataset_id: str, caller_id: UUID | None, findings: Findings
) -> None:
    new = [
        (index, item, sample)
        for index, operation in request.named(AddSamples)
        for item, sample in enumerate(operation.samples)
    ]
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


def _unstaged(
    snapshot: Snapshot, added: Sequence[NewSample], concepts: Sequence[str], classes: Sequence[str]
) -> list[AddedSample]:
    """The rows to be, under ids that are nobody's."""
    first = int(snapshot.sample_ids[-1]) + 1 if len(snapshot) else 1
    return [
        AddedSample(number, SPLITS.index(sample.split), classes.index(sample.class_), _values(sample, concepts))
        for number, sample in enumerate(added, first)
    ]


def _values(sample: NewSample, concepts: Sequence[str]) -> tuple[int, ...]:
    return tuple(UNKNOWN if (label := sample.concepts.get(name)) is None else label for name in concepts)


def _changed_by_vote(snapshot: Snapshot, changes: SnapshotChanges, findings: Findings) -> int:
    """Labels that become others because a class's vote has another outcome, in rows that stay."""
    if snapshot.votes is None or findings.all:
        return 0
    return sum(flip.rows for flip in flips(snapshot, changes))


def _staged(
    session: Session, job_id: UUID, added: Sequence[NewSample], concepts: Sequence[str], classes: Sequence[str]
) -> list[AddedSample]:
    """The rows staged for a job, in the order of the request; their ids ascend in it.

    Their labels are those of the request: the table knows the concepts of the data set alone, of which a version may
    lack some and have others besides.
    """
    rows = session.execute(select(Sample.id, Sample.split).where(Sample.pending_job_id == job_id).order_by(Sample.id))
    return [
        AddedSample(
            sample_id,
            SPLITS.index(split),
            classes.index(sample.class_),
            _values(sample, concepts),
        )
        for (sample_id, split), sample in zip(rows, added, strict=True)
    ]


def _check_splits(snapshot: Snapshot, removed: set[int], added: Iterable[str], findings: Findings) -> None:
    gone = snapshot.splits[np.isin(snapshot.sample_ids, np.fromiter(removed, np.int64, len(removed)))]
    new = set(added)
    for code, split in enumerate(SPLITS):
        before = snapshot.counts[split]
        if before and before == int((gone == code).sum()) and split not in new:
            findings.add(Code.SPLIT_LEFT_EMPTY)
