"""Asking for insights, reading them, and taking rows out of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from app.access.callers import Caller
from app.artifacts import ArtifactStore
from app.datasets.snapshots import UNKNOWN, Snapshot
from app.edits import line
from app.edits.kinds import JobKind
from app.edits.states import JobState
from app.insights.reports import sample_ids, with_keys, without_rows
from app.insights.schemas import InsightBody, InsightKind, InsightRequest
from app.kit.problem_handlers import places_detail
from app.kit.problems import INVALID_REQUEST, NOT_FOUND, Problem
from app.tables import Job, Model, Sample, Version


def queue_insight(
    session: Session, store: ArtifactStore, caller: Caller, model: Model, version: Version, request: InsightRequest
) -> Job:
    """Queue the insights into a ready version. The job's request names the row by id, as its report does.

    Raises:
        Problem: ``invalid_request`` for a row or another version that there is not.
    """
    sample_id = None if request.sample is None else _explainable(session, store, model, version, request)
    other = _other_version(session, model, version, request)
    kinds = [kind.value for kind in request.kinds]
    asked = {"version": version.number, "kinds": kinds, "top": request.top, "compared_with": other}
    return line.join(
        session,
        model_id=model.id,
        dataset_id=model.dataset_id,
        kind=JobKind.INSIGHT,
        request={**asked, "sample_id": sample_id},
        created_by=caller.key_id,
        counts={**asked, "of_one_sample": sample_id is not None},
    )


def newest_insights(
    session: Session, model: Model, version: Version, kinds: Sequence[InsightKind]
) -> list[InsightBody]:
    """The newest of each kind, in the order of ``kinds``."""
    found = []
    for kind in kinds:
        statement = _succeeded(model, version).where(Job.request["kinds"].contains([kind.value]))
        job = session.scalars(statement.order_by(Job.seq.desc()).limit(1)).one_or_none()
        if job is not None:
            found.append((job, kind))
    return _bodies(session, model, version, found)


def insights_of_job(session: Session, model: Model, version: Version, job: Job) -> list[InsightBody]:
    """What one job found; raises ``not_found`` unless it has succeeded, and was about the version."""
    if job.state != JobState.SUCCEEDED or job.request["version"] != version.number:
        raise Problem(NOT_FOUND, "The job holds no insight into this version.")
    return _bodies(session, model, version, [(job, InsightKind(kind)) for kind in job.request["kinds"]])


def forget_rows(session: Session, model: Model, gone: Collection[int]) -> int:
    """Take erased rows out of all the model's insights; returns the number of entries taken out."""
    jobs = select(Job).where(Job.model_id == model.id, Job.kind == JobKind.INSIGHT.value).with_for_update()
    total = 0
    for job in session.scalars(jobs):
        if job.request["sample_id"] in gone:
            job.request = {**job.request, "sample_id": None}
            total += 1
        if job.report is not None:
            job.report, omitted = without_rows(job.report, gone)
            total += omitted
    session.flush()
    return total


def _explainable(
    session: Session, store: ArtifactStore, model: Model, version: Version, request: InsightRequest
) -> int:
    """Id of the row asked about, if the version's data holds it with a known label."""
    statement = select(Sample.id).where(
        Sample.dataset_id == model.dataset_id, Sample.key == request.sample, Sample.pending_job_id.is_(None)
    )
    sample_id = session.scalars(statement).one_or_none()
    if sample_id is None:
        raise _refused("/sample", "unknown_sample", "No sample of the data set has this key.")
    snapshot = Snapshot.load(store.fetch(version.snapshot_digest))
    (places,) = np.nonzero(snapshot.sample_ids == sample_id)
    if not len(places):
        raise _refused("/sample", "sample_not_in_version", "The version's data does not hold this sample.")
    if (snapshot.concepts[places[0]] == UNKNOWN).all():
        raise _refused("/sample", "sample_without_labels", "No concept label of this sample is known.")
    return sample_id


def _other_version(session: Session, model: Model, version: Version, request: InsightRequest) -> int | None:
    """Number of the version to compare with, if a comparison was asked for."""
    if InsightKind.CHANGED_PREDICTIONS not in request.kinds:
        return None
    number = request.compared_with or version.parent
    if number is None:
        raise _refused("/compared_with", "no_parent", "The version has no parent: name one to compare with.")
    other = session.get(Version, (model.id, number))
    if other is None or other.state != "ready" or number == version.number:
        raise _refused("/compared_with", "unknown_version", "No other version of this number is ready.")
    return number


def _refused(pointer: str, code: str, message: str) -> Problem:
    return Problem(INVALID_REQUEST, places_detail(1), errors=[{"pointer": pointer, "code": code, "message": message}])


def _succeeded(model: Model, version: Version) -> Select[Job]:
    return select(Job).where(
        Job.model_id == model.id,
        Job.kind == JobKind.INSIGHT.value,
        Job.state == JobState.SUCCEEDED.value,
        Job.request["version"].as_integer() == version.number,
    )


def _bodies(
    session: Session, model: Model, version: Version, found: Sequence[tuple[Job, InsightKind]]
) -> list[InsightBody]:
    results = [(job, kind, (job.report or {})["insights"][kind.value]) for job, kind in found]
    ids = sorted({sample_id for *_, result in results for sample_id in sample_ids(result)})
    keys: dict[int, str] = {}
    if ids:
        statement = select(Sample.id, Sample.key).where(
            Sample.dataset_id == model.dataset_id, Sample.id.in_(ids), Sample.pending_job_id.is_(None)
        )
        keys = dict(session.execute(statement).all())
    bodies = []
    for job, kind, result in results:
        named, omitted = with_keys(result, keys, model.dataset_id)
        if job.finished_at is None:
            raise RuntimeError("a job that has succeeded has ended")
        bodies.append(
            InsightBody(
                kind=kind,
                version=version.number,
                job=job.id,
                finished_at=job.finished_at,
                omitted_rows=omitted,
                result=named,
            )
        )
    return bodies
