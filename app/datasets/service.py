"""Registering data sets, and reading them. Nothing here commits; files follow the caller's transaction."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from sqlalchemy import Select, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.access.callers import Caller
from app.artifacts import ArtifactStore, on_rollback
from app.datasets import repository
from app.datasets.additions import NewSample, stage_added_samples
from app.datasets.images import ImageLimits
from app.datasets.intake import ImageFacts, Submission, check_images, image_batches
from app.datasets.manifest import Manifest
from app.datasets.problems import INVALID_MANIFEST
from app.datasets.report import MAX_LISTED, Report
from app.datasets.settlement import discard_added_samples, settle_added_samples
from app.datasets.snapshots import SPLITS, Snapshot
from app.datasets.vote_files import check_labels
from app.datasets.votes import Votes, ballots
from app.kit.problems import ALREADY_EXISTS, INVALID_REQUEST, NOT_FOUND, Problem
from app.ledger import service as ledger
from app.ledger.kinds import LedgerKind
from app.tables import Dataset, Sample

__all__ = [
    "NewSample",
    "Registered",
    "discard_added_samples",
    "find_sample",
    "register_dataset",
    "remove_orphans",
    "require_dataset",
    "samples_of",
    "settle_added_samples",
    "stage_added_samples",
]


@dataclass(frozen=True)
class Registered:
    """A data set just registered, and how many of the files sent no row names."""

    dataset: Dataset
    unreferenced_images: int


def register_dataset(
    session: Session,
    store: ArtifactStore,
    caller: Caller,
    submission: Submission,
    *,
    limits: ImageLimits,
    report: Report,
) -> Registered:
    """Checks the images, then stores everything: rows, images, snapshot, ledger entry. All or nothing.

    Args:
        report: what reading the manifest found; findings about images are added.

    Raises:
        Problem: ``already_exists``, or ``invalid_manifest`` with every bad row.
    """
    definition, manifest = submission.definition, submission.manifest
    dataset_id = definition.id or f"dataset-{secrets.token_hex(4)}"
    if session.get(Dataset, dataset_id) is not None:  # before the long work; the insert below decides
        raise Problem(ALREADY_EXISTS, "There is a data set with this id.")
    facts = check_images(manifest, submission.images, limits, report)
    labels, votes = manifest.concepts, submission.votes
    if votes is not None and not report.total:
        labels = check_labels(definition, manifest, votes, report)
    if report.total:
        raise invalid_manifest(report)

    ids = repository.reserve_sample_ids(session, len(manifest))
    snapshot = Snapshot(
        np.array(ids, np.int64),
        np.array(manifest.splits, np.int8),
        np.array(manifest.classes, np.int32),
        labels,
        None if votes is None else ballots(votes),
    )
    rule = None if definition.vote_rule is None else definition.vote_rule.model_dump(mode="json")
    digest = store.put(snapshot.to_bytes())
    on_rollback(session, lambda: store.delete(digest))
    inserted = session.execute(
        insert(Dataset)
        .values(
            id=dataset_id,
            title=definition.title,
            concepts=definition.concepts,
            classes=definition.classes,
            snapshot_digest=digest,
            vote_rule=rule,
            counts=snapshot.counts,
            created_by=caller.key_id,
        )
        .on_conflict_do_nothing()
        .returning(Dataset.id)
    ).scalar_one_or_none()
    if inserted is None:
        raise Problem(ALREADY_EXISTS, "There is a data set with this id.")
    subjects = _insert_rows(session, dataset_id, manifest, snapshot, facts, votes)
    on_rollback(session, lambda: store.delete_images(dataset_id, ids))
    for batch in image_batches(ids, manifest.images, facts):
        images = {sample_id: submission.images.read(name) for sample_id, name in batch.items()}
        store.put_images(dataset_id, images)
    ledger.append(
        session,
        LedgerKind.DATASET_REGISTERED,
        actor_ref=caller.actor_ref,
        dataset_id=dataset_id,
        artifact_sha256=digest,
        payload={
            "counts": snapshot.counts,
            "concepts": len(definition.concepts),
            "classes": len(definition.classes),
            **({} if rule is None else {"vote_rule": rule}),
            "subjects": subjects,
        },
    )
    return Registered(session.get_one(Dataset, dataset_id), len(submission.images) - len(facts))


def invalid_manifest(report: Report) -> Problem:
    """The problem that carries the report of bad rows."""
    places = "1 place is" if report.total == 1 else f"{report.total} places are"
    detail = f"{places} wrong; nothing was imported."
    if report.total > MAX_LISTED:
        detail += f" The first {MAX_LISTED} are listed."
    return Problem(INVALID_MANIFEST, detail, errors=report.listed(), members={"errors_total": report.total})


def _insert_rows(
    session: Session,
    dataset_id: str,
    manifest: Manifest,
    snapshot: Snapshot,
    facts: dict[str, ImageFacts],
    votes: Votes | None,
) -> int:
    """Inserts all rows; returns the number of subjects."""
    subjects = repository.upsert_subjects(session, (name for name in manifest.subjects if name is not None))
    labels = (0, 1, None)  # the last one is at UNKNOWN = -1
    repository.insert_samples(
        session,
        (
            {
                "id": int(sample_id),
                "dataset_id": dataset_id,
                "key": manifest.keys[index],
                "split": SPLITS[manifest.splits[index]],
                "class_index": manifest.classes[index],
                "concepts": [labels[value] for value in snapshot.concepts[index].tolist()],
                "votes": None if votes is None else votes[index].tobytes(),
                "subject_id": None if (subject := manifest.subjects[index]) is None else subjects[subject],
                "image_sha256": facts[manifest.images[index]].sha256,
                "image_bytes": facts[manifest.images[index]].size,
            }
            for index, sample_id in enumerate(snapshot.sample_ids)
        ),
    )
    return len(subjects)


def require_dataset(session: Session, caller: Caller, dataset_id: str) -> Dataset:
    """The data set; raises ``not_found`` also for one that the key may not see."""
    statement = select(Dataset).where(Dataset.id == dataset_id, repository.visible_to(caller))
    dataset = session.scalars(statement).one_or_none()
    if dataset is None:
        raise Problem(NOT_FOUND, "There is no such data set.")
    return dataset


def samples_of(dataset: Dataset, *, split: str | None = None, class_name: str | None = None) -> Select[Sample]:
    """The data set's rows, without those that wait for an edit to succeed.

    Raises:
        Problem: ``invalid_request`` when the data set has no class ``class_name``.
    """
    statement = select(Sample).where(Sample.dataset_id == dataset.id, Sample.pending_job_id.is_(None))
    if split is not None:
        statement = statement.where(Sample.split == split)
    if class_name is not None:
        if class_name not in dataset.classes:
            raise Problem(
                INVALID_REQUEST,
                "The data set has no such class.",
                errors=[{"parameter": "class", "code": "unknown_class"}],
            )
        statement = statement.where(Sample.class_index == dataset.classes.index(class_name))
    return statement


def find_sample(session: Session, dataset: Dataset, key: str) -> Sample:
    """The row with this key; raises ``not_found``."""
    sample = session.scalars(samples_of(dataset).where(Sample.key == key)).one_or_none()
    if sample is None:
        raise Problem(NOT_FOUND, "The data set has no such sample.")
    return sample


def remove_orphans(session: Session, store: ArtifactStore, before: datetime) -> int:
    """Removes images without a row and unfinished files, written before ``before``: imports that died left them.

    ``before`` must lie further back than the longest import takes, whose rows nobody sees until it commits. Returns
    the number of files removed.
    """
    removed = store.remove_unfinished(before)
    by_dataset: dict[str, list[int]] = {}
    for dataset_id, sample_id in store.stored_images(before):
        by_dataset.setdefault(dataset_id, []).append(sample_id)
    for dataset_id, ids in by_dataset.items():
        known = set(session.scalars(select(Sample.id).where(Sample.dataset_id == dataset_id)))
        orphans = [sample_id for sample_id in ids if sample_id not in known]
        store.delete_images(dataset_id, orphans)
        removed += len(orphans)
    return removed
