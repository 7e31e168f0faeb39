"""How long do factors serve? What age does to solves and edits, on the demo's data.

Many small edits follow each other (1% of the rows removed, wrong labels corrected, in turn). After some of them the
same two further edits are computed twice from where the model is: with the factors that were fitted before the first
edit and inherited since, and with factors fitted anew. Prints the residual of conjugate gradients after their last
iteration, closures against a training on the edited data, and seconds. Three minutes per seed on two cores.

    python bench/refresh.py --seeds 4 --after 0 8 16 32
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from closures import Road

from app.datasets.snapshots import Snapshot, SnapshotChanges
from app.registry.schemas import Training
from worker.computing.frame import Frame
from worker.computing.measuring import Measured, edited_groups
from worker.computing.retraining import closure
from worker.computing.training import train
from worker.computing.workbench import Workbench
from worker.tasks import BaseVersion, Task, TaskFailure

Row = dict[str, Any]
TOLERANT = {"concept_f1": 1.0, "label_f1": 1.0}
PROBE_ROWS = 0.03


class Sequence:
    """Small edits that leave the probes' rows and labels alone."""

    def __init__(self, road: Road, seed: int) -> None:
        self.road = road
        order = np.random.default_rng(seed).permutation([row.key for row in road.rows if row.split == "train"]).tolist()
        count = round(PROBE_ROWS * len(order))
        probed, self._rows = order[:count], order[count:]
        free = [one for one in road.planted if one.key not in set(probed)]
        self._labels = free[: len(free) // 2]
        self.probes = {
            "remove_samples": SnapshotChanges(removed=tuple(road.ids[key] for key in probed)),
            "fix_concept_labels": self._corrected(free[len(free) // 2 :]),
        }
        kept = {one.key for one in free}
        self._rows = [key for key in self._rows if key not in kept]
        self._share = max(1, len(order) // 100)

    def next(self, number: int) -> SnapshotChanges:
        """One per cent of the rows leaves; every other time, while wrong labels are left, two of them are corrected."""
        if number % 2 and self._labels:
            some, self._labels = self._labels[:2], self._labels[2:]
            return self._corrected(some)
        some, self._rows = self._rows[: self._share], self._rows[self._share :]
        return SnapshotChanges(removed=tuple(self.road.ids[key] for key in some))

    def _corrected(self, planted: list[Any]) -> SnapshotChanges:
        columns = self.road.newest.concepts.index
        return SnapshotChanges(
            fixes=tuple((self.road.ids[one.key], columns(one.concept), one.right) for one in planted)
        )


def probed(road: Road, name: str, changes: SnapshotChanges, age: int) -> list[Row]:
    """The edit with inherited factors and with new ones, from the newest version."""
    start = time.perf_counter()
    fitted = road.run("fit_factors", base=road.newest)
    seconds_of_fit = time.perf_counter() - start
    bases = {"inherited": road.newest, "refitted": replace(road.newest, factors_digest=fitted.factors_digest)}
    rows = []
    retrained: float | None = None
    for factors, base in bases.items():
        start = time.perf_counter()
        try:
            result = road.run("edit", base=base, changes=changes.to_json(), options={"tolerance": TOLERANT})
        except TaskFailure as refusal:
            print(f"after {age} edits  {name}  {factors}  {refusal}", flush=True)
            continue
        seconds = time.perf_counter() - start
        if retrained is None and result.snapshot_digest is not None:
            retrained = _loss_of_retrained(road, base, changes, result.snapshot_digest)
        ((_, group),) = result.report["edited_rows"].items()
        solves = [step for step in result.report["step"]["steps"] if step["iterations"]]
        rows.append(
            {
                "edits": age,
                "probe": name,
                "factors": factors,
                "iterations": solves[0]["iterations"] if solves else 0,
                "residual": solves[0]["relative_residual"] if solves else None,
                "closure": closure(group["loss_before"], group["loss_after"], retrained or 0.0),
                "concept_f1": result.report["calibration"]["after"]["concept_f1"],
                "seconds": seconds,
                "seconds_of_fit": seconds_of_fit,
            }
        )
    return rows


def _loss_of_retrained(road: Road, base: BaseVersion, changes: SnapshotChanges, snapshot_digest: str) -> float:
    """Of the edited rows, under a model trained on the edited data."""
    task = Task(
        kind="train",
        model_id=road.plan.model_id,
        dataset_id=road.plan.dataset_id,
        architecture=dict(road.plan.architecture),
        training=Training(**road.plan.training).model_dump(),
        concepts=base.concepts,
        classes=base.classes,
        snapshot_digest=snapshot_digest,
        seed=0,
    )
    bench = Workbench(task, road.store, "cpu", lambda stage, done, total: None)
    trained = road.version(0, train(bench))
    frame = Frame(bench, base.concepts, Snapshot.load(road.store.fetch(base.snapshot_digest)), changes)
    groups = edited_groups(frame)
    (name,) = groups
    return Measured(frame, groups, *bench.model(trained), edited=True).mean_loss(name)


def run(seed: int, after: list[int], folder: Path) -> list[Row]:
    """All rows of one draw."""
    road = Road(seed, folder)
    sequence = Sequence(road, seed)
    rows: list[Row] = []
    asked = 0
    for made in range(max(after) + 1):
        if made in after:
            for name, changes in sequence.probes.items():
                found = probed(road, name, changes, made)
                for row in found:
                    print(line(seed, row), flush=True)
                rows += found
        result = None
        while result is None:  # a refused edit makes no version; the next one follows
            changes, asked = sequence.next(asked), asked + 1
            with suppress(TaskFailure):
                result = road.run("edit", base=road.newest, changes=changes.to_json(), options={"tolerance": TOLERANT})
        road.newest = road.version(road.newest.number + 1, result)
    return [{"seed": seed, **row} for row in rows]


def line(seed: int, row: Row) -> str:
    return (
        f"seed {seed}  after {row['edits']:3} edits  {row['probe']:18}  {row['factors']:9}"
        f"  residual {row['residual'] or 0:.3f} after {row['iterations']}  closure {row['closure'] or 0:5.2f}"
        f"  held-out concept F1 {row['concept_f1']:.4f}  {row['seconds']:5.2f} s  (fit {row['seconds_of_fit']:.2f} s)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[4])
    parser.add_argument("--after", type=int, nargs="+", default=[0, 8, 16, 32])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            rows += run(seed, options.after, Path(folder))
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
