"""The demo's steps, each a client of the service and nothing more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from app.client import (
    Client,
    Job,
    JobFailed,
    JsonObject,
    LabelFix,
    NewSample,
    add_samples,
    drop_concepts,
    fix_concept_labels,
    remove_samples,
)
from app.demo.audit import LedgerOutcome, named_entry, tamper, verify_file
from app.demo.digits import DigitRow, PlantedLabel, archive, definition, load, manifest, plant_wrong_labels
from app.demo.display import Display
from app.demo.plan import Plan
from app.demo.report import ShownEdit, history_table, outcome_of
from app.ledger.checkpoints import VerifierKey
from app.ledger.findings import TamperingFound, UnreadableExport


@dataclass
class Demonstration:
    """What the steps share."""

    client: Client
    display: Display
    plan: Plan
    rows: tuple[DigitRow, ...]
    held_back: tuple[DigitRow, ...]
    planted: tuple[PlantedLabel, ...]
    leaving_subject: str
    edits: list[ShownEdit] = field(default_factory=list)
    device: str | None = None

    @property
    def train(self) -> list[DigitRow]:
        return [row for row in self.rows if row.split == "train"]

    def random(self) -> np.random.Generator:
        return np.random.default_rng(self.plan.seed)


Step = Callable[[Demonstration], None]


def prepare(client: Client, display: Display, plan: Plan) -> Demonstration:
    """Load the digits, plant wrong labels, choose who will want to be forgotten."""
    digits = load(plan.seed)
    rows, planted = plant_wrong_labels(digits.rows, plan.wrong_labels, plan.seed)
    return Demonstration(client, display, plan, rows, digits.held_back, planted, _leaving(rows))


def _leaving(rows: Sequence[DigitRow]) -> str:
    """The subject that the model has learned most from; of several the first."""
    trained_on = Counter(row.subject for row in rows if row.split == "train")
    return min(trained_on, key=lambda subject: (-trained_on[subject], subject))


def import_digits(demo: Demonstration) -> None:
    with demo.display.line(f"Import {len(demo.rows):,} digits, {len(demo.planted)} labels wrong") as line:
        rows = demo.rows
        dataset = demo.client.register_dataset(definition(demo.plan.dataset_id), manifest(rows), archive(rows))
        line.finish(", ".join(f"{count:,} {split}" for split, count in dataset.counts.items()))


def train(demo: Demonstration) -> None:
    plan = demo.plan
    job = demo.client.create_model(
        plan.model_id, plan.dataset_id, plan.architecture, training=plan.training, title="Handwritten digits"
    )
    _wait(demo, "Train a concept bottleneck model", job, _scores)


def fit_factors(demo: Demonstration) -> None:
    _wait(demo, "Fit curvature factors", demo.client.fit_factors(demo.plan.model_id), lambda _: "kept for every edit")


def fix_labels(demo: Demonstration) -> None:
    operation = fix_concept_labels(
        LabelFix(label.key, label.concept, 1 if label.right else 0) for label in demo.planted
    )
    count = len(demo.planted)
    _edit(demo, "fix_concept_labels", (f"Fix {count} wrong concept labels", f"fix {count} labels"), operation)


def drop_concept(demo: Demonstration) -> None:
    concept = demo.plan.dropped_concept
    _edit(demo, "drop_concepts", (f"Drop the concept “{concept}”", f"drop {concept}"), drop_concepts([concept]))


def remove_rows(demo: Demonstration) -> None:
    staying = [row.key for row in demo.train if row.subject != demo.leaving_subject]
    count = round(demo.plan.removed_rows * len(demo.rows))
    chosen = sorted(demo.random().choice(staying, count, replace=False).tolist())
    _edit(demo, "remove_samples", (f"Remove {count} rows", f"remove {count} rows"), remove_samples(chosen))


def add_rows(demo: Demonstration) -> None:
    rows = demo.held_back
    with demo.display.line(f"Upload {len(rows)} images held back so far") as line:
        uploads = demo.client.upload("image", {row.image: row.png for row in rows})
        line.finish(f"{sum(upload.bytes for upload in uploads):,} bytes")
    concepts = demo.client.version(demo.plan.model_id, _newest(demo)).concepts
    samples = [
        NewSample(
            row.key,
            row.digit,
            upload.id,
            concepts={name: 1 if row.concepts[name] else 0 for name in concepts},
            subject=row.subject,
        )
        for row, upload in zip(rows, uploads, strict=True)
    ]
    _edit(demo, "add_samples", (f"Add {len(rows)} rows", f"add {len(rows)} rows"), add_samples(samples))


def remove_subject(demo: Demonstration) -> None:
    count = sum(row.subject == demo.leaving_subject for row in (*demo.rows, *demo.held_back))
    operation = remove_samples(subjects=[demo.leaving_subject])
    _edit(demo, "remove_subject", (f"Remove one subject ({count} rows)", "remove 1 subject"), operation)


def verify_history(demo: Demonstration, directory: Path, keys: Sequence[VerifierKey]) -> LedgerOutcome:
    """Export the history, verify it without the service, tamper with a copy, and see whether that is found.

    Args:
        directory: where ``history.jsonl`` and ``tampered.jsonl`` are written.
        keys: the log's verifier keys, from elsewhere than the service: one that lies about its history lies about them.
    """
    export, copy = directory / "history.jsonl", directory / "tampered.jsonl"
    with demo.display.line("Verify the exported history offline") as line:
        demo.client.ledger_export(export)
        try:
            verified = verify_file(export, keys)
        except (TamperingFound, UnreadableExport) as error:
            line.finish(str(error), failed=True)
            return LedgerOutcome(entries=0, verified=False)
        line.finish(f"{verified.entries:,} entries, as signed")
    with demo.display.line("Tamper with a copy, verify it again") as line:
        tampering = tamper(export, copy)
        outcome = LedgerOutcome(verified.entries, verified=True, tampered_at=tampering.seq)
        lie = f"version {tampering.true_version} → {tampering.told_version}"
        try:
            verify_file(copy, keys)
            line.finish(f"entry {tampering.seq} not named ({lie})", failed=True)
        except TamperingFound as found:
            outcome = replace(outcome, tamper_detected_at=named_entry(found))
            if outcome.proved:
                line.finish(f"entry {tampering.seq} named ({lie})")
            else:
                line.finish(f"entry {tampering.seq} not named ({lie}): {found}", failed=True)
        return outcome


def show_history(demo: Demonstration) -> None:
    entries = list(demo.client.ledger(demo.plan.model_id))
    console = demo.display.console
    console.print(f"\n[bold]History of the model[/], newest first (GET /models/{demo.plan.model_id}/ledger)")
    console.print(history_table(entries))
    console.print(f"[dim]… {len(entries)} entries in all\n")


PREPARATION: Sequence[Step] = (import_digits, train, fit_factors)
EDITS: Sequence[Step] = (fix_labels, drop_concept, remove_rows, add_rows, remove_subject)


def _edit(demo: Demonstration, kind: str, titles: tuple[str, str], operation: JsonObject) -> None:
    """One edit, and a retraining of its version beside it. A failed edit is noted, and the demo goes on."""
    title, short = titles
    edit = demo.client.edit(demo.plan.model_id, [operation], reason="the demo")
    retraining: Job | None = None
    try:
        edit = _wait(demo, title, edit, _seconds)
        demo.device = (edit.report or {}).get("device", demo.device)
        retraining = demo.client.retrain(demo.plan.model_id, version=edit.result_version, repeats=demo.plan.repeats)
        retraining = _wait(demo, f"  the same by retraining ({demo.plan.repeats} times)", retraining, _seconds)
    except JobFailed as failure:
        if failure.job.kind == "edit":
            edit = failure.job
    measured = outcome_of(kind, edit, retraining if retraining and retraining.finished else None)
    demo.edits.append(ShownEdit(title, short, measured))


def _wait(demo: Demonstration, title: str, job: Job, outcome: Callable[[Job], str]) -> Job:
    with demo.display.line(title) as line:
        try:
            job = demo.client.wait(job, on_progress=line.show)
        except JobFailed as failure:
            line.finish(failure.job.error.detail if failure.job.error else failure.job.state, failed=True)
            raise
        line.finish(outcome(job))
        return job


def _newest(demo: Demonstration) -> int:
    newest = demo.client.model(demo.plan.model_id).latest_version
    if newest is None:
        raise ValueError("the model has no version yet")
    return newest


def _scores(job: Job) -> str:
    metrics = (job.report or {}).get("metrics") or {}
    shown = [f"{name} {metrics[key]:.4f}" for key, name in _SCORES.items() if key in metrics]
    return ", ".join(shown)


def _seconds(job: Job) -> str:
    made = "" if job.result_version is None else f"version {job.result_version}, "
    seconds = (job.report or {}).get("seconds")
    return f"{made}{seconds:.2f} s" if seconds is not None else made.rstrip(", ")


_SCORES = {"concept_f1": "concept F1", "label_f1": "label F1"}
