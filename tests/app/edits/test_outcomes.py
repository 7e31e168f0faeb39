"""Start and end of jobs, as the worker sees them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from app.edits import outcomes
from app.edits.kinds import JobKind
from app.edits.resolution import ResolutionError, resolve, target_version
from app.edits.schemas import EditRequest
from app.tables import Job, JobEvent, LedgerEntry, Model, Sample, Version
from tests.app.service import Service, problem
from tests.builders import CONCEPTS, build_job, build_version

EDITS = "/models/digits-model/edits"


def _request(*operations: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return EditRequest.model_validate({"operations": list(operations), **fields}).model_dump(mode="json", by_alias=True)


def _running(service: Service, kind: JobKind = JobKind.EDIT, request: dict[str, Any] | None = None) -> Job:
    with service.sessions.begin() as session:
        return build_job(session, session.get_one(Model, "digits-model"), kind, request=request, running=True)


def _new_version(service: Service) -> outcomes.NewVersion:
    return outcomes.NewVersion(
        concepts=list(CONCEPTS[:2]),
        snapshot_digest=service.store.put(b"snapshot"),
        weights_digest=service.store.put(b"weights"),
        factors_digest="f" * 64,
        factors_version="this",
        metrics={"accuracy": 0.5},
        code_version="1",
    )


def _kinds(service: Service, job_id: UUID) -> list[str]:
    with service.sessions() as session:
        return list(
            session.scalars(select(LedgerEntry.kind).where(LedgerEntry.job_id == job_id).order_by(LedgerEntry.seq))
        )


def test_publishing_makes_the_next_version_in_one_transaction(ready: Service) -> None:
    job = _running(ready)
    with ready.sessions.begin() as session:
        assert outcomes.publish(session, job.id, 1, new=_new_version(ready), report={"step": 1})
    with ready.sessions() as session:
        version = session.get_one(Version, ("digits-model", 2))
        assert (version.parent, version.job_id, version.factors_version) == (1, job.id, 2)
        assert (version.concepts, version.classes) == (list(CONCEPTS[:2]), ["0", "1"])
        assert session.get_one(Model, "digits-model").latest_version == 2
    shown = ready.get(f"{EDITS}/{job.id}").json()
    assert (shown["state"], shown["result"], shown["report"]) == ("succeeded", {"version": 2}, {"step": 1})
    assert shown["finished_at"] is not None
    assert _kinds(ready, job.id) == ["edit.accepted", "version.published", "edit.succeeded"]
    assert ready.get("/models/digits-model").headers["etag"] == '"v2"'


@pytest.mark.parametrize("attempt", [0, 2])
def test_another_attempt_writes_nothing(ready: Service, attempt: int) -> None:
    job = _running(ready)
    with ready.sessions.begin() as session:
        assert not outcomes.publish(session, job.id, attempt, new=_new_version(ready), report={})
        assert not outcomes.fail(session, ready.store, job.id, attempt, code="x", detail="x")
        assert not outcomes.finish_without_version(session, ready.store, job.id, attempt, report={})
        assert not outcomes.confirm_cancelled(session, ready.store, job.id, attempt)
    assert ready.get(f"{EDITS}/{job.id}").json()["state"] == "running"
    assert _kinds(ready, job.id) == ["edit.accepted"]
    with ready.sessions() as session:
        assert session.get(Version, ("digits-model", 2)) is None


def test_a_job_ends_once(ready: Service) -> None:
    job = _running(ready)
    with ready.sessions.begin() as session:
        assert outcomes.fail(session, ready.store, job.id, 1, code="guard", detail="F1 fell by 0.1.")
    with ready.sessions.begin() as session:
        assert not outcomes.publish(session, job.id, 1, new=_new_version(ready), report={})
        assert not outcomes.fail(session, ready.store, job.id, 1, code="other", detail="other")
    shown = ready.get(f"{EDITS}/{job.id}").json()
    assert (shown["state"], shown["error"]) == ("failed", {"code": "guard", "detail": "F1 fell by 0.1."})
    assert _kinds(ready, job.id) == ["edit.accepted", "edit.failed"]


def test_factors_belong_to_the_version_they_were_fitted_on(ready: Service) -> None:
    with ready.sessions.begin() as session:
        build_version(session, ready.store, session.get_one(Model, "digits-model"))
    job = _running(ready, JobKind.FIT_FACTORS, {"version": 1})
    with ready.sessions.begin() as session:
        assert target_version(session, session.get_one(Job, job.id)).number == 1
        assert outcomes.finish_without_version(
            session, ready.store, job.id, 1, report={"layers": 3}, factors_digest="a" * 64
        )
    with ready.sessions() as session:
        versions = session.scalars(select(Version).order_by(Version.number)).all()
        assert [(v.factors_digest, v.factors_version) for v in versions] == [("a" * 64, 1), (None, None)]
    assert _kinds(ready, job.id) == ["factors.accepted", "version.factors_fitted", "factors.succeeded"]


def test_a_retraining_makes_no_version(ready: Service) -> None:
    job = _running(ready, JobKind.RETRAIN, {"version": None, "seed": None})
    with ready.sessions.begin() as session:
        assert outcomes.finish_without_version(session, ready.store, job.id, 1, report={"accuracy": 1.0})
    assert ready.get(f"/models/digits-model/jobs/{job.id}").json()["result"] is None
    assert ready.get("/models/digits-model").json()["latest_version"] == 1
    assert _kinds(ready, job.id) == ["retraining.accepted", "retraining.succeeded"]


def _add_staged_row(service: Service, job: Job) -> int:
    with service.sessions.begin() as session:
        row = Sample(
            dataset_id="digits",
            key="img-new",
            split="train",
            class_index=1,
            concepts=[1, None, 0],
            image_sha256="0" * 64,
            image_bytes=3,
            pending_job_id=job.id,
        )
        session.add(row)
        session.flush()
        service.store.put_images("digits", {row.id: b"png"})
        return row.id


LABELS = {"closed loop": 1, "vertical stroke": None, "crossing": 0}
ADDITION = {"op": "add_samples", "samples": [{"key": "img-new", "class": "1", "upload": "up-1", "concepts": LABELS}]}


def test_staged_rows_are_resolved_and_settled(ready: Service) -> None:
    job = _running(ready, request=_request(ADDITION))
    row = _add_staged_row(ready, job)
    with ready.sessions.begin() as session:
        version, changes = resolve(session, ready.store, session.get_one(Job, job.id))
        assert version.number == 1
        assert [(added.sample_id, added.class_index, added.concepts) for added in changes.added] == [
            (row, 1, (1, -1, 0))
        ]
        assert outcomes.publish(session, job.id, 1, new=_new_version(ready), report={})
    with ready.sessions() as session:
        assert session.get_one(Sample, row).pending_job_id is None
    assert ready.store.image_path("digits", row).read_bytes() == b"png"


def test_staged_rows_have_the_columns_of_the_base_version(ready: Service) -> None:
    job = _running(ready, request=_request(ADDITION))
    row = _add_staged_row(ready, job)
    with ready.sessions.begin() as session:
        version = session.get_one(Version, ("digits-model", 1))
        version.concepts = ["crossing", "not the data set's", "closed loop", "vertical stroke"]
    with ready.sessions.begin() as session:
        _, changes = resolve(session, ready.store, session.get_one(Job, job.id))
    assert [(added.sample_id, added.concepts) for added in changes.added] == [(row, (0, -1, 1, -1))]


@pytest.mark.parametrize("how", ["fail", "confirm_cancelled"])
def test_staged_rows_go_with_the_edit(ready: Service, how: str) -> None:
    job = _running(ready, request=_request(ADDITION))
    row = _add_staged_row(ready, job)
    with ready.sessions.begin() as session:
        if how == "fail":
            assert outcomes.fail(session, ready.store, job.id, 1, code="x", detail="x")
        else:
            assert outcomes.confirm_cancelled(session, ready.store, job.id, 1)
        assert ready.store.image_path("digits", row).exists()  # bytes go after the commit only
    with ready.sessions() as session:
        assert session.get(Sample, row) is None
    assert not ready.store.image_path("digits", row).exists()


class TestWhatNoLongerApplies:
    def _refusal(self, service: Service, request: dict[str, Any]) -> ResolutionError:
        job = _running(service, request=request)
        with service.sessions() as session, pytest.raises(ResolutionError) as refused:
            resolve(session, service.store, session.get_one(Job, job.id))
        return refused.value

    def test_the_base_version_moved(self, ready: Service) -> None:
        with ready.sessions.begin() as session:
            build_version(session, ready.store, session.get_one(Model, "digits-model"))
        request = _request({"op": "drop_concepts", "concepts": ["crossing"]}, base_version=1)
        assert self._refusal(ready, request).code == "base_version_changed"

    def test_a_name_lost_its_meaning(self, ready: Service) -> None:
        request = _request(
            {"op": "drop_concepts", "concepts": ["crossing"]},
            {"op": "remove_samples", "samples": [f"img-SECRET{number}" for number in range(7)]},
        )
        refused = self._refusal(ready, request)
        assert refused.code == "edit_no_longer_applies"
        assert refused.detail.startswith("/operations/1/samples/0: unknown_sample; /operations/1/samples/1")
        assert refused.detail.endswith("; and 2 more")
        assert "SECRET" not in refused.detail

    def test_there_is_no_version(self, ready: Service) -> None:
        with ready.sessions.begin() as session:
            session.get_one(Version, ("digits-model", 1)).state = "withdrawn"
        refused = self._refusal(ready, _request({"op": "drop_concepts", "concepts": ["crossing"]}))
        assert refused.code == "model_has_no_version"


class TestCancelling:
    def test_a_queued_edit_ends_at_once(self, ready: Service) -> None:
        with ready.sessions.begin() as session:
            model = session.get_one(Model, "digits-model")
            job = build_job(session, model, JobKind.EDIT, request=_request(ADDITION))
        row = _add_staged_row(ready, job)
        first, again = (ready.post(f"{EDITS}/{job.id}:cancel").json() for _ in range(2))
        assert first == again
        assert (first["state"], first["finished_at"] is not None) == ("cancelled", True)
        assert _kinds(ready, job.id) == ["edit.accepted", "edit.cancelled"]
        with ready.sessions() as session:
            assert session.get(Sample, row) is None
        assert not ready.store.image_path("digits", row).exists()

    def test_a_running_one_is_asked_to_stop(self, ready: Service) -> None:
        job = _running(ready)
        shown = ready.post(f"/models/digits-model/jobs/{job.id}:cancel").json()
        assert (shown["state"], shown["cancel_requested"]) == ("running", True)
        with ready.sessions.begin() as session:
            assert outcomes.confirm_cancelled(session, ready.store, job.id, 1)
        assert ready.get(f"{EDITS}/{job.id}").json()["state"] == "cancelled"
        assert _kinds(ready, job.id) == ["edit.accepted", "edit.cancelled"]

    def test_one_that_ended_otherwise_is_refused(self, ready: Service) -> None:
        job = _running(ready)
        with ready.sessions.begin() as session:
            assert outcomes.fail(session, ready.store, job.id, 1, code="x", detail="x")
        problem(ready.post(f"{EDITS}/{job.id}:cancel"), 409, "job_finished")


def test_a_start_is_written_down_with_its_attempt(ready: Service) -> None:
    job = _running(ready)
    with ready.sessions.begin() as session:
        outcomes.start(session, session.get_one(Job, job.id))
    with ready.sessions() as session:
        event = session.scalars(select(JobEvent).where(JobEvent.job_id == job.id, JobEvent.kind == "started")).one()
        assert event.data == {"attempt": 1}
    assert _kinds(ready, job.id) == ["edit.accepted", "edit.started"]
