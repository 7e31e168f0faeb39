"""From a request over HTTP to a published version, with real computations; the queue alone is left out."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from app.datasets.snapshots import SPLITS, UNKNOWN, Snapshot
from app.tables import Version
from tests.app.service import Service, running_service
from tests.worker.computing.scene import ARCHITECTURE, CLASSES, CONCEPTS, ROWS, TRAINING, image_of
from worker.claim import claim_next
from worker.compute import execute
from worker.jobs import publish_result
from worker.resolution import task_for

LOOSE = {"tolerance": {"concept_f1": 0.2, "label_f1": 0.2}}
BASE = CONCEPTS[:3]
KEYS = [f"img-{number}" for number in range(sum(ROWS.values()))]


class Shop:
    """A service with a data set of bright patches, of which it is told three concepts, and a trained model."""

    def __init__(self, service: Service) -> None:
        self.service = service
        random = np.random.default_rng(0)
        self.truth = random.integers(0, 2, (len(KEYS), len(CONCEPTS)))
        splits = np.repeat(SPLITS, list(ROWS.values()))
        text, archive = io.StringIO(newline=""), io.BytesIO()
        rows = csv.writer(text)
        rows.writerow(["key", "split", "class", "image", *BASE])
        with zipfile.ZipFile(archive, "w") as images:
            for key, split, row in zip(KEYS, splits, self.truth, strict=True):
                rows.writerow([key, split, CLASSES[row[0] + row[1]], f"{key}.png", *row[:3]])
                images.writestr(f"{key}.png", image_of(row, random))
        definition = {"id": "patches", "title": "Patches", "concepts": BASE, "classes": CLASSES}
        parts = [
            ("definition", (None, json.dumps(definition).encode())),
            ("manifest", ("manifest", text.getvalue().encode())),
            ("images", ("images.zip", archive.getvalue())),
        ]
        assert service.post("/datasets", files=parts).status_code == 201
        body = {"id": "model", "dataset": "patches", "architecture": ARCHITECTURE, "training": TRAINING}
        self.trained = self.done(service.post("/models", body))

    def done(self, answer: Any) -> dict[str, Any]:
        """The job that an answer accepted, run to its end as a worker does."""
        assert answer.status_code == 202, answer.text
        service, job_id = self.service, UUID(answer.json()["id"])
        claim = claim_next(service.sessions, rung_for=job_id, worker_id="here", lease_seconds=60.0)
        assert claim is not None
        with service.sessions() as session:
            task = task_for(session, service.store, claim.job)
        result = execute(task, service.store, "cpu", lambda *_: None)
        with service.sessions.begin() as session:
            assert publish_result(session, service.store, claim, result)
        found: dict[str, Any] = service.get(f"/models/model/jobs/{job_id}").json()
        assert found["state"] == "succeeded"
        return found

    def edit(self, *operations: dict[str, Any], path: str = "edits") -> dict[str, Any]:
        return self.done(self.service.post(f"/models/model/{path}", {"operations": list(operations), "options": LOOSE}))

    def addition(self, name: str, column: int) -> dict[str, Any]:
        """Labels of all rows but the last ten of the train split."""
        known = [key for number, key in enumerate(KEYS) if not ROWS["train"] - 10 <= number < ROWS["train"]]
        labels = [{"sample": key, "concept": name, "value": int(self.truth[KEYS.index(key), column])} for key in known]
        return {"op": "add_concepts", "concepts": [{"name": name}], "labels": labels}

    def version(self, number: int) -> Version:
        with self.service.sessions() as session:
            return session.get_one(Version, ("model", number))

    def snapshot(self, number: int) -> Snapshot:
        return Snapshot.load(self.service.store.fetch(self.version(number).snapshot_digest))


@pytest.fixture
def shop(database_url: str, tmp_path: Path) -> Iterator[Shop]:
    with running_service(database_url, tmp_path) as service:
        yield Shop(service)


def test_a_concept_is_added_corrected_given_to_new_rows_and_dropped(shop: Shop) -> None:
    new = CONCEPTS[3]
    asked = [shop.addition(new, 3), {"op": "drop_concepts", "concepts": [CONCEPTS[2]]}]
    previewed = shop.edit(*asked, path="previews")
    assert previewed["report"]["would"] == "succeed"
    added = shop.edit(*asked)
    assert added["result"] == {"version": 2}
    concepts = [*CONCEPTS[:2], new]
    assert shop.service.get("/models/model/versions/2").json()["concepts"] == concepts
    # On 60 test rows with noise of two thirds of a patch's brightness; the base version was never told of it.
    assert shop.version(2).metrics["concepts"][new]["f1"] > 0.85
    assert previewed["report"]["metrics"] == added["report"]["metrics"]
    snapshot = shop.snapshot(2)
    assert (snapshot.concepts[:, 2] == UNKNOWN).sum() == 10
    known = snapshot.concepts[:, 2] != UNKNOWN
    np.testing.assert_array_equal(snapshot.concepts[known, 2], shop.truth[known, 3])

    compared = shop.done(shop.service.post("/models/model/retrainings", {}))["report"]["comparison"]
    assert compared["new_concepts"][new]["after"] == shop.version(2).metrics["concepts"][new]["f1"]

    image = ("files", ("0.png", image_of(np.array([1, 1, 0, 1]), np.random.default_rng(9))))
    upload = shop.service.post("/uploads?kind=image", files=[image]).json()["uploads"][0]["id"]
    sample = {"key": "later", "class": "both", "upload": upload, "concepts": {"top left": 1, new: 1}}
    unknown = KEYS[ROWS["train"] - 1]
    fix = {"sample": unknown, "concept": new, "value": int(shop.truth[ROWS["train"] - 1, 3])}
    operations = [{"op": "add_samples", "samples": [sample]}, {"op": "fix_concept_labels", "labels": [fix]}]
    assert shop.edit(*operations)["result"] == {"version": 3}
    after = shop.snapshot(3)
    assert after.concepts[-1].tolist() == [1, UNKNOWN, 1]
    assert (after.concepts[:, 2] == UNKNOWN).sum() == 9
    assert shop.service.get("/datasets/patches/samples/later").json()["concepts"] == {
        "top left": 1,
        "top right": None,
        "bottom left": None,
    }
    assert shop.edit({"op": "drop_concepts", "concepts": [new]})["result"] == {"version": 4}
    assert shop.version(4).concepts == CONCEPTS[:2]
    kinds = [entry["kind"] for entry in shop.service.get("/models/model/ledger?page_size=200").json()["entries"]]
    assert kinds.count("version.published") == 4
