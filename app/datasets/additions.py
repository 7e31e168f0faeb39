"""Rows that an edit adds, staged when it is accepted; ``app.datasets.settlement`` holds what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict
from uuid import UUID

import numpy as np
from sqlalchemy import delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.artifacts import ArtifactStore, on_commit, on_rollback
from app.datasets import repository
from app.datasets.intake import ImageFacts, image_batches
from app.datasets.names import is_key, is_subject
from app.datasets.problems import SAMPLE_EXISTS, UNKNOWN_UPLOAD
from app.datasets.snapshots import SPLITS, UNKNOWN, AddedSample
from app.datasets.votes import DEFINITELY, encode_votes
from app.kit.problems import INVALID_REQUEST, Problem
from app.tables import Dataset, Job, Upload

NewSample = TypedDict(
    "NewSample",
    {
        "key": str,
        "class": str,
        "concepts": Mapping[str, int | None],
        "split": str,
        "subject": str | None,
        "upload": str,
    },
)
"""A row to add. Concepts of the data set that are not named are unknown."""


def stage_added_samples(
    session: Session,
    store: ArtifactStore,
    dataset: Dataset,
    items: Sequence[NewSample],
    job_id: UUID,
    *,
    provisional: bool = False,
) -> list[AddedSample]:
    """Makes rows that belong to the job until it ends, with the images of their uploads, which are used up.

    The job's row must be flushed: uploads have to be of its creator. The files follow the transaction.

    Args:
        provisional: the rows go with the job in any case. Uploads and keys stay free for who adds the rows in
            earnest: the rows get keys that nobody can give, since theirs have no slash.

    Returns:
        The rows in the order of ``items``; their concepts are those of the data set, which a version may have fewer of.

    Raises:
        Problem: ``invalid_request`` (keys, subjects, names of classes, concepts and splits), ``sample_exists`` or
            ``unknown_upload``; ``errors`` give the ``item``, counted from 0, and a code.
    """
    dataset_id = dataset.id  # a rollback would empty the object that the effects below need it from
    _check_names(dataset, items)
    _check_keys(session, dataset, items)
    uploads = _uploads(session, items, job_id, use_up=not provisional)
    subjects = repository.upsert_subjects(session, (item["subject"] for item in items if item["subject"] is not None))
    ids = repository.reserve_sample_ids(session, len(items))
    on_rollback(session, lambda: store.delete_images(dataset_id, ids))
    names = [item["upload"] for item in items]
    for batch in image_batches(ids, names, uploads):
        images = {sample_id: store.upload_path(name).read_bytes() for sample_id, name in batch.items()}
        store.put_images(dataset_id, images)
    if not provisional:
        on_commit(session, lambda: store.delete_uploads(names))
    added = [
        AddedSample(
            sample_id,
            SPLITS.index(item["split"]),
            dataset.classes.index(item["class"]),
            tuple(UNKNOWN if (label := item["concepts"].get(name)) is None else label for name in dataset.concepts),
        )
        for sample_id, item in zip(ids, items, strict=True)
    ]
    try:
        repository.insert_samples(
            session,
            (
                {
                    "id": row.sample_id,
                    "dataset_id": dataset_id,
                    "key": f"preview/{job_id}/{number}" if provisional else item["key"],
                    "split": item["split"],
                    "class_index": row.class_index,
                    **_said(dataset, row.concepts),
                    "subject_id": None if item["subject"] is None else subjects[item["subject"]],
                    "image_sha256": uploads[item["upload"]].sha256,
                    "image_bytes": uploads[item["upload"]].size,
                    "pending_job_id": job_id,
                }
                for number, (row, item) in enumerate(zip(added, items, strict=True))
            ),
        )
    except IntegrityError as error:  # somebody else added one of the keys since they were looked up
        raise Problem(SAMPLE_EXISTS, "A sample with one of the keys was added just now.") from error
    return added


def _said(dataset: Dataset, labels: Sequence[int]) -> dict[str, Any]:
    """What is said of a row, as columns: its labels, or its votes where labels are its class's, which versions know."""
    if dataset.vote_rule is None:
        return {"concepts": [None if label == UNKNOWN else label for label in labels], "votes": None}
    said = np.array(labels, np.int64)
    votes = encode_votes(np.maximum(said, 0), np.where(said == UNKNOWN, 0, DEFINITELY))
    return {"concepts": [None] * len(labels), "votes": votes.tobytes()}


def _check_names(dataset: Dataset, items: Sequence[NewSample]) -> None:
    classes, concepts = set(dataset.classes), set(dataset.concepts)
    errors: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        found = [
            ("invalid_key", is_key(item["key"])),
            ("unknown_class", item["class"] in classes),
            ("unknown_concept", concepts.issuperset(item["concepts"])),
            ("label_not_0_1_unknown", all(label in (0, 1, None) for label in item["concepts"].values())),
            ("unknown_split", item["split"] in SPLITS),
            ("invalid_subject", item["subject"] is None or is_subject(item["subject"])),
        ]
        errors += [{"item": number, "code": code} for code, good in found if not good]
    if errors:
        raise Problem(INVALID_REQUEST, f"{len(errors)} places of samples to add are not valid.", errors=errors)


def _check_keys(session: Session, dataset: Dataset, items: Sequence[NewSample]) -> None:
    taken = repository.existing_keys(session, dataset.id, [item["key"] for item in items])
    errors = []
    for number, item in enumerate(items):
        if item["key"] in taken:
            errors.append({"item": number, "code": "sample_exists"})
        taken.add(item["key"])
    if errors:
        raise Problem(SAMPLE_EXISTS, f"{len(errors)} samples have keys that are taken.", errors=errors)


def _uploads(session: Session, items: Sequence[NewSample], job_id: UUID, *, use_up: bool) -> dict[str, ImageFacts]:
    """Takes the uploads' rows away, so that nobody else can use them; or else holds them to the transaction's end."""
    usable = (
        repository.among(Upload.id, [item["upload"] for item in items]),
        Upload.kind == "image",
        Upload.created_by == select(Job.created_by).where(Job.id == job_id).scalar_subquery(),
        Upload.expires_at > func.now(),
    )
    columns = (Upload.id, Upload.sha256, Upload.bytes)
    found = session.execute(
        delete(Upload).where(*usable).returning(*columns)
        if use_up
        else select(*columns).where(*usable).with_for_update(read=True)
    )
    uploads = {upload_id: ImageFacts(sha256, size) for upload_id, sha256, size in found}
    unused = set(uploads)
    errors = []
    for number, item in enumerate(items):
        if item["upload"] not in unused:
            errors.append({"item": number, "code": "unknown_upload"})
        unused.discard(item["upload"])
    if errors:
        raise Problem(UNKNOWN_UPLOAD, f"{len(errors)} samples name uploads that cannot be used.", errors=errors)
    return uploads
