"""The database for commands of the operator, whether or not the service runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session, sessionmaker

from app.database import make_engine, make_sessions
from app.embedded import DataDirectoryInUse, EmbeddedServers
from app.migrate import upgrade
from app.serving.running import RunningRecord
from app.settings import Settings


@contextmanager
def reachable_database(settings: Settings) -> Iterator[str]:
    """URL of the configured database, of a running service's, or of an embedded one that is started for this.

    Raises:
        EmbeddedServersError: there is none.
    """
    if settings.database_url:
        yield settings.database_url
        return
    servers = EmbeddedServers(settings.data_dir / "servers", redis=False)
    try:
        servers.start()
    except DataDirectoryInUse:
        record = RunningRecord.read(settings.data_dir)
        if record is None:
            raise
        yield record.database_url
        return
    try:
        yield servers.database_url
    finally:
        servers.stop()


@contextmanager
def operator_sessions(settings: Settings) -> Iterator[sessionmaker[Session]]:
    """Sessions on ``reachable_database``, at the newest schema."""
    with reachable_database(settings) as url:
        upgrade(url)
        engine = make_engine(url)
        try:
            yield make_sessions(engine)
        finally:
            engine.dispose()
