"""API keys: ``mm_PREFIX_SECRET``. The text is shown once; the table holds the prefix and the secret's SHA-256."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from app.access.callers import Caller
from app.access.rules import Role
from app.ledger import service as ledger
from app.ledger.kinds import LedgerKind
from app.tables import ApiKey

_TEXT = re.compile(r"mm_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")
_LAST_USE_RESOLUTION = timedelta(minutes=1)


def create_key(
    session: Session, *, name: str, role: Role, model_ids: Sequence[str] | None = None, actor_ref: str
) -> tuple[ApiKey, str]:
    """Make a key and return it with the text that its holder sends; the text cannot be had again."""
    prefix, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
    key = ApiKey(
        name=name,
        role=role.value,
        prefix=prefix,
        secret_sha256=_digest(secret),
        model_ids=None if model_ids is None else sorted(set(model_ids)),
    )
    session.add(key)
    session.flush()
    ledger.append(
        session, LedgerKind.API_KEY_CREATED, actor_ref=actor_ref, payload={"key": str(key.id), "role": role.value}
    )
    return key, f"mm_{prefix}_{secret}"


def revoke_key(session: Session, key_id: UUID, *, actor_ref: str) -> ApiKey | None:
    """End a key's life; a second time changes nothing. ``None`` when there is no such key."""
    key = session.get(ApiKey, key_id, with_for_update=True)
    if key is not None and key.revoked_at is None:
        key.revoked_at = session.execute(select(func.now())).scalar_one()
        session.flush()
        ledger.append(session, LedgerKind.API_KEY_REVOKED, actor_ref=actor_ref, payload={"key": str(key.id)})
    return key


def caller_of(session: Session, text: str) -> Caller | None:
    """The caller that ``text`` belongs to, or ``None`` when it is malformed, unknown or revoked.

    The time does not depend on how much of a secret is right. Use is noted once a minute at most, so that reading
    does not write each time.
    """
    parts = _TEXT.fullmatch(text)
    if parts is None:
        return None
    prefix, secret = parts.groups()
    key = session.scalar(select(ApiKey).where(ApiKey.prefix == prefix))
    right = hmac.compare_digest(key.secret_sha256 if key else _digest(""), _digest(secret))
    if key is None or not right or key.revoked_at is not None:
        return None
    stale = func.now() - _LAST_USE_RESOLUTION
    session.execute(
        update(ApiKey)
        .where(ApiKey.id == key.id, or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < stale))
        .values(last_used_at=func.now())
        .execution_options(synchronize_session=False)
    )
    return Caller(key.id, Role(key.role), None if key.model_ids is None else frozenset(key.model_ids))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
