"""What an edit does to the labels on which classes vote, by name."""

from __future__ import annotations

from app.datasets.elections import fallen_below, flips
from app.datasets.snapshots import Snapshot, SnapshotChanges
from worker.tasks import Json, Task

MOST_FLIPS = 1000


def votes_report(task: Task, before: Snapshot, changes: SnapshotChanges) -> Json | None:
    """Labels that changed in rows that stay, each race that turned, and concepts that too few classes have now.

    None where rows have labels of their own. At most ``MOST_FLIPS`` races are listed, all are counted.
    """
    if task.base is None or before.votes is None:
        return None
    turned = flips(before, changes)
    kept = [j for j in range(len(task.base.concepts)) if j not in set(changes.dropped)]
    below = fallen_below(before, before.apply(changes), kept, int((task.vote_rule or {}).get("min_classes", 0)))
    return {
        "labels_changed": sum(flip.rows for flip in turned),
        "flips": len(turned),
        "flipped": [
            {
                "class": task.base.classes[flip.class_index],
                "concept": task.base.concepts[flip.concept],
                "label": flip.label,
                "rows": flip.rows,
            }
            for flip in turned[:MOST_FLIPS]
        ],
        "concepts_below_minimum": [task.base.concepts[j] for j in below],
    }
