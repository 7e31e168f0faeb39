"""`POST /models/{id}/versions/{n}:restore`: when one may go back, and what the new version is."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import delete, select

from app.access.rules import Role
from app.datasets.snapshots import Snapshot, SnapshotChanges
from app.edits import outcomes
from app.registry.lineage import edits_since_fit
from app.tables import Job, JobEvent, LedgerEntry, Model, Sample, Version
from tests.app.service import Service, problem
from tests.builders import CONCEPTS, build_key, build_ready_model, build_version, payload_of

MODEL = "/models/digits-model"


def restoring(number: int) -> str:
    return f"{MODEL}/versions/{number}:restore"


@pytest.fixture
def edited(service: Service) -> Service:
    """Version 1, and version 2 that an edit made of it: without the first row and the last concept."""
    with service.sessions.begin() as session:
        model = build_ready_model(session, service.store, build_key(session)[0])
        first = session.get_one(Version, (model.id, 1))
        first.factors_digest, first.factors_version, first.metrics = "f" * 64, 1, {"concept_f1": 0.5}
        before = Snapshot.load(service.store.fetch(first.snapshot_digest))
        after = before.apply(SnapshotChanges(removed=(int(before.sample_ids[0]),), dropped=(2,)))
        build_version(session, service.store, model, snapshot=after, concepts=CONCEPTS[:2])
    return service


def run(service: Service, job_id: str) -> Job:
    """As a worker's claim would."""
    with service.sessions.begin() as session:
        job = session.get_one(Job, UUID(job_id))
        model = session.get_one(Model, job.model_id)
        job.state, job.attempt, job.base_version = "running", 1, model.latest_version
        return job


def publish(service: Service, job: Job, of: int) -> None:
    """As a worker does with what :mod:`worker.computing.restoring` found."""
    with service.sessions.begin() as session:
        version = session.get_one(Version, (job.model_id, of))
        new = outcomes.NewVersion(
            concepts=version.concepts,
            snapshot_digest=version.snapshot_digest,
            weights_digest=version.weights_digest,
            factors_digest=version.factors_digest,
            factors_version=version.factors_version,
            metrics=version.metrics,
            code_version="2",
        )
        assert outcomes.publish(session, job.id, 1, new=new, report={})


SAME = (
    "concepts",
    "classes",
    "snapshot_sha256",
    "weights_sha256",
    "factors_sha256",
    "factors_version",
    "metrics",
)


def test_the_new_version_is_the_older_one_again_and_its_child(edited: Service) -> None:
    answer = edited.post(restoring(1), {"reason": "the audit of June was wrong"})
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert answer.headers["location"] == f"{MODEL}/jobs/{job['id']}"
    assert (job["kind"], job["state"]) == ("restore", "queued")
    assert job["request"] == {"version": 1, "base_version": None, "reason": "the audit of June was wrong"}
    assert [str(job_id) for job_id in edited.doorbell.rung] == [job["id"]]
    publish(edited, run(edited, job["id"]), of=1)
    first, third = (edited.get(f"{MODEL}/versions/{number}").json() for number in (1, 3))
    assert {name: third[name] for name in SAME} == {name: first[name] for name in SAME}
    assert third["parent"] == 1
    assert edited.get(MODEL).json()["latest_version"] == 3
    assert edited.get(f"{MODEL}/jobs/{job['id']}").json()["result"] == {"version": 3}
    with edited.sessions() as session:
        entries = session.scalars(
            select(LedgerEntry).where(LedgerEntry.job_id == UUID(job["id"])).order_by(LedgerEntry.seq)
        ).all()
        assert [(entry.kind, entry.parent_version, entry.result_version) for entry in entries] == [
            ("restoration.accepted", None, None),
            ("version.published", 1, 3),
            ("restoration.succeeded", 2, 3),
        ]
        assert payload_of(session, entries[0]) == {"attempt": 0, "version": 1}
        assert session.scalars(select(JobEvent.kind).where(JobEvent.job_id == UUID(job["id"]))).all() == [
            "accepted",
            "succeeded",
        ]
    assert edited.get("/datasets/digits/samples/img-0").status_code == 200


def test_an_edit_after_it_speaks_of_the_older_version_s_data(edited: Service) -> None:
    """Version 2 has neither the row nor the concept."""
    removal = {"operations": [{"op": "remove_samples", "samples": ["img-0"]}]}
    drop = {"operations": [{"op": "drop_concepts", "concepts": ["crossing"]}]}
    for body in (removal, drop):
        problem(edited.post(f"{MODEL}/edits", body), 422, "invalid_edit")
    publish(edited, run(edited, edited.post(restoring(1), {}).json()["id"]), of=1)
    for body in (removal, drop):
        assert edited.post(f"{MODEL}/edits", body).status_code == 202


class TestRefusals:
    def test_of_the_newest_and_the_unknown(self, edited: Service) -> None:
        problem(edited.post(restoring(2), {}), 409, "version_is_newest")
        problem(edited.post(restoring(3), {}), 404, "not_found")
        problem(edited.post("/models/nothing/versions/1:restore", {}), 404, "not_found")
        problem(edited.post(restoring(0), {}), 422, "invalid_request")

    def test_of_a_withdrawn_one(self, edited: Service) -> None:
        with edited.sessions.begin() as session:
            session.get_one(Version, ("digits-model", 1)).state = "withdrawn"
        problem(edited.post(restoring(1), {}), 410, "version_withdrawn")

    def test_of_one_that_holds_a_row_that_was_erased(self, edited: Service) -> None:
        """Version 2 is without that row: it may be restored once it is not the newest."""
        with edited.sessions.begin() as session:
            session.execute(delete(Sample).where(Sample.key == "img-0"))
        problem(edited.post(restoring(1), {}), 410, "version_holds_erased_data")
        with edited.sessions.begin() as session:
            build_version(session, edited.store, session.get_one(Model, "digits-model"))
        assert edited.post(restoring(2), {}).status_code == 202

    def test_of_one_whose_snapshot_is_gone(self, edited: Service) -> None:
        with edited.sessions() as session:
            edited.store.delete(session.get_one(Version, ("digits-model", 1)).snapshot_digest)
        problem(edited.post(restoring(1), {}), 410, "version_holds_erased_data")

    def test_of_a_withdrawn_newest_version_there_is_none(self, edited: Service) -> None:
        """To leave it is what undoing is for."""
        with edited.sessions.begin() as session:
            session.get_one(Version, ("digits-model", 2)).state = "withdrawn"
        problem(edited.post(restoring(2), {}), 410, "version_withdrawn")
        assert edited.post(restoring(1), {}).status_code == 202

    @pytest.mark.parametrize("body", [{"reason": 7}, {"version": 1}, {"reason": "x" * 2001}])
    def test_of_other_bodies(self, edited: Service, body: dict[str, Any]) -> None:
        problem(edited.post(restoring(1), body), 422, "invalid_request")

    def test_of_those_who_may_not(self, edited: Service) -> None:
        problem(edited.post(restoring(1), {}, key=edited.key_of(Role.AUDITOR)), 403, "forbidden")
        problem(edited.post(restoring(1), {}, key=edited.key_of(Role.CLIENT, models=["other"])), 404, "not_found")
        headers = {"Authorization": f"Bearer {edited.key}"}
        problem(edited.client.post(restoring(1), json={}, headers=headers), 400, "idempotency_key_missing")


def test_a_restoration_is_asked_for_once(edited: Service) -> None:
    first, again = (edited.post(restoring(1), {}, idempotency_key="undo") for _ in range(2))
    assert first.json() == again.json()
    problem(edited.post(restoring(1), {"reason": "other"}, idempotency_key="undo"), 422, "idempotency_key_reused")


def test_if_match_binds_to_what_the_caller_saw(edited: Service) -> None:
    problem(edited.post(restoring(1), {}, headers={"If-Match": '"v1"'}), 412, "precondition_failed")
    job = edited.post(restoring(1), {}, headers={"If-Match": '"v2"'}).json()
    assert job["request"]["base_version"] == 2


def test_the_age_of_factors_is_counted_in_edits_along_the_line_of_parents(edited: Service) -> None:
    """1 → 2 (edit) → 3 (edit), restored 2 → 4, and 4 → 5 (edit): its factors of version 1 are two edits old."""

    def inherit(*numbers: int) -> None:
        with edited.sessions.begin() as session:
            for number in numbers:
                session.get_one(Version, ("digits-model", number)).factors_version = 1

    with edited.sessions.begin() as session:
        build_version(session, edited.store, session.get_one(Model, "digits-model"))
    inherit(2, 3)
    publish(edited, run(edited, edited.post(restoring(2), {}).json()["id"]), of=2)
    with edited.sessions.begin() as session:
        build_version(session, edited.store, session.get_one(Model, "digits-model"))
    inherit(5)
    with edited.sessions() as session:
        versions = session.scalars(select(Version).order_by(Version.number)).all()
        assert [version.parent for version in versions] == [None, 1, 2, 2, 4]
        assert [edits_since_fit(session, version) for version in versions] == [0, 1, 2, 1, 2]
        session.get_one(Version, ("digits-model", 5)).factors_version = 4
        assert edits_since_fit(session, versions[-1]) == 1
        session.get_one(Version, ("digits-model", 5)).factors_version = None
        assert edits_since_fit(session, versions[-1]) == 0
