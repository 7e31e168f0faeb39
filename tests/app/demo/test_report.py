"""From reports of jobs to the demo's report, table and picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console

from app.client import Job, LedgerEntry
from app.demo.audit import LedgerOutcome
from app.demo.picture import draw
from app.demo.report import EditOutcome, ShownEdit, history_table, outcome_of, outcome_table, write_report

KEYS = {
    *("kind", "state", "seconds", "retrain_seconds", "version", "closure"),
    *("auc_before", "auc_after", "auc_retrained"),
    *("concept_f1_before", "concept_f1_after", "concept_f1_retrained"),
    *("label_f1_before", "label_f1_after", "label_f1_retrained"),
}


def job(kind: str, state: str, report: dict[str, Any] | None, version: int | None = None) -> Job:
    return Job.model_validate(
        {
            "id": "00000000-0000-0000-0000-000000000001",
            "model": "digits",
            "kind": kind,
            "state": state,
            "stage": None,
            "progress": {"done": 0, "total": 0},
            "attempt": 1,
            "cancel_requested": False,
            "request": {},
            "base_version": 1,
            "result": None if version is None else {"version": version},
            "error": None,
            "report": report,
            "created_at": "2025-01-01T00:00:00Z",
            "started_at": None,
            "finished_at": None,
        }
    )


def metrics(concept_f1: float, label_f1: float) -> dict[str, Any]:
    return {"concept_f1": concept_f1, "label_f1": label_f1, "concepts": {}}


EDIT = job(
    "edit", "succeeded", {"seconds": 0.8, "metrics": {"before": metrics(0.95, 0.91), "after": metrics(0.96, 0.92)}}, 4
)
RETRAINING = job(
    "retrain",
    "succeeded",
    {
        "seconds": 8.0,
        "total_seconds": 16.0,
        "comparison": {
            "rows": {"removed": {"rows": 29, "closure": 0.97}, "added": {"rows": 9, "closure": 0.5}},
            "membership": {"auc_before": 0.8, "auc_after": 0.51, "auc_retrained": 0.5, "members": 29},
            "metrics": {
                "concept_f1": {"before": 0.95, "after": 0.96, "retrained": 0.965},
                "label_f1": {"before": 0.91, "after": 0.92, "retrained": 0.925},
            },
        },
    },
)


def test_a_removal_beside_its_retraining() -> None:
    outcome = outcome_of("remove_samples", EDIT, RETRAINING)
    assert outcome == EditOutcome(
        kind="remove_samples",
        state="succeeded",
        seconds=0.8,
        retrain_seconds=8.0,
        version=4,
        closure=0.97,
        auc_before=0.8,
        auc_after=0.51,
        auc_retrained=0.5,
        concept_f1_before=0.95,
        concept_f1_after=0.96,
        concept_f1_retrained=0.965,
        label_f1_before=0.91,
        label_f1_after=0.92,
        label_f1_retrained=0.925,
    )
    assert outcome.speed_up == 10.0


def test_what_does_not_apply_is_none() -> None:
    subject, drop = (outcome_of(kind, EDIT, RETRAINING) for kind in ("remove_subject", "drop_concepts"))
    assert (subject.closure, subject.auc_after) == (None, 0.51)
    assert (drop.closure, drop.auc_before, drop.auc_after, drop.auc_retrained) == (None, None, None, None)
    assert outcome_of("add_samples", EDIT, RETRAINING).closure == 0.5


def test_an_edit_whose_retraining_failed_keeps_its_own_numbers() -> None:
    outcome = outcome_of("remove_samples", EDIT, None)
    assert (outcome.seconds, outcome.concept_f1_before, outcome.label_f1_after) == (0.8, 0.95, 0.92)
    assert (outcome.retrain_seconds, outcome.closure, outcome.concept_f1_retrained, outcome.speed_up) == (None,) * 4


def test_a_failed_edit() -> None:
    outcome = outcome_of("remove_samples", job("edit", "failed", None), None)
    assert outcome == EditOutcome(kind="remove_samples", state="failed")


def test_the_report_is_json_with_null_for_what_does_not_apply(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    outcomes = [outcome_of(kind, EDIT, RETRAINING) for kind in ("drop_concepts", "remove_samples")]
    ledger = LedgerOutcome(41, verified=True, tampered_at=21, tamper_detected_at=21)
    write_report(path, seconds=101.234, device="cpu", outcomes=outcomes, ledger=ledger)
    report = json.loads(path.read_bytes())
    assert (report["seconds"], report["device"]) == (101.23, "cpu")
    assert [edit["kind"] for edit in report["edits"]] == ["drop_concepts", "remove_samples"]
    assert all(set(edit) == KEYS for edit in report["edits"])
    assert report["edits"][0]["closure"] is None
    assert report["ledger"] == {"entries": 41, "verified": True, "tamper_detected_at": 21}


def test_the_table_fits_a_terminal_of_eighty_columns() -> None:
    outcomes = [
        ShownEdit("Remove 29 rows", "remove 29 rows", outcome_of("remove_samples", EDIT, RETRAINING)),
        ShownEdit("Add 108 rows", "add 108 rows", EditOutcome("add_samples", "failed")),
    ]
    console = Console(width=80)
    with console.capture() as capture:
        console.print(outcome_table(outcomes))
    lines = [line.split() for line in capture.get().splitlines()][1:]
    assert len(lines) == 7
    assert lines[1] == ["remove", "29", "rows", "before", "0.9500", "0.9100", "0.800"]
    assert lines[2] == ["edited", "0.80", "10.0×", "0.9600", "0.9200", "0.97", "0.510"]
    assert lines[3] == ["retrained", "8.00", "0.9650", "0.9250", "0.500"]
    assert lines[5] == ["failed", "edited"]


def test_the_history_names_versions_and_who() -> None:
    entry = LedgerEntry.model_validate(
        {
            "seq": 12,
            "at": "2025-01-01T10:20:30Z",
            "kind": "version.published",
            "actor_ref": "worker",
            "subject_ref": None,
            "dataset_id": "digits",
            "model_id": "digits",
            "job_id": None,
            "parent_version": 3,
            "result_version": 4,
            "artifact_sha256": "ab" * 32,
            "payload_commitment": "cd" * 32,
            "payload": None,
            "payload_salt": None,
        }
    )
    console = Console(width=100)
    with console.capture() as capture:
        console.print(history_table([entry] * 30))
    lines = capture.get().splitlines()
    assert lines[1].split() == ["12", "10:20:30", "version.published", "3", "→", "4", "worker", "abababababab"]
    assert len(lines) == 13


def test_the_picture_is_drawn_whatever_is_missing(tmp_path: Path) -> None:
    outcomes = [
        ShownEdit("Remove 29 rows", "remove 29 rows", outcome_of("remove_samples", EDIT, RETRAINING)),
        ShownEdit("Drop the concept “crossing”", "drop crossing", outcome_of("drop_concepts", EDIT, None)),
        ShownEdit("Add 108 rows", "add 108 rows", EditOutcome("add_samples", "failed")),
    ]
    draw(tmp_path / "whole.png", outcomes, device="cpu")
    draw(tmp_path / "empty.png", outcomes[2:], device=None)
    with Image.open(tmp_path / "whole.png") as whole, Image.open(tmp_path / "empty.png") as empty:
        assert whole.size == empty.size == (1950, 705)
        blue = (0x00, 0x72, 0xB2)
        assert count(whole, blue) > count(empty, blue) + 100, "the marks of what was measured"


def count(image: Image.Image, color: tuple[int, int, int]) -> int:
    counts = {value: number for number, value in image.convert("RGB").getcolors(image.size[0] * image.size[1]) or []}
    return counts.get(color, 0)
