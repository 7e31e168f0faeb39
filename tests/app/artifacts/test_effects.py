from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from app.artifacts import on_commit, on_rollback
from app.database import make_engine, make_owner_engine, make_sessions


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = make_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def sessions(engine: Engine) -> sessionmaker[Session]:
    return make_sessions(engine)


def note_both(session: Session, done: list[str], name: str) -> None:
    on_commit(session, lambda: done.append(f"commit {name}"))
    on_rollback(session, lambda: done.append(f"rollback {name}"))


def test_a_commit_runs_what_waits_for_it_and_only_then(sessions: sessionmaker[Session]) -> None:
    done: list[str] = []
    with sessions.begin() as session:
        note_both(session, done, "a")
        assert done == []
    assert done == ["commit a"]


def divide_by_zero(session: Session) -> None:
    session.execute(text("SELECT 1 / 0"))


def test_an_exception_runs_what_waits_for_a_rollback(sessions: sessionmaker[Session]) -> None:
    done: list[str] = []

    def work() -> None:
        with sessions.begin() as session:
            note_both(session, done, "a")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert done == ["rollback a"]


def test_a_failed_statement_is_a_rollback(sessions: sessionmaker[Session]) -> None:
    done: list[str] = []

    def work() -> None:
        with sessions.begin() as session:
            note_both(session, done, "a")
            divide_by_zero(session)

    with pytest.raises(DBAPIError):
        work()
    assert done == ["rollback a"]


def test_closing_without_a_commit_is_a_rollback(sessions: sessionmaker[Session]) -> None:
    done: list[str] = []
    with sessions() as session:
        session.execute(text("SELECT 1"))
        note_both(session, done, "a")
    assert done == ["rollback a"]


def test_a_session_used_again_starts_anew(sessions: sessionmaker[Session]) -> None:
    done: list[str] = []
    with sessions() as session:
        with session.begin():
            note_both(session, done, "a")
        with session.begin():
            note_both(session, done, "b")
    assert done == ["commit a", "commit b"]


def test_a_rolled_back_savepoint_settles_its_own_effects_and_no_others(sessions: sessionmaker[Session]) -> None:
    done: list[str] = []

    def work(session: Session) -> None:
        with session.begin_nested():
            note_both(session, done, "inner")
            divide_by_zero(session)

    with sessions.begin() as session:
        note_both(session, done, "outer")
        with pytest.raises(DBAPIError):
            work(session)
        assert done == ["rollback inner"]
    assert done == ["rollback inner", "commit outer"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_released_savepoint_shares_the_fate_of_what_is_around_it(
    sessions: sessionmaker[Session], fails: bool
) -> None:
    done: list[str] = []

    def work() -> None:
        with sessions.begin() as session:
            with session.begin_nested(), session.begin_nested():
                note_both(session, done, "inner")
            assert done == []
            if fails:
                raise RuntimeError

    if fails:
        with pytest.raises(RuntimeError):
            work()
    else:
        work()
    assert done == ["rollback inner" if fails else "commit inner"]


def test_when_the_answer_to_commit_is_lost_nothing_is_removed(
    sessions: sessionmaker[Session], database_url: str
) -> None:
    done: list[str] = []
    owner = make_owner_engine(database_url)  # the service may not end sessions

    def work() -> None:
        with sessions.begin() as session:
            note_both(session, done, "a")
            backend = session.scalar(text("SELECT pg_backend_pid()"))
            with owner.connect() as other:
                # Waits until the backend is gone, so that COMMIT finds nobody.
                other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": backend})

    with pytest.raises(DBAPIError):
        work()
    assert done == []


def test_a_failure_of_an_effect_does_not_undo_the_commit_nor_stop_the_others(
    sessions: sessionmaker[Session], capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    def fail() -> None:
        raise OSError(5, "Input/output error")

    with sessions.begin() as session:
        on_commit(session, fail)
        on_commit(session, lambda: done.append("second"))
    assert done == ["second"]
    written = capsys.readouterr()
    assert "files_left_behind" in written.out + written.err


def test_effects_need_a_transaction(sessions: sessionmaker[Session]) -> None:
    with sessions() as session, pytest.raises(ValueError, match="transaction"):
        on_commit(session, lambda: None)
