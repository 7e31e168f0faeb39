"""A real service with a history, and a superuser who can do to its tables what neither grants nor triggers allow."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, Executable, NullPool, create_engine, text

from app.ledger import merkle
from app.ledger import service as ledger
from app.ledger.checkpoints import VerifierKey
from app.ledger.exports import lines_of
from app.ledger.findings import OutsideCheckpoint, TamperingFound, Verified
from app.ledger.kinds import LedgerKind
from app.ledger.verification import outside_checkpoint, verify
from app.tables import Base
from tests.app.ledger.logs import leaf_hash_of
from tests.app.service import Service
from tests.builders import build_key, build_ready_model

SIZE = 13
PUBLISHED = (5, 8, 13)
TABLES = [Base.metadata.tables[name] for name in ("ledger_entries", "ledger_payloads", "ledger_nodes")]
ENTRIES, PAYLOADS, NODES = TABLES


class History:
    """A service with ``SIZE`` entries, of which checkpoints were published, and what an auditor keeps of it."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.notes: dict[int, str] = {}
        assert service.services.settings.database_url
        self._engine = create_engine(service.services.settings.database_url, poolclass=NullPool)
        with service.sessions.begin() as session:
            build_ready_model(session, service.store, build_key(session)[0])
        with self.superuser() as connection:
            there = connection.execute(text("SELECT max(seq) FROM ledger_entries")).scalar_one()
        assert there < PUBLISHED[0]
        for seq in range(there + 1, SIZE + 1):
            self.append(seq)
            if seq in PUBLISHED:
                self.notes[seq] = self.publish()
        with self.superuser() as connection:
            self._rows = {table: connection.execute(table.select()).mappings().all() for table in TABLES}
        self.keys = [VerifierKey.parse(key["key"]) for key in service.get("/ledger/keys").json()["keys"]]

    def append(self, seq: int) -> None:
        """An entry in a transaction of its own; ``seq`` is what its content is made of."""
        with self.service.sessions.begin() as session:
            ledger.append(
                session,
                LedgerKind.ALIAS_MOVED,
                actor_ref="operator",
                dataset_id="digits",
                model_id="digits-model",
                subject_ref="s-1",
                job_id=UUID(int=seq),
                parent_version=seq,
                result_version=seq + 1,
                artifact_sha256="ab" * 32,
                payload={"number": seq, "f1": 1 / seq, "damping": 10.0**-seq, "name": "ö"},
            )

    def publish(self) -> str:
        """Sign a checkpoint, as the service does from time to time."""
        with self.service.sessions() as session:
            return self.service.services.checkpoints.publish(session)

    @contextmanager
    def superuser(self) -> Iterator[Connection]:
        """A transaction of one whom neither grants nor triggers bind."""
        with self._engine.begin() as connection:
            for table in TABLES:
                connection.execute(text(f"ALTER TABLE {table.name} DISABLE TRIGGER USER"))
            yield connection
            for table in TABLES:
                connection.execute(text(f"ALTER TABLE {table.name} ENABLE TRIGGER USER"))

    def run(self, statement: str | Executable, **values: Any) -> None:
        with self.superuser() as connection:
            executed = connection.execute(text(statement) if isinstance(statement, str) else statement, values)
            assert executed.rowcount != 0

    def unpublish(self, size: int) -> None:
        """Remove a checkpoint from the service's own archive: an attacker may reach that too."""
        (file,) = self.service.services.checkpoints.archive.path.rglob(f"{size:012d}.txt")
        file.unlink()

    def leaf_hash(self, seq: int) -> bytes:
        """Of what the tables hold now."""
        return leaf_hash_of(self.service.get(f"/ledger/entries/{seq}").json()["entries"][0]["entry"])

    def rehash(self) -> None:
        """Compute all stored nodes again from what the tables hold now: a rewrite with right hashes."""
        nodes: dict[tuple[int, int], bytes] = {}
        for seq in range(1, SIZE + 1):
            nodes.update(merkle.appended(seq - 1, self.leaf_hash(seq), lambda *at: nodes[at]))
        with self.superuser() as connection:
            connection.execute(NODES.delete())
            rows = [{"level": level, "position": at, "hash": digest} for (level, at), digest in nodes.items()]
            connection.execute(NODES.insert(), rows)

    def restore(self) -> None:
        """Everything as it was before the tampering."""
        with self.superuser() as connection:
            for table, rows in self._rows.items():
                connection.execute(table.delete())
                connection.execute(table.insert(), [*map(dict, rows)])
        archive = self.service.services.checkpoints.archive
        for file in archive.path.rglob("*.txt"):
            file.unlink()
        for note in self.notes.values():
            archive.publish(note)

    def cut(self, size: int) -> None:
        """Remove what came after ``size`` entries."""
        for table in (ENTRIES, PAYLOADS):
            self.run(table.delete().where(table.c.seq > size))
        self.run("DELETE FROM ledger_nodes WHERE (position + 1) << level > :size", size=size)

    def kept(self, size: int) -> OutsideCheckpoint:
        return outside_checkpoint(self.notes[size].encode(), "the auditor's copy", self.keys)

    def verified(self, *outside: OutsideCheckpoint) -> Verified:
        answer = self.service.get("/ledger/export")
        assert answer.status_code == 200, answer.text
        return verify(lines_of(io.BytesIO(answer.content)), self.keys, outside)

    def found(self, *outside: OutsideCheckpoint) -> tuple[int | None, int | None]:
        """The range that is named."""
        with pytest.raises(TamperingFound) as found:
            self.verified(*outside)
        return found.value.first_seq, found.value.last_seq

    def assert_not_signed(self) -> None:
        """The service itself notices, signs nothing, and shows what it has to whoever will verify it."""
        archive = self.service.services.checkpoints.archive
        before = [*archive.from_size(0)]
        with pytest.raises(TamperingFound):
            self.verified()
        assert [*archive.from_size(0)] == before
