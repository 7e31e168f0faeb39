"""What came of the demo: numbers for programs (``demo-report.json``) and a table for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from app.client import Job, LedgerEntry
from app.demo.audit import LedgerOutcome

ROWS_OF = {"fix_concept_labels": "fixed", "remove_samples": "removed", "add_samples": "added"}
"""Where the comparison has the closure of a kind of edit. One subject has too few rows for one, a drop has none."""

REMOVALS = frozenset({"remove_samples", "remove_subject"})
SHOWN_ENTRIES = 12


@dataclass(frozen=True)
class EditOutcome:
    """One edit beside its retraining. What does not apply, or was not measured, is None.

    ``seconds`` is the whole edit, ``retrain_seconds`` one retraining; ``version`` is the version it made.
    """

    kind: str
    state: str
    seconds: float | None = None
    retrain_seconds: float | None = None
    version: int | None = None
    closure: float | None = None
    auc_before: float | None = None
    auc_after: float | None = None
    auc_retrained: float | None = None
    concept_f1_before: float | None = None
    concept_f1_after: float | None = None
    concept_f1_retrained: float | None = None
    label_f1_before: float | None = None
    label_f1_after: float | None = None
    label_f1_retrained: float | None = None

    @property
    def speed_up(self) -> float | None:
        """How many times faster than one retraining."""
        return self.retrain_seconds / self.seconds if self.seconds and self.retrain_seconds else None


@dataclass(frozen=True)
class ShownEdit:
    """An edit with its names for people: a whole one, and one short enough for a table."""

    title: str
    short: str
    outcome: EditOutcome


def outcome_of(kind: str, edit: Job, retraining: Job | None) -> EditOutcome:
    """The numbers of a finished edit, and of the retraining it is compared with, if that succeeded."""
    edited = edit.report or {}
    reference = (retraining.report if retraining else None) or {}
    comparison = reference.get("comparison") or {}
    metrics = comparison.get("metrics") or {}
    membership = (comparison.get("membership") or {}) if kind in REMOVALS else {}
    rows = (comparison.get("rows") or {}).get(ROWS_OF.get(kind, "")) or {}
    numbers: dict[str, float | None] = {
        "seconds": edited.get("seconds"),
        "retrain_seconds": reference.get("seconds"),
        "closure": rows.get("closure"),
        **{f"auc_{when}": membership.get(f"auc_{when}") for when in ("before", "after", "retrained")},
        **_scores(metrics, edited, "concept_f1"),
        **_scores(metrics, edited, "label_f1"),
    }
    return EditOutcome(kind=kind, state=edit.state, version=edit.result_version, **numbers)


def _scores(metrics: Mapping[str, Any], edited: Mapping[str, Any], score: str) -> dict[str, float | None]:
    own = edited.get("metrics") or {}
    found = {when: (own.get(when) or {}).get(score) for when in ("before", "after")} | (metrics.get(score) or {})
    return {f"{score}_{when}": found.get(when) for when in ("before", "after", "retrained")}


def write_report(
    path: Path, *, seconds: float, device: str | None, outcomes: Sequence[EditOutcome], ledger: LedgerOutcome
) -> None:
    """Write ``demo-report.json``; ``seconds`` is the whole demo."""
    body = {
        "seconds": round(seconds, 2),
        "device": device,
        "edits": [asdict(outcome) for outcome in outcomes],
        "ledger": {
            "entries": ledger.entries,
            "verified": ledger.verified,
            "tamper_detected_at": ledger.tamper_detected_at,
        },
    }
    path.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")


def outcome_table(edits: Sequence[ShownEdit]) -> Table:
    """Three lines for each edit: before, edited, retrained. Fits 80 columns."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    table.add_column("edit", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name in ("seconds", "speed-up", "concept\nF1", "label\nF1", "closure", "attack\nAUC"):
        table.add_column(name, justify="right")
    for edit in edits:
        o = edit.outcome
        state = "" if o.state == "succeeded" else f"[red]{o.state}"
        speed_up = "" if o.speed_up is None else f"{o.speed_up:.1f}×"
        before = (_number(o.concept_f1_before), _number(o.label_f1_before), "", _number(o.auc_before, 3))
        after = (_number(o.concept_f1_after), _number(o.label_f1_after), _number(o.closure, 2), _number(o.auc_after, 3))
        retrained = (_number(o.concept_f1_retrained), _number(o.label_f1_retrained), "", _number(o.auc_retrained, 3))
        table.add_row(edit.short, "before", "", "", *before)
        table.add_row(state, "[bold]edited", _number(o.seconds, 2), speed_up, *after, style="cyan")
        table.add_row("", "retrained", _number(o.retrain_seconds, 2), "", *retrained, end_section=True)
    return table


def history_table(entries: Sequence[LedgerEntry]) -> Table:
    """The newest entries."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for name in ("seq", "at (UTC)", "what", "version", "by", "artifact"):
        table.add_column(name)
    for entry in entries[:SHOWN_ENTRIES]:
        versions = " → ".join(str(n) for n in (entry.parent_version, entry.result_version) if n is not None)
        by = entry.actor_ref if len(entry.actor_ref) < SHOWN_ENTRIES else f"key {entry.actor_ref[:8]}"
        artifact = (entry.artifact_sha256 or "")[:12]
        table.add_row(str(entry.seq), f"{entry.at:%H:%M:%S}", entry.kind, versions, by, artifact)
    return table


def _number(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:.{digits}f}"
