from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from app.access.rules import RULES, Permission, Role, may
from app.tables import ApiKey, LedgerEntry, LedgerPayload
from tests.app.service import Service, problem
from tests.builders import build_dataset, build_key, build_model, build_ready_model


def test_the_rule_table() -> None:
    allowed = {(role.value, permission.value) for role in Role for permission in Permission if may(role, permission)}
    assert set(RULES) == set(Role)
    assert allowed == {
        *(("admin", permission.value) for permission in Permission),
        *(("client", permission) for permission in ("read", "create", "edit", "move_alias")),
        *(("auditor", permission) for permission in ("read", "audit")),
        *(("compliance", permission) for permission in ("read", "audit", "edit")),
    }


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer nonsense",
        "Basic YTpi",
        "Bearer mm_00000000_" + "a" * 43,
        "Bearer mm_00000000_" + "a" * 4000,
    ],
)
def test_every_bad_key_looks_alike(unchanged: Service, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    answers = [unchanged.client.get("/models", headers=headers), unchanged.client.post("/models", headers=headers)]
    for answer in answers:
        assert problem(answer, 401, "unauthenticated")["detail"] == "No valid API key came with the request."
        assert answer.headers["www-authenticate"] == "Bearer"


def test_a_right_prefix_with_a_wrong_secret_is_refused(unchanged: Service) -> None:
    wrong = unchanged.key[:-1] + ("a" if unchanged.key[-1] != "a" else "b")
    problem(unchanged.get("/models", key=wrong), 401, "unauthenticated")


def test_the_text_is_shown_once_and_stored_hashed(service: Service) -> None:
    made = service.post("/api-keys", {"name": "ci", "role": "client", "models": ["a", "b"]}).json()
    text = made["key"]
    prefix, secret = text.removeprefix("mm_").split("_", 1)
    assert (made["api_key"]["prefix"], len(prefix), len(secret)) == (prefix, 8, 43)
    assert secret not in service.get("/api-keys").text
    with service.sessions() as session:
        key = session.scalars(select(ApiKey).where(ApiKey.prefix == prefix)).one()
        assert key.model_ids == ["a", "b"]
        assert secret not in str([getattr(key, column.key) for column in ApiKey.__table__.columns])
        assert all(secret not in opened.payload for opened in session.scalars(select(LedgerPayload)))


def test_a_revoked_key_ends_and_the_ledger_knows(service: Service) -> None:
    made = service.post("/api-keys", {"name": "ci", "role": "auditor"}).json()
    assert service.get("/models", key=made["key"]).status_code == 200
    path = f"/api-keys/{made['api_key']['id']}:revoke"
    first, second = service.post(path).json(), service.post(path).json()
    assert first["revoked_at"] == second["revoked_at"] is not None
    problem(service.get("/models", key=made["key"]), 401, "unauthenticated")
    with service.sessions() as session:
        kinds = list(session.scalars(select(LedgerEntry.kind).order_by(LedgerEntry.seq)))
    assert kinds[-2:] == ["api_key.created", "api_key.revoked"]


def test_revoking_what_is_not_there(unchanged: Service) -> None:
    problem(unchanged.post("/api-keys/nothing:revoke"), 404, "not_found")
    problem(unchanged.post("/api-keys/00000000-0000-0000-0000-000000000000:revoke"), 404, "not_found")


@pytest.mark.parametrize("role", [Role.CLIENT, Role.AUDITOR, Role.COMPLIANCE])
def test_only_administrators_manage_keys(unchanged: Service, role: Role) -> None:
    key = unchanged.key_of(role)
    problem(unchanged.get("/api-keys", key=key), 403, "forbidden")
    problem(unchanged.post("/api-keys", {"name": "x", "role": "admin"}, key=key), 403, "forbidden")


def test_roles_over_http(service: Service) -> None:
    with service.sessions.begin() as session:
        build_ready_model(session, service.store, build_key(session)[0])
    edit = {"operations": [{"op": "drop_concepts", "concepts": ["crossing"]}]}
    path = "/models/digits-model"
    auditor, compliance, client = (service.key_of(role) for role in (Role.AUDITOR, Role.COMPLIANCE, Role.CLIENT))
    for key in (auditor, compliance, client):
        assert service.get(f"{path}/ledger", key=key).status_code == 200
    problem(service.post(f"{path}/edits", edit, key=auditor), 403, "forbidden")
    problem(service.put(f"{path}/aliases/production", {"version": 1}, key=compliance), 403, "forbidden")
    problem(service.post(f"{path}/factors", {}, key=compliance), 403, "forbidden")
    assert service.post(f"{path}/edits", edit, key=compliance).status_code == 202
    assert service.post(f"{path}/edits", edit, key=client).status_code == 202
    assert service.put(f"{path}/aliases/production", {"version": 1}, key=client).status_code == 200


def test_a_limited_key_sees_its_models_only(service: Service) -> None:
    with service.sessions.begin() as session:
        dataset = build_dataset(session, service.store, build_key(session)[0])
        for model_id in ("mine", "theirs"):
            build_model(session, dataset, model_id=model_id)
    key = service.key_of(Role.CLIENT, models=["mine", "future"])
    assert [model["id"] for model in service.get("/models", key=key).json()["models"]] == ["mine"]
    assert service.get("/models/mine", key=key).status_code == 200
    absent = service.get("/models/absent", key=key).json()
    foreign = service.get("/models/theirs", key=key)
    assert {**problem(foreign, 404, "not_found"), "request_id": ""} == {**absent, "request_id": ""}
    for path in ("versions", "jobs", "edits", "ledger", "aliases"):
        problem(service.get(f"/models/theirs/{path}", key=key), 404, "not_found")
    request = {"dataset": "digits", "architecture": {"name": "small_conv"}}
    problem(service.post("/models", {**request, "id": "other"}, key=key), 403, "forbidden")
    assert service.post("/models", {**request, "id": "future"}, key=key).status_code == 202


def test_last_use_is_noted_once_a_minute(service: Service) -> None:
    def last_use() -> object:
        with service.sessions() as session:
            return session.scalars(select(ApiKey.last_used_at)).one()

    assert last_use() is None
    service.get("/models")
    first = last_use()
    service.get("/models")
    assert last_use() == first is not None
    with service.sessions.begin() as session:
        session.execute(update(ApiKey).values(last_used_at=ApiKey.last_used_at - timedelta(seconds=61)))
    service.get("/models")
    assert last_use() > first  # type: ignore[operator]
