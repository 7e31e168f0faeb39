"""Insights from what was asked to tasks."""

from __future__ import annotations

import pytest

from app.edits import outcomes
from app.edits.kinds import JobKind
from app.tables import Version
from tests.worker.test_resolution import publish, resolve, snapshot_digest
from tests.worker.workshop import CONCEPTS, Workshop
from worker.tasks import TaskFailure

REQUEST = {"version": 1, "kinds": ["suspected_labels"], "top": 7, "sample_id": 4, "compared_with": None}


def second_version(workshop: Workshop) -> None:
    """As an edit publishes it; here with the same data."""
    operations = [{"op": "fix_concept_labels", "labels": [{"sample": "a", "concept": "loop", "value": 1}]}]
    held, _ = resolve(workshop, JobKind.EDIT, {"operations": operations})
    publish(workshop, held, snapshot_digest(workshop), CONCEPTS)


def test_an_insight_is_about_the_version_that_is_named(workshop: Workshop) -> None:
    workshop.add_model("digits")
    second_version(workshop)
    _, task = resolve(workshop, JobKind.INSIGHT, REQUEST)
    assert task.base is not None
    assert (task.kind, task.base.number, task.snapshot_digest) == ("insight", 1, snapshot_digest(workshop))
    assert task.options == {"kinds": ["suspected_labels"], "top": 7, "sample_id": 4}
    assert (task.compared, task.changes, task.seed) == (None, None, 7)


def test_it_knows_the_version_to_compare_with(workshop: Workshop) -> None:
    workshop.add_model("digits")
    second_version(workshop)
    held, task = resolve(workshop, JobKind.INSIGHT, {**REQUEST, "version": 2, "compared_with": 1})
    assert task.compared is not None
    assert (task.compared["base"].number, task.compared["edited"].number) == (1, 2)
    with workshop.sessions.begin() as session:
        assert outcomes.fail(session, workshop.store, held.job_id, held.attempt, code="x", detail="y")
        session.get_one(Version, ("digits", 1)).state = "withdrawn"
    with pytest.raises(TaskFailure) as failure:
        resolve(workshop, JobKind.INSIGHT, {**REQUEST, "version": 2, "compared_with": 1})
    assert failure.value.code == "version_withdrawn"
