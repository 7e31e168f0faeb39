"""The paper's table: label F1 and time of every edit level by every method."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from papers.methods import FACTOR_FITTING, Workshop
from papers.protocols import HELD_OUT_SHARE, TABLE_SHARE
from papers.states import ADDITION, CONCEPT, LEVELS, Draws

Record = dict[str, Any]


def table(shop: Workshop, dropped: int) -> Record:
    """Every run, and a row for each level and method; each run has its own draw and its own seed of training.

    Args:
        dropped: concepts of the concept-level edit.
    """
    runs: list[Record] = []
    for level in LEVELS:
        share = HELD_OUT_SHARE if level == ADDITION else TABLE_SHARE
        for seed in range(shop.options.seeds if level == CONCEPT else shop.options.repeats):
            edit = Draws(shop.data, seed).edit(level, share, min(dropped, len(shop.data.concepts) // 2))
            base, seconds = shop.trained(edit.before, seed)
            apart = shop.distance(base, edit.before.columns, edit, seed)
            runs.append(_run(level, "before", seed, seconds, asdict(shop.scores(base, edit.before)), apart))
            for method in shop.options.methods:
                outcome = shop.by(method, edit, seed)
                scores: Record = {}
                distance = None
                if outcome.model:
                    scores = asdict(shop.scores(outcome.model, edit.after))
                    distance = shop.distance(outcome.model, edit.after.columns, edit, seed)
                run = _run(level, method, seed, outcome.seconds, scores, distance, **outcome.details)
                if method == "ours":
                    run["factor_seconds"] = shop.factors(edit.before, seed)[1]
                runs.append(run)
    return {"rows": rows_of(runs), "runs": runs}


def _run(
    level: str, method: str, seed: int, seconds: float | None, scores: Record, distance: float | None, **details: Any
) -> Record:
    own = {"level": level, "method": method, "seed": seed, "seconds": seconds, "mean_abs_dp": distance}
    return {**own, **scores, **details}


def rows_of(runs: Sequence[Record]) -> list[Record]:
    """Means and sample standard deviations over the runs that have a model; how many have none."""
    rows = []
    for level, method in dict.fromkeys((run["level"], run["method"]) for run in runs):
        same = [run for run in runs if (run["level"], run["method"]) == (level, method)]
        made = [run for run in same if "label_f1" in run]
        row: Record = {"level": level, "method": method, "runs": len(same), "failed": len(same) - len(made)}
        for name in ("label_f1", "label_accuracy", "concept_f1"):
            values = [run[name] for run in made]
            row[f"{name}_mean"] = statistics.fmean(values) if values else None
            row[f"{name}_std"] = statistics.stdev(values) if len(values) > 1 else None
        row["mean_abs_dp"] = statistics.fmean(run["mean_abs_dp"] for run in made) if made else None
        row["seconds"] = statistics.fmean(run["seconds"] for run in made) if made else None
        row["minutes"] = row["seconds"] / 60 if made else None
        row["factor_fitting"] = FACTOR_FITTING.get(method, "none")
        outside = [run["factor_seconds"] for run in made if "factor_seconds" in run]
        row["factor_seconds"] = statistics.fmean(outside) if outside else None
        rows.append(row)
    return rows


def lines(result: Record) -> list[str]:
    """The table as text; |Δp| is the distance to the retrained model on test rows."""
    found = [
        f"{'edit level':14} {'method':12} {'label F1':>17} {'concept F1':>11} {'|Δp|':>8} {'seconds':>10} "
        f"{'minutes':>9}  factor fitting"
    ]
    for row in result["rows"]:
        spread = "" if row["label_f1_std"] is None else f" ± {row['label_f1_std']:.4f}"
        fitting = {"none": "none", "inside": "inside the time", "outside": "not in the time"}[row["factor_fitting"]]
        if row["factor_seconds"] is not None:
            fitting += f", {row['factor_seconds']:.2f} s once per version"
        if row["failed"]:
            fitting += f"; {row['failed']} of {row['runs']} without a model"
        found.append(
            f"{row['level']:14} {row['method']:12} {_number(row['label_f1_mean'], 4) + spread:>17} "
            f"{_number(row['concept_f1_mean'], 4):>11} {_number(row['mean_abs_dp'], 4):>8} "
            f"{_number(row['seconds'], 2):>10} "
            f"{_number(row['minutes'], 3):>9}  {fitting}"
        )
    return found


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
