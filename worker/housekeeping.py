"""Removing what requests and computations that died have left in the artifact store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from app.artifacts import ArtifactStore

ADVISORY_LOCK = 0x6D6F64656C6D656F
PERIOD = 3600.0
FIRST_AFTER = 60.0
LONGEST_IMPORT = timedelta(days=1)

log = structlog.get_logger(__name__)


def tidy(sessions: sessionmaker[Session], store: ArtifactStore) -> float:
    """Remove expired uploads and files that no row knows, unless another worker does. Returns seconds to the next."""
    # Here, not above: they bring in the HTTP side, which a starting worker has no time for.
    from app.datasets.service import remove_orphans  # noqa: PLC0415
    from app.uploads.service import expire_uploads  # noqa: PLC0415

    now = datetime.now(UTC)
    with sessions.begin() as session:
        if session.scalar(select(func.pg_try_advisory_xact_lock(ADVISORY_LOCK))):
            uploads = expire_uploads(session, store, now)
            orphans = remove_orphans(session, store, now - LONGEST_IMPORT)
            log.info("tidied", uploads=uploads, orphans=orphans)
    return PERIOD
