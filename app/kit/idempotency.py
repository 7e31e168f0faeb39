"""Creating requests may be sent again (IETF draft Idempotency-Key).

The first answer is stored in the transaction that creates; a repetition gets the same answer. A request that failed
stored nothing and may be corrected and sent again with the same key.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, Header, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from app.kit.problems import (
    IDEMPOTENCY_IN_FLIGHT,
    IDEMPOTENCY_KEY_MISSING,
    IDEMPOTENCY_KEY_REUSED,
    Problem,
)
from app.kit.responses import BODY_PROBLEMS
from app.tables import IdempotencyRecord

CREATING_PROBLEMS = (*BODY_PROBLEMS, IDEMPOTENCY_KEY_MISSING, IDEMPOTENCY_KEY_REUSED, IDEMPOTENCY_IN_FLIGHT)
"""What every creating route may answer with."""

_KEY = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True)
class IdempotencyKey:
    """The caller's key, and the route (method and path) it belongs to."""

    value: str | None
    route: str

    def required(self) -> str:
        """Raises ``idempotency_key_missing`` unless the header was sent and well-formed."""
        if self.value is None or not _KEY.fullmatch(self.value):
            raise Problem(
                IDEMPOTENCY_KEY_MISSING, "Send the header Idempotency-Key: 1 to 255 visible ASCII characters."
            )
        return self.value


def idempotency_key(
    request: Request,
    idempotency_key: Annotated[
        str | None, Header(description="A fresh random text per intention; repetitions get the first answer.")
    ] = None,
) -> IdempotencyKey:
    """Dependency of creating routes."""
    return IdempotencyKey(idempotency_key, f"{request.method} {request.url.path}")


IdempotencyKeyDep = Annotated[IdempotencyKey, Depends(idempotency_key)]


@dataclass(frozen=True)
class Answer:
    """An answer that can be stored and given again."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self, *, replayed: bool = False) -> JSONResponse:
        headers = {**self.headers, **({"Idempotency-Replayed": "true"} if replayed else {})}
        return JSONResponse(self.body, status_code=self.status, headers=headers)


@dataclass(frozen=True)
class Claim:
    """The right to create once: either ``first_answer`` is given again, or :meth:`record` stores a new one."""

    caller_id: UUID
    route: str
    key: str
    payload_sha256: str
    first_answer: Answer | None

    def replay(self) -> JSONResponse | None:
        """The first answer again, if there was one."""
        return self.first_answer.response(replayed=True) if self.first_answer else None

    def record(self, session: Session, answer: Answer) -> None:
        """Store ``answer`` in the creating transaction."""
        session.add(
            IdempotencyRecord(
                caller_id=self.caller_id,
                route=self.route,
                key=self.key,
                payload_sha256=self.payload_sha256,
                status=answer.status,
                headers=dict(answer.headers),
                body=answer.body,
            )
        )
        session.flush()


def payload_digest(payload: BaseModel | Mapping[str, Any]) -> str:
    """SHA-256 of what was asked, the same for equal JSON in another layout.

    For multipart, pass a mapping of the parts to their own digests.
    """
    value = payload.model_dump(mode="json", by_alias=True) if isinstance(payload, BaseModel) else payload
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def claim_key(session: Session, *, caller_id: UUID, key: IdempotencyKey, payload_sha256: str) -> Claim:
    """Claim ``key`` until the end of the transaction.

    Raises:
        Problem: ``idempotency_key_missing``, ``idempotency_in_flight`` while another transaction holds it, or
            ``idempotency_key_reused`` when it was used with another payload.
    """
    value = key.required()
    digest = hashlib.sha256(f"{caller_id} {key.route} {value}".encode()).digest()
    lock = int.from_bytes(digest[:8], "big", signed=True)
    if not session.scalar(text("SELECT pg_try_advisory_xact_lock(:lock)"), {"lock": lock}):
        raise Problem(IDEMPOTENCY_IN_FLIGHT, "Another request with this key is running.", headers={"Retry-After": "1"})
    record = session.scalar(
        select(IdempotencyRecord).where(
            IdempotencyRecord.caller_id == caller_id,
            IdempotencyRecord.route == key.route,
            IdempotencyRecord.key == value,
        )
    )
    if record is None:
        return Claim(caller_id, key.route, value, payload_sha256, None)
    if record.payload_sha256 != payload_sha256:
        raise Problem(IDEMPOTENCY_KEY_REUSED, "The first request with this key had another payload.")
    return Claim(caller_id, key.route, value, payload_sha256, Answer(record.status, record.body, record.headers))
