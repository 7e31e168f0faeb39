from __future__ import annotations

import re

import pytest
from sqlalchemy import func, select

from app.edits.kinds import JobKind, ledger_kind
from app.ledger import service as ledger
from app.ledger.kinds import LedgerKind
from app.tables import LedgerEntry
from tests.app.service import Service, problem
from tests.builders import build_key, build_ready_model


def test_kinds_are_resource_dot_action_and_documented() -> None:
    for kind in LedgerKind:
        assert re.fullmatch(r"[a-z_]+\.[a-z_]+", kind.value)
        assert kind.description.endswith(".")
        assert LedgerKind(kind.value) is kind


@pytest.mark.parametrize("kind", JobKind)
@pytest.mark.parametrize("action", ["accepted", "started", "succeeded", "failed", "cancelled"])
def test_every_kind_of_job_has_every_entry(kind: JobKind, action: str) -> None:
    assert ledger_kind(kind, action).value.endswith(action)


def test_an_entry_lives_and_dies_with_its_transaction(service: Service) -> None:
    with service.sessions() as session:
        before = session.scalar(select(func.count()).select_from(LedgerEntry))
        ledger.append(session, LedgerKind.MODEL_CREATED, actor_ref="operator", model_id="m")
        session.rollback()
        assert session.scalar(select(func.count()).select_from(LedgerEntry)) == before


def test_the_history_is_paged_newest_first_and_filtered(service: Service) -> None:
    with service.sessions.begin() as session:
        build_ready_model(session, service.store, build_key(session)[0])
        for number in range(4):
            ledger.append(
                session, LedgerKind.ALIAS_MOVED, actor_ref="operator", model_id="digits-model", payload={"n": number}
            )
        ledger.append(session, LedgerKind.ALIAS_MOVED, actor_ref="operator", model_id="another")
    path = "/models/digits-model/ledger"
    seen: list[int] = []
    token: str | None = ""
    while token is not None:
        page = service.get(path, params={"page_size": 3, "page_token": token}).json()
        seen += [entry["seq"] for entry in page["entries"]]
        token = page["next_page_token"]
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == 5
    moved = service.get(path, params={"kind": "alias.moved"}).json()["entries"]
    assert [entry["payload"]["n"] for entry in moved] == [3, 2, 1, 0]
    problem(service.get(path, params={"kind": "nothing.happened"}), 422, "invalid_request")
    problem(service.get("/models/absent/ledger"), 404, "not_found")
