from __future__ import annotations

import random
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.orm import Session

from app.access.rules import Role
from app.database import make_owner_engine
from app.edits.kinds import JobKind, ledger_kind
from app.ledger import service as ledger
from app.ledger.commitments import NotCanonical, leaf_bytes, opens
from app.ledger.entries import leaf_of
from app.ledger.kinds import LedgerKind
from app.ledger.merkle import leaf_hash, verify_consistency, verify_inclusion
from app.ledger.ranges import as_ranges
from app.ledger.reading import consistency, inclusion_proofs, root_at, tree_size
from app.tables import LedgerEntry, LedgerNode, LedgerPayload
from tests.app.ledger.reference import reference_root
from tests.app.service import Service, problem
from tests.builders import build_key, build_ready_model, payload_of


def write(session: Session, *, model_id: str | None = None, payload: dict[str, object] | None = None) -> None:
    ledger.append(session, LedgerKind.ALIAS_MOVED, actor_ref="operator", model_id=model_id, payload=payload)


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
        before = tree_size(session)
        write(session)
        session.rollback()
        write(session, payload={"n": 1})
        savepoint = session.begin_nested()
        write(session, payload={"n": 2})
        savepoint.rollback()
        with session.begin_nested():
            write(session, payload={"n": 3})
        assert tree_size(session) == before  # a number is given only when it can no longer be given back
        session.commit()
        newest = session.scalars(select(LedgerEntry).where(LedgerEntry.seq > before).order_by(LedgerEntry.seq)).all()
        assert [payload_of(session, entry)["n"] for entry in newest] == [1, 3]
        assert [entry.seq for entry in newest] == [before + 1, before + 2]


def test_a_payload_without_canonical_form_is_refused_where_it_is_written(service: Service) -> None:
    with service.sessions() as session, pytest.raises(NotCanonical):
        write(session, payload={"n": float("nan")})


def test_writers_at_once_leave_no_gap_and_one_tree(service: Service) -> None:
    with service.sessions() as session:
        before = tree_size(session)

    def work(number: int) -> None:
        with service.sessions() as session:
            for part in range(number % 3 + 1):
                write(session, payload={"writer": number, "part": part})
            if number % 5 == 0:
                session.rollback()  # uses up no number
            else:
                session.commit()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(60)))
    written = sum(number % 3 + 1 for number in range(60) if number % 5)
    with service.sessions() as session:
        entries = session.scalars(select(LedgerEntry).order_by(LedgerEntry.seq)).all()
        size = before + written
        assert [entry.seq for entry in entries] == list(range(1, size + 1))
        assert all(a.at <= b.at for a, b in pairwise(entries))
        leaves = [leaf_bytes(leaf_of(entry)) for entry in entries]
        for first in range(size + 1):
            assert root_at(session, first) == reference_root(leaves[:first])
        for entry in entries:
            opening = session.get_one(LedgerPayload, entry.seq)
            assert opens(entry.payload_commitment, opening.salt, payload_of(session, entry))
        # Each complete subtree is stored once.
        assert session.scalar(select(func.count()).select_from(LedgerNode)) == 2 * size - size.bit_count()


def test_stored_nodes_prove_inclusion_and_consistency(service: Service) -> None:
    with service.sessions.begin() as session:
        for number in range(20):
            write(session, payload={"n": number})
    with service.sessions() as session:
        size = tree_size(session)
        root = root_at(session, size)
        entries = session.scalars(select(LedgerEntry).order_by(LedgerEntry.seq)).all()
        proofs = inclusion_proofs(session, [entry.seq for entry in entries], size)
        for entry, proof in zip(entries, proofs, strict=True):
            verify_inclusion(entry.seq - 1, size, leaf_hash(leaf_bytes(leaf_of(entry))), proof, root)
        for first in range(size + 1):
            verify_consistency(first, size, consistency(session, first, size), root_at(session, first), root)


def test_a_clock_put_back_does_not_turn_the_history_round(service: Service, database_url: str) -> None:
    ahead = datetime.now(UTC) + timedelta(days=1)
    owner = make_owner_engine(database_url)
    with owner.begin() as connection:
        connection.execute(text("ALTER TABLE ledger_entries DISABLE TRIGGER append_only"))
        connection.execute(
            text("UPDATE ledger_entries SET at = :at WHERE seq = (SELECT max(seq) FROM ledger_entries)"), {"at": ahead}
        )
    with service.sessions.begin() as session:
        write(session)
    with service.sessions() as session:
        newest = session.scalars(select(LedgerEntry).order_by(LedgerEntry.seq.desc()).limit(1)).one()
        assert newest.at >= ahead


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger_entries SET kind = 'x'",
        "DELETE FROM ledger_entries",
        "TRUNCATE ledger_entries",
        "UPDATE ledger_nodes SET hash = hash",
        "DELETE FROM ledger_nodes",
        "UPDATE ledger_payloads SET payload = '{}'",
        "TRUNCATE ledger_payloads",
    ],
)
def test_the_database_refuses_to_change_the_ledger(service: Service, database_url: str, statement: str) -> None:
    with service.sessions() as session, pytest.raises(ProgrammingError, match="permission denied"):
        session.execute(text(statement))
    with make_owner_engine(database_url).connect() as owner, pytest.raises(DBAPIError, match="append-only"):
        owner.execute(text(statement))


def test_the_service_has_no_more_rights_than_it_needs(service: Service) -> None:
    with service.sessions() as session:
        assert session.scalar(text("SELECT current_user")) == "modelmend_app"
        granted = session.execute(
            text(
                "SELECT table_name, string_agg(privilege_type, ' ' ORDER BY privilege_type) AS privileges "
                "FROM information_schema.role_table_grants WHERE grantee = 'modelmend_app' GROUP BY table_name"
            )
        )
        rights = {row.table_name: row.privileges for row in granted}
        tables = set(session.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")))
    everything = "DELETE INSERT SELECT UPDATE"
    limited = {
        "alembic_version": "SELECT",
        "ledger_entries": "INSERT SELECT",
        "ledger_nodes": "INSERT SELECT",
        "ledger_payloads": "DELETE INSERT SELECT",
    }
    assert rights == dict.fromkeys(tables, everything) | limited
    with service.sessions() as session, pytest.raises(ProgrammingError):
        session.execute(text("CREATE TABLE mine (id int)"))


def test_an_erased_payload_leaves_every_root_and_an_entry_that_says_so(service: Service) -> None:
    with service.sessions.begin() as session:
        for number in range(6):
            write(session, payload={"n": number})
    with service.sessions() as session:
        size = tree_size(session)
        root = root_at(session, size)
    with service.sessions.begin() as session:
        assert ledger.erase_payloads(session, [size - 1, size - 2, size - 4], actor_ref="operator") == 3
    with service.sessions.begin() as session:
        # Again, and the record of it: neither changes anything.
        assert ledger.erase_payloads(session, [size - 1, size + 1], actor_ref="operator") == 0
    with service.sessions() as session:
        assert tree_size(session) == size + 1
        assert root_at(session, size) == root
        record = session.get_one(LedgerEntry, size + 1)
        assert record.kind == "ledger.payloads_erased"
        assert payload_of(session, record) == {"entries": [[size - 4, size - 4], [size - 2, size - 1]]}
        assert session.get(LedgerPayload, size - 1) is None
    erased = service.get(f"/ledger/entries/{size - 1}").json()["entries"][0]["entry"]
    assert (erased["payload"], erased["payload_salt"]) == (None, None)


def test_ranges() -> None:
    assert as_ranges([5, 1, 2, 3, 5, 9, 8]) == [(1, 3), (5, 5), (8, 9)]
    assert as_ranges([]) == []


def test_the_history_is_paged_newest_first_and_filtered(service: Service) -> None:
    with service.sessions.begin() as session:
        build_ready_model(session, service.store, build_key(session)[0])
        for number in range(4):
            write(session, model_id="digits-model", payload={"n": number})
        write(session, model_id="another")
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


def test_filters_of_the_history(service: Service) -> None:
    with service.sessions.begin() as session:
        build_ready_model(session, service.store, build_key(session)[0])
    for version, actor in ((1, "a"), (2, "b"), (3, "a")):
        with service.sessions.begin() as session:
            ledger.append(
                session,
                LedgerKind.VERSION_PUBLISHED,
                actor_ref=actor,
                model_id="digits-model",
                dataset_id="digits",
                parent_version=version - 1 or None,
                result_version=version,
            )

    def found(**wanted: str | int) -> list[int]:
        answer = service.get("/models/digits-model/ledger", params={"kind": "version.published", **wanted})
        entries = answer.json()["entries"]
        assert service.get("/ledger", params={"kind": "version.published", **wanted}).json()["entries"] == entries
        return [entry["result_version"] for entry in entries]

    everything = service.get("/ledger", params={"dataset": "digits", "kind": "version.published"}).json()["entries"]
    at = [entry["at"] for entry in everything][::-1]
    assert found() == [3, 2, 1]
    assert found(actor="a") == [3, 1]
    assert found(version=2) == [3, 2]  # the one it came from, and the one it was the base of
    assert found(since=at[1]) == [3, 2]
    assert found(until=at[1]) == [1]
    assert found(since=at[1], until=at[2]) == [2]
    assert found(since="2999-01-01T00:00:00Z") == []
    problem(service.get("/ledger", params={"since": "2026-01-01T00:00:00"}), 422, "invalid_request")
    token = service.get("/ledger", params={"page_size": 1}).json()["next_page_token"]
    problem(service.get("/ledger", params={"page_token": token, "actor": "a"}), 400, "invalid_cursor")


def test_pages_agree_with_a_plain_reading_for_all_filters_and_keys(service: Service) -> None:
    """Every combination, page by page, against a filter in Python over everything."""
    chance = random.Random(0)  # noqa: S311 (data of a test)
    models, actors = ["one", "two", "three"], ["a", "b"]
    with service.sessions.begin() as session:
        for _ in range(120):
            version = chance.choice([None, 1, 2, 3])
            ledger.append(
                session,
                chance.choice([LedgerKind.EDIT_ACCEPTED, LedgerKind.EDIT_STARTED]),
                actor_ref=chance.choice(actors),
                model_id=(model := chance.choice([*models, None])),
                dataset_id=model and f"data-{len(model)}",
                parent_version=version,
                result_version=chance.choice([None, version and version + 1]),
            )
    with service.sessions() as session:
        everything = session.scalars(select(LedgerEntry).order_by(LedgerEntry.seq.desc())).all()
    keys = {limit: service.key_of(Role.AUDITOR, models=list(limit)) for limit in [("one", "three"), ("two",)]}
    choices: dict[str, list[Any]] = {
        "limit": [None, *keys],
        "model": [None, "one", "two"],
        "dataset": [None, "data-3"],
        "version": [None, 2],
        "kind": [None, "edit.started"],
        "actor": [None, "a"],
    }
    for values in product(*choices.values()):
        wanted = dict(zip(choices, values, strict=True))
        limit = wanted.pop("limit")
        expected = [
            entry.seq
            for entry in everything
            if (limit is None or entry.model_id in limit)
            and wanted["model"] in (None, entry.model_id)
            and wanted["dataset"] in (None, entry.dataset_id)
            and (wanted["version"] is None or wanted["version"] in (entry.parent_version, entry.result_version))
            and wanted["kind"] in (None, entry.kind)
            and wanted["actor"] in (None, entry.actor_ref)
        ]
        found: list[int] = []
        token: str | None = ""
        while token is not None:
            parameters = {name: value for name, value in wanted.items() if value is not None}
            answer = service.get(
                "/ledger", params=parameters | {"page_size": 40, "page_token": token}, key=limit and keys[limit]
            ).json()
            found += [entry["seq"] for entry in answer["entries"]]
            token = answer["next_page_token"]
        # The keys were made after everything was read.
        assert [seq for seq in found if seq <= everything[0].seq] == expected, (limit, wanted)


def test_who_sees_what_of_the_history(service: Service) -> None:
    with service.sessions.begin() as session:
        build_ready_model(session, service.store, build_key(session)[0])
        write(session, model_id="another")
        write(session, model_id="digits-model")
    client = service.key_of(Role.CLIENT)
    for path in ("/ledger", "/ledger/entries/1", "/ledger/export"):
        problem(service.get(path, key=client), 403, "forbidden")
    for path in ("/ledger/checkpoint", "/ledger/keys", "/models/digits-model/ledger/export"):
        assert service.get(path, key=client).status_code == 200
    limited = service.key_of(Role.AUDITOR, models=["digits-model"])
    assert {entry["model_id"] for entry in service.get("/ledger", key=limited).json()["entries"]} == {"digits-model"}
    problem(service.get("/ledger/export", key=limited), 403, "forbidden")
    problem(service.get("/ledger/entries/1", key=limited), 404, "not_found")
    mine = service.get("/ledger", key=limited).json()["entries"][0]["seq"]
    assert service.get(f"/models/digits-model/ledger/{mine}", key=client).status_code == 200
    problem(service.get("/models/digits-model/ledger/1", key=client), 404, "not_found")
    for text_ in ("0", "-1", "x", str(2**60)):
        problem(service.get(f"/ledger/entries/{text_}"), 422, "invalid_request")
    problem(service.get("/ledger/entries/999999"), 404, "not_found")
    problem(service.get("/ledger/proofs/inclusion", params={"seq": 1, "size": 999999}), 422, "invalid_request")
    problem(service.get("/ledger/proofs/consistency", params={"first": 2, "second": 1}), 422, "invalid_request")


def test_nobody_signs_a_history_that_contradicts_what_was_signed(service: Service, database_url: str) -> None:
    with service.sessions.begin() as session:
        build_ready_model(session, service.store, build_key(session)[0])
        for number in range(9):
            write(session, model_id="digits-model", payload={"n": number})
    path = "/models/digits-model/ledger/export"
    assert service.get(path).status_code == 200  # publishes a checkpoint
    with make_owner_engine(database_url).begin() as owner:
        for table in ("ledger_entries", "ledger_nodes"):
            owner.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER append_only"))
        owner.execute(text("UPDATE ledger_nodes SET hash = sha256(hash) WHERE level = 3 AND position = 0"))
    with service.sessions.begin() as session:
        write(session)
        seq = tree_size(session) + 1
    problem(service.get(path), 503, "ledger_not_signed")
    problem(service.get(f"/ledger/entries/{seq}"), 503, "ledger_not_signed")
    with make_owner_engine(database_url).begin() as owner:
        owner.execute(text("DELETE FROM ledger_entries WHERE seq > 3"))
    problem(service.get(path), 503, "ledger_not_signed")
