"""What `add_concepts` takes, refuses and is resolved to."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select

from app.datasets.snapshots import SPLITS, UNKNOWN, AddedSample, NewConcept, Snapshot, SnapshotChanges
from app.edits.resolution import resolve
from app.tables import ApiKey, Job, LedgerEntry, Model, Sample, Upload, Version
from tests.app.service import Service, problem
from tests.builders import CONCEPTS, build_version, payload_of

EDITS = "/models/digits-model/edits"
BOTH = {"img-0": 1, "img-1": 0, "img-8": 1}  # two train rows, one for calibration


def _add(*names: str, labels: Mapping[str, int | None] = BOTH, concept: str | None = None) -> dict[str, Any]:
    """Concepts, and labels of one of them, by default the last."""
    of = concept or names[-1]
    return {
        "op": "add_concepts",
        "concepts": [{"name": name} for name in names],
        "labels": [{"sample": sample, "concept": of, "value": value} for sample, value in labels.items()],
    }


def _sample(key: str, concepts: Mapping[str, int | None], split: str = "train", upload: str = "up-1") -> dict[str, Any]:
    samples = [{"key": key, "class": "1", "concepts": concepts, "split": split, "upload": upload}]
    return {"op": "add_samples", "samples": samples}


def _fix(sample: str, concept: str, value: int) -> dict[str, Any]:
    return {"op": "fix_concept_labels", "labels": [{"sample": sample, "concept": concept, "value": value}]}


def _places(service: Service, *operations: dict[str, Any]) -> list[tuple[str, str]]:
    answer = service.post(EDITS, {"operations": list(operations)})
    return [(error["pointer"], error["code"]) for error in problem(answer, 422, "invalid_edit")["errors"]]


def _counts(service: Service, *operations: dict[str, Any]) -> dict[str, int]:
    answer = service.post(f"{EDITS}?validate_only=true", {"operations": list(operations)})
    assert answer.status_code == 200, answer.text
    counts: dict[str, int] = answer.json()["counts"]
    return counts


def _ids(service: Service) -> dict[str, int]:
    with service.sessions() as session:
        return dict(session.execute(select(Sample.key, Sample.id)).all())


def _uploads(service: Service, *names: str) -> None:
    with service.sessions.begin() as session:
        holder = session.scalars(select(ApiKey).where(ApiKey.prefix == service.key[3:11])).one()
        end = session.execute(select(func.now() + timedelta(hours=1))).scalar_one()
        session.add_all(
            Upload(id=name, kind="image", sha256="1" * 64, bytes=3, created_by=holder.id, expires_at=end)
            for name in names
        )
    for name in names:
        service.store.put_upload(name, b"png")


def _resolved(service: Service, *operations: dict[str, Any]) -> SnapshotChanges:
    """What the edit is when it starts."""
    answer = service.post(EDITS, {"operations": list(operations)})
    assert answer.status_code == 202, answer.text
    with service.sessions.begin() as session:
        job = session.get_one(Job, UUID(answer.json()["id"]))
        job.base_version = session.get_one(Model, "digits-model").latest_version
        return resolve(session, service.store, job)[1]


def _snapshot(service: Service, number: int = 1) -> Snapshot:
    with service.sessions() as session:
        return Snapshot.load(service.store.fetch(session.get_one(Version, ("digits-model", number)).snapshot_digest))


def test_a_new_concept_is_accepted_and_its_name_is_in_the_history(ready: Service) -> None:
    body = {"operations": [_add("symmetric")]}
    answer = ready.post(EDITS, body)
    assert answer.status_code == 202, answer.text
    assert answer.json()["request"]["operations"] == body["operations"]
    with ready.sessions() as session:
        entry = session.scalars(select(LedgerEntry).where(LedgerEntry.kind == "edit.accepted")).one()
        payload = payload_of(session, entry)
    assert payload["concepts_added"] == ["symmetric"]
    assert (payload["counts"]["concepts_added"], payload["counts"]["labels_added"]) == (1, 3)
    assert not {"img-0", "img-1", "img-8"} & set(str(payload).split("'"))


def test_labels_become_ids_in_the_order_of_rows(ready: Service) -> None:
    ids = _ids(ready)
    labels = {"img-9": 0, "img-1": 0, "img-3": None, "img-0": 1}
    changes = _resolved(ready, _add("symmetric", labels=labels))
    assert changes == SnapshotChanges(
        new=(NewConcept("symmetric", ((ids["img-0"], 1), (ids["img-1"], 0), (ids["img-9"], 0))),)
    )
    after = _snapshot(ready).apply(changes)
    column = dict(zip(after.sample_ids.tolist(), after.concepts[:, -1].tolist(), strict=True))
    assert {key: column[ids[key]] for key in labels} == {"img-9": 0, "img-1": 0, "img-3": UNKNOWN, "img-0": 1}


def test_counts_are_of_known_labels_in_rows_that_stay(ready: Service) -> None:
    _uploads(ready, "up-1")
    operations = [
        _add("symmetric", labels={**BOTH, "img-2": None, "img-3": 1}),
        {"op": "remove_samples", "samples": ["img-3"], "subjects": []},
        _sample("new", {"symmetric": 1, "crossing": 0}),
    ]
    counts = _counts(ready, *operations)
    assert (counts["concepts_added"], counts["labels_added"]) == (1, 4)
    assert (counts["samples_removed"], counts["samples_added"]) == (1, 1)


def test_everything_at_once(ready: Service) -> None:
    _uploads(ready, "up-1", "up-2")
    ids, before = _ids(ready), _snapshot(ready)
    value = 1 - abs(int(before.concepts[2, 1]))
    changes = _resolved(
        ready,
        _add("symmetric", "heavy", labels={"img-0": 1, "img-1": 0, "img-4": 1}, concept="symmetric"),
        {"op": "drop_concepts", "concepts": ["closed loop"]},
        _fix("img-2", "vertical stroke", value),
        {"op": "remove_samples", "samples": ["img-4"], "subjects": []},
        _sample("new-1", {"heavy": 1, "crossing": 0}),
        _sample("new-2", {"heavy": 0, "symmetric": None}, upload="up-2"),
    )
    with ready.sessions() as session:
        rows = dict(session.execute(select(Sample.key, Sample.id).where(Sample.key.like("new-%"))).all())
        concepts: dict[str, Any] = dict(
            session.execute(select(Sample.key, Sample.concepts).where(Sample.key.like("new-%"))).all()
        )
    assert changes == SnapshotChanges(
        fixes=((ids["img-2"], 1, value),),
        dropped=(0,),
        removed=(ids["img-4"],),
        added=(
            AddedSample(rows["new-1"], 0, 1, (UNKNOWN, UNKNOWN, 0, UNKNOWN, 1)),
            AddedSample(rows["new-2"], 0, 1, (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, 0)),
        ),
        new=(NewConcept("symmetric", ((ids["img-0"], 1), (ids["img-1"], 0))), NewConcept("heavy")),
    )
    assert concepts == {"new-1": [None, None, 0], "new-2": [None, None, None]}, "the table knows the data set's alone"
    assert before.apply(changes).concepts.shape == (17, 4)


def test_a_concept_of_the_version_alone_is_edited_like_any_other(ready: Service) -> None:
    """The data set has no column for it."""
    ids, before = _ids(ready), _snapshot(ready)
    labels = ((ids["img-0"], 1), (ids["img-1"], 0))
    with ready.sessions.begin() as session:
        after = before.apply(SnapshotChanges(dropped=(1,), new=(NewConcept("symmetric", labels),)))
        concepts = ["closed loop", "crossing", "symmetric"]
        build_version(session, ready.store, session.get_one(Model, "digits-model"), snapshot=after, concepts=concepts)
    _uploads(ready, "up-1")
    operations = [_fix("img-0", "symmetric", 0), _sample("new", {"symmetric": 1, "closed loop": 0}, "test")]
    changes = _resolved(ready, *operations)
    with ready.sessions() as session:
        row = session.scalars(select(Sample).where(Sample.key == "new")).one()
    assert row.concepts == [0, None, None]
    assert changes == SnapshotChanges(
        fixes=((ids["img-0"], 2, 0),),
        added=(AddedSample(row.id, SPLITS.index("test"), 1, (0, UNKNOWN, 1)),),
    )
    assert _resolved(ready, {"op": "drop_concepts", "concepts": ["symmetric"]}).dropped == (2,)
    assert _places(ready, _add("symmetric")) == [("/operations/0/concepts/0/name", "concept_exists")]
    again = _resolved(ready, _add("vertical stroke"))
    assert [concept.name for concept in again.new] == ["vertical stroke"], "what was dropped may be defined anew"


def test_names_that_are_taken(unchanged: Service) -> None:
    assert _places(
        unchanged,
        {"op": "drop_concepts", "concepts": ["crossing"]},
        _add("crossing", "symmetric", "symmetric", labels={}),
        _add("symmetric", labels={}),
    ) == [
        ("/operations/1/concepts/0/name", "concept_exists"),
        ("/operations/1/concepts/2/name", "duplicate_concept"),
        ("/operations/2/concepts/0/name", "duplicate_concept"),
    ]


def test_labels_that_do_not_fit(unchanged: Service) -> None:
    labels = [
        ("img-SECRET", "symmetric", 1),
        ("img-0", "other-SECRET", 1),
        ("img-0", "crossing", 1),
        ("img-0", "round", 1),
        ("img-1", "symmetric", 1),
        ("img-1", "symmetric", 1),
        ("img-1", "symmetric", None),
    ]
    operation = _add("symmetric", labels={})
    operation["labels"] = [{"sample": sample, "concept": name, "value": value} for sample, name, value in labels]
    answer = unchanged.post(EDITS, {"operations": [operation, _add("round")]})
    errors = problem(answer, 422, "invalid_edit")["errors"]
    assert [(error["pointer"], error["code"]) for error in errors] == [
        ("/operations/0/labels/0/sample", "unknown_sample"),
        ("/operations/0/labels/1/concept", "concept_not_added"),
        ("/operations/0/labels/2/concept", "concept_not_added"),
        ("/operations/0/labels/3/concept", "concept_not_added"),
        ("/operations/0/labels/6/value", "contradictory_label"),
    ]
    assert "SECRET" not in answer.text


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"img-0": 1, "img-1": 1},
        {"img-0": 0, "img-1": None},
        {"img-0": 1, "img-8": 0, "img-12": 0},  # the zeros are held out
    ],
)
def test_a_concept_that_the_train_rows_do_not_teach(unchanged: Service, labels: dict[str, int | None]) -> None:
    assert _places(unchanged, _add("round", "symmetric", labels=labels), _add("heavy")) == [
        ("/operations/0/concepts/0/name", "concept_not_learnable"),
        ("/operations/0/concepts/1/name", "concept_not_learnable"),
    ]


def test_removed_rows_teach_nothing_and_added_ones_do(ready: Service) -> None:
    _uploads(ready, "up-1")
    removal = {"op": "remove_samples", "samples": ["img-1"], "subjects": []}
    assert _places(ready, _add("symmetric"), removal) == [("/operations/0/concepts/0/name", "concept_not_learnable")]
    held_out = _sample("new", {"symmetric": 0}, "calibration")
    assert _places(ready, _add("symmetric"), removal, held_out) == [
        ("/operations/0/concepts/0/name", "concept_not_learnable")
    ]
    assert _counts(ready, _add("symmetric"), removal, _sample("new", {"symmetric": 0}))["labels_added"] == 3


def test_a_fix_cannot_name_a_new_concept(unchanged: Service) -> None:
    assert _places(unchanged, _add("symmetric"), _fix("img-0", "symmetric", 0)) == [
        ("/operations/1/labels/0/concept", "unknown_concept")
    ]


def test_the_version_s_own_concepts_cannot_all_go(unchanged: Service) -> None:
    """There would be nothing to hold the edit to."""
    assert _places(unchanged, {"op": "drop_concepts", "concepts": list(CONCEPTS)}, _add("symmetric")) == [
        ("/operations/0/concepts", "drops_every_concept")
    ]


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ({"op": "add_concepts", "concepts": []}, ("/operations/0/concepts", "too_short")),
        ({"op": "add_concepts", "concepts": ["a"]}, ("/operations/0/concepts/0", "model_attributes_type")),
        (_add("subject"), ("/operations/0/concepts/0/name", "reserved_name")),
        (_add(" a"), ("/operations/0/concepts/0/name", "invalid_name")),
        (_add("a", labels={"img-0": 2}), ("/operations/0/labels/0/value", "label_not_0_1_unknown")),
    ],
)
def test_malformed_operations(unchanged: Service, operation: dict[str, Any], expected: tuple[str, str]) -> None:
    assert _places(unchanged, operation) == [expected]


def test_concepts_and_labels_count_towards_the_limit(ready: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready.services.settings, "max_edit_items", 3)
    assert _places(ready, _add("symmetric")) == [("/operations", "too_many_items")]
