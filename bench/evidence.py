"""What does the evidence of a removal say? The attacks before, after and retrained, on one draw of the demo's data.

Removes random train rows of version 1, some of which have a planted wrong label, with reference models; compares with
retrainings, and prints a table as in docs/evidence.md. The ten trainings or so take a minute or two on a core.

    python bench/evidence.py --rows 60
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from closures import Road

from app.datasets.snapshots import SnapshotChanges

NAMES = {"loss": "loss", "rmia": "RMIA", "loss_on_rmia_rows": "loss on RMIA's rows"}
TIMES = ("before", "after", "retrained")


def compared(seed: int, rows: int, reference_models: int, repeats: int) -> dict[str, Any]:
    """The comparison of an edit that removes so many random train rows."""
    with tempfile.TemporaryDirectory() as folder:
        road = Road(seed, Path(folder))
        train = [row.key for row in road.rows if row.split == "train"]
        leaving = np.random.default_rng(seed).choice(train, rows, replace=False)
        changes = SnapshotChanges(removed=tuple(sorted(road.ids[key] for key in leaving.tolist())))
        options = {"evidence": "full", "reference_models": reference_models}
        result = road.run("edit", base=road.newest, changes=changes.to_json(), options=options)
        edited = road.version(2, result)
        versions = {"base": road.newest, "edited": edited, "changes": changes.to_json(), "report": result.report}
        reference = road.run("retrain", base=edited, options={"repeats": repeats}, compared=versions)
        found: dict[str, Any] = reference.report["comparison"]
        return found


def table(comparison: dict[str, Any]) -> str:
    """Areas with their intervals, then closure and distance beside their floors, and the findings' codes."""
    lines = [" " * 31 + "".join(f"{when:23}" for when in TIMES).rstrip()]
    for attack, name in NAMES.items():
        for output, readings in comparison["evidence"]["attacks"].get(attack, {}).items():
            if readings is not None:
                lines.append(f"{name:20} {output:9} " + "  ".join(_area(readings[when]) for when in TIMES))
    removed, distance = comparison["rows"]["removed"], comparison["mean_abs_dp"]
    findings = ", ".join(one["code"] for one in comparison["evidence"]["findings"]) or "none"
    lines.append(
        f"closure {removed['closure']:.2f} (floor {removed['closure_floor']:.2f})   "
        f"|Δp| {distance['edited']:.3f} (floor {distance['floor']:.3f})   findings: {findings}"
    )
    return "\n".join(lines)


def _area(reading: dict[str, Any]) -> str:
    low, high = reading["interval"]
    return f"{reading['auc']:.3f} ({low:.3f}–{high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reference-models", type=int, default=4, choices=range(9))
    parser.add_argument("--repeats", type=int, default=3, choices=range(2, 11), help="retrainings")
    options = parser.parse_args()
    comparison = compared(options.seed, options.rows, options.reference_models, options.repeats)
    print(table(comparison))
    for finding in comparison["evidence"]["findings"]:
        print(f"{finding['code']}: {finding['sentence']}")


if __name__ == "__main__":
    main()
