"""The table of the fidelity benchmark: its rows, their bounds, and what would make it worthless."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One edit by one method; what does not apply is None."""

    edit: str
    method: str
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
    mean_abs_dp: float | None = None
    seconds: float | None = None
    epochs: float | None = None


def closure(before: float | None, after: float | None, retrained: float | None) -> float | None:
    """``(edited − before)/(retrained − before)`` of the mean concept loss on the edited rows."""
    if before is None or after is None or retrained is None or abs(retrained - before) < 1e-6:
        return None
    return (after - before) / (retrained - before)


def medians(rows: list[Row]) -> list[Row]:
    """One row per edit and method: medians over the draws that have a number."""
    result = []
    for key in dict.fromkeys((row.edit, row.method) for row in rows):
        same = [asdict(row) for row in rows if (row.edit, row.method) == key]
        numbers: dict[str, Any] = {}
        for name in list(same[0])[2:]:
            values = [row[name] for row in same if row[name] is not None]
            numbers[name] = statistics.median(values) if values else None
        result.append(Row(*key, **numbers))
    return result


def line(row: Row, floor: float | None = None) -> str:
    def number(value: float | None, digits: int = 3, width: int = 6) -> str:
        return "–".rjust(width) if value is None else f"{value:{width}.{digits}f}"

    distance = number(row.mean_abs_dp, 4)
    if floor:
        distance += "" if row.mean_abs_dp is None else f" = {row.mean_abs_dp / floor:4.2f} × floor"
    return (
        f"{row.edit:24} {row.method:12} closure {number(row.closure, 2)}"
        f"  AUC {number(row.auc_before)} → {number(row.auc_after)} / {number(row.auc_retrained)}"
        f"  concept F1 {number(row.concept_f1_before)} → {number(row.concept_f1_after)} / "
        f"{number(row.concept_f1_retrained)}"
        f"  label F1 {number(row.label_f1_before)} → {number(row.label_f1_after)} / {number(row.label_f1_retrained)}"
        f"  |Δp| {distance}  {number(row.seconds, 2)} s = {number(row.epochs, 2)} epochs"
    )


def too_easy(rows: list[Row]) -> list[str]:
    """Why this data would prove nothing."""
    found = []
    for row in rows:
        if row.edit == "remove_samples" and row.method == "retrain":
            if row.auc_before is not None and row.auc_before < 0.65:
                found.append(f"the attack knows members before the removal with an AUC of {row.auc_before:.3f} < 0.65")
            if row.label_f1_before is not None and not 0.80 <= row.label_f1_before <= 0.97:
                found.append(f"label F1 before the removal is {row.label_f1_before:.3f}, not 0.80–0.97")
    return found


def outside(rows: list[Row], floors: dict[str, float]) -> list[str]:
    """Where the engine's rows miss their bounds."""
    found = []
    for row in rows:
        if row.method != "ours" or row.edit.startswith(("noise:", "size:")):
            continue
        few = row.edit == "remove_subject"
        if row.closure is not None and not few and not 0.85 <= row.closure <= 1.15:
            found.append(f"{row.edit}: closure {row.closure:.2f}")
        if row.auc_after is not None and row.auc_retrained is not None and not few:
            difference = row.auc_after - row.auc_retrained
            if abs(difference) > 0.04:
                found.append(f"{row.edit}: AUC {difference:+.3f} from retrained")
        for name in ("concept_f1", "label_f1"):
            after, retrained_ = (getattr(row, f"{name}_{when}") for when in ("after", "retrained"))
            if after is not None and after < retrained_ - 0.005:
                found.append(f"{row.edit}: {name} {after - retrained_:+.4f} from retrained")
        if row.mean_abs_dp is not None and row.mean_abs_dp > 1.1 * floors[row.edit]:
            found.append(f"{row.edit}: |Δp| {row.mean_abs_dp / floors[row.edit]:.2f} × floor")
        if row.epochs is not None and row.epochs > 1.5 and not row.edit.startswith("sequence:"):
            found.append(f"{row.edit}: {row.epochs:.2f} epochs")
    return found
