"""What became of the edited rows: their losses, and whether an attack still knows the removed ones."""

from __future__ import annotations

from typing import Any

from worker.cbm.concept_predictor import ConceptPredictor
from worker.computing.frame import Frame
from worker.data.tensors import LabelledImages
from worker.evidence.membership import loss_attack_auc


def edited_groups(frame: Frame) -> dict[str, LabelledImages]:
    """The edited train rows by what became of them, labels as they are now."""
    data = frame.train
    groups = {
        "removed": data.before.take(data.removed),
        "fixed": data.after.take(data.fixed),
        "added": data.after.take(data.added),
    }
    return {name: rows for name, rows in groups.items() if len(rows)}


def edited_rows(frame: Frame, models: dict[str, ConceptPredictor]) -> dict[str, Any]:
    """Mean concept loss of each group of edited rows under each model: ``{"removed": {"rows", "loss_before", …}}``."""
    return {
        name: {
            "rows": len(rows),
            **{f"loss_{when}": float(frame.losses(model, rows).mean()) for when, model in models.items()},
        }
        for name, rows in edited_groups(frame).items()
    }


def membership(frame: Frame, models: dict[str, ConceptPredictor]) -> dict[str, Any] | None:
    """The loss attack on removed train rows against test rows, under each model; None if none were removed."""
    removed = edited_groups(frame).get("removed")
    if removed is None:
        return None
    result: dict[str, Any] = {"attack": "loss", "members": len(removed), "non_members": len(frame.test)}
    for when, model in models.items():
        members, others = (frame.losses(model, rows).cpu().numpy() for rows in (removed, frame.test))
        result[f"auc_{when}"] = loss_attack_auc(members, others)
    return result
