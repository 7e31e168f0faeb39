"""Which entries of the history are asked for."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Depends, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict
from sqlalchemy import Select, func, or_, select
from sqlalchemy.orm import Session, joinedload

from app.kit.schemas import VersionNumber
from app.ledger.kinds import LedgerKind
from app.tables import LedgerEntry


class HistoryFilter(BaseModel):
    """All that are given must hold. Times are of entries: ``since`` is included, ``until`` is not."""

    model_config = ConfigDict(frozen=True)

    kind: LedgerKind | None = None
    version: VersionNumber | None = None
    actor: str | None = None
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None

    def apply(self, session: Session, statement: Select[LedgerEntry]) -> Select[LedgerEntry]:
        """``statement`` for what passes.

        Times become numbers first. Entries are in the order of time, so the index that finds a page by number finds it
        in a stretch of time as well, however far back.
        """
        if self.kind is not None:
            statement = statement.where(LedgerEntry.kind == self.kind.value)
        if self.actor is not None:
            statement = statement.where(LedgerEntry.actor_ref == self.actor)
        if self.version is not None:
            statement = statement.where(
                or_(LedgerEntry.result_version == self.version, LedgerEntry.parent_version == self.version)
            )
        if self.since is not None:
            statement = statement.where(LedgerEntry.seq >= _first_from(session, self.since))
        if self.until is not None:
            statement = statement.where(LedgerEntry.seq < _first_from(session, self.until))
        return statement

    @property
    def scope(self) -> str:
        """Names the filter in page tokens."""
        return self.model_dump_json()


def history_filter(
    kind: LedgerKind | None = None,
    version: Annotated[
        VersionNumber | None, Query(description="Entries that this version came from, or was the base of.")
    ] = None,
    actor: Annotated[str | None, Query(max_length=100, description="Id of an API key, `worker` or `operator`.")] = None,
    since: Annotated[AwareDatetime | None, Query(description="Entries at this time or later.")] = None,
    until: Annotated[AwareDatetime | None, Query(description="Entries before this time.")] = None,
) -> HistoryFilter:
    """The query parameters of every history."""
    return HistoryFilter(kind=kind, version=version, actor=actor, since=since, until=until)


HistoryFilterDep = Annotated[HistoryFilter, Depends(history_filter)]


def entries_with_payloads() -> Select[LedgerEntry]:
    """All entries, with what opens them."""
    return select(LedgerEntry).options(joinedload(LedgerEntry.opening))


def _first_from(session: Session, at: datetime) -> int:
    """Number of the first entry at ``at`` or later; one past the newest if there is none."""
    found = session.scalar(
        select(LedgerEntry.seq).where(LedgerEntry.at >= at).order_by(LedgerEntry.at, LedgerEntry.seq).limit(1)
    )
    return found if found is not None else (session.scalar(select(func.max(LedgerEntry.seq))) or 0) + 1
