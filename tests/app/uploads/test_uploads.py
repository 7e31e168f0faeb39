from __future__ import annotations

import hashlib
import json
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from httpx import Response
from safetensors.numpy import save
from sqlalchemy import select

from app.access.rules import Role
from app.tables import IdempotencyRecord, Upload
from app.uploads.service import LIFETIME, expire_uploads
from tests.app.artifacts.files import files_holding
from tests.app.datasets.images import declaring, deep, encoded
from tests.app.datasets.submissions import state
from tests.app.service import Service, problem, running_service

WEIGHTS = save({"conv.weight": np.ones((2, 3), np.float32), "conv.bias": np.zeros(2, np.float32)})


def send(service: Service, *files: bytes, kind: str = "image", **arguments: Any) -> Response:
    parts = [("files", (f"{number}.bin", data)) for number, data in enumerate(files)]
    return service.post(f"/uploads?kind={kind}", files=parts, **arguments)


def test_images_are_kept_for_a_day_in_the_order_they_came(service: Service) -> None:
    images = [encoded(1), encoded(2, "JPEG")]
    answer = send(service, *images)
    assert answer.status_code == 201, answer.text
    for number, (upload, image) in enumerate(zip(answer.json()["uploads"], images, strict=True)):
        assert upload["filename"] == f"{number}.bin"
        assert (upload["kind"], upload["sha256"], upload["bytes"]) == (
            "image",
            hashlib.sha256(image).hexdigest(),
            len(image),
        )
        assert service.store.upload_path(upload["id"]).read_bytes() == image
        left = datetime.fromisoformat(upload["expires_at"]) - datetime.now(UTC)
        assert timedelta(hours=23, minutes=55) < left <= LIFETIME


def test_weights_are_kept(service: Service) -> None:
    (upload,) = send(service, WEIGHTS, kind="weights").json()["uploads"]
    assert service.store.upload_path(upload["id"]).read_bytes() == WEIGHTS
    with service.sessions() as session:
        assert session.get_one(Upload, upload["id"]).kind == "weights"


def header_saying(**tensors: Any) -> bytes:
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not safetensors",
        WEIGHTS[:-1],
        WEIGHTS + b"x",
        WEIGHTS[:20],
        struct.pack("<Q", 2**63) + b"{}",
        header_saying(a={"dtype": "F32", "shape": [100], "data_offsets": [0, 8]}),
        header_saying(a={"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 8]}),
        header_saying(a={"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}),
        b"\x80\x04\x95cposix\nsystem\n",  # a pickle's start
    ],
    ids=["empty", "text", "cut", "longer", "cut header", "huge header", "too few", "overflow", "gap", "pickle"],
)
def test_weights_that_are_not_safetensors_are_refused(unchanged: Service, data: bytes) -> None:
    before = state(unchanged)
    found = problem(send(unchanged, WEIGHTS, data, kind="weights"), 422, "invalid_upload")
    assert found["errors"] == [{"pointer": "/files/1", "code": "not_safetensors"}]
    assert state(unchanged) == before


def test_every_bad_image_is_pointed_at_and_none_is_kept(unchanged: Service) -> None:
    before = state(unchanged)
    answer = send(unchanged, encoded(), b"x", declaring(9000, 9000), deep(), encoded()[:-1])
    assert problem(answer, 422, "invalid_upload")["errors"] == [
        {"pointer": "/files/1", "code": "undecodable_image"},
        {"pointer": "/files/2", "code": "oversized_image"},
        {"pointer": "/files/3", "code": "unsupported_pixels"},
        {"pointer": "/files/4", "code": "undecodable_image"},
    ]
    assert state(unchanged) == before


def test_the_size_of_one_image_is_limited(database_url: str, tmp_path: Path) -> None:
    with running_service(database_url, tmp_path, max_image_bytes=100) as service:
        found = problem(send(service, encoded(size=16)), 422, "invalid_upload")
        assert found["errors"] == [{"pointer": "/files/0", "code": "oversized_image"}]


def test_requests_that_send_nothing_or_something_else_are_refused(unchanged: Service) -> None:
    problem(unchanged.post("/uploads?kind=image", files=[("other", ("a", b"x"))]), 422, "invalid_request")
    problem(unchanged.post("/uploads", files=[("files", ("a", b"x"))]), 422, "invalid_request")
    problem(unchanged.post("/uploads?kind=pickle", files=[("files", ("a", b"x"))]), 422, "invalid_request")
    problem(unchanged.post("/uploads?kind=image", json={}), 415, "unsupported_media_type")


def test_the_same_request_again_gets_the_first_answer_and_file_names_are_not_stored(service: Service) -> None:
    files = [("files", ("Jane Doe.png", encoded()))]
    first = service.post("/uploads?kind=image", files=files, idempotency_key="k")
    before = state(service)
    again = service.post("/uploads?kind=image", files=files, idempotency_key="k")
    assert (again.status_code, again.json()) == (201, first.json())
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json()["uploads"][0]["filename"] == "Jane Doe.png"
    assert state(service) == before
    with service.sessions() as session:
        assert "Jane" not in json.dumps(session.scalars(select(IdempotencyRecord.body)).one())
    problem(send(service, encoded(5), idempotency_key="k"), 422, "idempotency_key_reused")


@pytest.mark.parametrize("role", [Role.AUDITOR, Role.COMPLIANCE])
def test_roles_that_may_not_create_send_nothing(unchanged: Service, role: Role) -> None:
    problem(send(unchanged, encoded(), key=unchanged.key_of(role)), 403, "forbidden")


def test_uploads_whose_time_is_over_go_with_their_bytes(service: Service) -> None:
    images = [encoded(1), encoded(2)]
    early, late = (send(service, image).json()["uploads"][0]["id"] for image in images)
    with service.sessions.begin() as session:
        session.get_one(Upload, early).expires_at -= timedelta(hours=1)
    folder = service.services.settings.data_dir
    with service.sessions.begin() as session:
        now = datetime.now(UTC) + LIFETIME - timedelta(minutes=30)
        assert expire_uploads(session, service.store, now) == 1
        assert len(files_holding(folder, images[0])) == 1  # until the commit
    assert [len(files_holding(folder, image)) for image in images] == [0, 1]
    with service.sessions() as session:
        assert session.scalars(select(Upload.id)).all() == [late]


def test_files_of_uploads_that_were_never_committed_go_once_they_are_old(service: Service) -> None:
    kept = send(service, encoded()).json()["uploads"][0]["id"]
    with service.sessions.begin() as session:
        session.get_one(Upload, kept).expires_at += timedelta(days=30)  # as for a model that waits in line
    service.store.put_upload("up-orphan", b"orphan")
    for hours, gone in ((23, 0), (25, 1)):
        with service.sessions.begin() as session:
            assert expire_uploads(session, service.store, datetime.now(UTC) + timedelta(hours=hours)) == gone
    assert not service.store.upload_path("up-orphan").exists()
    assert service.store.upload_path(kept).exists()
