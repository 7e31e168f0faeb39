"""The connection to Postgres. Services take a session and never commit: the request or job boundary does."""

from __future__ import annotations

from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy.orm import Session, sessionmaker

APPLICATION_ROLE = "modelmend_app"
"""What API and workers are to Postgres. Migrations give it its rights; of the ledger, to append alone."""

_OPTIONS = "-c lock_timeout=10s -c timezone=UTC"


def make_engine(database_url: str) -> Engine:
    """An engine for ``database_url`` in the application's role; the login must be a member of it.

    Statements wait at most 10 s for a lock instead of for ever.
    """
    return create_engine(
        database_url,
        hide_parameters=True,  # messages of errors end in logs, and parameters are personal data
        pool_pre_ping=True,
        pool_size=10,
        max_overflow=20,
        connect_args={"options": f"{_OPTIONS} -c role={APPLICATION_ROLE}"},
    )


def make_owner_engine(database_url: str) -> Engine:
    """An engine with all rights of the login, for migrations."""
    return create_engine(database_url, hide_parameters=True, poolclass=NullPool, connect_args={"options": _OPTIONS})


def make_sessions(engine: Engine) -> sessionmaker[Session]:
    """Session factory; use ``with sessions.begin() as session`` for one transaction."""
    return sessionmaker(engine, expire_on_commit=False)
