"""A superuser tampers with the tables of a real service; what it then exports over HTTP is verified offline."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from sqlalchemy import text

from app.embedded import ServerURLs
from app.ledger import service as ledger
from app.ledger.checkpoints import Checkpoint, sign_checkpoint
from app.ledger.exports import lines_of
from app.ledger.findings import TamperingFound
from app.ledger.merkle import EMPTY_ROOT
from app.ledger.verification import verify
from tests.app.ledger.stored import ENTRIES, NODES, PAYLOADS, PUBLISHED, SIZE, History
from tests.app.service import running_service
from tests.servers import copied_database


@pytest.fixture(scope="module")
def shared(servers: ServerURLs, template_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    with (
        copied_database(servers.database_url, template_database) as url,
        running_service(url, tmp_path_factory.mktemp("tampering"), checkpoint_seconds=86_400) as service,
    ):
        yield History(service)


@pytest.fixture
def history(shared: History) -> Iterator[History]:
    yield shared
    shared.restore()


def test_an_untouched_history(history: History) -> None:
    verified = history.verified(*map(history.kept, PUBLISHED))
    assert (verified.entries, verified.checkpoints, verified.outside_checkpoints) == (SIZE, 3, 3)
    assert verified.erased_payloads == 0


def test_a_checkpoint_of_no_entries_comes_before_the_first_one(history: History) -> None:
    publisher = history.service.services.checkpoints
    empty = Checkpoint(publisher.keys.origin, 0, EMPTY_ROOT)
    publisher.archive.publish(sign_checkpoint(empty, *publisher.keys.signing_keys()))
    assert history.verified().checkpoints == 4


CHANGES = {
    "at": "at + interval '1 microsecond'",
    "kind": "'alias.removed'",
    "actor_ref": "'worker'",
    "subject_ref": "NULL",
    "dataset_id": "'another'",
    "model_id": "NULL",
    "job_id": "NULL",
    "parent_version": "parent_version + 1",
    "result_version": "0",
    "artifact_sha256": "repeat('cd', 32)",
    "payload_commitment": "sha256('')",
}


@pytest.mark.parametrize("column", CHANGES)
def test_any_changed_column(history: History, column: str) -> None:
    history.run(ENTRIES.update().where(ENTRIES.c.seq == 6).values({column: text(CHANGES[column])}))
    assert history.found() == (6, 6)


def test_a_changed_column_with_its_stored_hash(history: History) -> None:
    history.run("UPDATE ledger_entries SET actor_ref = 'worker' WHERE seq = 7")
    history.run("UPDATE ledger_nodes SET hash = :hash WHERE level = 0 AND position = 6", hash=history.leaf_hash(7))
    assert history.found() == (7, 8)


@pytest.mark.parametrize(
    "payload",
    [
        "{}",
        '{"number":7}',
        '{"number":7,"number":6}',
        '{"number":6}{"number":7}',
        '{"number":6}\n',
        '{"number":6},"payload":{"number":7}',
        '{"number":6},"payload_salt":null',
        '{"number":NaN}',
        "null",
        "",
    ],
)
def test_a_changed_payload(history: History, payload: str) -> None:
    history.run("UPDATE ledger_payloads SET payload = :payload WHERE seq = 6", payload=payload)
    assert history.found() == (6, 6)


@pytest.mark.parametrize(
    "statement",
    ["UPDATE ledger_payloads SET salt = sha256('') WHERE seq = 6", "DELETE FROM ledger_payloads WHERE seq = 6"],
)
def test_a_changed_salt_and_a_missing_payload(history: History, statement: str) -> None:
    history.run(statement)
    assert history.found() == (6, 6)


def test_a_deleted_row(history: History) -> None:
    history.run("DELETE FROM ledger_entries WHERE seq = 6")
    assert history.found() == (6, 6)
    history.run("DELETE FROM ledger_entries WHERE seq = 5")
    assert history.found() == (5, 6)


def test_a_deleted_row_and_the_rest_renumbered(history: History) -> None:
    for table in (ENTRIES, PAYLOADS):
        history.run(table.delete().where(table.c.seq == 6))
        for seq in range(7, SIZE + 1):
            history.run(table.update().where(table.c.seq == seq).values(seq=seq - 1))
    history.unpublish(13)
    assert history.found() == (6, 6)


def test_two_rows_swapped(history: History) -> None:
    for table in (ENTRIES, PAYLOADS):
        for before, after in ((6, 100), (7, 6), (100, 7)):
            history.run(table.update().where(table.c.seq == before).values(seq=after))
    assert history.found() == (6, 6)


# Of 13 entries: the nodes that neither the root nor the peaks are made of, and those that they are.
INNER = [(0, 5), (0, 11), (1, 0), (1, 2), (1, 5), (2, 0), (2, 1)]
PEAKS = [(0, 12), (2, 2), (3, 0)]


@pytest.mark.parametrize(("level", "position"), INNER)
@pytest.mark.parametrize("missing", [False, True])
def test_a_changed_or_missing_node(history: History, missing: bool, level: int, position: int) -> None:
    here = (NODES.c.level == level) & (NODES.c.position == position)
    history.run(NODES.delete().where(here) if missing else NODES.update().where(here).values(hash=bytes(32)))
    seq = (position + 1) << level
    assert history.found() == (seq, seq)


@pytest.mark.parametrize(("level", "position"), PEAKS)
@pytest.mark.parametrize("missing", [False, True])
def test_nothing_is_signed_over_changed_or_missing_peaks(
    history: History, missing: bool, level: int, position: int
) -> None:
    here = (NODES.c.level == level) & (NODES.c.position == position)
    history.run(NODES.delete().where(here) if missing else NODES.update().where(here).values(hash=bytes(32)))
    history.assert_not_signed()


def test_a_tail_cut_off(history: History) -> None:
    history.cut(9)
    history.assert_not_signed()
    assert history.found() == (10, 13)
    history.unpublish(13)
    assert history.verified(history.kept(8)).entries == 9
    assert history.found(history.kept(13)) == (10, 13)


def test_a_rewrite_with_right_hashes(history: History) -> None:
    history.run("UPDATE ledger_entries SET actor_ref = 'worker' WHERE seq = 6")
    history.rehash()
    history.assert_not_signed()
    assert history.found() == (6, 8)
    for size in (8, 13):
        history.unpublish(size)
    assert history.verified(history.kept(5)).entries == SIZE
    assert history.found(history.kept(13)) == (1, 13)
    assert history.found(history.kept(5), history.kept(8), history.kept(13)) == (6, 8)


def test_a_rewrite_that_the_service_has_not_noticed_yet(history: History) -> None:
    """The newest checkpoint is gone, and the older one is met when the export is read."""
    answer = history.service.get("/ledger/export").content.splitlines(keepends=True)
    history.run("UPDATE ledger_entries SET actor_ref = 'worker' WHERE seq = 6")
    history.rehash()
    for size in (8, 13):
        history.unpublish(size)
    lines = history.service.get("/ledger/export").content.splitlines(keepends=True)
    (old,) = (line for line in answer if line.startswith(b'{"checkpoint"') and b"\\n8\\n" in line)
    place = next(place for place, line in enumerate(lines) if line.startswith(b'{"entry":') and b'"seq":9,' in line)
    with pytest.raises(TamperingFound) as found:
        verify([*lines[:place], old, *lines[place:]], history.keys)
    assert (found.value.first_seq, found.value.last_seq) == (6, 8)


def test_erased_payloads(history: History) -> None:
    with history.superuser() as connection:
        opening = connection.execute(PAYLOADS.select().where(PAYLOADS.c.seq == 6)).mappings().one()
    with history.service.sessions.begin() as session:
        assert ledger.erase_payloads(session, [6, 5, 9], actor_ref="operator") == 3
    verified = history.verified(history.kept(13))
    assert (verified.entries, verified.erased_payloads) == (SIZE + 1, 3)
    history.run(PAYLOADS.insert(), **opening)
    assert history.found() == (6, 6)
    history.run("DELETE FROM ledger_payloads WHERE seq IN (6, 7)")
    assert history.found() == (7, 7)
    history.run(PAYLOADS.delete().where(PAYLOADS.c.seq == SIZE + 1))
    assert history.found() == (SIZE + 1, SIZE + 1)


def test_the_history_of_a_model_and_receipts(history: History) -> None:
    def of_model() -> bytes:
        return history.service.get("/models/digits-model/ledger/export").content

    def receipt() -> bytes:
        return history.service.get("/ledger/entries/6").content

    def receipt_of_model() -> bytes:
        return history.service.get("/models/digits-model/ledger/6").content

    for document in (of_model, receipt, receipt_of_model):
        verified = verify(lines_of(io.BytesIO(document())), history.keys, [history.kept(13)])
        assert (verified.size, verified.outside_checkpoints) == (SIZE, 1)
    history.run("UPDATE ledger_entries SET actor_ref = 'worker' WHERE seq = 6")
    for document in (of_model, receipt, receipt_of_model):
        with pytest.raises(TamperingFound) as found:
            verify(lines_of(io.BytesIO(document())), history.keys)
        assert (found.value.first_seq, found.value.last_seq) == (6, 6)
