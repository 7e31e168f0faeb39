"""What the compute process does with a task. Knows the store and the device, no database.

``execute`` is the only entry. Between tasks it keeps decoded images; weights and factors are small beside them and
are read anew, so that nothing stale can be used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.artifacts import ArtifactStore
from worker.computing.editing import edit
from worker.computing.factors import fit
from worker.computing.frozen import workbench_for
from worker.computing.insight import insight
from worker.computing.previewing import preview
from worker.computing.restoring import restore
from worker.computing.retraining import retrain
from worker.computing.training import register, train
from worker.computing.workbench import Progress, Workbench
from worker.tasks import Result, Task

COMPUTATIONS: Mapping[str, Callable[[Workbench], Result]] = {
    "train": train,
    "register": register,
    "fit_factors": fit,
    "edit": edit,
    "retrain": retrain,
    "preview": preview,
    "restore": restore,
    "insight": insight,
}


def execute(task: Task, store: ArtifactStore, device: str, progress: Progress) -> Result:
    """Compute one task; its artifacts are durable in ``store`` when this returns.

    Args:
        device: ``cpu`` or ``cuda``.
        progress: called with (stage, done, total).

    Raises:
        TaskFailure: the job ends without a version, for a reason the client is told.
    """
    return COMPUTATIONS[task.kind](workbench_for(task, store, device, progress))
