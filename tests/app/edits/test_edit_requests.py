"""What `POST /models/{id}/edits` takes and refuses."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from app.access.rules import Role
from app.datasets.snapshots import Snapshot
from app.tables import ApiKey, Dataset, Job, JobEvent, LedgerEntry, Model, Sample, Upload, Version
from tests.app.service import Service, problem
from tests.builders import CONCEPTS, build_model, build_version, payload_of

EDITS = "/models/digits-model/edits"


def _fix(sample: str, concept: str, value: Any) -> dict[str, Any]:
    return {"op": "fix_concept_labels", "labels": [{"sample": sample, "concept": concept, "value": value}]}


def _drop(*concepts: str) -> dict[str, Any]:
    return {"op": "drop_concepts", "concepts": list(concepts)}


def _remove(*samples: str, subjects: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"op": "remove_samples", "samples": list(samples), "subjects": list(subjects)}


def _new(key: str, **fields: Any) -> dict[str, Any]:
    return {"op": "add_samples", "samples": [{"key": key, "class": "0", "upload": "up-none", **fields}]}


def _other_value(service: Service, key: str, concept: str) -> int:
    """A value that differs from the label the version has."""
    with service.sessions() as session:
        label = session.scalars(select(Sample.concepts).where(Sample.key == key)).one()[CONCEPTS.index(concept)]
    return 1 if label != 1 else 0


def _places(service: Service, *operations: dict[str, Any]) -> list[tuple[str, str]]:
    answer = service.post(EDITS, {"operations": list(operations)})
    return [(error["pointer"], error["code"]) for error in problem(answer, 422, "invalid_edit")["errors"]]


def test_an_edit_is_accepted_once_for_all(ready: Service) -> None:
    body = {"operations": [_drop("crossing"), _remove("img-3")], "reason": "audit of June"}
    answer = ready.post(EDITS, body)
    assert answer.status_code == 202, answer.text
    edit = answer.json()
    assert answer.headers["location"] == f"{EDITS}/{edit['id']}"
    assert answer.headers["retry-after"] == "1"
    assert (edit["state"], edit["kind"], edit["attempt"], edit["base_version"]) == ("queued", "edit", 0, None)
    assert edit["request"]["operations"] == body["operations"]
    assert edit["request"]["options"] == {
        "method": "solve",
        "tolerance": {"concept_f1": 0.02, "label_f1": 0.02},
        "label_solver": "converged",
        "on_failure": "fail",
        "evidence": "standard",
        "reference_models": 0,
        "seed": 0,
    }
    assert [str(job_id) for job_id in ready.doorbell.rung] == [edit["id"]]
    assert ready.get(answer.headers["location"]).json() == edit
    with ready.sessions() as session:
        entry = session.scalars(select(LedgerEntry).where(LedgerEntry.kind == "edit.accepted")).one()
        assert str(entry.job_id) == edit["id"]
        payload = payload_of(session, entry)
        assert payload["counts"]["samples_removed"] == 1
        assert payload["concepts_dropped"] == ["crossing"]
        assert not {"img-3", "audit of June"} & set(str(payload).split("'"))
        assert session.scalars(select(JobEvent.kind).where(JobEvent.job_id == entry.job_id)).all() == ["accepted"]


def test_validate_only_counts_and_writes_nothing(ready: Service) -> None:
    value = _other_value(ready, "img-0", "crossing")
    operations = [
        _fix("img-0", "crossing", value),
        _fix("img-0", "crossing", value),
        _drop("closed loop"),
        _remove("img-4", subjects=("s-1", "s-2")),
    ]
    with ready.sessions() as session:
        before = session.scalar(select(func.count()).select_from(LedgerEntry))
    headers = {"Authorization": f"Bearer {ready.key}"}
    answer = ready.client.post(f"{EDITS}?validate_only=true", json={"operations": operations}, headers=headers)
    assert answer.status_code == 200
    assert answer.json() == {
        "base_version": 1,
        "counts": {
            "labels_changed": 1,
            "labels_unchanged": 0,
            "labels_changed_by_vote": 0,
            "concepts_dropped": 1,
            "concepts_added": 0,
            "labels_added": 0,
            "samples_removed": 3,
            "samples_added": 0,
        },
    }
    with ready.sessions() as session:
        assert session.scalar(select(func.count()).select_from(Job).where(Job.kind == "edit")) == 0
        assert session.scalar(select(func.count()).select_from(LedgerEntry)) == before
    assert ready.doorbell.rung == []


def test_every_bad_place_is_told_of_at_once_and_no_value_is_repeated(ready: Service) -> None:
    operations = [
        _fix("img-SECRET", "concept-SECRET", 1),
        _fix("img-1", "crossing", 1),
        _fix("img-1", "crossing", 0),
        _drop("closed loop", "closed loop", "concept-SECRET"),
        _remove("img-SECRET", "img-2", subjects=("s-SECRET",)),
        {
            "op": "add_samples",
            "samples": [
                {"key": "img-5", "class": "class-SECRET", "upload": "up-SECRET", "concepts": {"concept-SECRET": 1}},
                {"key": "new", "class": "1", "upload": "up-SECRET"},
                {"key": "new", "class": "1", "upload": "up-other"},
            ],
        },
    ]
    answer = ready.post(EDITS, {"operations": operations})
    found = [(error["pointer"], error["code"]) for error in problem(answer, 422, "invalid_edit")["errors"]]
    assert sorted(found) == sorted(
        [
            ("/operations/0/labels/0/sample", "unknown_sample"),
            ("/operations/0/labels/0/concept", "unknown_concept"),
            ("/operations/2/labels/0/value", "contradictory_fix"),
            ("/operations/3/concepts/1", "duplicate_concept"),
            ("/operations/3/concepts/2", "unknown_concept"),
            ("/operations/4/samples/0", "unknown_sample"),
            ("/operations/4/subjects/0", "unknown_subject"),
            ("/operations/5/samples/0/class", "unknown_class"),
            ("/operations/5/samples/0/concepts", "unknown_concept"),
            ("/operations/5/samples/0/key", "duplicate_key"),
            ("/operations/5/samples/0/upload", "unknown_upload"),
            ("/operations/5/samples/1/upload", "duplicate_upload"),
            ("/operations/5/samples/2/key", "duplicate_key"),
            ("/operations/5/samples/2/upload", "unknown_upload"),
        ]
    )
    assert "SECRET" not in answer.text
    with ready.sessions() as session:
        assert session.scalar(select(func.count()).select_from(Job).where(Job.kind == "edit")) == 0


@pytest.mark.parametrize("value", ["1", True, 2, -1, 0.0, 1.5, [], {}])
def test_labels_are_0_1_or_null(unchanged: Service, value: Any) -> None:
    assert _places(unchanged, _fix("img-0", "crossing", value)) == [
        ("/operations/0/labels/0/value", "label_not_0_1_unknown")
    ]


def test_a_label_that_is_not_a_number_is_no_json(unchanged: Service) -> None:
    text = '{"operations": [{"op": "fix_concept_labels", "labels": [{"sample": "a", "concept": "b", "value": NaN}]}]}'
    answer = unchanged.post(EDITS, content=text, headers={"Content-Type": "application/json"})
    problem(answer, 400, "malformed_body")


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([], [("/operations", "too_short")]),
        ({}, [("/operations", "list_type")]),
        ([{"op": "SECRET"}], [("/operations/0", "union_tag_invalid")]),
        ([{}], [("/operations/0", "union_tag_not_found")]),
        ([7], [("/operations/0", "model_attributes_type")]),
        ([_drop()], [("/operations/0/concepts", "too_short")]),
        ([_remove()], [("/operations/0", "removes_nothing")]),
        ([{**_drop("crossing"), "force": True}], [("/operations/0/force", "unknown_field")]),
        ([{"op": "fix_concept_labels", "labels": [{"sample": "a"}]}],
         [("/operations/0/labels/0/concept", "missing"), ("/operations/0/labels/0/value", "missing")]),
        ([_new("a/b", subject="s\n")],
         [("/operations/0/samples/0/key", "invalid_key"), ("/operations/0/samples/0/subject", "invalid_subject")]),
        ([_new("a", concepts={"SECRET Doe": "1"})], [("/operations/0/samples/0/concepts", "label_not_0_1_unknown")]),
        ([_new("a", split="training")], [("/operations/0/samples/0/split", "literal_error")]),
    ],
)  # fmt: skip
def test_malformed_operations(unchanged: Service, operations: Any, expected: list[tuple[str, str]]) -> None:
    answer = unchanged.post(EDITS, {"operations": operations})
    errors = problem(answer, 422, "invalid_edit")["errors"]
    assert [(error["pointer"], error["code"]) for error in errors] == expected
    assert "SECRET" not in answer.text


@pytest.mark.parametrize(
    "change",
    [
        {"options": {"method": "magic"}},
        {"options": {"tolerance": {"concept_f1": -0.1}}},
        {"options": {"tolerance": {"concept_f1": 2}}},
        {"options": {"seed": 1.0}},
        {"options": {"evidence": "full", "reference_models": 9}},
        {"options": {"reference_models": 1}},
        {"options": {"unknown": 1}},
        {"base_version": 0},
        {"base_version": "1"},
        {"base_version": 10**30},
        {"reason": "x" * 2001},
        {"extra": 1},
    ],
)
def test_malformed_options(unchanged: Service, change: dict[str, Any]) -> None:
    answer = unchanged.post(EDITS, {"operations": [_drop("crossing")], **change})
    assert len(problem(answer, 422, "invalid_edit")["errors"]) == 1


def test_dropping_every_concept(unchanged: Service) -> None:
    assert _places(unchanged, _drop("closed loop"), _drop("vertical stroke", "crossing")) == [
        ("/operations/1/concepts", "drops_every_concept")
    ]


def test_emptying_a_split(unchanged: Service) -> None:
    assert _places(unchanged, _remove(*(f"img-{number}" for number in range(8, 12)))) == [
        ("/operations", "split_left_empty")
    ]


def test_a_request_that_changes_nothing(unchanged: Service) -> None:
    with unchanged.sessions() as session:
        labels = session.scalars(select(Sample.concepts).where(Sample.key == "img-0")).one()
    assert _places(unchanged, _fix("img-0", "crossing", labels[CONCEPTS.index("crossing")])) == [
        ("/operations", "changes_nothing")
    ]


def test_a_removed_row_cannot_be_removed_or_fixed_again(ready: Service) -> None:
    with ready.sessions.begin() as session:
        model = session.get_one(Model, "digits-model")
        ids = dict(session.execute(select(Sample.key, Sample.id)).all())
        snapshot = Snapshot.load(ready.store.fetch(build_version(session, ready.store, model).snapshot_digest))
        kept = ~np.isin(snapshot.sample_ids, [ids["img-0"], ids["img-3"]])
        after = Snapshot(
            snapshot.sample_ids[kept], snapshot.splits[kept], snapshot.classes[kept], snapshot.concepts[kept]
        )
        build_version(session, ready.store, model, snapshot=after)
    assert _places(ready, _remove("img-3", subjects=("s-0",)), _fix("img-3", "crossing", 1)) == [
        ("/operations/0/samples/0", "sample_not_in_version"),
        ("/operations/0/subjects/0", "subject_without_rows"),
        ("/operations/1/labels/0/sample", "sample_not_in_version"),
    ]


def test_a_dropped_concept_is_unknown_to_the_next_version(ready: Service) -> None:
    with ready.sessions.begin() as session:
        model = session.get_one(Model, "digits-model")
        first = Snapshot.load(ready.store.fetch(session.get_one(Version, ("digits-model", 1)).snapshot_digest))
        after = Snapshot(first.sample_ids, first.splits, first.classes, first.concepts[:, :2])
        build_version(session, ready.store, model, snapshot=after, concepts=CONCEPTS[:2])
    assert _places(ready, _drop("crossing")) == [("/operations/0/concepts/0", "unknown_concept")]
    assert _places(ready, _drop("closed loop", "vertical stroke")) == [
        ("/operations/0/concepts", "drops_every_concept")
    ]


def test_the_limit_of_items(ready: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready.services.settings, "max_edit_items", 2)
    assert _places(ready, _remove("img-0", "img-1", subjects=("s-2",))) == [("/operations", "too_many_items")]


def test_the_base_version_is_checked(ready: Service) -> None:
    body = {"operations": [_drop("crossing")]}
    problem(ready.post(EDITS, {**body, "base_version": 2}), 409, "base_version_changed")
    accepted = ready.post(EDITS, {**body, "base_version": 1})
    assert accepted.status_code == 202
    assert accepted.json()["request"]["base_version"] == 1


def test_if_match_binds_the_edit_to_the_newest_version(ready: Service) -> None:
    body = {"operations": [_drop("crossing")]}
    etag = ready.get("/models/digits-model").headers["etag"]
    refused = ready.post(EDITS, body, headers={"If-Match": '"other"'})
    problem(refused, 412, "precondition_failed")
    assert refused.headers["etag"] == etag
    problem(ready.post(EDITS, body, headers={"If-Match": f"W/{etag}"}), 412, "precondition_failed")
    for header in (etag, f'"other", {etag}', "*"):
        accepted = ready.post(EDITS, body, headers={"If-Match": header})
        assert accepted.status_code == 202, accepted.text
        assert accepted.json()["request"]["base_version"] == 1


def test_models_without_a_version_and_models_that_are_not(ready: Service) -> None:
    with ready.sessions.begin() as session:
        build_model(session, session.get_one(Dataset, "digits"), model_id="young")
    body = {"operations": [_drop("crossing")]}
    problem(ready.post("/models/young/edits", body), 409, "model_has_no_version")
    problem(ready.post("/models/young/factors", {}), 409, "model_has_no_version")
    problem(ready.post("/models/young/retrainings", {}), 409, "model_has_no_version")
    problem(ready.post("/models/absent/edits", body), 404, "not_found")


def test_lists_filter_by_state_and_keep_their_order(ready: Service) -> None:
    ids = [ready.post(EDITS, {"operations": [_remove(f"img-{number}")]}).json()["id"] for number in range(3)]
    ready.post("/models/digits-model/factors", {})
    assert ready.post(f"{EDITS}/{ids[1]}:cancel").json()["state"] == "cancelled"
    first = ready.get(EDITS, params={"page_size": 2}).json()
    second = ready.get(EDITS, params={"page_size": 2, "page_token": first["next_page_token"]}).json()
    assert [edit["id"] for edit in first["edits"] + second["edits"]] == ids[::-1]
    assert second["next_page_token"] is None
    queued = ready.get(EDITS, params={"state": "queued"}).json()["edits"]
    assert [edit["id"] for edit in queued] == [ids[2], ids[0]]
    moved = ready.get(EDITS, params={"state": "queued", "page_token": first["next_page_token"]})
    problem(moved, 400, "invalid_cursor")
    problem(ready.get(EDITS, params={"state": "unknown"}), 422, "invalid_request")
    kinds = [job["kind"] for job in ready.get("/models/digits-model/jobs").json()["jobs"]]
    assert kinds == ["fit_factors", "edit", "edit", "edit", "train"]
    trained = ready.get("/models/digits-model/jobs", params={"kind": "train"}).json()["jobs"]
    assert [job["result"] for job in trained] == [{"version": 1}]


def test_ids_of_other_things_are_not_edits(ready: Service) -> None:
    job = ready.post("/models/digits-model/factors", {}).json()["id"]
    assert ready.get(f"/models/digits-model/jobs/{job}").status_code == 200
    for path in (f"{EDITS}/{job}", f"{EDITS}/nonsense", f"{EDITS}/00000000-0000-0000-0000-000000000000"):
        problem(ready.get(path), 404, "not_found")
    problem(ready.post(f"{EDITS}/{job}:cancel"), 404, "not_found")
    problem(ready.get(f"/models/absent/jobs/{job}"), 404, "not_found")


def test_factors_and_retrainings_are_queued(ready: Service) -> None:
    fit = ready.post("/models/digits-model/factors", {})
    retraining = ready.post("/models/digits-model/retrainings", {"version": 1, "seed": 7, "repeats": 3})
    assert [answer.status_code for answer in (fit, retraining)] == [202, 202]
    assert (fit.json()["kind"], fit.json()["request"]) == ("fit_factors", {"version": None})
    assert (retraining.json()["kind"], retraining.json()["request"]) == (
        "retrain",
        {"version": 1, "seed": 7, "repeats": 3},
    )
    assert fit.headers["location"] == f"/models/digits-model/jobs/{fit.json()['id']}"
    errors = problem(ready.post("/models/digits-model/factors", {"version": 2}), 422, "invalid_request")["errors"]
    assert [(error["pointer"], error["code"]) for error in errors] == [("/version", "unknown_version")]
    for repeats in (0, 11):
        refused = ready.post("/models/digits-model/retrainings", {"repeats": repeats})
        assert [error["pointer"] for error in problem(refused, 422, "invalid_request")["errors"]] == ["/repeats"]
    assert len(ready.doorbell.rung) == 2


def test_a_model_with_a_frozen_backbone_needs_no_factors(ready: Service) -> None:
    with ready.sessions.begin() as session:
        model = session.get_one(Model, "digits-model")
        model.training = {**model.training, "frozen_backbone": True}
    found = problem(ready.post("/models/digits-model/factors", {}), 409, "factors_not_needed")
    assert found["detail"] == "The model's backbone is frozen."
    assert ready.doorbell.rung == []
    assert ready.post("/models/digits-model/retrainings", {}).status_code == 202


def test_a_limited_compliance_key_edits_its_model(ready: Service) -> None:
    key = ready.key_of(Role.COMPLIANCE, models=["digits-model"])
    assert ready.post(EDITS, {"operations": [_remove(subjects=("s-0",))]}, key=key).status_code == 202


def test_added_samples_are_staged_until_their_edit_ends(ready: Service) -> None:
    with ready.sessions.begin() as session:
        holder = session.scalars(select(ApiKey).where(ApiKey.prefix == ready.key[3:11])).one()
        end = session.execute(select(func.now() + timedelta(hours=1))).scalar_one()
        session.add(Upload(id="up-1", kind="image", sha256="1" * 64, bytes=3, created_by=holder.id, expires_at=end))
    ready.store.put_upload("up-1", b"png")
    addition = _new("img-new", upload="up-1", concepts={"crossing": 1, "closed loop": None}, subject="s-9")
    answer = ready.post(EDITS, {"operations": [addition]})
    assert answer.status_code == 202, answer.text
    with ready.sessions() as session:
        row = session.scalars(select(Sample).where(Sample.key == "img-new")).one()
        assert str(row.pending_job_id) == answer.json()["id"]
        assert (row.split, row.class_index, row.concepts) == ("train", 0, [None, None, 1])
        assert session.get(Upload, "up-1") is None
    image = ready.store.image_path("digits", row.id)
    assert image.read_bytes() == b"png"
    taken = _places(ready, {**addition, "samples": [{**addition["samples"][0], "key": "img-newer"}]})
    assert taken == [("/operations/0/samples/0/upload", "unknown_upload")]
    assert _places(ready, _fix("img-new", "crossing", 0)) == [
        ("/operations/0/labels/0/sample", "sample_not_in_version")
    ]
    ready.post(f"{EDITS}/{answer.json()['id']}:cancel")
    assert not image.exists()
