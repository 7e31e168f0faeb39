"""Rows and artifacts for tests that start in the middle: a data set, a model, versions, without any training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy.orm import Session

from app.access.keys import create_key
from app.access.rules import Role
from app.artifacts import ArtifactStore
from app.datasets.snapshots import SPLITS, UNKNOWN, AddedSample, Snapshot
from app.edits import line
from app.edits.kinds import JobKind
from app.tables import ApiKey, Dataset, Job, LedgerEntry, LedgerPayload, Model, Sample, Subject, Version

CONCEPTS = ("closed loop", "vertical stroke", "crossing")
CLASSES = ("0", "1")
TRAINING: dict[str, Any] = {"epochs": 1, "batch_size": 8, "learning_rate": 1e-3, "weight_decay": 1e-4, "seed": 0}
ARCHITECTURE: dict[str, Any] = {"name": "small_conv", "width": 8, "image_size": 8, "channels": 1}


def build_key(session: Session, role: Role = Role.ADMIN, *, models: Sequence[str] | None = None) -> tuple[ApiKey, str]:
    """A key and its text."""
    return create_key(session, name="test", role=role, model_ids=models, actor_ref="operator")


def build_dataset(
    session: Session,
    store: ArtifactStore,
    created_by: ApiKey,
    *,
    dataset_id: str = "digits",
    rows_per_split: Sequence[int] = (8, 4, 4),
    subjects: Sequence[str] = (),
) -> Dataset:
    """Rows with keys ``img-0``, ``img-1``, … over the splits in order, seeded labels, some unknown.

    ``subjects`` are given to the first rows, one each.
    """
    random = np.random.default_rng(0)
    splits = [split for split, count in zip(SPLITS, rows_per_split, strict=True) for _ in range(count)]
    samples = [
        Sample(
            dataset_id=dataset_id,
            key=f"img-{number}",
            split=split,
            class_index=number % len(CLASSES),
            concepts=[None if value == UNKNOWN else int(value) for value in random.integers(UNKNOWN, 2, len(CONCEPTS))],
            image_sha256="0" * 64,
            image_bytes=3,
        )
        for number, split in enumerate(splits)
    ]
    dataset = Dataset(
        id=dataset_id,
        title="Digits",
        concepts=list(CONCEPTS),
        classes=list(CLASSES),
        snapshot_digest="",
        counts=dict(zip(SPLITS, rows_per_split, strict=True)),
        created_by=created_by.id,
    )
    session.add(dataset)
    session.flush()
    for sample, reference in zip(samples, subjects, strict=False):
        subject = Subject(reference=reference)
        session.add(subject)
        session.flush()
        sample.subject_id = subject.id
    session.add_all(samples)
    session.flush()
    rows = (
        AddedSample(
            sample.id,
            SPLITS.index(sample.split),
            sample.class_index,
            tuple(UNKNOWN if value is None else value for value in sample.concepts),
        )
        for sample in samples
    )
    dataset.snapshot_digest = store.put(Snapshot.from_rows(rows, len(CONCEPTS)).to_bytes())
    store.put_images(dataset_id, {sample.id: b"png" for sample in samples})
    session.flush()
    return dataset


def build_model(session: Session, dataset: Dataset, *, model_id: str = "digits-model") -> Model:
    """A model without a version or a job."""
    model = Model(
        id=model_id,
        title=model_id,
        dataset_id=dataset.id,
        architecture=ARCHITECTURE,
        training=TRAINING,
        created_by=dataset.created_by,
    )
    session.add(model)
    session.flush()
    return model


def build_job(
    session: Session,
    model: Model,
    kind: JobKind = JobKind.TRAIN,
    *,
    request: dict[str, Any] | None = None,
    running: bool = False,
) -> Job:
    """A job at the end of the line, or as if a worker had claimed it."""
    job = line.join(
        session,
        model_id=model.id,
        dataset_id=model.dataset_id,
        kind=kind,
        request=request or {},
        created_by=model.created_by,
    )
    if running:
        job.state, job.attempt, job.base_version = "running", job.attempt + 1, model.latest_version
        session.flush()
    return job


def build_version(
    session: Session,
    store: ArtifactStore,
    model: Model,
    *,
    snapshot: Snapshot | None = None,
    concepts: Sequence[str] | None = None,
) -> Version:
    """The model's next version as its training (or an edit) would have published it; its weights are no real ones."""
    dataset = session.get_one(Dataset, model.dataset_id)
    number = (model.latest_version or 0) + 1
    job = build_job(session, model, JobKind.TRAIN if number == 1 else JobKind.EDIT)
    job.state, job.result_version = "succeeded", number
    version = Version(
        model_id=model.id,
        number=number,
        parent=model.latest_version,
        job_id=job.id,
        concepts=list(concepts or dataset.concepts),
        classes=dataset.classes,
        snapshot_digest=dataset.snapshot_digest if snapshot is None else store.put(snapshot.to_bytes()),
        weights_digest=store.put(f"weights {model.id} {number}".encode()),
        metrics={},
        code_version="test",
    )
    session.add(version)
    session.flush()
    session.refresh(version)
    model.latest_version = number
    session.flush()
    return version


def build_ready_model(
    session: Session, store: ArtifactStore, created_by: ApiKey, *, subjects: Sequence[str] = ()
) -> Model:
    """Data set ``digits`` and model ``digits-model`` with version 1."""
    model = build_model(session, build_dataset(session, store, created_by, subjects=subjects))
    build_version(session, store, model)
    return model


def payload_of(session: Session, entry: LedgerEntry) -> dict[str, Any]:
    """What an entry says beyond its references."""
    payload: dict[str, Any] = json.loads(session.get_one(LedgerPayload, entry.seq).payload)
    return payload
