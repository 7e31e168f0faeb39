"""What an edit would do: the same computation on the same seed, and nothing of it published."""

from __future__ import annotations

import time
from typing import Any

from app.datasets.snapshots import SnapshotChanges
from worker.computing.editing import Edited, computed
from worker.computing.workbench import Workbench
from worker.tasks import Json, Result, TaskFailure


def preview(bench: Workbench) -> Result:
    """The report that the edit would have, and whether it would succeed: a refusal is a result.

    Factors that had to be fitted, because the base version had none or too old ones, stay with it: they are the ones
    that the edit, or a fit, would make.
    """
    task, start = bench.task, time.perf_counter()
    if task.base is None or task.changes is None:
        raise RuntimeError("a preview needs a base version and changes")
    added = [row.sample_id for row in SnapshotChanges.from_json(task.changes).added]
    digest = None
    try:
        done = computed(bench, shows_refused=True)
        report = _report(done)
        chosen = done.chosen
        if chosen is not None and chosen.fitted_here and (task.base.factors_digest is None or chosen.refreshed):
            bench.progress("publishing", 0, 1)
            digest = bench.put_factors(chosen.factors)
    except TaskFailure as refusal:  # before anything was computed that could be shown
        report = _would(refusal.code, refusal.detail)
    finally:
        bench.forget(added)  # rows that are only lent
    report |= {"kind": "preview", "seconds": time.perf_counter() - start}
    return Result(
        concepts=task.concepts,
        publishes=False,
        factors_digest=digest,
        factors_version=task.base.number if digest else None,
        report=report,
    )


def _report(done: Edited) -> dict[str, Any]:
    refusal = done.refusal
    return {**done.report, **(_would(refusal.code, refusal.detail) if refusal else _would())}


def _would(code: str | None = None, detail: str | None = None) -> Json:
    """``would`` and ``error`` as the edit's end would have them."""
    return (
        {"would": "succeed", "error": None}
        if code is None
        else {"would": "fail", "error": {"code": code, "detail": detail}}
    )
