"""SQL of data sets where it is more than a line."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    String,
    any_,
    cast,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.access.callers import Caller
from app.tables import Dataset, Model, Sample, Subject

_INSERT_ROWS = 5000


def among(column: InstrumentedAttribute[str], values: Collection[str]) -> ColumnElement[bool]:
    """Whether the column has one of many values: one array parameter, as a statement has at most 65,535."""
    return column == any_(literal(list(values), ARRAY(String)))


def visible_to(caller: Caller) -> ColumnElement[bool]:
    """Data sets that a key may see: all, or those that it registered and those of the models it is limited to."""
    if caller.model_ids is None:
        return literal(True)
    of_its_models = exists().where(Model.dataset_id == Dataset.id, among(Model.id, caller.model_ids))
    return or_(Dataset.created_by == caller.key_id, of_its_models)


def reserve_sample_ids(session: Session, count: int) -> list[int]:
    """Ids for rows about to be inserted, ascending: images and the snapshot need them before the rows are there."""
    statement = text("SELECT nextval(pg_get_serial_sequence('samples', 'id')) FROM generate_series(1, :count)")
    return sorted(session.scalars(statement, {"count": count}).all())


def insert_samples(session: Session, rows: Iterable[Mapping[str, Any]]) -> None:
    """Inserts rows with reserved ids; all have the same members.

    One statement takes one array per column: measured four times as fast as a statement with many parameter sets.
    """
    remaining = iter(rows)
    while batch := list(islice(remaining, _INSERT_ROWS)):
        columns = [Sample.__table__.columns[name] for name in batch[0]]
        arrays = (cast([row[column.name] for row in batch], ARRAY(column.type, dimensions=1)) for column in columns)
        values = func.unnest(*arrays).table_valued(*(column.name for column in columns)).render_derived()
        session.execute(insert(Sample).from_select(columns, select(values), include_defaults=False))


def upsert_subjects(session: Session, references: Iterable[str]) -> dict[str, uuid.UUID]:
    """Ids of the subjects with these references, made where missing, and kept from deletion until the commit."""
    wanted = sorted(set(references))  # one order for all, so that two imports never wait for each other
    found: dict[str, uuid.UUID] = {}
    while missing := [reference for reference in wanted if reference not in found]:
        names = select(func.unnest(literal(missing, ARRAY(String))))
        # Without `include_defaults=False` one id, made in Python, would be meant for all of them.
        made = upsert(Subject).from_select(["reference"], names, include_defaults=False)
        session.execute(made.on_conflict_do_nothing(index_elements=["reference"]))
        # A subject deleted between the two statements is missing here; then once more.
        held = (
            select(Subject.reference, Subject.id)
            .where(among(Subject.reference, missing))
            .order_by(Subject.reference)
            .with_for_update(read=True, key_share=True)
        )
        found |= dict(session.execute(held).all())
    return found


def delete_subjects_without_rows(session: Session, subject_ids: Collection[uuid.UUID]) -> None:
    """Deletes those of the subjects that no sample names any more; a subject somebody is using is left alone."""
    free = (
        select(Subject.id)
        .where(Subject.id.in_(sorted(subject_ids)))
        .order_by(Subject.id)
        .with_for_update(skip_locked=True)
    )
    held = session.scalars(free).all()
    # A statement of its own: it sees the rows of everybody who committed before the locks were taken.
    session.execute(delete(Subject).where(Subject.id.in_(held), ~exists().where(Sample.subject_id == Subject.id)))


def existing_keys(session: Session, dataset_id: str, keys: Collection[str]) -> set[str]:
    """Which of the keys the data set has, also in rows that wait for an edit."""
    statement = select(Sample.key).where(Sample.dataset_id == dataset_id, among(Sample.key, keys))
    return set(session.scalars(statement))


def subject_references(session: Session, samples: Sequence[Sample]) -> dict[uuid.UUID, str]:
    """References of the samples' subjects by id."""
    ids = {sample.subject_id for sample in samples if sample.subject_id is not None}
    return dict(session.execute(select(Subject.id, Subject.reference).where(Subject.id.in_(ids))).all())
