"""Where a version comes from, and whether one may go back to it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ARRAY, BigInteger, any_, func, literal, select
from sqlalchemy.orm import Session, aliased

from app.artifacts import ArtifactMissing, ArtifactStore
from app.datasets.snapshots import Snapshot
from app.edits.kinds import JobKind
from app.tables import Job, Model, Sample, Version


@dataclass(frozen=True)
class Obstacle:
    """Why a version cannot be restored; ``code`` is that of a problem type."""

    code: str
    detail: str


def obstacle_to_restoring(
    session: Session, store: ArtifactStore, version: Version, *, newest: int | None
) -> Obstacle | None:
    """What stands against a new version that is as ``version`` was, if anything does.

    Asked when a restoration is accepted and again when it starts: data may have been erased in between.

    Args:
        newest: number of the model's newest version.
    """
    if version.state != "ready":
        return Obstacle("version_withdrawn", "The version was withdrawn.")
    if version.number == newest:
        return Obstacle("version_is_newest", f"Version {version.number} is the newest.")
    if holds_erased_data(session, store, version):
        return Obstacle("version_holds_erased_data", "Rows that the version was made with do not exist any more.")
    return None


def holds_erased_data(session: Session, store: ArtifactStore, version: Version) -> bool:
    """Whether the version was made with rows that are gone from the data set, or its snapshot itself is gone."""
    try:
        ids = Snapshot.load(store.fetch(version.snapshot_digest)).sample_ids.tolist()
    except ArtifactMissing:
        return True
    dataset = select(Model.dataset_id).where(Model.id == version.model_id).scalar_subquery()
    there = session.scalar(
        select(func.count())
        .select_from(Sample)
        .where(Sample.dataset_id == dataset, Sample.id == any_(literal(ids, ARRAY(BigInteger))))
    )
    return there != len(ids)


def edits_since_fit(session: Session, version: Version) -> int:
    """How many edits lead from the version that ``version``'s factors were fitted on to it; 0 without factors."""
    if version.factors_version is None:
        return 0
    step = (
        select(Version.number, Version.parent, Version.job_id)
        .where(Version.model_id == version.model_id, Version.number == version.number)
        .cte("step", recursive=True)
    )
    above = aliased(Version)
    step = step.union_all(
        select(above.number, above.parent, above.job_id).where(
            above.model_id == version.model_id, above.number == step.c.parent, step.c.number != version.factors_version
        )
    )
    edits = (
        select(func.count())
        .select_from(step)
        .join(Job, Job.id == step.c.job_id)
        .where(step.c.number != version.factors_version, Job.kind == JobKind.EDIT.value)
    )
    return session.scalar(edits) or 0
