"""Database connections of a process that may freeze or vanish in the middle of a transaction."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, event

from app.database import make_engine


def impatient_engine(database_url: str, idle_seconds: float) -> Engine:
    """An engine whose transactions the server ends when their client is silent in them for ``idle_seconds``.

    A stopped or cut-off worker would otherwise hold the lock on its job's row, and nobody could take the job over.
    """
    engine = make_engine(database_url)

    @event.listens_for(engine, "connect")
    def _limit(connection: Any, _: Any) -> None:
        connection.execute(f"SET idle_in_transaction_session_timeout = {max(int(idle_seconds * 1000), 1)}")
        connection.commit()

    return engine
