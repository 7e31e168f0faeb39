from __future__ import annotations

from dataclasses import replace
from typing import Literal
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from app.datasets.snapshots import AddedSample, NewConcept, Snapshot, SnapshotChanges
from app.edits import line, outcomes
from app.edits.kinds import JobKind
from app.tables import Dataset, Job, Model, Sample, Version
from tests.worker.workshop import CONCEPTS, Workshop
from worker.claim import Claim, claim_next
from worker.resolution import changes_between, task_for
from worker.tasks import Json, Task, TaskFailure


def queue(workshop: Workshop, kind: JobKind, request: Json) -> UUID:
    with workshop.sessions.begin() as session:
        return line.join(
            session,
            model_id="digits",
            dataset_id="glyphs",
            kind=kind,
            request=request,
            created_by=workshop.key_id,
        ).id


def claim(workshop: Workshop, job_id: UUID) -> Claim:
    held = claim_next(workshop.sessions, rung_for=job_id, worker_id="me", lease_seconds=60.0)
    assert held is not None
    return held


def resolve(workshop: Workshop, kind: JobKind, request: Json) -> tuple[Claim, Task]:
    held = claim(workshop, queue(workshop, kind, request))
    with workshop.sessions() as session:
        return held, task_for(session, workshop.store, held.job)


def publish(
    workshop: Workshop, held: Claim, snapshot: str, concepts: list[str], factors_version: int | Literal["this"] = "this"
) -> None:
    new = outcomes.NewVersion(concepts, snapshot, "1" * 64, "2" * 64, factors_version, {"concept_f1": 1.0}, "0")
    with workshop.sessions.begin() as session:
        assert outcomes.publish(session, held.job_id, held.attempt, new=new, report={"steps": 3})


def sample_id(workshop: Workshop, key: str) -> int:
    with workshop.sessions() as session:
        return session.scalars(select(Sample.id).where(Sample.key == key)).one()


def snapshot_digest(workshop: Workshop) -> str:
    with workshop.sessions() as session:
        return session.get_one(Dataset, "glyphs").snapshot_digest


def test_a_training_starts_from_the_data_set(workshop: Workshop) -> None:
    workshop.add_model("digits")
    with workshop.sessions.begin() as session:
        session.get_one(Model, "digits").latest_version = None
    _, task = resolve(workshop, JobKind.REGISTER, {"weights": {"upload": "up-1"}, "training": {"seed": 7}})
    assert (task.kind, task.base, task.changes, task.upload_id, task.seed) == ("register", None, None, "up-1", 7)
    assert (task.concepts, task.classes, task.snapshot_digest) == (CONCEPTS, ["one", "two"], snapshot_digest(workshop))


def test_a_training_may_start_from_pretrained_weights(workshop: Workshop) -> None:
    workshop.add_model("digits")
    request: Json = {"weights": None, "pretrained": {"upload": "up-2"}, "training": {"seed": 7}}
    _, task = resolve(workshop, JobKind.TRAIN, request)
    assert (task.kind, task.base, task.upload_id) == ("train", None, "up-2")


def test_an_edit_is_resolved_to_ids_and_columns_of_its_base(workshop: Workshop) -> None:
    workshop.add_model("digits")
    operations = [
        {"op": "fix_concept_labels", "labels": [{"sample": "a", "concept": "loop", "value": None}]},
        {"op": "drop_concepts", "concepts": ["corner"]},
        {"op": "remove_samples", "samples": ["b"]},
    ]
    _, task = resolve(workshop, JobKind.EDIT, {"operations": operations, "options": {"seed": 3}})
    a, b = (sample_id(workshop, key) for key in "ab")
    assert task.changes == {"fixes": [[a, 1, -1]], "dropped": [2], "removed": [b], "added": [], "new": []}
    assert (task.seed, task.options["seed"]) == (3, 3)
    assert task.base is not None
    assert task.base.number == 1


def test_factors_and_retrainings_work_on_the_version_that_is_named(workshop: Workshop) -> None:
    workshop.add_model("digits")
    held, task = resolve(workshop, JobKind.FIT_FACTORS, {"version": None})
    assert task.base is not None
    assert (task.base.number, task.base.factors_digest, task.compared) == (1, None, None)
    with workshop.sessions.begin() as session:
        assert outcomes.finish_without_version(
            session, workshop.store, held.job_id, held.attempt, report={}, factors_digest="f" * 64
        )
    _, task = resolve(workshop, JobKind.RETRAIN, {"version": 1, "seed": 11, "repeats": 3})
    assert task.options == {"repeats": 3}
    assert task.base is not None
    assert (task.base.factors_digest, task.base.factors_version, task.seed) == ("f" * 64, 1, 11)
    assert task.compared is None, "no edit made version 1"


def test_a_preview_is_resolved_like_its_edit(workshop: Workshop) -> None:
    workshop.add_model("digits")
    request: Json = {"operations": [{"op": "remove_samples", "samples": ["b"]}], "options": {"seed": 3}}
    held, preview = resolve(workshop, JobKind.PREVIEW, request)
    with workshop.sessions.begin() as session:
        assert outcomes.finish_without_version(session, workshop.store, held.job_id, held.attempt, report={})
    _, edit = resolve(workshop, JobKind.EDIT, request)
    assert (preview.kind, edit.kind) == ("preview", "edit")
    assert replace(preview, kind="edit") == edit


def test_a_restoration_has_the_older_version_for_its_base(workshop: Workshop) -> None:
    """And an edit of its result knows how old the factors are."""
    workshop.add_model("digits")
    operations = [{"op": "remove_samples", "samples": ["b"]}]
    held, edit = resolve(workshop, JobKind.EDIT, {"operations": operations})
    assert edit.changes
    after = Snapshot.load(workshop.store.fetch(edit.snapshot_digest)).apply(SnapshotChanges.from_json(edit.changes))
    publish(workshop, held, workshop.store.put(after.to_bytes()), CONCEPTS, factors_version=1)
    held, task = resolve(workshop, JobKind.RESTORE, {"version": 1, "base_version": 2, "reason": None})
    assert (task.kind, task.changes) == ("restore", None)
    assert task.base is not None
    assert (task.base.number, task.base.factors_age) == (1, 0)
    publish(workshop, held, task.base.snapshot_digest, CONCEPTS, factors_version=1)
    with workshop.sessions() as session:
        assert session.get_one(Version, ("digits", 3)).parent == 1
    held, task = resolve(workshop, JobKind.RESTORE, {"version": 2, "base_version": None, "reason": None})
    assert task.base is not None
    assert (task.base.number, task.base.factors_age) == (2, 1)


def test_a_restoration_that_was_overtaken_is_an_expected_failure(workshop: Workshop) -> None:
    workshop.add_model("digits")
    with pytest.raises(TaskFailure) as failure:
        resolve(workshop, JobKind.RESTORE, {"version": 1, "base_version": 3, "reason": None})
    assert failure.value.code == "base_version_changed"


def test_a_retraining_of_an_edits_version_knows_what_the_edit_did(workshop: Workshop) -> None:
    workshop.add_model("digits")
    operations = [
        {"op": "fix_concept_labels", "labels": [{"sample": "a", "concept": "loop", "value": 1}]},
        {"op": "drop_concepts", "concepts": ["stroke"]},
        {
            "op": "add_concepts",
            "concepts": [{"name": "symmetric"}],
            "labels": [{"sample": key, "concept": "symmetric", "value": value} for key, value in (("a", 1), ("b", 0))],
        },
    ]
    held, edit = resolve(workshop, JobKind.EDIT, {"operations": operations})
    assert edit.changes
    before = Snapshot.load(workshop.store.fetch(edit.snapshot_digest))
    after = before.apply(SnapshotChanges.from_json(edit.changes))
    publish(workshop, held, workshop.store.put(after.to_bytes()), ["loop", "corner", "symmetric"])
    _, task = resolve(workshop, JobKind.RETRAIN, {"version": None, "seed": None})
    assert task.base is not None
    assert task.compared is not None
    assert (task.base.number, task.concepts, task.snapshot_digest) == (2, ["loop", "corner", "symmetric"], after.digest)
    assert (task.compared["base"].number, task.compared["edited"].number) == (1, 2)
    assert task.compared["changes"] == edit.changes
    assert task.compared["report"] == {"steps": 3}


def test_a_request_that_does_not_apply_is_an_expected_failure(workshop: Workshop) -> None:
    workshop.add_model("digits")
    operations = [{"op": "drop_concepts", "concepts": ["nobody knows this"]}]
    with pytest.raises(TaskFailure) as failure:
        resolve(workshop, JobKind.EDIT, {"operations": operations})
    assert (failure.value.code, failure.value.detail) == (
        "edit_no_longer_applies",
        "/operations/0/concepts/0: unknown_concept",
    )


@st.composite
def edits(draw: st.DrawFn) -> tuple[Snapshot, SnapshotChanges]:
    """A snapshot of up to 8 rows and 4 concepts, and changes that each change something."""
    n, k = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    labels = st.integers(-1, 1)
    row = st.tuples(st.integers(0, 2), st.integers(0, 3), st.tuples(*[labels] * k))
    rows = [AddedSample(10 * number, *draw(row)) for number in range(n)]
    dropped = draw(st.sets(st.integers(0, k - 1), max_size=k - 1))
    removed = draw(st.sets(st.sampled_from([row.sample_id for row in rows]), max_size=n - 1))
    places = [
        (row.sample_id, column, row.concepts[column])
        for row in rows
        for column in range(k)
        if row.sample_id not in removed and column not in dropped
    ]
    fixed = draw(st.lists(st.sampled_from(places), unique=True))
    new = [f"new {j}" for j in range(draw(st.integers(0, 2)))]
    arriving = st.tuples(st.integers(0, 2), st.integers(0, 3), st.tuples(*[labels] * (k + len(new))))
    added = [AddedSample(10 * number + 5, *draw(arriving)) for number in range(draw(st.integers(0, 3)))]
    # What an added row says of a dropped concept is in no snapshot.
    added = [
        AddedSample(
            row.sample_id,
            row.split,
            row.class_index,
            tuple(-1 if column in dropped else label for column, label in enumerate(row.concepts)),
        )
        for row in added
    ]
    return Snapshot.from_rows(rows, k), SnapshotChanges(
        fixes=tuple(sorted((row, column, (label + 2) % 3 - 1) for row, column, label in fixed)),
        dropped=tuple(sorted(dropped)),
        removed=tuple(sorted(removed)),
        added=tuple(added),
        new=tuple(
            NewConcept(
                name,
                tuple(
                    (row.sample_id, label)
                    for row in rows
                    if row.sample_id not in removed and (label := draw(labels)) >= 0
                ),
            )
            for name in new
        ),
    )


@given(edits())
def test_the_changes_between_two_snapshots_are_those_that_were_applied(
    edit: tuple[Snapshot, SnapshotChanges],
) -> None:
    before, changes = edit
    kept = [column for column in range(before.concepts.shape[1]) if column not in changes.dropped]
    new = [concept.name for concept in changes.new]
    assert changes_between(before, before.apply(changes), kept, new) == changes
    assert not np.shares_memory(before.concepts, before.apply(changes).concepts)


def test_the_job_is_left_as_it_was(workshop: Workshop) -> None:
    workshop.add_model("digits")
    held, _ = resolve(workshop, JobKind.RETRAIN, {"version": None, "seed": None})
    with workshop.sessions() as session:
        assert session.get_one(Job, held.job_id).request == {"version": None, "seed": None}
