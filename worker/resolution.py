"""From a claimed job to a task: what was asked becomes ids, columns and digests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.artifacts import ArtifactStore
from app.datasets.snapshots import UNKNOWN, AddedSample, NewConcept, Snapshot, SnapshotChanges
from app.edits import resolution
from app.edits.kinds import JobKind
from app.registry.lineage import edits_since_fit, obstacle_to_restoring
from app.tables import Dataset, Job, Model, Version
from worker.tasks import BaseVersion, Json, Task, TaskFailure


def task_for(session: Session, store: ArtifactStore, job: Job) -> Task:
    """The task of a job that starts.

    Raises:
        TaskFailure: the request does not apply to the version it is bound to.
    """
    try:
        return _task_for(session, store, job)
    except resolution.ResolutionError as error:
        raise TaskFailure(error.code, error.detail) from error


def _task_for(session: Session, store: ArtifactStore, job: Job) -> Task:
    model = session.get_one(Model, job.model_id)
    dataset = session.get_one(Dataset, model.dataset_id)
    kind = JobKind(job.kind)
    changes: Json | None = None
    compared: Json | None = None
    version: Version | None = None
    match kind:
        case JobKind.RESTORE:
            version = _restored(session, store, job)
        case JobKind.EDIT | JobKind.PREVIEW:
            version, resolved = resolution.resolve(session, store, job)
            changes = resolved.to_json()
        case JobKind.FIT_FACTORS | JobKind.RETRAIN | JobKind.INSIGHT:
            version = resolution.target_version(session, job)
            if kind is JobKind.RETRAIN:
                compared = _compared(session, store, version)
            elif kind is JobKind.INSIGHT:
                compared = _other(session, job, version)
    options: Json = job.request.get("options") or {}
    if kind is JobKind.RETRAIN:
        options = {"repeats": job.request.get("repeats", 1)}
    elif kind is JobKind.INSIGHT:
        options = {name: job.request[name] for name in ("kinds", "top", "sample_id")}
    seed = options.get("seed", job.request.get("seed"))
    return Task(
        kind=kind.value,
        model_id=model.id,
        dataset_id=dataset.id,
        architecture=model.architecture,
        training=model.training,
        concepts=version.concepts if version else dataset.concepts,
        classes=version.classes if version else dataset.classes,
        snapshot_digest=version.snapshot_digest if version else dataset.snapshot_digest,
        seed=model.training.get("seed", 0) if seed is None else seed,
        base=replace(base_version(version), factors_age=edits_since_fit(session, version)) if version else None,
        changes=changes,
        vote_rule=dataset.vote_rule,
        options=options,
        upload_id=(job.request.get("weights") or job.request.get("pretrained") or {}).get("upload"),
        compared=compared,
    )


def _restored(session: Session, store: ArtifactStore, job: Job) -> Version:
    """The version to return to; what stood in the way of asking stands in the way of starting."""
    bound = job.request["base_version"]
    if bound not in (None, job.base_version):
        raise resolution.ResolutionError(
            "base_version_changed",
            f"The restoration asked for version {bound} to be the newest; it is {job.base_version} by now.",
        )
    version = session.get_one(Version, (job.model_id, job.request["version"]))
    obstacle = obstacle_to_restoring(session, store, version, newest=job.base_version)
    if obstacle is not None:
        raise resolution.ResolutionError(obstacle.code, obstacle.detail)
    return version


def base_version(version: Version) -> BaseVersion:
    """A version as the compute process needs it."""
    return BaseVersion(
        number=version.number,
        concepts=version.concepts,
        classes=version.classes,
        snapshot_digest=version.snapshot_digest,
        weights_digest=version.weights_digest,
        factors_digest=version.factors_digest,
        factors_version=version.factors_version,
        metrics=version.metrics,
    )


def _other(session: Session, job: Job, version: Version) -> Json | None:
    """The version that an insight's is compared with, if with any."""
    number = job.request["compared_with"]
    if number is None:
        return None
    other = session.get(Version, (job.model_id, number))
    if other is None or other.state != "ready":
        raise TaskFailure("version_withdrawn", f"Version {number}, to compare with, is not ready.")
    return {"base": base_version(other), "edited": base_version(version)}


def _compared(session: Session, store: ArtifactStore, edited: Version) -> Json | None:
    """What a retraining is the reference for, when an edit made the version."""
    edit = session.scalars(select(Job).where(Job.id == edited.job_id, Job.kind == JobKind.EDIT.value)).one_or_none()
    base = session.get(Version, (edited.model_id, edited.parent)) if edit and edited.parent is not None else None
    if edit is None or base is None:
        return None
    before, after = (Snapshot.load(store.fetch(version.snapshot_digest)) for version in (base, edited))
    kept = [base.concepts.index(name) for name in edited.concepts if name in base.concepts]
    return {
        "base": base_version(base),
        "edited": base_version(edited),
        "changes": changes_between(before, after, kept, edited.concepts[len(kept) :]).to_json(),
        "report": edit.report or {},
    }


def changes_between(before: Snapshot, after: Snapshot, kept: list[int], new: Sequence[str] = ()) -> SnapshotChanges:
    """The changes that lead from one version's data to its child's; the edit's own names may mean other rows today.

    Args:
        kept: for each concept of ``after`` that ``before`` has, its index there; the others of ``before`` were dropped
            and are unknown in added rows.
        new: names of the other concepts of ``after``, the last ones.
    """
    k = before.concepts.shape[1]
    _, old, shared = np.intersect1d(before.sample_ids, after.sample_ids, assume_unique=True, return_indices=True)
    own_before, own_after = before.own_labels, after.own_labels  # votes, where classes vote: labels follow from them
    rows, columns = np.nonzero(own_before[old][:, kept] != own_after[shared, : len(kept)])
    added = np.setdiff1d(np.arange(len(after)), shared)
    labels = np.full((len(added), k + len(new)), UNKNOWN, np.int8)
    labels[:, [*kept, *range(k, k + len(new))]] = own_after[added]
    return SnapshotChanges(
        fixes=tuple(
            (int(after.sample_ids[shared[row]]), kept[column], int(own_after[shared[row], column]))
            for row, column in zip(rows, columns, strict=True)
        ),
        dropped=tuple(sorted(set(range(k)) - set(kept))),
        removed=tuple(np.setdiff1d(before.sample_ids, after.sample_ids, assume_unique=True).tolist()),
        added=tuple(
            AddedSample(
                int(after.sample_ids[row]), int(after.splits[row]), int(after.classes[row]), tuple(values.tolist())
            )
            for row, values in zip(added, labels, strict=True)
        ),
        new=tuple(
            NewConcept(name, _known_labels(after.sample_ids[shared], after.concepts[shared, len(kept) + j]))
            for j, name in enumerate(new)
        ),
    )


def _known_labels(sample_ids: NDArray[np.int64], column: NDArray[np.int8]) -> tuple[tuple[int, int], ...]:
    known = column != UNKNOWN
    return tuple(zip(sample_ids[known].tolist(), column[known].tolist(), strict=True))
