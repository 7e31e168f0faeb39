"""Keeping files until a later request uses them, or their time is over."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from app.access.callers import Caller
from app.artifacts import ArtifactStore, on_commit, on_rollback
from app.datasets.images import ImageLimits, ImageRefused, check_image
from app.datasets.report import ManifestErrorCode
from app.kit.problems import Problem
from app.tables import Upload
from app.uploads.multipart import MultipartForm, Part
from app.uploads.problems import INVALID_UPLOAD
from app.uploads.schemas import UploadKind

LIFETIME = timedelta(hours=24)


def create_uploads(
    session: Session,
    store: ArtifactStore,
    caller: Caller,
    form: MultipartForm,
    *,
    kind: UploadKind,
    limits: ImageLimits,
) -> list[Upload]:
    """Checks and stores the form's files, all or none; the files follow the caller's transaction.

    Raises:
        Problem: ``invalid_upload``; ``errors`` point at the files, counted from 0.
    """
    files = form.named("files")
    if kind is UploadKind.IMAGE:
        _refuse_if_any(_image_findings(form, files, limits))
    ids = [f"up-{secrets.token_urlsafe(16)}" for _ in files]
    on_rollback(session, lambda: store.delete_uploads(ids))
    store.put_uploads({upload_id: form.open(part) for upload_id, part in zip(ids, files, strict=True)})
    if kind is UploadKind.WEIGHTS:
        _refuse_if_any([_weights_finding(store.upload_path(upload_id)) for upload_id in ids])
    expires_at = session.execute(select(func.now())).scalar_one() + LIFETIME
    uploads = [
        Upload(
            id=upload_id,
            kind=kind.value,
            sha256=part.sha256,
            bytes=part.size,
            created_by=caller.key_id,
            expires_at=expires_at,
        )
        for upload_id, part in zip(ids, files, strict=True)
    ]
    session.add_all(uploads)
    session.flush()
    return uploads


def expire_uploads(session: Session, store: ArtifactStore, now: datetime) -> int:
    """Deletes uploads whose time is over, and old files that no row knows, which requests that died have left.

    The files go once the caller's transaction has committed. Returns their number.
    """
    gone = list(session.scalars(delete(Upload).where(Upload.expires_at <= now).returning(Upload.id)))
    old = set(store.stored_uploads(now - LIFETIME))
    gone += old - set(session.scalars(select(Upload.id))) - set(gone)
    on_commit(session, lambda: store.delete_uploads(gone))
    return len(gone)


def _image_findings(form: MultipartForm, files: Sequence[Part], limits: ImageLimits) -> list[str | None]:
    def finding(part: Part) -> str | None:
        if part.size > limits.max_bytes:
            return ManifestErrorCode.OVERSIZED_IMAGE.value
        try:
            check_image(form.read(part), limits)
        except ImageRefused as refusal:
            return refusal.code.value
        return None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(finding, files))


def _weights_finding(path: Path) -> str | None:
    """Opening reads the header and checks it against the file's length: types, shapes, offsets without gaps."""
    try:
        with safe_open(path, framework="numpy"):
            return None
    except (SafetensorError, OSError, ValueError):
        return "not_safetensors"


def _refuse_if_any(findings: Sequence[str | None]) -> None:
    errors: list[dict[str, Any]] = [
        {"pointer": f"/files/{number}", "code": code} for number, code in enumerate(findings) if code is not None
    ]
    if errors:
        raise Problem(INVALID_UPLOAD, f"{len(errors)} of {len(findings)} files are not valid.", errors=errors[:1000])
