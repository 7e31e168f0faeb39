"""Lists in pages: an opaque cursor over an order that never changes (AIP-158)."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query
from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.kit import strict_json
from app.kit.problems import INVALID_CURSOR, Problem

DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 200
_MAX_TOKEN = 1024

Row = TypeVar("Row")


@dataclass(frozen=True)
class Page:
    """What the caller asked for: at most ``size`` rows after the one that ``token`` names."""

    size: int
    token: str | None


def page_parameters(
    page_size: Annotated[int, Query(ge=1, description="At most this many; larger numbers are lowered to 200.")] = (
        DEFAULT_PAGE_SIZE
    ),
    page_token: Annotated[str | None, Query(description="`next_page_token` of the page before.")] = None,
) -> Page:
    """The query parameters of every list."""
    return Page(min(page_size, MAX_PAGE_SIZE), page_token or None)


PageDep = Annotated[Page, Depends(page_parameters)]


def encode_cursor(scope: str, after: int | str) -> str:
    """A token for the rows after ``after`` in the list ``scope`` (its path and filters)."""
    text = json.dumps([_short(scope), after], separators=(",", ":"), ensure_ascii=False)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(token: str, scope: str, type_: type) -> int | str:
    """The value that :func:`encode_cursor` was given.

    Raises:
        Problem: ``invalid_cursor`` for anything that was not made for this list with these filters.
    """
    try:
        raw = base64.b64decode(token[:_MAX_TOKEN] + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        made_for, after = strict_json.parse(raw)
    except (ValueError, TypeError) as error:
        raise Problem(INVALID_CURSOR, "The page token cannot be read.") from error
    in_order = (type(after) is int and 0 <= after < 2**63) if type_ is int else type(after) is str
    if not in_order or made_for != _short(scope) or encode_cursor(scope, after) != token:
        raise Problem(INVALID_CURSOR, "The page token was not made by this list with these filters.")
    return after  # type: ignore[no-any-return]


def fetch_page(
    session: Session,
    statement: Select[Row],
    *,
    column: InstrumentedAttribute[Any],
    page: Page,
    scope: str,
    newest_first: bool = False,
) -> tuple[Sequence[Row], str | None]:
    """One page of ``statement`` in the order of the unique ``column``, and the token of the next page."""
    if page.token is not None:
        after = decode_cursor(page.token, scope, column.type.python_type)
        statement = statement.where(column < after if newest_first else column > after)
    statement = statement.order_by(column.desc() if newest_first else column.asc()).limit(page.size + 1)
    rows = session.scalars(statement).all()
    if len(rows) <= page.size:
        return rows, None
    shown = rows[: page.size]
    return shown, encode_cursor(scope, getattr(shown[-1], column.key))


def _short(scope: str) -> str:
    return hashlib.sha256(scope.encode()).hexdigest()[:16]
