from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from app.database import make_engine, make_sessions
from app.ledger import service as ledger
from app.ledger.checkpoints import Checkpoint, VerifierKey, sign_checkpoint, verify_checkpoint
from app.ledger.kinds import LedgerKind
from app.ledger.publishing import CheckpointPublisher, LedgerContradicted
from app.ledger.reading import tree_size
from app.ledger.rotation import Rotation, record, rotate
from app.ledger.signing import KeyDirectory
from app.settings import Settings
from app.tables import LedgerEntry, LedgerPayload

ORIGIN = "ledger.example/mend"


@dataclass(frozen=True)
class Log:
    """A log as one process sees it."""

    publisher: CheckpointPublisher
    sessions: sessionmaker[Session]

    @property
    def keys(self) -> KeyDirectory:
        return self.publisher.keys

    def publish(self) -> str:
        with self.sessions() as session:
            return self.publisher.publish(session)

    def rotate(self) -> Rotation:
        return rotate(self.publisher, self.sessions, actor_ref="operator")

    def signers(self) -> list[VerifierKey]:
        return [key.verifier for key in self.keys.signing_keys()]

    def payloads(self) -> list[dict[str, Any]]:
        rotated = select(LedgerPayload.payload).join(LedgerEntry, LedgerEntry.seq == LedgerPayload.seq)
        rotated = rotated.where(
            LedgerEntry.kind == LedgerKind.SIGNING_KEY_ROTATED.value, LedgerEntry.actor_ref == "operator"
        )
        with self.sessions() as session:
            return [json.loads(text) for text in session.scalars(rotated.order_by(LedgerEntry.seq))]

    def newest_is_signed_by(self, *keys: VerifierKey) -> None:
        newest = self.publisher.archive.newest()
        assert newest is not None
        for key in keys:
            with self.sessions() as session:
                assert verify_checkpoint(newest, [key], origin=ORIGIN).size == tree_size(session)


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return Settings(database_url=database_url, data_dir=tmp_path / "data")


@pytest.fixture
def log(settings: Settings) -> Iterator[Log]:
    assert settings.database_url
    engine = make_engine(settings.database_url)
    log = Log(CheckpointPublisher.of(settings), make_sessions(engine))
    with log.sessions.begin() as session:
        log.publisher.begin(session, ORIGIN)
    yield log
    engine.dispose()


def test_a_rotation_is_recorded_and_published_under_both_keys(log: Log) -> None:
    (old,) = log.signers()
    rotation = log.rotate()
    assert rotation.retired == (old,)
    assert log.signers() == [rotation.key]
    assert log.payloads() == [{"key": str(rotation.key), "retired": str(old)}]
    log.newest_is_signed_by(old, rotation.key)
    assert [published.key for published in log.keys.published()] == [old, rotation.key]


def test_another_process_signs_with_the_new_key_at_once(log: Log, settings: Settings) -> None:
    elsewhere = Log(CheckpointPublisher.of(settings), log.sessions)
    elsewhere.publish()
    rotation = log.rotate()
    with log.sessions.begin() as session:
        ledger.append(session, LedgerKind.ALIAS_MOVED, actor_ref="operator")
    elsewhere.publish()
    elsewhere.newest_is_signed_by(rotation.key)
    assert elsewhere.signers() == [rotation.key]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_rotation_that_is_cut_off_is_completed_by_the_next(log: Log, steps: int) -> None:
    (first,) = log.signers()
    second = log.keys.add_key()
    if steps > 1:
        record(log.sessions, second, (first,), actor_ref="operator")
    if steps > 2:
        log.publish()
    assert log.signers() == [first, second]  # who knows only the first can verify still
    rotation = log.rotate()
    assert rotation.retired == (first, second)
    assert log.signers() == [rotation.key]
    log.newest_is_signed_by(first, second, rotation.key)
    named = {key for payload in log.payloads() for key in payload.values()}
    assert named == {str(published.key) for published in log.keys.published()}


def test_a_log_that_lost_its_private_key_goes_on_with_another(log: Log) -> None:
    (log.keys.path / "0001.key").unlink()
    rotation = log.rotate()
    assert rotation.retired == ()
    assert log.payloads() == [{"key": str(rotation.key)}]
    log.newest_is_signed_by(rotation.key)


def test_a_history_that_cannot_be_signed_gets_no_new_key(log: Log) -> None:
    forged = Checkpoint(ORIGIN, 1, bytes(32))
    log.publisher.archive.publish(sign_checkpoint(forged, *log.keys.signing_keys()))
    with pytest.raises(LedgerContradicted):
        log.rotate()
    assert len(log.keys.published()) == 1
    assert log.payloads() == []
