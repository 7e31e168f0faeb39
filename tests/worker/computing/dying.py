"""A process that dies in the middle of a fit; a module of its own, because a new process has to import it."""

from __future__ import annotations

import threading
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from app.artifacts import LocalArtifactStore
from worker.compute import execute
from worker.computing import factors
from worker.curvature import fitting
from worker.tasks import Json, Task

BATCH = 32
"""Rows: four batches of the scene's."""


def fit_until(root: str, task: Json, phase: int, times: int, reached: Connection) -> None:
    """Run the task until it has told its ``times``-th progress in ``phase``; say so, and wait for the end."""
    torch.set_num_threads(1)
    factors.BATCH_SIZE = BATCH
    fitting.CHECKPOINT_SECONDS = 0.0
    told = 0

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal told
        told += (stage, done) == ("fitting", phase)
        if told == times:
            reached.send(True)
            threading.Event().wait()

    execute(Task.from_json(task), LocalArtifactStore(Path(root)), "cpu", progress)
