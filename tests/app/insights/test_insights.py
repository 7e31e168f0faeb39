"""What `/models/{id}/versions/{n}/insights` takes and refuses, and how results are read."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import delete, select

from app.access.rules import Role
from app.datasets.snapshots import UNKNOWN, Snapshot, SnapshotChanges
from app.demo.digits import load
from app.edits import outcomes
from app.insights.service import forget_rows
from app.tables import IdempotencyRecord, Job, LedgerEntry, Model, Sample, Version
from tests.app.service import Service, problem
from tests.builders import CONCEPTS, build_version, payload_of

PATH = "/models/digits-model/versions/2/insights"


def sample_id(service: Service, key: str) -> int:
    with service.sessions() as session:
        return session.scalars(select(Sample.id).where(Sample.key == key)).one()


def refused(service: Service, body: dict[str, Any], path: str = PATH) -> tuple[str, str]:
    (error,) = problem(service.post(path, body), 422, "invalid_request")["errors"]
    return error["pointer"], error["code"]


def finish(service: Service, job_id: str, insights: dict[str, Any]) -> None:
    """As a worker would, after it has run everything before."""
    with service.sessions.begin() as session:
        job = session.get_one(Job, UUID(job_id))
        job.state, job.attempt, job.base_version = "running", 1, 2
        session.flush()
        report = {"kind": "insight", "version": job.request["version"], "insights": insights}
        assert outcomes.finish_without_version(session, service.store, job.id, 1, report=report)


def test_an_insight_is_queued_once(ready: Service) -> None:
    body = {"kinds": ["concept_importance", "suspected_labels"], "top": 5}
    answer = ready.post(PATH, body, idempotency_key="one")
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert answer.headers["location"] == f"/models/digits-model/jobs/{job['id']}"
    assert (job["kind"], job["state"]) == ("insight", "queued")
    assert job["request"] == {
        "version": 2,
        "kinds": ["concept_importance", "suspected_labels"],
        "top": 5,
        "compared_with": None,
        "sample_id": None,
    }
    again = ready.post(PATH, body, idempotency_key="one")
    assert (again.json(), again.headers["idempotency-replayed"]) == (job, "true")
    problem(ready.post(PATH, {**body, "top": 6}, idempotency_key="one"), 422, "idempotency_key_reused")
    assert [str(rung) for rung in ready.doorbell.rung] == [job["id"]]


def test_neither_the_ledger_nor_the_job_nor_the_stored_answer_holds_a_key(ready: Service) -> None:
    job = ready.post(PATH, {"kinds": ["influential_labels"], "sample": "img-13"}).json()
    assert job["request"]["sample_id"] == sample_id(ready, "img-13")
    with ready.sessions() as session:
        entry = session.scalars(select(LedgerEntry).where(LedgerEntry.kind == "insight.accepted")).one()
        payload = payload_of(session, entry)
        stored = session.scalars(select(IdempotencyRecord)).one()
    assert payload["of_one_sample"] is True
    assert "sample_id" not in payload
    assert "img-13" not in f"{payload} {job} {stored.body} {stored.payload_sha256}"


def test_changes_are_compared_with_the_parent_unless_another_version_is_named(ready: Service) -> None:
    job = ready.post(PATH, {"kinds": ["changed_predictions"]}).json()
    assert job["request"]["compared_with"] == 1
    other = ready.post(PATH.replace("2", "1"), {"kinds": ["changed_predictions"], "compared_with": 2}).json()
    assert (other["request"]["version"], other["request"]["compared_with"]) == (1, 2)
    first = PATH.replace("2", "1")
    assert refused(ready, {"kinds": ["changed_predictions"]}, first) == ("/compared_with", "no_parent")
    for number in (2, 3):
        body = {"kinds": ["changed_predictions"], "compared_with": number}
        assert refused(ready, body) == ("/compared_with", "unknown_version")
    assert ready.post(first, {"kinds": ["concept_importance"]}).status_code == 202, "nothing is compared here"


def test_a_sample_must_be_one_of_the_version_with_a_label(ready: Service) -> None:
    with ready.sessions.begin() as session:
        model = session.get_one(Model, "digits-model")
        before = Snapshot.load(ready.store.fetch(session.get_one(Version, (model.id, 2)).snapshot_digest))
        removed, bare = sample_id(ready, "img-3"), sample_id(ready, "img-4")
        fixes = tuple(
            (bare, column, UNKNOWN)
            for column in range(len(CONCEPTS))
            if before.concepts[before.sample_ids == bare][0, column] != UNKNOWN
        )
        after = before.apply(SnapshotChanges(fixes=fixes, removed=(removed,)))
        build_version(session, ready.store, model, snapshot=after)
    third = PATH.replace("2", "3")
    for key, code in (
        ("img-999", "unknown_sample"),
        ("img-3", "sample_not_in_version"),
        ("img-4", "sample_without_labels"),
    ):
        assert refused(ready, {"kinds": ["influential_labels"], "sample": key}, third) == ("/sample", code)
    assert ready.post(third, {"kinds": ["influential_labels"], "sample": "img-5"}).status_code == 202


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/kinds"),
        ({"kinds": []}, "/kinds"),
        ({"kinds": ["everything"]}, "/kinds/0"),
        ({"kinds": ["suspected_labels", "suspected_labels"]}, "/kinds"),
        ({"kinds": ["suspected_labels"], "top": 201}, "/top"),
        ({"kinds": ["suspected_labels"], "top": 0}, "/top"),
        ({"kinds": ["suspected_labels"], "top": "20"}, "/top"),
        ({"kinds": ["suspected_labels"], "depth": 1}, "/depth"),
    ],
)
def test_what_is_malformed_is_refused_with_its_place(unchanged: Service, body: dict[str, Any], pointer: str) -> None:
    path = PATH.replace("2", "1")
    errors = problem(unchanged.post(path, body), 422, "invalid_request")["errors"]
    assert [error["pointer"] for error in errors] == [pointer]


def test_who_may_ask_and_who_may_read(unchanged: Service) -> None:
    path = PATH.replace("2", "1")
    body = {"kinds": ["concept_importance"]}
    for role in (Role.AUDITOR, Role.COMPLIANCE):
        key = unchanged.key_of(role)
        problem(unchanged.post(path, body, key=key), 403, "forbidden")
        assert unchanged.get(path, key=key).json() == {"insights": []}
    foreign = unchanged.key_of(Role.CLIENT, models=["another"])
    problem(unchanged.post(path, body, key=foreign), 404, "not_found")
    problem(unchanged.get(path, key=foreign), 404, "not_found")
    problem(unchanged.post(PATH.replace("2", "7"), body), 404, "not_found")


def test_a_withdrawn_version_is_not_looked_into(ready: Service) -> None:
    with ready.sessions.begin() as session:
        session.get_one(Version, ("digits-model", 2)).state = "withdrawn"
    problem(ready.post(PATH, {"kinds": ["concept_importance"]}), 410, "version_withdrawn")


def suspects(service: Service, *keys: str) -> dict[str, Any]:
    return {
        "suspected_labels": {
            "layer": "head",
            "labels": [{"sample_id": sample_id(service, key), "concept": "crossing", "label": 1} for key in keys],
        }
    }


def test_results_are_read_with_keys_and_images(ready: Service) -> None:
    row = load().rows[0]
    ready.store.put_images("digits", {sample_id(ready, "img-2"): row.png})
    job = ready.post(PATH, {"kinds": ["suspected_labels"]}).json()
    assert ready.get(PATH).json() == {"insights": []}, "it has not run yet"
    problem(ready.get(f"{PATH}/{job['id']}"), 404, "not_found")
    finish(ready, job["id"], suspects(ready, "img-2", "img-1"))
    (insight,) = ready.get(PATH).json()["insights"]
    assert (insight["kind"], insight["version"], insight["job"]) == ("suspected_labels", 2, job["id"])
    assert [label["sample"] for label in insight["result"]["labels"]] == ["img-2", "img-1"]
    assert "sample_id" not in str(insight)
    image = ready.get(insight["result"]["labels"][0]["image"])
    assert (image.status_code, image.content, image.headers["content-type"]) == (200, row.png, "image/png")
    assert image.headers["cache-control"] == "no-store"
    assert ready.get(f"{PATH}/{job['id']}").json()["insights"] == [insight]
    problem(ready.get(f"{PATH.replace('2', '1')}/{job['id']}"), 404, "not_found")


def test_the_newest_of_each_kind_is_listed(ready: Service) -> None:
    older = ready.post(PATH, {"kinds": ["concept_importance", "suspected_labels"]}).json()
    newer = ready.post(PATH, {"kinds": ["suspected_labels"]}).json()
    of_another = ready.post(PATH.replace("2", "1"), {"kinds": ["suspected_labels"]}).json()
    finish(ready, older["id"], {"concept_importance": {"most": []}, **suspects(ready, "img-0")})
    finish(ready, newer["id"], suspects(ready, "img-1"))
    finish(ready, of_another["id"], suspects(ready, "img-2"))
    listed = ready.get(PATH).json()["insights"]
    assert [(insight["kind"], insight["job"]) for insight in listed] == [
        ("concept_importance", older["id"]),
        ("suspected_labels", newer["id"]),
    ]
    (only,) = ready.get(PATH, params={"kind": "suspected_labels"}).json()["insights"]
    assert only["result"]["labels"][0]["sample"] == "img-1"


def test_an_erased_row_is_omitted_at_once_and_can_be_purged(ready: Service) -> None:
    job = ready.post(PATH, {"kinds": ["influential_labels"], "sample": "img-13"}).json()
    gone, asked = sample_id(ready, "img-1"), sample_id(ready, "img-13")
    found = {
        "influential_labels": {
            "target": {"sample_id": asked, "rows": 1},
            "harmful": [{"sample_id": gone, "concept": "crossing"}, {"sample_id": sample_id(ready, "img-2")}],
        }
    }
    finish(ready, job["id"], found)
    with ready.sessions.begin() as session:
        session.execute(delete(Sample).where(Sample.id.in_([gone, asked])))
    (insight,) = ready.get(PATH).json()["insights"]
    assert insight["omitted_rows"] == 2
    assert insight["result"]["target"] is None
    assert [label["sample"] for label in insight["result"]["harmful"]] == ["img-2"]
    with ready.sessions.begin() as session:
        assert forget_rows(session, session.get_one(Model, "digits-model"), {gone, asked}) == 3
    with ready.sessions() as session:
        row = session.get_one(Job, UUID(job["id"]))
        assert row.request["sample_id"] is None
        assert row.report is not None
        assert len(row.report["insights"]["influential_labels"]["harmful"]) == 1
    assert ready.get(PATH).json()["insights"][0]["omitted_rows"] == 0
