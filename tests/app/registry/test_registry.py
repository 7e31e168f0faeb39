from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from app.access.rules import Role
from app.registry.schemas import Training
from app.tables import ApiKey, Model, Upload, Version
from tests.app.service import Service, problem
from tests.builders import build_dataset, build_key, build_ready_model, build_version

REQUEST: dict[str, Any] = {"id": "digits-model", "dataset": "digits", "architecture": {"name": "small_conv"}}


@pytest.fixture
def with_data(service: Service) -> Service:
    with service.sessions.begin() as session:
        build_dataset(session, service.store, build_key(session)[0])
    return service


@pytest.fixture
def ready(service: Service) -> Service:
    with service.sessions.begin() as session:
        build_ready_model(session, service.store, build_key(session)[0])
    return service


def _upload(service: Service, key: str, kind: str = "weights", *, minutes: int = 10) -> str:
    with service.sessions.begin() as session:
        holder = session.scalars(select(ApiKey).where(ApiKey.prefix == key[3:11])).one()
        now = session.execute(select(func.now())).scalar_one()
        upload = Upload(
            id="up-1",
            kind=kind,
            sha256="0" * 64,
            bytes=1,
            created_by=holder.id,
            expires_at=now + timedelta(minutes=minutes),
        )
        session.add(upload)
        return upload.id


def test_a_model_is_created_with_the_job_that_trains_it(with_data: Service) -> None:
    answer = with_data.post("/models", {**REQUEST, "training": {"epochs": 3}})
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert (job["kind"], job["state"], job["model"]) == ("train", "queued", "digits-model")
    assert answer.headers["location"] == f"/models/digits-model/jobs/{job['id']}"
    assert [str(rung) for rung in with_data.doorbell.rung] == [job["id"]]
    model = with_data.get("/models/digits-model").json()
    assert model["latest_version"] is None
    assert model["etag"] == '"v0"'
    assert model["title"] == "digits-model"
    assert model["architecture"] == {"name": "small_conv", "width": 32, "image_size": 16, "channels": 3}
    assert model["training"] == Training(epochs=3).model_dump()
    kinds = [entry["kind"] for entry in with_data.get("/models/digits-model/ledger").json()["entries"]]
    assert kinds == ["training.accepted", "model.created"]


def test_an_id_is_made_up(with_data: Service) -> None:
    request = {name: value for name, value in REQUEST.items() if name != "id"}
    ids = {with_data.post("/models", request).json()["model"] for _ in range(2)}
    assert len(ids) == 2
    assert all(with_data.get(f"/models/{model_id}").status_code == 200 for model_id in ids)


def test_an_id_is_taken_once(with_data: Service) -> None:
    assert with_data.post("/models", REQUEST).status_code == 202
    problem(with_data.post("/models", REQUEST), 409, "already_exists")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"dataset": "absent"}, [("/dataset", "unknown_dataset")]),
        ({"id": "Not A Slug"}, [("/id", "string_pattern_mismatch")]),
        ({"architecture": {"name": "vit"}}, [("/architecture", "union_tag_invalid")]),
        ({"architecture": {"name": "small_conv", "width": 7}}, [("/architecture/width", "greater_than_equal")]),
        ({"architecture": {"name": "small_conv", "channels": 2}}, [("/architecture/channels", "literal_error")]),
        ({"architecture": {"name": "small_conv", "stem": "full"}}, [("/architecture/stem", "unknown_field")]),
        ({"architecture": {"name": "resnet18", "image_size": 513}}, [("/architecture/image_size", "less_than_equal")]),
        (
            {"architecture": {"name": "resnet50", "width_multiplier": 1.0}},
            [("/architecture/width_multiplier", "unknown_field")],
        ),
        ({"architecture": {"name": "resnet34", "channels": 1}}, [("/architecture/channels", "literal_error")]),
        ({"pretrained": {"upload": "up-absent"}}, [("/pretrained", "not_pretrainable")]),
        (
            {"architecture": {"name": "resnet18"}, "pretrained": {"upload": "up-absent"}},
            [("/pretrained/upload", "unknown_upload")],
        ),
        ({"training": {"frozen_backbone": True, "weight_decay": 0.0}}, [("/training/weight_decay", "not_convex")]),
        ({"training": {"frozen_backbone": True, "augment": True}}, [("/training/augment", "features_fixed")]),
        ({"training": {"learning_rate": 0}}, [("/training/learning_rate", "greater_than")]),
        ({"training": {"epochs": True}}, [("/training/epochs", "int_type")]),
        ({"training": {"augment": 1}}, [("/training/augment", "bool_type")]),
        ({"training": {"momentum": 0.9}}, [("/training/momentum", "unknown_field")]),
        ({"weights": {"upload": "up-absent"}}, [("/weights/upload", "unknown_upload")]),
        ({"weights": {}}, [("/weights/upload", "missing")]),
    ],
)
def test_requests_that_cannot_be_met(
    unchanged: Service, change: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    errors = problem(unchanged.post("/models", {**REQUEST, "id": "refused", **change}), 422, "invalid_request")[
        "errors"
    ]
    assert [(error["pointer"], error["code"]) for error in errors] == expected
    assert [model["id"] for model in unchanged.get("/models").json()["models"]] == ["digits-model"]


def test_each_split_needs_rows(service: Service) -> None:
    with service.sessions.begin() as session:
        build_dataset(session, service.store, build_key(session)[0], rows_per_split=(4, 0, 4))
    errors = problem(service.post("/models", REQUEST), 422, "invalid_request")["errors"]
    assert [error["code"] for error in errors] == ["empty_split"]


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("resnet18", {"width": 64}),
        ("resnet34", {"width": 64}),
        ("resnet50", {"width": 64}),
        ("mobilenet_v3_small", {"width_multiplier": 1.0}),
        ("mobilenet_v3_large", {"width_multiplier": 1.0}),
        ("efficientnet_b0", {"width_multiplier": 1.0}),
    ],
)
def test_each_architecture_may_start_from_pretrained_weights(
    with_data: Service, name: str, size: dict[str, Any]
) -> None:
    """Whoever brings them brings their normalisation, unless another is asked for."""
    upload = {"upload": _upload(with_data, with_data.key)}
    common = {"stem": "full", "image_size": 224, "channels": 3}
    for given, pretrained, expected in (
        ({}, None, {"normalisation": "symmetric"}),
        ({}, upload, {"normalisation": "imagenet", "pretrained_sha256": "0" * 64}),
        ({"normalisation": "symmetric"}, upload, {"normalisation": "symmetric", "pretrained_sha256": "0" * 64}),
    ):
        request = {"dataset": "digits", "architecture": {"name": name, **given}, "pretrained": pretrained}
        answer = with_data.post("/models", request)
        assert answer.status_code == 202, answer.text
        assert answer.json()["kind"] == "train"
        model = with_data.get(f"/models/{answer.json()['model']}").json()
        assert model["architecture"] == {"name": name, **common, **size, **expected}


def test_a_model_is_registered_or_starts_from_pretrained_weights(with_data: Service) -> None:
    upload = {"upload": _upload(with_data, with_data.key)}
    request = {"dataset": "digits", "architecture": {"name": "resnet18"}, "weights": upload, "pretrained": upload}
    errors = problem(with_data.post("/models", request), 422, "invalid_request")["errors"]
    assert [(error["pointer"], error["code"]) for error in errors] == [("/pretrained", "weights_given")]


def test_weights_are_registered_and_their_upload_kept(with_data: Service) -> None:
    upload = _upload(with_data, with_data.key)
    answer = with_data.post("/models", {**REQUEST, "weights": {"upload": upload}})
    assert answer.json()["kind"] == "register"
    with with_data.sessions() as session:
        kept = session.get_one(Upload, upload).expires_at - session.execute(select(func.now())).scalar_one()
    assert kept > timedelta(days=6)


@pytest.mark.parametrize("reason", ["kind", "expired", "other caller"])
def test_uploads_that_cannot_be_used(with_data: Service, reason: str) -> None:
    key = with_data.key_of(Role.CLIENT) if reason == "other caller" else with_data.key
    upload = _upload(
        with_data, key, "image" if reason == "kind" else "weights", minutes=-1 if reason == "expired" else 10
    )
    answer = with_data.post("/models", {**REQUEST, "weights": {"upload": upload}})
    assert problem(answer, 422, "invalid_request")["errors"][0]["code"] == "unknown_upload"


def test_versions_are_listed_newest_first_and_read(ready: Service) -> None:
    with ready.sessions.begin() as session:
        build_version(session, ready.store, session.get_one(Model, "digits-model"))
    versions = ready.get("/models/digits-model/versions").json()["versions"]
    assert [(version["number"], version["parent"]) for version in versions] == [(2, 1), (1, None)]
    assert ready.get("/models/digits-model/versions/2").json() == versions[0]
    assert set(versions[0]) == {
        *("model", "number", "parent", "job", "state", "concepts", "classes", "snapshot_sha256", "weights_sha256"),
        *("factors_sha256", "factors_version", "metrics", "code_version", "created_at"),
    }
    problem(ready.get("/models/digits-model/versions/3"), 404, "not_found")
    for number in ("0", "-1", "x", str(2**31), "9" * 40):
        problem(ready.get(f"/models/digits-model/versions/{number}"), 422, "invalid_request")


def test_weights_are_downloaded_as_they_were_stored(ready: Service) -> None:
    digest = ready.get("/models/digits-model/versions/1").json()["weights_sha256"]
    answer = ready.get("/models/digits-model/versions/1/weights")
    assert hashlib.sha256(answer.content).hexdigest() == digest
    assert answer.headers["etag"] == f'"{digest}"'
    assert answer.headers["content-disposition"] == 'attachment; filename="digits-model-v1.safetensors"'


def test_weights_of_a_withdrawn_version_are_gone(ready: Service) -> None:
    with ready.sessions.begin() as session:
        session.get_one(Version, ("digits-model", 1)).state = "withdrawn"
    problem(ready.get("/models/digits-model/versions/1/weights"), 410, "version_withdrawn")
    errors = problem(ready.put("/models/digits-model/aliases/a", {"version": 1}), 422, "invalid_request")["errors"]
    assert errors[0]["code"] == "version_not_ready"


def test_an_alias_moves_and_each_move_is_history(ready: Service) -> None:
    path = "/models/digits-model/aliases/production"
    with ready.sessions.begin() as session:
        build_version(session, ready.store, session.get_one(Model, "digits-model"))
    moves = [ready.put(path, {"version": number}).json()["version"] for number in (1, 2, 2, 1)]
    assert moves == [1, 2, 2, 1]
    assert [alias["name"] for alias in ready.get("/models/digits-model/aliases").json()["aliases"]] == ["production"]
    assert ready.get("/models/digits-model").json()["aliases"] == {"production": 1}
    entries = ready.get("/models/digits-model/ledger", params={"kind": "alias.moved"}).json()["entries"]
    assert [(entry["parent_version"], entry["result_version"]) for entry in entries] == [(2, 1), (1, 2), (None, 1)]
    problem(ready.put(path, {"version": 3}), 404, "not_found")
    problem(ready.put("/models/digits-model/aliases/Not-A-Slug", {"version": 1}), 422, "invalid_request")
    problem(ready.put(path, {"version": "1"}), 422, "invalid_request")


def test_models_are_paged_by_id(with_data: Service) -> None:
    for name in ("c", "a", "b"):
        with_data.post("/models", {**REQUEST, "id": name})
    first = with_data.get("/models", params={"page_size": 2}).json()
    second = with_data.get("/models", params={"page_size": 2, "page_token": first["next_page_token"]}).json()
    assert [model["id"] for model in first["models"] + second["models"]] == ["a", "b", "c"]
