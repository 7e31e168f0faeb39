"""How near do edits come to retraining, over several draws of the demo's data?

Runs the demo's edits without the service, once per seed, and prints closure, attack AUC and time for each; the last
lines are medians with the range. One seed takes about a minute on two cores.

    python bench/closures.py --seeds 0 1 2 --json closures.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from app.artifacts.local import LocalArtifactStore
from app.datasets.snapshots import SPLITS, AddedSample, Snapshot, SnapshotChanges
from app.demo.digits import CLASSES, CONCEPTS, DigitRow, load, plant_wrong_labels
from app.demo.plan import Plan
from app.registry.schemas import Training
from worker.compute import execute
from worker.tasks import BaseVersion, Result, Task

Row = dict[str, Any]


class Road:
    """One draw of the data, its model, and edits one after another."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.plan = Plan(seed=seed)
        self.store = LocalArtifactStore(folder)
        digits = load(seed)
        self.rows, self.planted = plant_wrong_labels(digits.rows, self.plan.wrong_labels, seed)
        self.held_back = digits.held_back
        everyone = [*self.rows, *self.held_back]
        self.ids = {row.key: number for number, row in enumerate(everyone, start=1)}
        self.store.put_images(self.plan.dataset_id, {self.ids[row.key]: row.png for row in everyone})
        snapshot = Snapshot.from_rows([self.added(row, list(CONCEPTS)) for row in self.rows], len(CONCEPTS))
        self.snapshot_digest = self.store.put(snapshot.to_bytes())
        first = self.run("train")
        base = self.version(1, first)
        factors = self.run("fit_factors", base=base)
        self.newest = self.version(1, first, factors.factors_digest)

    def run(self, kind: Any, **task: Any) -> Result:
        return execute(
            Task(
                kind=kind,
                model_id=self.plan.model_id,
                dataset_id=self.plan.dataset_id,
                architecture=dict(self.plan.architecture),
                training=Training(**self.plan.training).model_dump(),
                concepts=list(CONCEPTS),
                classes=list(CLASSES),
                snapshot_digest=self.snapshot_digest,
                seed=0,
                **task,
            ),
            self.store,
            "cpu",
            lambda stage, done, total: None,
        )

    def version(self, number: int, result: Result, factors: str | None = None) -> BaseVersion:
        if result.snapshot_digest is None or result.weights_digest is None:
            raise ValueError("the job made no version")
        return BaseVersion(
            number=number,
            concepts=result.concepts,
            classes=list(CLASSES),
            snapshot_digest=result.snapshot_digest,
            weights_digest=result.weights_digest,
            factors_digest=factors or result.factors_digest,
            factors_version=1,
            metrics=result.metrics,
        )

    def added(self, row: DigitRow, concepts: list[str]) -> AddedSample:
        labels = tuple(row.concepts[name] for name in concepts)
        return AddedSample(self.ids[row.key], SPLITS.index(row.split), int(row.digit), labels)

    def edits(self) -> dict[str, SnapshotChanges]:
        """The demo's edits that have a closure, and the drop between them."""
        train = [row.key for row in self.rows if row.split == "train"]
        count = round(self.plan.removed_rows * len(self.rows))
        leaving = np.random.default_rng(self.plan.seed).choice(train, count, replace=False)
        kept = [name for name in CONCEPTS if name != self.plan.dropped_concept]
        fixes = tuple((self.ids[one.key], CONCEPTS.index(one.concept), one.right) for one in self.planted)
        return {
            "fix_concept_labels": SnapshotChanges(fixes=fixes),
            "drop_concepts": SnapshotChanges(dropped=(CONCEPTS.index(self.plan.dropped_concept),)),
            "remove_samples": SnapshotChanges(removed=tuple(self.ids[key] for key in leaving.tolist())),
            "add_samples": SnapshotChanges(added=tuple(self.added(row, kept) for row in self.held_back)),
        }

    def edit(self, kind: str, changes: SnapshotChanges) -> Row:
        start = time.perf_counter()
        result = self.run("edit", base=self.newest, changes=changes.to_json())
        seconds = time.perf_counter() - start
        edited = self.version(self.newest.number + 1, result)
        compared = {
            "base": self.newest,
            "edited": edited,
            "changes": changes.to_json(),
            "report": result.report,
        }
        reference = self.run("retrain", base=edited, options={"repeats": self.plan.repeats}, compared=compared)
        self.newest = edited
        comparison = reference.report["comparison"]
        closures = [group["closure"] for group in comparison["rows"].values()]
        attack = comparison["membership"] or {}
        return {
            "seed": self.plan.seed,
            "kind": kind,
            "closure": closures[0] if closures else None,
            **{name: attack.get(name) for name in ("auc_before", "auc_after", "auc_retrained")},
            "concept_f1": comparison["metrics"]["concept_f1"],
            "label_f1": comparison["metrics"]["label_f1"],
            "mean_abs_dp": comparison["mean_abs_dp"],
            "seconds": seconds,
            "retrain_seconds": reference.report["seconds"],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4, 5])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            road = Road(seed, Path(folder))
            for kind, changes in road.edits().items():
                rows.append(road.edit(kind, changes))
                print(line(rows[-1]), flush=True)
    print()
    for kind in dict.fromkeys(row["kind"] for row in rows):
        print(summary(kind, [row for row in rows if row["kind"] == kind]))
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


def line(row: Row) -> str:
    closure = "     –" if row["closure"] is None else f"{row['closure']:6.2f}"
    attack = (
        ""
        if row["auc_before"] is None
        else f"  AUC {row['auc_before']:.3f} → {row['auc_after']:.3f} / {row['auc_retrained']:.3f}"
    )
    return f"seed {row['seed']}  {row['kind']:20} closure {closure}  {speed([row])}{attack}"


def summary(kind: str, rows: list[Row]) -> str:
    closures = [row["closure"] for row in rows if row["closure"] is not None]
    spread = (
        f"closure {statistics.median(closures):.2f} ({min(closures):.2f}–{max(closures):.2f})"
        if closures
        else "no closure"
    )
    distance = statistics.median(row["mean_abs_dp"]["edited"] / row["mean_abs_dp"]["floor"] for row in rows)
    return f"{kind:20} {spread:26}  |Δp| {distance:.2f} × floor  {speed(rows)}  over {len(rows)} seeds"


def speed(rows: list[Row]) -> str:
    ratio = statistics.median(row["retrain_seconds"] / row["seconds"] for row in rows)
    return f"{ratio:4.1f} × faster than retraining"


if __name__ == "__main__":
    main()
