"""Which entries of the history are asked for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Annotated

from fastapi import Depends, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict
from sqlalchemy import ColumnElement, Select, String, TableValuedAlias, cast, func, select, true, union
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session, joinedload

from app.kit.pagination import Page, decode_cursor, fetch_page
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

    def conditions(self, session: Session) -> list[ColumnElement[bool]]:
        """What must hold of an entry, but for the version.

        Times become numbers first. Entries are in the order of time, so the index that finds a page by number finds it
        in a stretch of time as well, however far back.
        """
        found: list[ColumnElement[bool]] = []
        if self.kind is not None:
            found.append(LedgerEntry.kind == self.kind.value)
        if self.actor is not None:
            found.append(LedgerEntry.actor_ref == self.actor)
        if self.since is not None:
            found.append(LedgerEntry.seq >= _first_from(session, self.since))
        if self.until is not None:
            found.append(LedgerEntry.seq < _first_from(session, self.until))
        return found

    def places(self) -> list[list[ColumnElement[bool]]]:
        """The version may be in either of two columns; without one, anywhere."""
        if self.version is None:
            return [[]]
        return [[LedgerEntry.result_version == self.version], [LedgerEntry.parent_version == self.version]]

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


def history_page(
    session: Session,
    wanted: HistoryFilter,
    page: Page,
    *,
    scope: str,
    models: Collection[str] | None = None,
    dataset: str | None = None,
) -> tuple[Sequence[LedgerEntry], str | None]:
    """Entries of these models and this data set that pass, newest first, and the token of the next page.

    A version is found in either of two columns, and several models under several keys of an index. Each such place has
    its own index in the order of pages: the numbers of its newest are read from there, and the newest of these are the
    page. Asked for whole entries at once, the database reads the history backwards wherever it believes that what is
    wanted lies everywhere in it.
    """
    scope = f"{scope} {wanted.scope}"
    conditions = wanted.conditions(session)
    if dataset is not None and models is not None:
        models = _models_on(session, dataset, models)
    elif dataset is not None:
        conditions.append(LedgerEntry.dataset_id == dataset)
    if page.token is not None:
        conditions.append(LedgerEntry.seq < decode_cursor(page.token, scope, int))
    newest_first = LedgerEntry.seq.desc()
    newest = (
        _in_each(models, select(LedgerEntry.seq).where(*conditions, *place).order_by(newest_first).limit(page.size + 1))
        for place in wanted.places()
    )
    found = union(*newest).subquery()
    shown = select(found.c.seq).order_by(found.c.seq.desc()).limit(page.size + 1)
    statement = entries_with_payloads().where(LedgerEntry.seq.in_(shown))
    return fetch_page(session, statement, column=LedgerEntry.seq, page=page, scope=scope, newest_first=True)


def entries_with_payloads() -> Select[LedgerEntry]:
    """All entries, with what opens them."""
    return select(LedgerEntry).options(joinedload(LedgerEntry.opening))


def _in_each(models: Collection[str] | None, newest: Select[int]) -> Select[int]:
    """The newest of each model, of any if there is no choice of models."""
    if models is None:
        anywhere = newest.subquery()
        return select(anywhere.c.seq)
    if len(models) == 1:  # known to the planner
        in_one = newest.where(LedgerEntry.model_id == next(iter(models))).subquery()
        return select(in_one.c.seq)
    each = _each(models)
    in_each = newest.where(LedgerEntry.model_id == each.c.id).correlate(each).lateral()
    return select(in_each.c.seq).select_from(each.join(in_each, true()))


def _models_on(session: Session, dataset: str, models: Collection[str]) -> Sequence[str]:
    """Those of ``models`` that are on this data set. A model's entries all name the data set it was made on."""
    each = _each(models)
    told = select(LedgerEntry.dataset_id).where(LedgerEntry.model_id == each.c.id).correlate(each)
    one = told.order_by(LedgerEntry.seq.desc()).limit(1).scalar_subquery()
    return session.scalars(select(each.c.id).where(one == dataset)).all()


def _each(models: Collection[str]) -> TableValuedAlias:
    return func.unnest(cast(list(models), ARRAY(String))).table_valued("id").render_derived()


def _first_from(session: Session, at: datetime) -> int:
    """Number of the first entry at ``at`` or later; one past the newest if there is none."""
    found = session.scalar(
        select(LedgerEntry.seq).where(LedgerEntry.at >= at).order_by(LedgerEntry.at, LedgerEntry.seq).limit(1)
    )
    return found if found is not None else (session.scalar(select(func.max(LedgerEntry.seq))) or 0) + 1
