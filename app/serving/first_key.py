"""The first key: somebody has to be let in."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import select

from app.access.keys import create_key
from app.access.rules import Role
from app.database import make_engine, make_sessions
from app.serving.running import write_private
from app.tables import ApiKey

FILE = "admin.key"
OPERATOR = "operator"


def ensure_admin_key(database_url: str, data_dir: Path) -> str | None:
    """Unless there is an administrator's key, make one and keep its text in ``admin.key``, for this user only.

    Returns:
        The text of a key just made.
    """
    engine = make_engine(database_url)
    try:
        with make_sessions(engine).begin() as session:
            usable = select(ApiKey.id).where(ApiKey.role == Role.ADMIN.value, ApiKey.revoked_at.is_(None)).limit(1)
            if session.scalar(usable) is not None:
                return None
            _, text = create_key(session, name="first administrator", role=Role.ADMIN, actor_ref=OPERATOR)
            write_private(data_dir / FILE, text + "\n")
        return text
    finally:
        engine.dispose()


def read_admin_key(data_dir: Path) -> str | None:
    """The text that ``ensure_admin_key`` kept, if it did and the file is still there."""
    try:
        return (data_dir / FILE).read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
