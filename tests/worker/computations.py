"""What stands in for ``worker.compute.execute`` in a real compute process: no torch, and stops where a test says.

The directory in ``MODELMEND_TEST_STAGE`` is the stage: a file ``hold`` there makes computations wait until it is gone,
a file ``behaviour`` names what they do, a line is appended to ``calls`` when one begins that succeeds.
"""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.artifacts import ArtifactStore
from tests.waiting import wait_until
from worker.resident import Progress
from worker.tasks import Result, Task, TaskFailure


def stage() -> Path:
    return Path(os.environ["MODELMEND_TEST_STAGE"])


def calls() -> list[dict[str, Any]]:
    """One entry per computation that began on this stage, in order."""
    file = stage() / "calls"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def succeed(task: Task, store: ArtifactStore, device: str, progress: Progress) -> Result:
    """A version whose weights name the task; waits while ``hold`` is there."""
    progress("loading", 0, 1)
    base = task.base.number if task.base else None
    with (stage() / "calls").open("a") as file:
        file.write(json.dumps({"model": task.model_id, "base": base, "pid": os.getpid()}) + "\n")
    progress("solving", 1, 2)
    wait_until(lambda: not (stage() / "hold").exists(), 60)
    progress("solving", 2, 2)
    weights = store.put(json.dumps([task.model_id, task.kind, base, task.changes, device]).encode())
    return Result(
        concepts=task.concepts,
        publishes=task.kind in {"train", "register", "edit"},
        snapshot_digest=task.snapshot_digest,
        weights_digest=weights,
        metrics={"concept_f1": 1.0},
        report={"device": device},
    )


def fail(task: Task, store: ArtifactStore, device: str, progress: Progress) -> Result:
    raise TaskFailure("tolerance_exceeded", "label F1 fell by 0.05, allowed are 0.02")


def crash(task: Task, store: ArtifactStore, device: str, progress: Progress) -> Result:
    raise OSError(28, "No space left on device")


def not_a_number(task: Task, store: ArtifactStore, device: str, progress: Progress) -> Result:
    return replace(succeed(task, store, device, progress), metrics={"concept_f1": math.nan})


def segfault(task: Task, store: ArtifactStore, device: str, progress: Progress) -> Result:
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError("unreachable")


def computed(task: Task, store: ArtifactStore, device: str, progress: Progress) -> Result:
    """As in earnest, for tasks that train nothing."""
    from worker.compute import execute  # torch, for those who ask for it

    return execute(task, store, device, progress)


BEHAVIOURS = {function.__name__: function for function in (succeed, fail, crash, not_a_number, segfault, computed)}


def compute(task: Task, store: ArtifactStore, device: str, progress: Progress) -> Result:
    """What the stage says, or ``succeed``."""
    file = stage() / "behaviour"
    return BEHAVIOURS[file.read_text() if file.exists() else "succeed"](task, store, device, progress)
