from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from httpx import Response
from sqlalchemy import func, select

from app.access.rules import Role
from app.kit.idempotency import IdempotencyKey, claim_key
from app.kit.problems import Problem
from app.tables import ApiKey, IdempotencyRecord, Job
from tests.app.service import Service, problem
from tests.builders import build_key, build_ready_model

PATH = "/models/digits-model/factors"


def _ready(service: Service) -> None:
    with service.sessions.begin() as session:
        build_ready_model(session, service.store, build_key(session)[0])


def _factor_jobs(service: Service) -> int:
    with service.sessions() as session:
        return session.scalar(select(func.count()).select_from(Job).where(Job.kind == "fit_factors")) or 0


def test_a_repetition_gets_the_first_answer_and_creates_nothing(service: Service) -> None:
    _ready(service)
    first = service.post(PATH, {}, idempotency_key="k-1")
    again = service.post(PATH, {"version": None}, idempotency_key="k-1")
    assert first.status_code == again.status_code == 202
    assert first.json() == again.json()
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert _factor_jobs(service) == 1
    assert len(service.doorbell.rung) == 1


def test_another_payload_is_refused(service: Service) -> None:
    _ready(service)
    service.post(PATH, {}, idempotency_key="k-1")
    problem(service.post(PATH, {"version": 1}, idempotency_key="k-1"), 422, "idempotency_key_reused")


def test_keys_belong_to_a_caller_and_a_route(service: Service) -> None:
    _ready(service)
    other = service.key_of(Role.CLIENT)
    ids = {
        service.post(PATH, {}, idempotency_key="k-1").json()["id"],
        service.post(PATH, {}, idempotency_key="k-1", key=other).json()["id"],
        service.post("/models/digits-model/retrainings", {}, idempotency_key="k-1").json()["id"],
    }
    assert len(ids) == 3


def test_the_key_is_required_and_well_formed(service: Service) -> None:
    _ready(service)
    headers = {"Authorization": f"Bearer {service.key}"}
    problem(service.client.post(PATH, json={}, headers=headers), 400, "idempotency_key_missing")
    for bad in ("", "with space", "x" * 256):
        answer = service.client.post(PATH, json={}, headers={**headers, "Idempotency-Key": bad})
        problem(answer, 400, "idempotency_key_missing")
    assert _factor_jobs(service) == 0


def test_a_request_that_failed_stores_nothing(service: Service) -> None:
    _ready(service)
    problem(service.post(PATH, {"version": 9}, idempotency_key="k-1"), 422, "invalid_request")
    assert service.post(PATH, {"version": 1}, idempotency_key="k-1").status_code == 202


def test_a_key_in_flight_is_refused_at_once(service: Service) -> None:
    _ready(service)
    with service.sessions.begin() as session:
        holder = session.scalars(select(ApiKey).where(ApiKey.secret_sha256.is_not(None))).first()
        assert holder is not None
        key = IdempotencyKey("k-1", f"POST {PATH}")
        claim_key(session, caller_id=holder.id, key=key, payload_sha256="a")
        with service.sessions.begin() as other, pytest.raises(Problem) as refused:
            claim_key(other, caller_id=holder.id, key=key, payload_sha256="a")
    assert refused.value.type.code == "idempotency_in_flight"
    with service.sessions() as session:
        assert session.scalar(select(func.count()).select_from(IdempotencyRecord)) == 0


def test_many_at_once_create_one(service: Service) -> None:
    _ready(service)
    start = Barrier(8)

    def send(_: int) -> Response:
        start.wait(timeout=10)
        return service.post(PATH, {}, idempotency_key="k-1")

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(send, range(8)))
    assert {answer.status_code for answer in answers} <= {202, 409}
    assert {answer.json()["code"] for answer in answers if answer.status_code == 409} <= {"idempotency_in_flight"}
    assert len({answer.json()["id"] for answer in answers if answer.status_code == 202}) == 1
    assert _factor_jobs(service) == 1


def test_one_model_of_many_at_once(service: Service) -> None:
    _ready(service)
    start = Barrier(4)

    def send(_: int) -> int:
        start.wait(timeout=10)
        return service.post(
            "/models", {"id": "new", "dataset": "digits", "architecture": {"name": "small_conv"}}
        ).status_code

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(send, range(4))) == [202, 409, 409, 409]
