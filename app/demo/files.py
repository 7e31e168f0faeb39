"""The demo's data as files, for trying the API by hand."""

from __future__ import annotations

import json
from pathlib import Path

from app.demo.digits import archive, definition, load, manifest, plant_wrong_labels
from app.demo.plan import Plan


def write_files(directory: Path, plan: Plan) -> list[Path]:
    """Write a data set to register, the edit that corrects its wrong labels, and images to add later.

    Returns:
        The files, one of the images to add among them; the others are in ``held-back/``.
    """
    digits = load(plan.seed)
    rows, planted = plant_wrong_labels(digits.rows, plan.wrong_labels, plan.seed)
    held_back = directory / "held-back"
    held_back.mkdir(parents=True, exist_ok=True)
    for row in digits.held_back:
        (held_back / row.image).write_bytes(row.png)
    labels = [{"sample": label.key, "concept": label.concept, "value": label.right} for label in planted]
    edit = {"operations": [{"op": "fix_concept_labels", "labels": labels}], "reason": "wrong labels found"}
    files = {
        "definition.json": json.dumps(definition(plan.dataset_id), indent=2).encode(),
        "manifest.csv": manifest(rows),
        "images.zip": archive(rows),
        "fix-labels.json": json.dumps(edit, indent=2).encode(),
        "held-back.csv": manifest(digits.held_back),
        "nine.png": next(row.png for row in digits.held_back if row.digit == "9"),
    }
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return [directory / name for name in files]
