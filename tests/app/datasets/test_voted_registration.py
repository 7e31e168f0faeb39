"""Data sets whose labels are votes of classes: how they are registered, refused, and edited over HTTP."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import select

from app.datasets.snapshots import Snapshot
from app.edits.resolution import resolve
from app.tables import Dataset, Job, LedgerEntry, Model, Sample
from tests.app.datasets.images import encoded
from tests.app.datasets.submissions import Submission, register, state
from tests.app.service import Service, problem
from tests.builders import build_model, build_version, payload_of

ATTRIBUTES = ("not a concept", "dark, very", "round")
FOR, AGAINST, UNSEEN, NONE = 9, 8, 2, 0  # definitely, definitely, absent because not visible, no annotation
EDITS = "/models/digits-model/edits"

# Classes: disc has the even rows, box the odd ones. Rows 0, 1, 4 and 5 train.
VOTES = {
    "img-0": (NONE, FOR, FOR),
    "img-1": (NONE, AGAINST, AGAINST),
    "img-2": (NONE, AGAINST, AGAINST),
    "img-3": (NONE, AGAINST, UNSEEN),
    "img-4": (NONE, AGAINST, FOR),
    "img-5": (NONE, AGAINST, UNSEEN),
}
LABELS = {"disc": {"round": 1, "dark, very": 1}, "box": {"round": 0, "dark, very": 0}}


def votes_file(
    votes: Mapping[str, Sequence[int]] | Sequence[tuple[str, Sequence[int]]] = VOTES,
    attributes: Sequence[str] = ATTRIBUTES,
    format_: bytes = b"modelmend.votes.1",
) -> bytes:
    items = list(votes.items()) if isinstance(votes, Mapping) else list(votes)
    metadata = {b"format": format_, b"attributes": json.dumps(list(attributes)).encode()}
    schema = pa.schema([("key", pa.string()), ("votes", pa.binary())], metadata=metadata)
    columns = [pa.array([key for key, _ in items]), pa.array([bytes(cells) for _, cells in items], pa.binary())]
    file = io.BytesIO()
    pq.write_table(pa.table(columns, schema=schema), file)
    return file.getvalue()


def submission(**labels: Any) -> Submission:
    """Good, with every label left to the votes, unless ``labels`` say more."""
    sent = Submission()
    for row in sent.rows:
        row.update({"round": None, "dark, very": None, **labels})
    sent.definition["vote_rule"] = {"rule": "majority", "min_classes": 1}
    return sent


def send(service: Service, sent: Submission, votes: bytes | None) -> Any:
    parts = sent.parts()
    return register(service, parts if votes is None else [*parts, ("votes", ("votes.parquet", votes))])


def places(answer: Any) -> list[tuple[Any, Any, str]]:
    found = problem(answer, 422, "invalid_manifest")["errors"]
    return [(place["row"], place["column"], place["code"]) for place in found]


@pytest.fixture
def voted(service: Service) -> Service:
    """The data set, and ``digits-model`` at version 1 on it."""
    assert send(service, submission(), votes_file()).status_code == 201
    with service.sessions.begin() as session:
        model = build_model(session, session.get_one(Dataset, "shapes"))
        build_version(session, service.store, model)
    return service


def test_labels_are_what_the_train_rows_of_a_class_say(service: Service) -> None:
    answer = send(service, submission(), votes_file())
    assert answer.status_code == 201, answer.text
    assert answer.json()["vote_rule"] == {"rule": "majority", "min_classes": 1}
    assert service.get("/datasets/shapes").json()["vote_rule"] == {"rule": "majority", "min_classes": 1}
    for sample in service.get("/datasets/shapes/samples").json()["samples"]:
        assert sample["concepts"] == LABELS[sample["class"]]
    assert service.get("/datasets/shapes/samples/img-3").json()["votes"] == {"round": None, "dark, very": 0}
    with service.sessions() as session:
        assert session.scalars(select(Sample.votes).where(Sample.key == "img-3")).one() == bytes([UNSEEN, AGAINST])
        snapshot = Snapshot.load(service.store.fetch(session.get_one(Dataset, "shapes").snapshot_digest))
        entry = session.scalars(select(LedgerEntry).where(LedgerEntry.kind == "dataset.registered")).one()
        assert payload_of(session, entry)["vote_rule"] == {"rule": "majority", "min_classes": 1}
    assert snapshot.votes is not None
    assert snapshot.votes.tolist() == [[1, 1], [0, 0], [0, 0], [-1, 0], [1, 0], [-1, 0]]


def test_labels_that_agree_may_be_sent_and_others_are_told(service: Service) -> None:
    sent = submission()
    for row in sent.rows:
        row.update(LABELS[row["class"]])
    sent.rows[2]["round"] = 0
    assert places(send(service, sent, votes_file())) == [(3, "round", "label_not_voted")]
    sent.rows[2]["round"] = 1
    assert send(service, sent, votes_file()).status_code == 201


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        (b"PAR1 no", [(None, None, "malformed_votes")]),
        (votes_file(format_=b"modelmend.votes.2"), [(None, None, "malformed_votes")]),
        (votes_file(attributes=("a", "b", "round")), [(None, None, "malformed_votes")]),
        (votes_file({**VOTES, "img-0": (0, 1, 0)}), [(None, None, "malformed_votes")]),
        (votes_file({**VOTES, "img-0": (0, 9)}), [(None, None, "malformed_votes")]),
        (votes_file({key: cells for key, cells in VOTES.items() if key != "img-4"}), [(5, "key", "missing_votes")]),
        (votes_file({**VOTES, "img-9": (0, 0, 0)}), [(None, None, "unknown_voter")]),
        (votes_file([*VOTES.items(), ("img-0", (0, 0, 0))]), [(None, None, "unknown_voter")]),
    ],
)
def test_votes_that_do_not_fit(service: Service, votes: bytes, expected: list[tuple[Any, Any, str]]) -> None:
    before = state(service)
    assert places(send(service, submission(), votes)) == expected
    assert state(service) == before


def test_a_rule_and_votes_come_together(service: Service) -> None:
    found = problem(send(service, submission(), None), 422, "invalid_request")["errors"]
    assert [(place["pointer"], place["code"]) for place in found] == [("/votes", "missing")]
    found = problem(send(service, Submission(), votes_file()), 422, "invalid_request")["errors"]
    assert [(place["pointer"], place["code"]) for place in found] == [("/votes", "without_vote_rule")]


def fix(*labels: tuple[str, str, int | None]) -> dict[str, Any]:
    listed = [{"sample": sample, "concept": concept, "value": value} for sample, concept, value in labels]
    return {"op": "fix_concept_labels", "labels": listed}


def counts(service: Service, *operations: dict[str, Any]) -> dict[str, int]:
    answer = service.post(f"{EDITS}?validate_only=true", {"operations": list(operations)})
    assert answer.status_code == 200, answer.text
    return {name: value for name, value in answer.json()["counts"].items() if value}


def resolved(service: Service, *operations: dict[str, Any]) -> tuple[Snapshot, Snapshot]:
    """The data before and after the edit."""
    answer = service.post(EDITS, {"operations": list(operations)})
    assert answer.status_code == 202, answer.text
    with service.sessions.begin() as session:
        job = session.get_one(Job, UUID(answer.json()["id"]))
        job.base_version = session.get_one(Model, "digits-model").latest_version
        version, changes = resolve(session, service.store, job)
        before = Snapshot.load(service.store.fetch(version.snapshot_digest))
    return before, before.apply(changes)


def test_a_fix_corrects_a_vote_and_may_turn_a_race(voted: Service) -> None:
    one = fix(("img-0", "dark, very", 0))
    assert counts(voted, one) == {"labels_changed": 1, "labels_changed_by_vote": 3}
    _, after = resolved(voted, one)
    assert after.concepts[:, 1].tolist() == [0] * 6
    # A vote that leaves the outcome as it is changes no label; one that is there already is no change.
    assert counts(voted, fix(("img-4", "dark, very", 1), ("img-1", "round", 0))) == {
        "labels_changed": 1,
        "labels_unchanged": 1,
    }
    assert counts(voted, fix(("img-1", "round", None))) == {"labels_changed": 1, "labels_changed_by_vote": 3}  # a tie
    assert counts(voted, fix(("img-2", "round", 1))) == {"labels_changed": 1}  # calibration rows do not vote
    answer = voted.post(EDITS, {"operations": [fix(("img-5", "round", None))]})
    problem(answer, 422, "invalid_edit")  # "not visible" was no vote
    with voted.sessions() as session:
        entry = session.scalars(select(LedgerEntry).where(LedgerEntry.kind == "edit.accepted")).one()
        assert payload_of(session, entry)["counts"]["labels_changed_by_vote"] == 3


def test_removals_take_votes_away_and_added_rows_bring_theirs(voted: Service) -> None:
    removal = {"op": "remove_samples", "samples": ["img-0"], "subjects": []}
    assert counts(voted, removal) == {"samples_removed": 1, "labels_changed_by_vote": 2}
    files = [("files", ("0.png", encoded(50)))]
    upload = voted.post("/uploads?kind=image", files=files).json()["uploads"][0]["id"]
    addition = {
        "op": "add_samples",
        "samples": [{"key": "new", "class": "box", "upload": upload, "concepts": {"round": 1, "dark, very": None}}],
    }
    assert counts(voted, removal, addition) == {
        "samples_removed": 1,
        "samples_added": 1,
        "labels_changed_by_vote": 2 + 3,  # dark discs by the removal, round boxes by a tie
    }
    _, after = resolved(voted, addition)
    assert after.concepts[-1].tolist() == [1, 0]
    assert after.votes is not None
    assert after.votes[-1].tolist() == [1, -1]
    with voted.sessions() as session:
        row = session.scalars(select(Sample).where(Sample.key == "new")).one()
        assert (row.concepts, row.votes) == ([None, None], bytes([FOR, NONE]))
