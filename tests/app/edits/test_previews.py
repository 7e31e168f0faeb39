"""Previews: asked for like edits, and nothing of them stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.access.rules import Role
from app.demo.digits import load
from app.edits import outcomes
from app.edits.resolution import resolve
from app.tables import Job, LedgerEntry, Sample, Subject, Upload, Version
from tests.app.service import Service, problem

PREVIEWS, EDITS = "/models/digits-model/previews", "/models/digits-model/edits"
REMOVAL = {"operations": [{"op": "remove_samples", "samples": ["img-1"]}]}


def addition(service: Service) -> dict[str, Any]:
    """Two rows with uploads of their own, one of them of a new subject."""
    images = [row.png for row in load().rows[:2]]
    parts = [("files", (f"{number}.png", image)) for number, image in enumerate(images)]
    uploads = [found["id"] for found in service.post("/uploads?kind=image", files=parts).json()["uploads"]]
    samples = [{"key": f"new-{n}", "class": "1", "upload": upload} for n, upload in enumerate(uploads)]
    return {"operations": [{"op": "add_samples", "samples": [samples[0] | {"subject": "s-new"}, samples[1]]}]}


def rows_of(service: Service, job_id: str) -> list[int]:
    with service.sessions() as session:
        return list(session.scalars(select(Sample.id).where(Sample.pending_job_id == UUID(job_id))))


def files(service: Service) -> set[Path]:
    return {path for path in service.services.settings.data_dir.rglob("*") if path.is_file()}


def run(service: Service, job_id: str) -> None:
    """As a worker's claim would."""
    with service.sessions.begin() as session:
        job = session.get_one(Job, UUID(job_id))
        job.state, job.attempt, job.base_version = "running", 1, 1


def test_a_preview_is_a_job_of_its_own(ready: Service) -> None:
    answer = ready.post(PREVIEWS, REMOVAL, headers={"If-Match": '"v1"'})
    assert answer.status_code == 202, answer.text
    preview = answer.json()
    assert answer.headers["location"] == f"{PREVIEWS}/{preview['id']}"
    assert (preview["kind"], preview["state"], preview["request"]["base_version"]) == ("preview", "queued", 1)
    assert [str(job_id) for job_id in ready.doorbell.rung] == [preview["id"]]
    assert ready.get(answer.headers["location"]).json() == preview
    assert ready.get(PREVIEWS).json() == {"previews": [preview], "next_page_token": None}
    assert ready.get(f"{PREVIEWS}?state=running").json()["previews"] == []
    assert ready.get(EDITS).json()["edits"] == []
    problem(ready.get(f"{EDITS}/{preview['id']}"), 404, "not_found")
    edit = ready.post(EDITS, REMOVAL).json()
    problem(ready.get(f"{PREVIEWS}/{edit['id']}"), 404, "not_found")
    problem(ready.post(f"{PREVIEWS}/{edit['id']}:cancel"), 404, "not_found")
    assert ready.post(f"{PREVIEWS}/{preview['id']}:cancel").json()["state"] == "cancelled"
    with ready.sessions() as session:
        kinds = session.scalars(select(LedgerEntry.kind).where(LedgerEntry.job_id == UUID(preview["id"]))).all()
    assert set(kinds) == {"preview.accepted", "preview.cancelled"}


def test_a_preview_is_refused_like_its_edit(ready: Service) -> None:
    unknown = {"operations": [{"op": "remove_samples", "samples": ["img-none"]}]}
    (place,) = problem(ready.post(PREVIEWS, unknown), 422, "invalid_edit")["errors"]
    assert (place["pointer"], place["code"]) == ("/operations/0/samples/0", "unknown_sample")
    problem(ready.post(PREVIEWS, {"operations": []}), 422, "invalid_edit")
    problem(ready.post(PREVIEWS, {**REMOVAL, "base_version": 7}), 409, "base_version_changed")
    problem(ready.post(PREVIEWS, REMOVAL, headers={"If-Match": '"v2"'}), 412, "precondition_failed")
    problem(ready.post(PREVIEWS, REMOVAL, key=ready.key_of(Role.AUDITOR)), 403, "forbidden")
    headers = {"Authorization": f"Bearer {ready.key}"}
    problem(ready.client.post(PREVIEWS, json=REMOVAL, headers=headers), 400, "idempotency_key_missing")
    with ready.sessions() as session:
        assert session.scalar(select(func.count()).select_from(Job).where(Job.kind == "preview")) == 0


def test_an_intention_is_previewed_once_and_its_key_is_not_the_edits(ready: Service) -> None:
    first, again = (ready.post(PREVIEWS, REMOVAL, idempotency_key="june") for _ in range(2))
    assert first.json() == again.json()
    assert again.headers["idempotency-replayed"] == "true"
    assert ready.post(EDITS, REMOVAL, idempotency_key="june").json()["kind"] == "edit"
    other = {**REMOVAL, "reason": "another"}
    problem(ready.post(PREVIEWS, other, idempotency_key="june"), 422, "idempotency_key_reused")


def _finish(session: Session, service: Service, job_id: UUID) -> None:
    assert outcomes.finish_without_version(session, service.store, job_id, 1, report={"would": "succeed"})


def _fail(session: Session, service: Service, job_id: UUID) -> None:
    assert outcomes.fail(session, service.store, job_id, 1, code="x", detail="x")


def _stop(session: Session, service: Service, job_id: UUID) -> None:
    assert outcomes.confirm_cancelled(session, service.store, job_id, 1)


@pytest.mark.parametrize("end", [_finish, _fail, _stop])
def test_rows_are_lent_to_a_preview_and_go_with_it(
    ready: Service, end: Callable[[Session, Service, UUID], None]
) -> None:
    body = addition(ready)
    before = files(ready)
    preview = ready.post(PREVIEWS, body).json()
    rows = rows_of(ready, preview["id"])
    run(ready, preview["id"])
    with ready.sessions() as session:
        _, changes = resolve(session, ready.store, session.get_one(Job, UUID(preview["id"])))
    assert [row.sample_id for row in changes.added] == rows
    assert all(ready.store.image_path("digits", row).exists() for row in rows)
    with ready.sessions.begin() as session:
        end(session, ready, UUID(preview["id"]))
    assert rows_of(ready, preview["id"]) == []
    assert files(ready) == before, "the images went, and the uploads stayed"
    with ready.sessions() as session:
        assert session.scalar(select(Subject.reference).where(Subject.reference == "s-new")) is None
        assert session.scalar(select(func.count()).select_from(Upload)) == 2
        assert session.scalar(select(func.max(Version.number))) == 1


def test_a_waiting_preview_stands_in_nobodys_way(ready: Service) -> None:
    """Its rows have neither the keys nor the uploads of the edit that follows."""
    body = addition(ready)
    first, second = (ready.post(PREVIEWS, body) for _ in range(2))
    assert (first.status_code, second.status_code) == (202, 202)
    edit = ready.post(EDITS, body)
    assert edit.status_code == 202, edit.text
    with ready.sessions() as session:
        keys = session.scalars(select(Sample.key).where(Sample.pending_job_id == UUID(edit.json()["id"]))).all()
        assert session.scalar(select(func.count()).select_from(Upload)) == 0
    assert sorted(keys) == ["new-0", "new-1"]
    assert ready.post(f"{PREVIEWS}/{first.json()['id']}:cancel").json()["state"] == "cancelled"
    assert len(rows_of(ready, second.json()["id"])) == len(rows_of(ready, edit.json()["id"])) == 2
    problem(ready.get("/datasets/digits/samples/new-0"), 404, "not_found")


def test_factors_that_a_preview_had_to_fit_stay_with_the_version(ready: Service) -> None:
    preview = ready.post(PREVIEWS, REMOVAL).json()
    run(ready, preview["id"])
    with ready.sessions.begin() as session:
        assert outcomes.finish_without_version(
            session, ready.store, UUID(preview["id"]), 1, report={}, factors_digest="a" * 64
        )
    shown = ready.get("/models/digits-model/versions/1").json()
    assert (shown["factors_sha256"], shown["factors_version"]) == ("a" * 64, 1)
    kinds = [entry["kind"] for entry in ready.get("/models/digits-model/ledger").json()["entries"]]
    assert kinds[:3] == ["preview.succeeded", "version.factors_fitted", "preview.accepted"]
